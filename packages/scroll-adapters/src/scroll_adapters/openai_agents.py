"""Scroll under the OpenAI Agents SDK: a model input filter that keeps a run's context in a session.

    scroll = ScrollFilter("work.scroll", session="trip")
    agent = Agent(name="guide", model=scroll.model("gpt-x"), tools=[*tools, *scroll.tools])
    config = RunConfig(call_model_input_filter=scroll)
    await Runner.run(agent, text, run_config=config, hooks=scroll)

The filter alone bounds and records a run. `tools` give the model cells with `ms`; `hooks` record
replies with the tokens that the provider counted; `model` sends a request that the provider refuses
as too long once more, shorter, and refuses conversations that the provider keeps
(`conversation_id`, `previous_response_id`), because their requests do not hold the complete list.

The items of the SDK are those of the Responses API, so they are read and cut by the wire protocol.
The SDK's own sessions and results stay complete and untouched.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cached_property
from typing import Any

from agents import (
    Agent,
    AgentOutputSchema,
    FunctionTool,
    Model,
    ModelProvider,
    ModelResponse,
    MultiProvider,
    RunHooks,
    Tool,
    UserError,
)
from agents.run_config import CallModelData, ModelInputData
from agents.tool_context import ToolContext

from scroll_context.hosts import HostAdapter, ToolSpec
from scroll_context.hosts.adapter import is_overflow_error, joined
from scroll_context.messages import parsed_arguments
from scroll_context.session.requests import FollowOptions
from scroll_gateway.wire.layouts import apply
from scroll_gateway.wire.requests import ListReader, WireRequest
from scroll_gateway.wire.responses import Responses

SERVER_HELD = (
    "Scroll cannot bound a conversation that the provider keeps (conversation_id, "
    "previous_response_id): a request holds only its newest items. Run without them, and keep the "
    "history with a session of the SDK or with result.to_input_list()."
)


class ScrollFilter(HostAdapter, RunHooks[Any]):
    """The context of a run, kept in a session. See `HostAdapter` for the arguments."""

    # The newest request, and what was sent with it.
    _newest: tuple[WireRequest, FollowOptions] | None = None

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools of Scroll, for `Agent(tools=…)`."""
        return [self._tool(spec) for spec in self.specs]

    @cached_property
    def _reader(self) -> ListReader:
        return ListReader(Responses())

    def model(self, model: "str | Model | None", provider: ModelProvider | None = None) -> Model:
        """A model that sends a refused request again, shorter. A name is looked up."""
        if not isinstance(model, Model):
            model = (provider or MultiProvider()).get_model(model)
        return _BoundedModel(model, self)

    def _tool(self, spec: ToolSpec) -> FunctionTool:
        async def call(context: ToolContext[Any], raw: str) -> str:
            return await self.aanswer(spec.name, parsed_arguments(raw), context.tool_call_id)

        return FunctionTool(
            name=spec.name,
            description=spec.description,
            params_json_schema=spec.parameters,
            on_invoke_tool=call,
            strict_json_schema=False,
        )

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Called by the SDK before each request."""
        return await asyncio.to_thread(self._bounded, data)

    def _bounded(self, data: CallModelData[Any]) -> ModelInputData:
        instructions = data.model_data.instructions
        if any(tool in self.tools for tool in data.agent.tools) and self.instructions:
            instructions = joined(instructions, self.instructions)
        request = self._reader.read(_body(data.model_data.input))
        if _has_orphans(request):
            raise UserError(SERVER_HELD)
        options = FollowOptions(
            system=instructions or "",
            tools=[*map(_tool_spec, data.agent.tools), *_answer_spec(data.agent)],
            model_name=_model_name(data.agent.model),
        )
        self._newest = request, options
        layout = self.follow(request.messages, **options)
        return ModelInputData(input=_items(apply(request, layout)), instructions=instructions)

    def shorter(self) -> list[Any]:
        """The items of the newest request, after the provider refused it as too long."""
        assert self._newest is not None
        request, options = self._newest
        options["overflowed"] = True
        return _items(apply(request, self.follow(request.messages, **options)))

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        await asyncio.to_thread(self._record, response)

    def _record(self, response: ModelResponse) -> None:
        usage = response.usage
        cached = getattr(usage.input_tokens_details, "cached_tokens", 0) or 0
        value = {
            "output": response.to_input_items(),
            "usage": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "input_tokens_details": {"cached_tokens": cached},
            },
        }
        self.session.replied(Responses().reply(value).reply)


class _BoundedModel(Model):
    """A model below the filter: it sees the provider's refusals."""

    def __init__(self, model: Model, scroll: ScrollFilter) -> None:
        self._model = model
        self._scroll = scroll

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> ModelResponse:
        _check_conversation(options)
        try:
            return await self._model.get_response(system_instructions, input, *args, **options)
        except Exception as error:
            if not is_overflow_error(error):
                raise
            shorter = await asyncio.to_thread(self._scroll.shorter)
            return await self._model.get_response(system_instructions, shorter, *args, **options)

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> AsyncIterator[Any]:
        _check_conversation(options)
        has_begun = False
        try:
            async for event in self._model.stream_response(
                system_instructions, input, *args, **options
            ):
                has_begun = True
                yield event
            return
        except Exception as error:
            if has_begun or not is_overflow_error(error):
                raise
        shorter = await asyncio.to_thread(self._scroll.shorter)
        async for event in self._model.stream_response(
            system_instructions, shorter, *args, **options
        ):
            yield event

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)


def _check_conversation(options: dict[str, Any]) -> None:
    if options.get("conversation_id") or options.get("previous_response_id"):
        raise UserError(SERVER_HELD)


def _has_orphans(request: WireRequest) -> bool:
    """Whether a result has no call: then the call is on the provider's server."""
    calls = {call.id for message in request.messages for call in message.calls}
    return any(
        message.role == "tool" and message.call_id not in calls for message in request.messages
    )


def _body(items: Sequence[Any]) -> bytes:
    """A request body with these items, as the wire protocol reads it."""
    return json.dumps({"input": list(items)}, default=_plain).encode()


def _plain(value: Any) -> Any:
    """The JSON form of an item that is an object of the OpenAI SDK."""
    return value.model_dump(exclude_unset=True)


def _items(body: bytes) -> list[Any]:
    items: list[Any] = json.loads(body)["input"]
    return items


def _tool_spec(tool: Tool) -> ToolSpec:
    return ToolSpec(
        tool.name, getattr(tool, "description", ""), getattr(tool, "params_json_schema", {})
    )


def _answer_spec(agent: Agent[Any]) -> Iterable[ToolSpec]:
    """The schema of a structured answer, which is sent with the request."""
    if isinstance(agent.output_type, type) and agent.output_type is not str:
        schema = AgentOutputSchema(agent.output_type, strict_json_schema=False)
        yield ToolSpec(schema.name(), "", schema.json_schema())


def _model_name(model: Any) -> str:
    return model if isinstance(model, str) else str(getattr(model, "model", ""))
