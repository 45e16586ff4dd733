"""How each protocol's replies and lists are changed where the gateway answered a recall itself.

The provider saw: a reply that calls the recall tool, its result, another reply, and so on. The
program is shown one reply: everything but the recall. When it sends that reply back in its list,
the provider must get its own form again, byte for byte.

A splicer knows one protocol. It makes the items that stand in the provider's list, the reply that
the program is shown, and an editor for the events of a stream.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scroll_context.messages import ToolCall
from scroll_gateway.recall import NAME
from scroll_gateway.wire.slices import decode, encode, field_spans, item_spans, with_field

Json = dict[str, Any]

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n")


class Result(NamedTuple):
    """The answer to one call of the recall tool."""

    call: ToolCall
    text: str


class Splicer(ABC):
    """One protocol's side of spliced replies."""

    @abstractmethod
    def reply_items(self, value: Mapping[str, Any]) -> list[bytes]:
        """The items of a list that stand for a reply, as the provider is sent them back."""

    @abstractmethod
    def result_items(self, results: Sequence[Result]) -> list[bytes]:
        """The items of a list that answer recall calls."""

    @abstractmethod
    def shown(self, values: Sequence[Mapping[str, Any]]) -> Json:
        """The one reply that a program is shown for several of the provider's."""

    @abstractmethod
    def rest(self, message: bytes, values: Sequence[Mapping[str, Any]]) -> bytes:
        """A program's message without the parts that it has from these earlier replies; empty if
        nothing remains.
        """

    def with_results(self, message: bytes, results: Sequence[bytes]) -> list[bytes]:
        """The item behind a reply whose recall was hidden, with the results of the recall."""
        return [*results, message]

    @abstractmethod
    def editor(self) -> "StreamEditor":
        """Edits the events of the replies that one request gets."""


class StreamEditor(ABC):
    """Turns the events of several streamed replies into those of one.

    The events that end a reply are held back: only its end shows whether another one follows.
    """

    def __init__(self) -> None:
        self._is_first = True
        self.held: list[bytes] = []

    def edit(self, raw: bytes, event: Json | None) -> bytes:
        """The bytes that the program gets for an event; `raw` is the event as it came."""
        if event is None or self._ends(event):
            self.held.append(self._ending(raw, event))
            return b""
        return self._edited(raw, event)

    def next_reply(self) -> None:
        """Another reply follows: the end of this one is not sent."""
        self.held = []
        self._is_first = False

    @abstractmethod
    def _ends(self, event: Json) -> bool:
        """Whether an event is part of the end of a reply."""

    @abstractmethod
    def _edited(self, raw: bytes, event: Json) -> bytes: ...

    def _ending(self, raw: bytes, event: Json | None) -> bytes:
        """The bytes of an event that ends the reply."""
        del event
        return raw


def as_event(value: Mapping[str, Any]) -> bytes:
    """A server-sent event with this data."""
    kind = value.get("type")
    head = f"event: {kind}\n".encode() if isinstance(kind, str) else b""
    return head + b"data: " + encode(value) + b"\n\n"


def _is_recall(call: Mapping[str, Any]) -> bool:
    return call.get("name") == NAME


# Messages ---------------------------------------------------------------------------------------


class _MessagesSplicer(Splicer):
    def reply_items(self, value: Mapping[str, Any]) -> list[bytes]:
        content = [block for block in value["content"] if not _is_blank(block)]
        return [encode({"role": "assistant", "content": content})]

    def result_items(self, results: Sequence[Result]) -> list[bytes]:
        blocks = [
            {"type": "tool_result", "tool_use_id": result.call.id, "content": result.text}
            for result in results
        ]
        return [encode({"role": "user", "content": blocks})]

    def shown(self, values: Sequence[Mapping[str, Any]]) -> Json:
        content = [block for value in values for block in _shown_blocks(value["content"])]
        usage = {**(values[-1].get("usage") or {})}
        usage["output_tokens"] = sum(
            (value.get("usage") or {}).get("output_tokens") or 0 for value in values
        )
        return {**values[-1], "id": values[0].get("id"), "content": content, "usage": usage}

    def rest(self, message: bytes, values: Sequence[Mapping[str, Any]]) -> bytes:
        content = field_spans(message)["content"]
        if message[content.start : content.start + 1] != b"[":
            return message
        shown = [_block_key(block) for value in values for block in _shown_blocks(value["content"])]
        spans = item_spans(message, *content)
        blocks = [span.of(message) for span in spans]
        remaining = _without(shown, blocks, _block_key)
        remaining = [block for block in remaining if not _is_blank(decode(block))]
        if not remaining:
            return b""
        return message[: spans[0].start] + b",".join(remaining) + message[spans[-1].end :]

    def with_results(self, message: bytes, results: Sequence[bytes]) -> list[bytes]:
        """Results stand in one user message, before everything else in it."""
        content = field_spans(message)["content"]
        own = content.of(message)
        if own.startswith(b'"'):
            own = b'[{"type":"text","text":' + own + b"}]"
        blocks = [
            span.of(result)
            for result in results
            for span in item_spans(result, *field_spans(result)["content"])
        ]
        inside = own[1:].lstrip()
        comma = b"" if inside.startswith(b"]") else b","
        return [with_field(message, "content", b"[" + b",".join(blocks) + comma + inside)]

    def editor(self) -> StreamEditor:
        return _MessagesEditor()


def _shown_blocks(content: Sequence[Json]) -> list[Json]:
    return [block for block in content if not (_is_recall(block) or _is_blank(block))]


def _is_blank(block: Mapping[str, Any]) -> bool:
    """Whether a block is an empty text. Providers refuse one, even one of their own."""
    return _block_key(block) == ("text", "")


def _block_key(block: Mapping[str, Any]) -> tuple[str, str]:
    """The identity of a block in a reply, however a program writes it again."""
    values = (block.get(name) for name in ("id", "signature", "data", "text", "thinking"))
    return str(block.get("type")), str(next((value for value in values if value), ""))


def _without(shown: list[Any], raws: Sequence[bytes], key: Any) -> list[bytes]:
    """The pieces that are not among the shown ones, each of which counts once."""
    missing = list(shown)
    remaining = []
    for raw in raws:
        identity = key(decode(raw))
        if identity in missing:
            missing.remove(identity)
        else:
            remaining.append(raw)
    return remaining


class _MessagesEditor(StreamEditor):
    def __init__(self) -> None:
        super().__init__()
        # The blocks that the program has been sent, and the number of each in the running reply.
        self._count = 0
        self._numbers: dict[int, int] = {}
        self._output_tokens = 0

    def next_reply(self) -> None:
        super().next_reply()
        self._numbers = {}

    def _ends(self, event: Json) -> bool:
        return event.get("type") in ("message_delta", "message_stop")

    def _ending(self, raw: bytes, event: Json | None) -> bytes:
        usage = (event or {}).get("usage")
        if event is None or not usage:
            return raw
        self._output_tokens += usage.get("output_tokens") or 0
        if self._is_first:
            return raw
        return as_event({**event, "usage": {**usage, "output_tokens": self._output_tokens}})

    def _edited(self, raw: bytes, event: Json) -> bytes:
        kind = event.get("type")
        if kind == "message_start":
            return raw if self._is_first else b""
        if kind == "content_block_start":
            if _is_recall(event["content_block"]):
                return b""
            self._numbers[event["index"]] = self._count
            self._count += 1
        if "index" not in event:
            return raw
        number = self._numbers.get(event["index"])
        if number is None:
            return b""
        return raw if number == event["index"] else as_event({**event, "index": number})


# Chat Completions -------------------------------------------------------------------------------


class _ChatSplicer(Splicer):
    def reply_items(self, value: Mapping[str, Any]) -> list[bytes]:
        message = value["choices"][0]["message"]
        names = ("role", "content", "tool_calls")
        item = {name: message[name] for name in names if name in message}
        item["tool_calls"] = [{"type": "function", **call} for call in item["tool_calls"]]
        return [encode({"role": "assistant", **item})]

    def result_items(self, results: Sequence[Result]) -> list[bytes]:
        return [
            encode({"role": "tool", "tool_call_id": result.call.id, "content": result.text})
            for result in results
        ]

    def shown(self, values: Sequence[Mapping[str, Any]]) -> Json:
        messages = [value["choices"][0]["message"] for value in values]
        text = "".join(message.get("content") or "" for message in messages)
        calls = _shown_calls(messages[-1].get("tool_calls") or [])
        message = {**messages[-1], "content": text or None, "tool_calls": calls}
        if not calls:
            del message["tool_calls"]
        choice = {**values[-1]["choices"][0], "message": message}
        return {**values[-1], "id": values[0].get("id"), "choices": [choice]}

    def rest(self, message: bytes, values: Sequence[Mapping[str, Any]]) -> bytes:
        text = "".join(value["choices"][0]["message"].get("content") or "" for value in values)
        content = decode(message).get("content")
        if not text or not isinstance(content, str) or not content.startswith(text):
            return message
        return with_field(message, "content", encode(content[len(text) :] or None))

    def editor(self) -> StreamEditor:
        return _ChatEditor()


def _shown_calls(calls: Sequence[Json]) -> list[Json]:
    return [call for call in calls if not _is_recall(call.get("function") or {})]


class _ChatEditor(StreamEditor):
    def __init__(self) -> None:
        super().__init__()
        self._id: Any = None
        # The calls that the program has been sent, and the number of each in the running reply.
        self._count = 0
        self._numbers: dict[int, int] = {}
        self._has_ended = False

    def next_reply(self) -> None:
        super().next_reply()
        self._numbers = {}
        self._has_ended = False

    def _ends(self, event: Json) -> bool:
        choices = event.get("choices") or []
        is_end = any(choice.get("finish_reason") for choice in choices)
        self._has_ended = self._has_ended or is_end
        return self._has_ended

    def _ending(self, raw: bytes, event: Json | None) -> bytes:
        return raw if event is None else self._edited(raw, event)

    def _edited(self, raw: bytes, event: Json) -> bytes:
        self._id = self._id or event.get("id")
        edited = {**event, "id": self._id} if "id" in event else event
        choices = [self._choice(choice) for choice in event.get("choices") or ()]
        edited = {**edited, "choices": choices}
        if edited == event:
            return raw
        is_empty = choices and not any(
            choice.get("delta") or choice.get("finish_reason") for choice in choices
        )
        return b"" if is_empty else as_event(edited)

    def _choice(self, choice: Json) -> Json:
        delta = choice.get("delta") or {}
        if not delta.get("tool_calls"):
            return choice
        calls = []
        for position, piece in enumerate(delta["tool_calls"]):
            index = piece.get("index", position)
            function = piece.get("function") or {}
            if function.get("name") and not _is_recall(function):
                self._numbers[index] = self._count
                self._count += 1
            if index in self._numbers:
                calls.append({**piece, "index": self._numbers[index]})
        others = {name: value for name, value in delta.items() if name != "tool_calls"}
        return {**choice, "delta": {**others, "tool_calls": calls} if calls else others}


# Responses --------------------------------------------------------------------------------------


class _ResponsesSplicer(Splicer):
    def reply_items(self, value: Mapping[str, Any]) -> list[bytes]:
        return [encode(item) for item in value["output"]]

    def result_items(self, results: Sequence[Result]) -> list[bytes]:
        return [
            encode(
                {"type": "function_call_output", "call_id": result.call.id, "output": result.text}
            )
            for result in results
        ]

    def shown(self, values: Sequence[Mapping[str, Any]]) -> Json:
        items = [item for value in values for item in _shown_blocks(value["output"])]
        return {**values[-1], "id": values[0].get("id"), "output": items}

    def rest(self, message: bytes, values: Sequence[Mapping[str, Any]]) -> bytes:
        shown = [_item_key(item) for value in values for item in _shown_blocks(value["output"])]
        spans = item_spans(b"[" + message + b"]")
        raws = [span.of(b"[" + message + b"]") for span in spans]
        return b",".join(_without(shown, raws, _item_key))

    def editor(self) -> StreamEditor:
        return _ResponsesEditor()


def _item_key(item: Mapping[str, Any]) -> tuple[str, str]:
    """The identity of an item in a reply. Programs may leave out the id of an item."""
    kind = item.get("type") or "message"
    if kind == "message":
        content = item.get("content")
        blocks = content if isinstance(content, list) else [{"text": content}]
        return kind, "".join(str(block.get("text") or "") for block in blocks)
    values = (item.get(name) for name in ("call_id", "encrypted_content", "id"))
    return kind, str(next((value for value in values if value), ""))


class _ResponsesEditor(StreamEditor):
    def __init__(self) -> None:
        super().__init__()
        self._response_id: Any = None
        self._sequence = 0
        # Whether something was left out: until then, events pass as they come.
        self._is_edited = False
        # The items that the program has been sent, and the number of each in the running reply.
        self._items: list[Json] = []
        self._numbers: dict[int, int] = {}

    def next_reply(self) -> None:
        super().next_reply()
        self._numbers = {}

    def _ends(self, event: Json) -> bool:
        return event.get("type") in ("response.completed", "response.incomplete")

    def _ending(self, raw: bytes, event: Json | None) -> bytes:
        return raw if event is None else self._numbered(raw, event)

    def _edited(self, raw: bytes, event: Json) -> bytes:
        kind = event.get("type")
        if kind in ("response.created", "response.in_progress") and not self._is_first:
            return b""
        if kind == "response.output_item.added" and not _is_recall(event["item"]):
            self._numbers[event["output_index"]] = len(self._items)
            self._items.append(event["item"])
        index = event.get("output_index")
        if index is None:
            return self._numbered(raw, event)
        number = self._numbers.get(index)
        if number is None:
            self._is_edited = True
            return b""
        if kind == "response.output_item.done":
            self._items[number] = event["item"]
        return self._numbered(raw, {**event, "output_index": number})

    def _numbered(self, raw: bytes, event: Json) -> bytes:
        """The event with its number in the stream, and the complete output in the last one."""
        if self._is_first and not self._is_edited:
            self._sequence = (event.get("sequence_number") or 0) + 1
            self._response_id = (event.get("response") or {}).get("id") or self._response_id
            return raw
        response = event.get("response")
        if isinstance(response, dict):
            self._response_id = self._response_id or response.get("id")
            edited = {**response, "id": self._response_id}
            if self._ends(event):
                edited["output"] = self._items
            event = {**event, "response": edited}
        if "sequence_number" in event:
            event = {**event, "sequence_number": self._sequence}
            self._sequence += 1
        return as_event(event)


def decode_event(raw: bytes) -> Any:
    """The data of one server-sent event; None if it is not JSON."""
    lines = raw.replace(b"\r\n", b"\n").split(b"\n")
    data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
    try:
        return decode(data)
    except ValueError:
        return None


class StreamEvents:
    """Cuts a stream of bytes into its events, each as it came."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def rest(self) -> bytes:
        """The beginning of an event that has not ended."""
        return bytes(self._rest)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that end in this chunk."""
        # An end may have been cut in two. What was searched before that has none.
        searched = max(0, len(self._rest) - 3)
        self._rest += chunk
        events = []
        start = 0
        ends = [match.end() for match in _EVENT_END.finditer(self._rest, searched)]
        for end in ends:
            events.append(bytes(self._rest[start:end]))
            start = end
        del self._rest[:start]
        return events


SPLICERS: dict[str, Splicer] = {
    "messages": _MessagesSplicer(),
    "chat": _ChatSplicer(),
    "responses": _ResponsesSplicer(),
}
