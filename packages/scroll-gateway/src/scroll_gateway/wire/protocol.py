"""The common parts of the wire protocols: the shape of a protocol, and its building blocks.

A protocol (`messages`, `chat`, `responses`) knows how one provider writes messages and replies.
`requests` cuts a request body into messages with its help, and `layouts` builds the body that a
layout asks for. Three invariants hold:

- Only what is folded is written again. All other bytes are slices of the client's body, and a body
  whose layout is unchanged is that body.
- A tool call and its results stay or leave together, whatever the layout says.
- A message keeps its identity when a cache mark moves, or when its single text is written as a
  string in one request and as a block in the next: both give an equal HostMessage.

Nothing here does I/O, and nothing here decides what is folded.
"""

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from scroll_context.contents import Usage
from scroll_context.messages import Media, Thinking, ToolCall
from scroll_context.models.protocol import Reply
from scroll_context.session.host import Drop, HostMessage, Keep, Replace
from scroll_gateway.wire.slices import (
    Span,
    decode,
    encode,
    field_spans,
    item_spans,
    with_longer_text,
)

_REMINDER = re.compile(r"\s*<(system-reminder|environment_context|user_instructions|turn_aborted)>")
"""The beginning of a block that coding assistants add to the words of their user."""

Action = Keep | Replace | Drop

Content = tuple[str, tuple[Media, ...]]
"""The text of a message, and its media."""

Replacement = Callable[[Sequence[bytes], str], bytes]
"""Makes the block that stands for a run of content blocks, with another text."""


class Part(NamedTuple):
    """One HostMessage of a wire message, and the run of content blocks that it stands for."""

    message: HostMessage
    first: int = 0
    last: int = 1


class WireMessage(NamedTuple):
    """One message of the client's list: where it stands in the body, and what it holds.

    In Responses, all items of one reply are one message.
    """

    span: Span
    parts: tuple[Part, ...]
    # The values of its cache marks, as bytes.
    marks: tuple[bytes, ...] = ()


class ReplyContent(NamedTuple):
    """The content of a reply, in a list or in a response."""

    text: str
    calls: Sequence[ToolCall] = ()
    thinking: Sequence[Thinking] = ()


class WireReply(NamedTuple):
    """A reply to record, the provider's id of it, and the response that it was read from."""

    reply: Reply
    id: str
    value: Mapping[str, Any] = {}


class ReplyEvents(ABC):
    """Puts a streamed reply together, event by event. Events of unknown types are skipped."""

    @abstractmethod
    def add(self, event: Mapping[str, Any]) -> None:
        """Take the next event of the stream."""

    @abstractmethod
    def value(self) -> dict[str, Any] | None:
        """The reply as if it had not been streamed; None while it is incomplete."""

    @property
    def has_ended(self) -> bool:
        """Whether the last event has come. A protocol without a last event ends with `[DONE]`."""
        return False


class Protocol(ABC):
    """How one provider's API writes requests and replies."""

    name: ClassVar[str]
    # How the path of a request ends.
    path: ClassVar[str]
    # The field of the body that holds the list of messages.
    list_field: ClassVar[str]
    # Whether the provider accepts a reply that consists of thinking alone.
    accepts_lone_thinking: ClassVar[bool] = True

    # reading requests

    def groups(self, values: Sequence[Any]) -> Iterator[range]:
        """Which items of the list form one message."""
        for position in range(len(values)):
            yield range(position, position + 1)

    @abstractmethod
    def parts(
        self, values: Sequence[Any], names: dict[str, str], *, at_head: bool
    ) -> tuple[Part, ...]:
        """The HostMessages of one message.

        `names` maps the ids of earlier calls to their tools, and gets the calls of this message.
        `at_head` says that only system messages stand before it.
        """

    @abstractmethod
    def reply_content(self, value: Any) -> ReplyContent:
        """The content of a reply: of a message, its content, or a run of items."""

    @abstractmethod
    def block(self, block: Mapping[str, Any]) -> str | Media | None:
        """The text or the media of a content block; None for a block of an unknown type."""

    def blocks(self, message: bytes) -> list[Span]:
        """The content blocks of a message with several parts."""
        return item_spans(message, *field_spans(message)["content"])

    def marks(self, values: Sequence[Any]) -> tuple[bytes, ...]:
        """The cache marks in decoded JSON. Only Messages has them."""
        return ()

    @abstractmethod
    def system(self, fields: Mapping[str, bytes]) -> str:
        """The system prompt, where it is a field of the body."""

    def has_tools(self, fields: Mapping[str, bytes], body: bytes) -> bool:
        """Whether a request offers tools to the model."""
        del body
        return bool(decode(fields.get("tools", b"[]")))

    def server_state(self, fields: Mapping[str, bytes]) -> str:
        """The field that says that the provider keeps a part of the conversation, so that the
        list is not complete; "" if there is none.
        """
        del fields
        return ""

    # writing requests

    @abstractmethod
    def edited(self, message: bytes, parts: Sequence[Part], actions: Sequence[Action]) -> bytes:
        """A message after its actions; empty if nothing of it remains."""

    @abstractmethod
    def inserted(self, text: str, mark: bytes) -> bytes:
        """A new user message, with a cache mark if there is one."""

    @abstractmethod
    def with_tail(self, message: bytes, text: str) -> bytes:
        """A user or tool message with more text after everything else in it."""

    # replies

    @abstractmethod
    def reply(self, value: Mapping[str, Any]) -> WireReply:
        """The reply in the body of a response."""

    @abstractmethod
    def events(self) -> ReplyEvents:
        """A collector for a streamed reply."""

    # helpers for the protocols

    def content(self, content: Any) -> Content:
        """The text and the media of a message's content, whether a string or a list of blocks.

        A block of an unknown type counts as its JSON, so that search finds it and an edit of it is
        noticed.
        """
        if content is None:
            return "", ()
        if isinstance(content, str):
            return content, ()
        texts, media = [], []
        for block in content:
            value = block if isinstance(block, str) else self.block(block)
            if isinstance(value, Media):
                media.append(value)
            elif value is not None:
                texts.append(value)
            else:
                plain = {name: part for name, part in block.items() if name != "cache_control"}
                texts.append(encode(plain).decode())
        return "\n".join(texts), tuple(media)

    def reply_part(self, value: Any, names: dict[str, str], last: int = 1) -> Part:
        """The part of a reply, which has `last` content blocks. `names` gets its calls."""
        text, calls, thinking = self.reply_content(value)
        names.update((call.id, call.name) for call in calls)
        message = HostMessage(
            role="assistant", text=text, calls=tuple(calls), thinking=tuple(thinking)
        )
        return Part(message, 0, last)

    def result(
        self, call_id: str, content: Content, names: Mapping[str, str], *, failed: bool = False
    ) -> HostMessage:
        """The message of a tool's result."""
        text, media = content
        return HostMessage(
            role="tool",
            text=text,
            media=media,
            call_id=call_id,
            name=names.get(call_id, ""),
            state="error" if failed else "ok",
        )

    def user_parts(self, content: Any, offset: int = 0) -> list[Part]:
        """The parts of a user's content: each reminder alone, and the blocks between them."""
        if not isinstance(content, list):
            return [self._user_part([content], offset)]
        parts: list[Part] = []
        run: list[Any] = []
        for position, block in enumerate(content, offset):
            if is_reminder(block):
                if run:
                    parts.append(self._user_part(run, position - len(run)))
                parts.append(self._user_part([block], position))
                run = []
            else:
                run.append(block)
        if run:
            parts.append(self._user_part(run, offset + len(content) - len(run)))
        return parts

    def _user_part(self, blocks: list[Any], first: int) -> Part:
        text, media = self.content(blocks)
        notice = len(blocks) == 1 and is_reminder(blocks[0])
        message = HostMessage(role="user", text=text, media=media, notice=notice)
        return Part(message, first, first + len(blocks))


# helpers for the protocols ----------------------------------------------------------------------


def edited_content(
    message: bytes,
    content: Span,
    parts: Sequence[Part],
    actions: Sequence[Action],
    replaced: Replacement,
) -> bytes:
    """A message whose content consists of parts, after the actions; empty if nothing remains."""
    if message[content.start : content.start + 1] != b"[":
        action = actions[0]
        text = encode(action.text) if isinstance(action, Replace) else content.of(message)
        return message[: content.start] + text + message[content.end :]
    spans = item_spans(message, content.start, content.end)
    pieces: list[bytes] = []
    for part, action in zip(parts, actions, strict=True):
        blocks = [span.of(message) for span in spans[part.first : part.last]]
        if isinstance(action, Keep):
            pieces.extend(blocks)
        elif isinstance(action, Replace):
            pieces.append(replaced(blocks, action.text))
    if not pieces:
        return b""
    return message[: spans[0].start] + b",".join(pieces) + message[spans[-1].end :]


def text_block(kind: str) -> Replacement:
    """Replaces any run of blocks by one text block of this type."""
    return lambda _, text: encode({"type": kind, "text": text})


def longer_content(message: bytes, content: Span, text: str, block: bytes) -> bytes:
    """A message with more text at the end of its content: in its string, or as a last block."""
    value = content.of(message)
    if value.startswith(b'"'):
        separator = "" if value == b'""' else "\n\n"
        longer = with_longer_text(value, separator + text)
    elif value.startswith(b"["):
        spans = item_spans(value)
        end = spans[-1].end if spans else 1
        comma = b"," if spans else b""
        longer = value[:end] + comma + block + value[end:]
    else:
        longer = encode(text)
    return message[: content.start] + longer + message[content.end :]


def is_reminder(block: Any) -> bool:
    """Whether a content block is a text that an assistant added to the words of its user."""
    text = block if isinstance(block, str) else block.get("text")
    if not isinstance(text, str):
        return False
    # Block by block: one pattern for all of them took a second for 20 blocks with a word behind
    # them, and twice as long for each further one.
    end = 0
    while (opening := _REMINDER.match(text, end)) is not None:
        closing = f"</{opening[1]}>"
        start = text.find(closing, opening.end())
        if start < 0:
            return False
        end = start + len(closing)
    return end > 0 and not text[end:].strip()


def media_of_url(url: str, media_type: str = "", name: str = "") -> Media:
    """Media at an address, or inside it."""
    head, comma, data = url.partition(",")
    if not (url.startswith("data:") and comma):
        return Media(media_type=media_type or "application/octet-stream", url=url, name=name)
    kind = head.removeprefix("data:").partition(";")[0] or media_type or "text/plain"
    if not head.endswith(";base64"):
        return Media(media_type=kind, data=data.encode(), name=name)
    return Media(media_type=kind, data=from_base64(data), name=name)


def from_base64(data: str) -> bytes:
    try:
        return base64.b64decode(data)
    except binascii.Error as error:
        raise ValueError(f"media that is not base64: {error}") from error


FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "tool_use": "tool_call",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
"""The providers' words for why a reply ended, in ours."""


def make_reply(
    content: ReplyContent, usage: Usage, finish: str, value: Mapping[str, Any]
) -> WireReply:
    """A reply to record, with the model and the id that the response names."""
    reply = Reply(
        text=content.text,
        tool_calls=tuple(content.calls),
        thinking=tuple(content.thinking),
        usage=usage,
        finish_reason=FINISH_REASONS.get(finish, finish),
        model=str(value.get("model") or ""),
    )
    return WireReply(reply, str(value.get("id") or ""), value)


def count(usage: Mapping[str, Any] | None, *path: str) -> int:
    """A number inside a provider's usage; 0 where it is missing."""
    value: Any = usage
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else 0
