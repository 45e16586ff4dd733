"""Scroll under an AgentScope 2 agent: a middleware that keeps the agent's context in a session.

    scroll = ScrollMiddleware("work.scroll", session="trip")
    toolkit = Toolkit(tools=[*tools, *scroll.tools])
    agent = Agent("guide", "You plan trips.", model, toolkit=toolkit, middlewares=[scroll])

Before each model call, the messages of the agent's context are recorded in the session, and the
model is sent those that fit its window: AgentScope's own blocks, apart from folded results and the
index. The context in the agent's state stays complete, and AgentScope's own compression is off. A
request that the provider refuses as too long is evicted further and sent again, once.

AgentScope keeps all steps of a reply in one message. A session needs them apart, so each run of
text, reasoning and calls is one message for it, and each result is one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from agentscope.message import (
    Base64Source,
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    UserMsg,
)
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatResponse
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import ToolBase, ToolChunk, ToolResponse

from scroll_context.hosts import (
    Drop,
    HostAdapter,
    HostMessage,
    Insert,
    Keep,
    Layout,
    Media,
    Replace,
    Reply,
    Thinking,
    ToolCall,
    ToolSpec,
    Usage,
)
from scroll_context.hosts.adapter import is_overflow_error, media_of_base64
from scroll_context.messages import arguments_text, parsed_arguments


class ScrollMiddleware(HostAdapter, MiddlewareBase):
    """The context of an agent, kept in a session. See `HostAdapter` for the arguments."""

    @cached_property
    def tools(self) -> list[ToolBase]:
        """The tools of Scroll, for `Toolkit(tools=…)`."""
        return [_Tool(spec) for spec in self.specs]

    async def list_tools(self) -> list[ToolBase]:
        return self.tools

    async def on_compress_context(self, agent: Any, input_kwargs: Any, next_handler: Any) -> None:
        """The session bounds the requests, so the context stays complete."""

    async def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]
    ) -> AsyncGenerator[Any, None]:
        """Carry out the calls of Scroll's own tools: only this hook knows the ids of calls."""
        call = input_kwargs["tool_call"]
        if call.name not in {tool.name for tool in self.tools}:
            async for chunk in next_handler(**input_kwargs):
                yield chunk
            return
        text = await self.aanswer(call.name, parsed_arguments(call.input), call.id)
        block = TextBlock(text=text)
        yield ToolChunk(content=[block], state=ToolResultState.SUCCESS)
        yield ToolResponse(content=[block], id=call.id)

    async def on_model_call(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]
    ) -> Any:
        try:
            sent = await asyncio.to_thread(self._bounded, input_kwargs)
            response = await next_handler(**{**input_kwargs, "messages": sent})
        except Exception as error:
            if not is_overflow_error(error):
                raise
            sent = await asyncio.to_thread(self._bounded, input_kwargs, overflowed=True)
            response = await next_handler(**{**input_kwargs, "messages": sent})
        if isinstance(response, ChatResponse):
            await asyncio.to_thread(self._record, response)
            return response
        return self._recorded(response)

    async def _recorded(
        self, chunks: AsyncGenerator[ChatResponse, None]
    ) -> AsyncGenerator[ChatResponse, None]:
        """A streamed response, whose last chunk holds all of it."""
        async for chunk in chunks:
            if chunk.is_last:
                await asyncio.to_thread(self._record, chunk)
            yield chunk

    def _bounded(self, request: dict[str, Any], *, overflowed: bool = False) -> list[Msg]:
        """The messages that fit the window."""
        messages, schemas = list(request["messages"]), request["tools"] or []
        specs = [_tool_spec(schema) for schema in schemas]
        own = {tool.name for tool in self.tools}
        if self.instructions and any(spec.name in own for spec in specs):
            messages[0] = _with_text(messages[0], self.instructions)
        parts = list(host_parts(messages))
        model = request["current_model"]
        layout = self.follow(
            [part.message for part in parts],
            tools=specs,
            window=model.context_size,
            model_name=model.model,
            overflowed=overflowed,
        )
        return apply(layout, messages, parts)

    def _record(self, response: ChatResponse) -> None:
        if response.content:
            self.session.replied(reply(response))


class _Tool(ToolBase):
    """A tool of Scroll as the model sees it. The middleware carries out its calls."""

    is_concurrency_safe = False
    is_read_only = True

    def __init__(self, spec: ToolSpec) -> None:
        super().__init__()
        self.name = spec.name
        self.description = spec.description
        self.input_schema = spec.parameters

    async def check_permissions(self, tool_input: Any, context: Any) -> PermissionDecision:
        # Cells run in the jail, and tools that have effects ask by `confirm`.
        return PermissionDecision(PermissionBehavior.ALLOW, "Cells run in Scroll's jail.")

    async def call(self, *args: Any, **kwargs: Any) -> ToolChunk:
        text = f"not run: pass the ScrollMiddleware that {self.name!r} belongs to, as middlewares="
        return ToolChunk(content=[TextBlock(text=text)], state=ToolResultState.ERROR)


class HostPart(NamedTuple):
    """One message for the session, and its blocks in AgentScope's list."""

    message: HostMessage
    place: int
    blocks: range


def host_parts(messages: Sequence[Msg]) -> Iterator[HostPart]:
    """The messages of a context of AgentScope, as a session needs to know them."""
    for place, message in enumerate(messages):
        if message.role != "assistant":
            yield HostPart(_spoken(message), place, range(len(message.content)))
            continue
        start = 0
        for number, block in enumerate(message.content):
            if isinstance(block, ToolResultBlock | HintBlock):
                if start < number:
                    blocks = message.content[start:number]
                    yield HostPart(_reply_message(blocks), place, range(start, number))
                yield HostPart(_between(block), place, range(number, number + 1))
                start = number + 1
        if start < len(message.content):
            blocks = message.content[start:]
            yield HostPart(_reply_message(blocks), place, range(start, len(message.content)))


def _spoken(message: Msg) -> HostMessage:
    hints = [_hint(block) for block in message.content if isinstance(block, HintBlock)]
    text = "\n".join([_text(message.content), *hints]).strip()
    if message.role == "system":
        return HostMessage(role="system", text=text, wire=message)
    is_hint = len(hints) == len(message.content)
    media = _media(message.content)
    return HostMessage(
        role="user", text=text, media=media, notice=is_hint, id=message.id, wire=message
    )


def _reply_message(blocks: Sequence[Any]) -> HostMessage:
    answer = _reply(blocks)
    return HostMessage(
        role="assistant", text=answer.text, calls=answer.tool_calls, thinking=answer.thinking
    )


def _between(block: ToolResultBlock | HintBlock) -> HostMessage:
    if isinstance(block, HintBlock):
        return HostMessage(role="user", text=_hint(block), notice=True, id=block.id)
    output = block.output
    return HostMessage(
        role="tool",
        text=output if isinstance(output, str) else _text(output),
        media=() if isinstance(output, str) else _media(output),
        call_id=block.id,
        name=block.name,
        state="ok" if block.state == ToolResultState.SUCCESS else "error",
    )


def reply(response: ChatResponse) -> Reply:
    """The reply of an AgentScope model."""
    usage = response.usage
    counted = Usage()
    if usage is not None:
        counted = Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=getattr(usage, "cache_input_tokens", 0) or 0,
        )
    return _reply(response.content, counted)


def _reply(blocks: Sequence[Any], usage: Usage | None = None) -> Reply:
    calls = [
        ToolCall(block.id, block.name, parsed_arguments(block.input))
        for block in blocks
        if isinstance(block, ToolCallBlock)
    ]
    thinking = [
        Thinking(text=block.thinking, provider="agentscope")
        for block in blocks
        if isinstance(block, ThinkingBlock)
    ]
    return Reply(
        text=_text(blocks),
        tool_calls=tuple(calls),
        thinking=tuple(thinking),
        usage=usage or Usage(),
    )


def apply(layout: Layout, messages: Sequence[Msg], parts: Sequence[HostPart]) -> list[Msg]:
    """The messages to send: AgentScope's own blocks wherever nothing is folded.

    An insertion between two steps of one message splits it.
    """
    sent: list[Msg] = []
    place = -1
    blocks: list[Any] = []
    for item in layout:
        if isinstance(item, Drop):
            continue
        next_place = -1 if isinstance(item, Insert) else parts[item.index].place
        if next_place != place or isinstance(item, Insert):
            sent.extend(_message(messages, place, blocks))
            place, blocks = next_place, []
        if isinstance(item, Insert):
            sent.append(UserMsg(name="user", content=item.text))
        else:
            part = parts[item.index]
            own = messages[part.place].content[part.blocks.start : part.blocks.stop]
            blocks.extend(_blocks(own, item))
    sent.extend(_message(messages, place, blocks))
    if layout.tail:
        sent.append(UserMsg(name="user", content=layout.tail))
    return sent


def _message(messages: Sequence[Msg], place: int, blocks: Sequence[Any]) -> Iterator[Msg]:
    """A message with the blocks that are sent of it; AgentScope's own if that is all of them."""
    if not blocks:
        return
    message = messages[place]
    is_complete = len(blocks) == len(message.content) and all(
        new is old for new, old in zip(blocks, message.content, strict=True)
    )
    yield message if is_complete else message.model_copy(update={"content": list(blocks)})


def _blocks(blocks: Sequence[Any], item: Keep | Replace) -> list[Any]:
    if isinstance(item, Keep):
        if item.thinking:
            return list(blocks)
        return [block for block in blocks if not isinstance(block, ThinkingBlock)]
    first = blocks[0]
    if isinstance(first, ToolResultBlock):
        return [first.model_copy(update={"output": item.text})]
    shorter = {call.id: arguments_text(call) for call in item.calls}
    sent: list[Any] = []
    if item.text:
        sent.append(TextBlock(text=item.text))
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            arguments = shorter.get(block.id, block.input)
            sent.append(block.model_copy(update={"input": arguments}))
    return sent


def _with_text(message: Msg, text: str) -> Msg:
    return message.model_copy(update={"content": [*message.content, TextBlock(text=text)]})


def _tool_spec(schema: dict[str, Any]) -> ToolSpec:
    function = schema.get("function", schema)
    return ToolSpec(
        function.get("name", ""), function.get("description", ""), function.get("parameters", {})
    )


def _text(blocks: Sequence[Any]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _hint(block: HintBlock) -> str:
    return block.hint if isinstance(block.hint, str) else _text(block.hint)


def _media(blocks: Sequence[Any]) -> tuple[Media, ...]:
    return tuple(_medium(block) for block in blocks if isinstance(block, DataBlock))


def _medium(block: DataBlock) -> Media:
    source, name = block.source, block.name or ""
    if not isinstance(source, Base64Source):
        return Media(media_type=source.media_type, url=str(source.url), name=name)
    return media_of_base64(source.data, source.media_type, name)
