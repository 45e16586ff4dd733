"""Scroll under a LangChain agent: a middleware that keeps the agent's context in a session.

    middleware = ScrollMiddleware("work.scroll", session="trip")
    agent = create_agent(model, tools, middleware=[middleware])

Before each model call, the messages of the agent's state are recorded in the session, and the model
is sent those that fit its window: LangChain's own objects, apart from folded results and the index.
State and checkpoints stay complete and untouched. A request that the provider refuses as too long
is evicted further and sent again, once.

One middleware serves one conversation (one thread of LangGraph). Cells of one reply may run in any
order, because LangGraph runs the calls of a reply side by side.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from langchain.agents.middleware import (
    AgentMiddleware,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from scroll_context.hosts import (
    HostAdapter,
    HostMessage,
    Layout,
    Media,
    Replace,
    Reply,
    Thinking,
    ToolCall,
    ToolSpec,
    Usage,
)
from scroll_context.hosts.adapter import applied, is_overflow_error, joined, media_of_base64

MEDIA_BLOCKS = ("image", "audio", "video", "file")
REASONING_BLOCKS = ("reasoning", "thinking", "redacted_thinking", "reasoning_content")

Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]


class ScrollMiddleware(HostAdapter, AgentMiddleware[Any, Any, Any]):
    """The context of an agent, kept in a session. See `HostAdapter` for the arguments."""

    @cached_property
    def tools(self) -> list[BaseTool]:
        """The tools of Scroll, which `create_agent` adds to the agent's own."""
        return [self._tool(spec) for spec in self.specs]

    def _tool(self, spec: ToolSpec) -> BaseTool:
        """A tool as the model sees it. Its calls are carried out in `wrap_tool_call`, which knows
        their ids.
        """

        def call(**arguments: Any) -> str:
            return self.answer(spec.name, arguments, "")

        return StructuredTool.from_function(
            call, name=spec.name, description=spec.description, args_schema=spec.parameters
        )

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Any:
        if not self._is_own(request):
            return handler(request)
        call = request.tool_call
        text = self.answer(call["name"], call["args"], call["id"] or "")
        return ToolMessage(content=text, tool_call_id=call["id"], name=call["name"])

    def _is_own(self, request: ToolCallRequest) -> bool:
        return any(request.tool is tool for tool in self.tools)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        if not self._is_own(request):
            return await handler(request)
        call = request.tool_call
        text = await self.aanswer(call["name"], call["args"], call["id"] or "")
        return ToolMessage(content=text, tool_call_id=call["id"], name=call["name"])

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        try:
            response = handler(self._bounded(request))
        except Exception as error:
            if not _is_overflow(error):
                raise
            response = handler(self._bounded(request, overflowed=True))
        self._record(response)
        return response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: AsyncHandler
    ) -> ModelResponse[Any]:
        try:
            response = await handler(await asyncio.to_thread(self._bounded, request))
        except Exception as error:
            if not _is_overflow(error):
                raise
            shorter = await asyncio.to_thread(self._bounded, request, overflowed=True)
            response = await handler(shorter)
        await asyncio.to_thread(self._record, response)
        return response

    def _bounded(
        self, request: ModelRequest[Any], *, overflowed: bool = False
    ) -> ModelRequest[Any]:
        """The request with the messages that fit the window."""
        messages = [host_message(message) for message in request.messages]
        system = _with_instructions(request.system_message, self.instructions)
        layout = self.follow(
            messages,
            system=str(system.text) if system else "",
            tools=[*map(_tool_spec, request.tools), *_answer_specs(request.response_format)],
            window=(getattr(request.model, "profile", None) or {}).get("max_input_tokens", 0),
            model_name=str(getattr(request.model, "model_name", type(request.model).__name__)),
            overflowed=overflowed,
        )
        return request.override(messages=apply(layout, request.messages), system_message=system)

    def _record(self, response: ModelResponse[Any]) -> None:
        for message in response.result:
            if isinstance(message, AIMessage):
                self.session.replied(reply(message), id=message.id or "")


def host_message(message: BaseMessage) -> HostMessage:
    """A message of LangChain, as a session needs to know it."""
    text, host_id = str(message.text), message.id or ""
    match message:
        case AIMessage():
            answer = reply(message)
            return HostMessage(
                role="assistant",
                text=answer.text,
                calls=answer.tool_calls,
                thinking=answer.thinking,
                id=host_id,
                wire=message,
            )
        case ToolMessage():
            return HostMessage(
                role="tool",
                text=text,
                call_id=message.tool_call_id,
                name=message.name or "",
                state="error" if message.status == "error" else "ok",
                media=_media(message),
                id=host_id,
                wire=message,
            )
        case SystemMessage():
            return HostMessage(role="system", text=text, id=host_id, wire=message)
        case HumanMessage():
            return HostMessage(
                role="user", text=text, media=_media(message), id=host_id, wire=message
            )
    # Another kind of message. It is sent as it is, and recorded as a notice.
    return HostMessage(role="user", text=text, notice=True, id=host_id, wire=message)


def reply(message: AIMessage) -> Reply:
    """The reply of a LangChain model."""
    calls = [
        ToolCall(call["id"] or "", call["name"], dict(call["args"])) for call in message.tool_calls
    ]
    calls += [
        ToolCall(call["id"] or "", call["name"] or "", call["args"] or "")
        for call in message.invalid_tool_calls
    ]
    usage = message.usage_metadata
    counted = Usage()
    if usage is not None:
        details = usage.get("input_token_details") or {}
        counted = Usage(
            input_tokens=usage["input_tokens"],
            output_tokens=usage["output_tokens"],
            cache_read_tokens=details.get("cache_read") or 0,
            cache_write_tokens=details.get("cache_creation") or 0,
        )
    return Reply(
        text=str(message.text),
        tool_calls=tuple(calls),
        thinking=tuple(_thinking(message)),
        usage=counted,
        model=str(message.response_metadata.get("model_name", "")),
    )


def apply(layout: Layout, messages: Sequence[BaseMessage]) -> list[Any]:
    """The messages to send: LangChain's own objects wherever nothing is folded."""
    return applied(
        layout,
        messages,
        inserted=lambda text: HumanMessage(content=text),
        replaced=_replaced,
        without_reasoning=_without_reasoning,
    )


def _replaced(message: BaseMessage, item: Replace) -> BaseMessage:
    changes: dict[str, Any] = {"content": item.text}
    if isinstance(message, AIMessage):
        # Some integrations repeat the calls and the reasoning there, and send them from there.
        repeated = ("tool_calls", "reasoning_content")
        changes["additional_kwargs"] = {
            name: value for name, value in message.additional_kwargs.items() if name not in repeated
        }
        if item.calls:
            arguments = {call.id: call.arguments for call in item.calls}
            changes["tool_calls"] = [
                {**call, "args": arguments.get(call["id"] or "", call["args"])}
                for call in message.tool_calls
            ]
    return message.model_copy(update=changes)


def _without_reasoning(message: BaseMessage) -> BaseMessage:
    content = message.content
    if not isinstance(content, str):
        content = [block for block in content if _block_type(block) not in REASONING_BLOCKS]
    extra = dict(message.additional_kwargs)
    extra.pop("reasoning_content", None)
    return message.model_copy(update={"content": content, "additional_kwargs": extra})


def _block_type(block: str | dict[str, Any]) -> str:
    return "text" if isinstance(block, str) else str(block.get("type", ""))


def _thinking(message: AIMessage) -> Iterable[Thinking]:
    for block in message.content_blocks:
        if block["type"] == "reasoning":
            yield Thinking(text=block.get("reasoning", ""), provider="langchain")


def _media(message: BaseMessage) -> tuple[Media, ...]:
    if isinstance(message.content, str):
        return ()
    blocks: list[Any] = [block for block in message.content_blocks if block["type"] in MEDIA_BLOCKS]
    return tuple(_medium(block) for block in blocks)


def _medium(block: dict[str, Any]) -> Media:
    default = "application/octet-stream" if block["type"] == "file" else f"{block['type']}/*"
    media_type = block.get("mime_type") or default
    name = str((block.get("extras") or {}).get("filename", ""))
    if block.get("base64"):
        return media_of_base64(block["base64"], media_type, name)
    url = str(block.get("url") or block.get("file_id") or "")
    return Media(media_type=media_type, url=url, name=name)


def _with_instructions(system: SystemMessage | None, text: str) -> SystemMessage | None:
    if not text:
        return system
    if system is None:
        return SystemMessage(content=text)
    if isinstance(system.content, str):
        return system.model_copy(update={"content": joined(system.content, text)})
    block = {"type": "text", "text": text}
    return system.model_copy(update={"content": [*system.content, block]})


def _tool_spec(tool: BaseTool | dict[str, Any]) -> ToolSpec:
    if isinstance(tool, dict) and "function" not in tool and "name" not in tool:
        # A tool that the provider itself carries out.
        return ToolSpec(str(tool.get("type", "")), "", tool)
    function = convert_to_openai_tool(tool)["function"]
    return ToolSpec(
        function["name"], function.get("description", ""), function.get("parameters", {})
    )


def _answer_specs(response_format: Any) -> list[ToolSpec]:
    """The schema of a structured answer, which is sent with the request."""
    if isinstance(response_format, AutoStrategy):
        response_format = ToolStrategy(response_format.schema)
    if isinstance(response_format, ToolStrategy):
        schemas = response_format.schema_specs
    elif isinstance(response_format, ProviderStrategy):
        schemas = [response_format.schema_spec]
    else:
        schemas = []
    return [ToolSpec(spec.name, spec.description, spec.json_schema) for spec in schemas]


def _is_overflow(error: Exception) -> bool:
    return isinstance(error, ContextOverflowError) or is_overflow_error(error)
