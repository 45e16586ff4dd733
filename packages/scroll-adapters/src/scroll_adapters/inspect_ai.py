"""Scroll under Inspect AI: a compaction strategy that moves old steps to an index with addresses.

    scroll = ScrollCompaction("work.scroll", window=120_000)
    agent = react(tools=[*tools, *scroll.tools], compaction=scroll)

When the input of a model grows beyond the threshold, Inspect hands the strategy its messages. They
are recorded in a session, and the model is sent those that fit the window: Inspect's own objects,
apart from folded results and the index. The messages of the sample stay complete. Inspect keeps the
compacted input until the next compaction, so the prefix changes there only.

A strategy is made once for a task and used by all of its samples at the same time. So each
conversation has a session of its own, which begins at its first compaction. A program with one
conversation names its session, and a later process resumes it. Messages after the newest compaction
are not recorded: a strategy never sees them.
"""

import asyncio
import json
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import dropwhile
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

from scroll_context import Session, SessionOptions, Store, ViewBudget
from scroll_context.hosts import (
    HostAdapter,
    HostMessage,
    Layout,
    Media,
    Replace,
    ToolCall,
    ToolSpec,
    call_tool,
    recall_tools,
    tool_specs,
)
from scroll_context.hosts.adapter import PLAIN_TOOLS, Closing, applied, media_of_base64
from scroll_context.recall.memory import Memory

SAMPLE, CONVERSATION = "scroll_sample", "scroll_conversation"
"""In the store of a sample: its id here, and its newest conversation with a session."""
COMBINED = "combined_from"
"""In the metadata of a message: the ids of the last two that Inspect merged into it."""
INSERTED = {"scroll": "inserted"}
"""The metadata of messages that Scroll inserts, to be known in a later process too."""
NOTHING_YET = "Nothing has left the context yet: all earlier messages are above."


class ScrollCompaction(Closing, CompactionStrategy):
    """Bounds the input of an agent's model.

    `place` is a path, an address or an open Store. `session` names the session of the only
    conversation; without it, each conversation begins a session. `window` is the context window in
    tokens; without it, Inspect's figure for the model counts. `close` closes the sessions, and a
    store that this object opened.
    """

    bounds: ClassVar[bool] = True
    stores: ClassVar[bool] = False
    executes: ClassVar[bool] = False

    def __init__(
        self,
        place: Store | str | Path,
        session: str = "",
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
        self._samples: set[str] = set()
        self._lock = threading.Lock()
        own_store = None if self._store is place else self._store
        self._close = weakref.finalize(self, _closed, self._conversations, own_store)
        # The session of the only conversation, if it was named.
        self.session: Session | None = None
        if session:
            self.session = self._begin(session).adapter.session

    @property
    def preserve_prefix(self) -> bool:
        """Inspect puts back the system messages only. It would put back all messages that an agent
        was given at its start, and those of a long conversation do not fit.
        """
        return False

    async def compact(
        self, model: Model, messages: list[ChatMessage], tools: list[ToolInfo]
    ) -> tuple[list[ChatMessage], ChatMessageUser | None]:
        """The messages to send. Inspect calls this, and appends nothing to the history."""
        sample = sample_store().get(SAMPLE)
        if sample not in self._samples:
            # Also where a checkpoint of Inspect was restored in another process: its messages are
            # no longer complete, and would be taken for a history that was cut.
            sample = uuid.uuid4().hex[:12]
            self._samples.add(sample)
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
            if self.session is not None:
                return self._conversations[self.session.scope.session_id]
            begun = [name for name in self._conversations if name.startswith(f"{sample}-")]
            for name in begun:
                if self._conversations[name].knows_any(messages):
                    return self._conversations[name]
            return self._begin(f"{sample}-{len(begun) + 1}")

    def _begin(self, name: str) -> "_Conversation":
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
        self._originals: list[ChatMessage] = []
        # The ids of the messages that the newest compaction returned, and of those it left out.
        self._returned: set[str] = set()
        self._dropped: set[str] = set()
        self._last_returned = ""

    def knows_any(self, messages: Sequence[ChatMessage]) -> bool:
        return any(not self._known.isdisjoint(_ids(message)) for message in messages)

    @property
    def _known(self) -> set[str]:
        return self._returned | self._dropped

    def compact(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], model_name: str
    ) -> list[ChatMessage]:
        is_compacted = self._is_compacted(messages)
        originals = list(messages)
        if is_compacted:
            new = [message for message in messages if self._known.isdisjoint(_ids(message))]
            originals = [*self._originals, *new]
        host_messages = [host_message(message) for message in originals]
        layout = self.adapter.follow(host_messages, tools=tools, model_name=model_name)
        if not layout.evicted and (is_compacted or layout.is_unchanged):
            # Inspect counts more tokens than Scroll does, or the provider refused the input.
            layout = self.adapter.follow(
                host_messages, tools=tools, model_name=model_name, overflowed=True
            )
        sent = apply(layout, originals)
        self._originals = originals
        self._returned = {str(message.id) for message in sent}
        self._dropped = {str(message.id) for message in originals} - self._returned
        self._last_returned = str(sent[-1].id)
        # Inspect puts the system messages before the others.
        return list(dropwhile(lambda message: message.role == "system", sent))

    def _is_compacted(self, messages: Sequence[ChatMessage]) -> bool:
        """Whether these are the messages of the newest compaction, and what came after it.

        An agent that is started again with its history passes complete messages instead, in which
        prompts may be edited or taken back.
        """
        present = {message_id for message in messages for message_id in _ids(message)}
        return self._last_returned in present and self._dropped.isdisjoint(present)

    def recall(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Answer a call of a recall tool. Inspect's messages record it."""
        memory = self.adapter.session.environment.memory
        answer = call_tool(recall_tools(memory, PLAIN_TOOLS), name, arguments)
        return json.dumps(answer, ensure_ascii=False, default=str)


def _ids(message: ChatMessage) -> set[str]:
    """The ids of a message, and of the last two that Inspect merged into it."""
    return {str(message.id), *(message.metadata or {}).get(COMBINED, ())}


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
        role=message.role,
        text=message.text,
        media=_media(message),
        notice=(message.metadata or {}).items() >= INSERTED.items(),
        id=message.id,
        wire=message,
    )


def apply(layout: Layout, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages to send: Inspect's own objects wherever nothing is folded."""
    return applied(
        layout,
        messages,
        inserted=lambda text: ChatMessageUser(content=text, metadata=dict(INSERTED)),
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
