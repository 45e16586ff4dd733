"""Scroll under a pydantic-ai agent: a capability that keeps the agent's context in a session.

    capability = ScrollCapability("work.scroll", session="trip")
    agent = Agent("anthropic:claude-x", capabilities=[capability])

Before each attempt at a request, the agent's messages are recorded in the session, and the model is
sent those that fit its window. Everything that is sent is a message of pydantic-ai's own, apart
from folded tool results and the index; the history that pydantic-ai keeps stays complete and
untouched. The model gets one more tool, `exec`, for cells with `ms` and the session's own tools. A
request that the provider refuses as too long is evicted further and sent again, once.

One session serves one conversation: do not share it between runs at the same time.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic_ai import RunContext, Tool
from pydantic_ai import messages as foreign
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelContextWindowExceededError, RetryModelRequest
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.toolsets import FunctionToolset

from scroll_context.hosts import (
    Drop,
    HostAdapter,
    HostMessage,
    Insert,
    Keep,
    Layout,
    Media,
    Replace,
    ToolSpec,
)
from scroll_context.hosts.adapter import joined
from scroll_context.models.translate import reply


class ScrollCapability(HostAdapter, AbstractCapability[Any]):
    """The context of an agent, kept in a session. See `HostAdapter` for the arguments."""

    # Whether the provider refused the last request as too long.
    _refused = False

    def get_instructions(self) -> str:
        return self.instructions

    def get_toolset(self) -> FunctionToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()
        for spec in self.specs:
            toolset.add_tool(self._tool(spec))
        return toolset

    def _tool(self, spec: ToolSpec) -> Tool[Any]:
        async def call(ctx: RunContext[Any], **arguments: Any) -> str:
            return await self.aanswer(spec.name, arguments, ctx.tool_call_id or "")

        # In order, since a cell may use what the cell before it bound.
        return Tool.from_schema(
            call,
            name=spec.name,
            description=spec.description,
            json_schema=spec.parameters,
            takes_ctx=True,
            sequential=True,
        )

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        messages = request_context.messages
        parts = list(host_parts(messages))
        layout = await asyncio.to_thread(self._follow, parts, request_context)
        request_context.messages = apply(layout, messages, parts)
        return request_context

    def _follow(self, parts: Sequence["HostPart"], context: ModelRequestContext) -> Layout:
        parameters = context.model_request_parameters
        specs = [
            ToolSpec(tool.name, tool.description or "", tool.parameters_json_schema)
            for tool in (*parameters.function_tools, *parameters.output_tools)
        ]
        texts = [part.content for part in parameters.instruction_parts or ()]
        refused, self._refused = self._refused, False
        return self.follow(
            [part.message for part in parts],
            system=joined(*texts),
            tools=specs,
            window=getattr(context.model, "context_window", None) or 0,
            model_name=context.model.model_id,
            overflowed=refused,
        )

    async def after_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        response: foreign.ModelResponse,
    ) -> foreign.ModelResponse:
        await asyncio.to_thread(self.session.replied, reply(response))
        return response

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> foreign.ModelResponse:
        if isinstance(error, ModelContextWindowExceededError) and request_context.attempt == 1:
            self._refused = True
            raise RetryModelRequest from error
        raise error


class HostPart(NamedTuple):
    """One message for the session, and where it is in pydantic-ai's history.

    A response is one message; each part of a request is one.
    """

    message: HostMessage
    place: int
    part: int = 0


def host_parts(messages: Sequence[foreign.ModelMessage]) -> Iterator[HostPart]:
    """The messages of a history of pydantic-ai, as a session needs to know them."""
    for place, message in enumerate(messages):
        if isinstance(message, foreign.ModelResponse):
            answer = reply(message)
            yield HostPart(
                HostMessage(
                    role="assistant",
                    text=answer.text,
                    calls=answer.tool_calls,
                    thinking=answer.thinking,
                    wire=message,
                ),
                place,
            )
            continue
        for number, part in enumerate(message.parts):
            yield HostPart(_host_message(part, message), place, number)


def _host_message(part: foreign.ModelRequestPart, wire: foreign.ModelRequest) -> HostMessage:
    match part:
        case foreign.SystemPromptPart():
            return HostMessage(role="system", text=part.content, wire=wire)
        case foreign.UserPromptPart():
            return HostMessage(
                role="user", text=_text(part.content), media=_media(part.content), wire=wire
            )
        case foreign.ToolReturnPart():
            return HostMessage(
                role="tool",
                text=part.model_response_str(),
                call_id=part.tool_call_id,
                name=part.tool_name,
                state="ok" if part.outcome == "success" else "error",
                media=_media(part.files),
                wire=wire,
            )
        case foreign.RetryPromptPart() if part.tool_name:
            return HostMessage(
                role="tool",
                text=part.model_response(),
                call_id=part.tool_call_id,
                name=part.tool_name,
                state="error",
                wire=wire,
            )
        case foreign.RetryPromptPart():
            return HostMessage(role="user", text=part.model_response(), notice=True, wire=wire)
    # A kind of part that is newer than this module. It is sent as it is, and recorded as a notice.
    return HostMessage(role="user", text=repr(part), notice=True, wire=wire)


def _text(content: str | Sequence[foreign.UserContent]) -> str:
    if isinstance(content, str):
        return content
    texts = [part.content if isinstance(part, foreign.TextContent) else part for part in content]
    return "\n".join(text for text in texts if isinstance(text, str))


def _media(content: str | Sequence[Any]) -> tuple[Media, ...]:
    if isinstance(content, str):
        return ()
    media: list[Media] = []
    for part in content:
        if isinstance(part, foreign.BinaryContent):
            media.append(
                Media(media_type=part.media_type, data=part.data, name=part.identifier or "")
            )
        elif isinstance(part, foreign.FileUrl):
            media.append(Media(media_type=part.media_type, url=part.url))
    return tuple(media)


def apply(
    layout: Layout, messages: Sequence[foreign.ModelMessage], parts: Sequence[HostPart]
) -> list[foreign.ModelMessage]:
    """The messages to send: pydantic-ai's own objects wherever nothing is folded."""
    remaining: dict[int, list[foreign.ModelRequestPart]] = {}
    sent: list[foreign.ModelMessage | int] = []
    for item in layout:
        if isinstance(item, Insert):
            sent.append(_prompt(item.text))
            continue
        place, number = parts[item.index].place, parts[item.index].part
        message = messages[place]
        if isinstance(message, foreign.ModelResponse):
            if not isinstance(item, Drop):
                sent.append(_response(message, item))
            continue
        if place not in remaining:
            remaining[place] = []
            sent.append(place)
        if not isinstance(item, Drop):
            remaining[place].append(_part(message.parts[number], item))
    out: list[foreign.ModelMessage] = []
    for entry in sent:
        if not isinstance(entry, int):
            out.append(entry)
        elif remaining[entry]:
            out.append(_request(messages[entry], remaining[entry]))
    if layout.tail:
        out.append(_prompt(layout.tail))
    return out


def _prompt(text: str) -> foreign.ModelRequest:
    return foreign.ModelRequest(parts=[foreign.UserPromptPart(content=text)])


def _request(
    message: foreign.ModelMessage, parts: list[foreign.ModelRequestPart]
) -> foreign.ModelMessage:
    assert isinstance(message, foreign.ModelRequest)
    unchanged = len(parts) == len(message.parts) and all(
        new is old for new, old in zip(parts, message.parts, strict=True)
    )
    return message if unchanged else replace(message, parts=parts)


def _part(part: foreign.ModelRequestPart, item: Keep | Replace) -> foreign.ModelRequestPart:
    if isinstance(item, Keep):
        return part
    if isinstance(part, foreign.RetryPromptPart) and part.tool_name:
        return foreign.ToolReturnPart(
            tool_name=part.tool_name, content=item.text, tool_call_id=part.tool_call_id
        )
    if isinstance(part, foreign.RetryPromptPart):
        return foreign.UserPromptPart(content=item.text)
    changed: foreign.ModelRequestPart = replace(part, content=item.text)  # type: ignore[arg-type]
    return changed


def _response(message: foreign.ModelResponse, item: Keep | Replace) -> foreign.ModelResponse:
    if isinstance(item, Keep) and item.thinking:
        return message
    parts = [part for part in message.parts if not isinstance(part, foreign.ThinkingPart)]
    if isinstance(item, Replace):
        arguments = {call.id: call.arguments for call in item.calls}
        texts = [foreign.TextPart(content=item.text)] if item.text else []
        calls = [
            replace(part, args=arguments[part.tool_call_id])  # type: ignore[arg-type]
            if part.tool_call_id in arguments
            else part
            for part in parts
            if isinstance(part, foreign.ToolCallPart)
        ]
        parts = [*texts, *calls]
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)
