"""Scroll under Inspect AI: a compaction strategy that moves old steps to an index with addresses.

    scroll = ScrollCompaction("work.scroll", window=120_000)
    agent = react(tools=[*tools, *scroll.tools], compaction=scroll)

When the input of a model grows beyond the threshold, Inspect hands the strategy its messages. They
are recorded in a session, and the model is sent those that fit the window: Inspect's own objects,
apart from folded results and the index. The messages of the sample stay complete. Inspect keeps the
compacted input until the next compaction, so the prefix changes there only.

A strategy is made once for a task and used by all of its samples at the same time. So each
conversation has a session of its own, which begins at its first compaction. Messages after the
newest compaction are not recorded: a strategy never sees them.
"""

import asyncio
import json
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    CompactionStrategy,
    Content,
    ContentImage,
    ContentReasoning,
    Model,
)
from inspect_ai.tool import Tool, ToolDef, ToolInfo, ToolParams
from inspect_ai.util import store as sample_store

from scroll_context.hosts.adapter import (
    PLAIN_TOOLS,
    Closing,
    HostAdapter,
    applied,
    media_of_base64,
)
from scroll_context.messages import Media, ToolCall, ToolSpec
from scroll_context.recall.memory import Memory
from scroll_context.recall.memory_tools import call_tool, recall_tools, tool_specs
from scroll_context.session.host import HostMessage, Layout, Replace
from scroll_context.session.options import SessionOptions
from scroll_context.store import Store
from scroll_context.view.eviction import ViewBudget

SAMPLE, CONVERSATION = "scroll_sample", "scroll_conversation"
"""In the store of a sample: its id here, and its newest conversation with a session."""
COMBINED = "combined_from"
"""In the metadata of a message: the ids of those that Inspect merged into it."""
NOTHING_YET = "Nothing has left the context yet: all earlier messages are above."


class ScrollCompaction(Closing, CompactionStrategy):
    """Bounds the input of an agent's model.

    `place` is a path, an address or an open Store. `window` is the context window in tokens;
    without it, Inspect's figure for the model counts. `close` closes the sessions, and a store that
    this object opened.
    """

    bounds: ClassVar[bool] = True
    stores: ClassVar[bool] = False
    executes: ClassVar[bool] = False

    def __init__(
        self,
        place: Store | str | Path,
        *,
        window: int | None = None,
        options: SessionOptions | None = None,
    ) -> None:
        high = ((options and options.budget) or ViewBudget()).high
        threshold = high if window is None else int(high * window)
        CompactionStrategy.__init__(self, type="edit", threshold=threshold, memory=False)
        self.window = window
        self._options = options or SessionOptions(context="plain")
        self._store = place if isinstance(place, Store) else Store(place, create=True)
        self._conversations: dict[str, _Conversation] = {}
        self._lock = threading.Lock()
        own_store = None if self._store is place else self._store
        self._close = weakref.finalize(self, _closed, self._conversations, own_store)

    async def compact(
        self, model: Model, messages: list[ChatMessage], tools: list[ToolInfo]
    ) -> tuple[list[ChatMessage], ChatMessageUser | None]:
        """The messages to send. Inspect calls this, and appends nothing to the history."""
        sample = sample_store().get(SAMPLE) or uuid.uuid4().hex[:12]
        sample_store().set(SAMPLE, sample)
        conversation = await asyncio.to_thread(self._conversation, sample, messages)
        sample_store().set(CONVERSATION, conversation.session_name)
        specs = [
            ToolSpec(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True))
            for tool in tools
        ]
        return await asyncio.to_thread(conversation.compact, messages, specs, model.name), None

    def _conversation(self, sample: str, messages: Sequence[ChatMessage]) -> "_Conversation":
        """The conversation that these messages continue, or a new one."""
        with self._lock:
            begun = [name for name in self._conversations if name.startswith(f"{sample}-")]
            for name in begun:
                if any(self._conversations[name].has(message) for message in messages):
                    return self._conversations[name]
            name = f"{sample}-{len(begun) + 1}"
            adapter = HostAdapter(self._store, name, window=self.window, options=self._options)
            self._conversations[name] = _Conversation(name, adapter)
            return self._conversations[name]

    @cached_property
    def tools(self) -> list[Tool]:
        """Tools that read what left the context, for the agent's list of tools."""
        # They are only described here, so they need no memory.
        specs = tool_specs(recall_tools(cast(Memory, None), PLAIN_TOOLS))
        return [self._tool(spec) for spec in specs]

    def _tool(self, spec: ToolSpec) -> Tool:
        async def execute(**kwargs: Any) -> str:
            conversation = self._conversations.get(sample_store().get(CONVERSATION, ""))
            if conversation is None:
                return NOTHING_YET
            return await asyncio.to_thread(conversation.recall, spec.name, kwargs)

        # Inspect insists on a description of each parameter.
        properties = {
            name: {"description": name.replace("_", " "), **schema}
            for name, schema in spec.parameters["properties"].items()
        }
        parameters = ToolParams.model_validate({**spec.parameters, "properties": properties})
        return ToolDef(execute, spec.name, spec.description, parameters).as_tool()


class _Conversation:
    """The complete messages of one conversation, and its session."""

    def __init__(self, session_name: str, adapter: HostAdapter) -> None:
        self.session_name = session_name
        self.adapter = adapter
        # Inspect passes the compacted input and what is new, so the originals are kept here.
        self._messages: dict[str, ChatMessage] = {}
        self._inserted: set[str] = set()

    def has(self, message: ChatMessage) -> bool:
        """Whether a message is known here, alone or merged with others."""
        ids = {message.id, *(message.metadata or {}).get(COMBINED, ())}
        return not ids.isdisjoint(self._messages.keys() | self._inserted)

    def compact(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], model_name: str
    ) -> list[ChatMessage]:
        self._messages |= {message.id: message for message in messages if not self.has(message)}
        originals = list(self._messages.values())
        host_messages = [host_message(message) for message in originals]
        layout = self.adapter.follow(host_messages, tools=tools, model_name=model_name)
        if not layout.evicted:
            # Inspect counts more tokens than Scroll does, or the provider refused the input.
            layout = self.adapter.follow(
                host_messages, tools=tools, model_name=model_name, overflowed=True
            )
        sent = apply(layout, originals)
        self._inserted |= {message.id for message in sent if message.id not in self._messages}
        return sent

    def recall(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Answer a call of a recall tool. Inspect's messages record it."""
        memory = self.adapter.session.environment.memory
        answer = call_tool(recall_tools(memory, PLAIN_TOOLS), name, arguments)
        return json.dumps(answer, ensure_ascii=False, default=str)


def host_message(message: ChatMessage) -> HostMessage:
    """A message of Inspect, as a session needs to know it."""
    match message:
        case ChatMessageAssistant():
            calls = [
                ToolCall(call.id, call.function, call.arguments)
                for call in message.tool_calls or ()
            ]
            return HostMessage(
                role="assistant",
                text=message.text,
                calls=tuple(calls),
                id=message.id,
                wire=message,
            )
        case ChatMessageTool():
            return HostMessage(
                role="tool",
                text=message.error.message if message.error else message.text,
                call_id=message.tool_call_id or "",
                name=message.function or "",
                state="error" if message.error else "ok",
                media=_media(message),
                # A recall repeats history, which search must not find again.
                echo=message.function in PLAIN_TOOLS,
                id=message.id,
                wire=message,
            )
    return HostMessage(
        role=message.role, text=message.text, media=_media(message), id=message.id, wire=message
    )


def apply(layout: Layout, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages to send: Inspect's own objects wherever nothing is folded."""
    return applied(
        layout,
        messages,
        inserted=lambda text: ChatMessageUser(content=text),
        replaced=_replaced,
        without_reasoning=_without_reasoning,
    )


def _replaced(message: ChatMessage, item: Replace) -> ChatMessage:
    changes: dict[str, Any] = {"content": item.text}
    if isinstance(message, ChatMessageTool):
        # Providers are sent the error in place of the content.
        changes["error"] = None
    if item.calls:
        shorter = {call.id: call.arguments for call in item.calls}
        changes["tool_calls"] = [
            _with_arguments(call, shorter.get(call.id, call.arguments))
            for call in message.tool_calls
        ]
    return message.model_copy(update=changes)


def _with_arguments(call: Any, arguments: Any) -> Any:
    return type(call)(id=call.id, function=call.function, arguments=arguments, type=call.type)


def _without_reasoning(message: ChatMessage) -> ChatMessage:
    if isinstance(message.content, str):
        return message
    content = [part for part in message.content if not isinstance(part, ContentReasoning)]
    return message.model_copy(update={"content": content})


def _media(message: ChatMessage) -> tuple[Media, ...]:
    if isinstance(message.content, str):
        return ()
    images = [part for part in message.content if isinstance(part, ContentImage)]
    return tuple(map(_image, images))


def _image(part: Content) -> Media:
    header, _, data = part.image.partition(",")
    if not header.startswith("data:") or not header.endswith(";base64"):
        return Media(media_type="image/*", url=part.image)
    return media_of_base64(data, header.removeprefix("data:").partition(";")[0])


def _closed(conversations: dict[str, _Conversation], store: Store | None) -> None:
    for conversation in conversations.values():
        conversation.adapter.close()
    if store is not None:
        store.close()
