"""Anthropic Messages on the wire.

A user message may hold reminders, the user's words, media and the results of several calls, in
blocks: each result and each reminder becomes a HostMessage of its own. The system prompt is a field
of the body; a `system` message inside the list is a notice. Cache marks (`cache_control`) stay
where the client put them, except in blocks that leave.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scroll_context.contents import Usage
from scroll_context.messages import Media, Thinking, ToolCall, parsed_arguments
from scroll_context.session.host import HostMessage, Keep, Replace
from scroll_gateway.wire.protocol import (
    Action,
    Part,
    Protocol,
    ReplyContent,
    ReplyEvents,
    WireReply,
    count,
    edited_content,
    from_base64,
    longer_content,
    make_reply,
)
from scroll_gateway.wire.slices import (
    Span,
    decode,
    encode,
    field_spans,
    item_spans,
    with_field,
)

THREAD = "thread"
"""The field that names a conversation which the provider keeps."""
THINKING = frozenset({"thinking", "redacted_thinking"})


class Messages(Protocol):
    """`POST /v1/messages`."""

    name = "messages"
    path = "/messages"
    list_field = "messages"

    def server_state(self, fields: Mapping[str, bytes]) -> str:
        return THREAD if THREAD in fields else ""

    def parts(
        self, values: Sequence[Any], names: dict[str, str], *, at_head: bool
    ) -> tuple[Part, ...]:
        message = values[0]
        role, content = message["role"], message["content"]
        if role == "assistant":
            size = len(content) if isinstance(content, list) else 1
            return (self.reply_part(content, names, size),)
        if role == "system":
            text, media = self.content(content)
            size = len(content) if isinstance(content, list) else 1
            return (Part(HostMessage(role="system", text=text, media=media, notice=True), 0, size),)
        if role != "user":
            raise ValueError(f"unknown role {role!r}")
        if isinstance(content, str):
            return tuple(self.user_parts(content))
        return tuple(self._user_parts(content, names))

    def _user_parts(self, blocks: list[Any], names: Mapping[str, str]) -> Iterator[Part]:
        start = 0
        for position, block in enumerate(blocks):
            if block["type"] == "tool_result":
                if start < position:
                    yield from self.user_parts(blocks[start:position], start)
                result = self.result(
                    block["tool_use_id"],
                    self.content(block.get("content")),
                    names,
                    failed=bool(block.get("is_error")),
                )
                yield Part(result, position, position + 1)
                start = position + 1
        if start < len(blocks) or not blocks:
            yield from self.user_parts(blocks[start:], start)

    def reply_content(self, value: Any) -> ReplyContent:
        if isinstance(value, str):
            return ReplyContent(value)
        calls = [
            ToolCall(block["id"], block["name"], parsed_arguments(block["input"]))
            for block in value
            if block["type"] == "tool_use"
        ]
        thinking = [
            Thinking(
                text=block.get("thinking", ""),
                signature=block.get("signature") or block.get("data") or "",
                provider="anthropic",
            )
            for block in value
            if block["type"] in THINKING
        ]
        others = [block for block in value if block["type"] not in {*THINKING, "tool_use"}]
        return ReplyContent(self.content(others)[0], calls, thinking)

    def block(self, block: Mapping[str, Any]) -> str | Media | None:
        kind = block["type"]
        if kind == "text":
            text: str = block["text"]
            return text
        if kind not in ("image", "document"):
            return None
        source = block["source"]
        name = block.get("title") or ""
        default = "image/*" if kind == "image" else "application/pdf"
        media_type = source.get("media_type", default)
        match source["type"]:
            case "base64":
                return Media(media_type=media_type, data=from_base64(source["data"]), name=name)
            case "text":
                return Media(media_type=media_type, data=source["data"].encode(), name=name)
            case "url":
                return Media(media_type=media_type, url=source["url"], name=name)
            case "file":
                return Media(media_type=media_type, url=f"file:{source['file_id']}", name=name)
            case _:
                return None

    def marks(self, values: Sequence[Any]) -> tuple[bytes, ...]:
        return tuple(encode(mark) for value in values for mark in _marks(value))

    def system(self, fields: Mapping[str, bytes]) -> str:
        return self.content(decode(fields.get("system", b"null")))[0]

    def edited(self, message: bytes, parts: Sequence[Part], actions: Sequence[Action]) -> bytes:
        content = _content(message)
        is_list = message[content.start : content.start + 1] == b"["
        if parts[0].message.role != "assistant" or not is_list:
            return edited_content(message, content, parts, actions, _replaced)
        spans = item_spans(message, *content)
        pieces = _edited_reply([span.of(message) for span in spans], actions[0])
        if not pieces:
            return b""
        return message[: spans[0].start] + b",".join(pieces) + message[spans[-1].end :]

    def inserted(self, text: str, mark: bytes) -> bytes:
        block = encode({"type": "text", "text": text})
        if mark:
            block = with_field(block, "cache_control", mark)
        return b'{"role":"user","content":[' + block + b"]}"

    def with_tail(self, message: bytes, text: str) -> bytes:
        block = encode({"type": "text", "text": text})
        return longer_content(message, _content(message), text, block)

    def reply(self, value: Mapping[str, Any]) -> WireReply:
        tokens = value.get("usage")
        read = count(tokens, "cache_read_input_tokens")
        written = count(tokens, "cache_creation_input_tokens")
        return make_reply(
            self.reply_content(value["content"]),
            Usage(
                input_tokens=count(tokens, "input_tokens") + read + written,
                output_tokens=count(tokens, "output_tokens"),
                cache_read_tokens=read,
                cache_write_tokens=written,
            ),
            value.get("stop_reason") or "",
            value,
        )

    def events(self) -> ReplyEvents:
        return _Events()


def _content(message: bytes) -> Span:
    return field_spans(message)["content"]


def _marks(value: Any) -> Iterator[Any]:
    """The cache marks of a message, a block, or a list of them.

    The input of a call and the schema of a tool are the model's and the client's own data.
    """
    if isinstance(value, list):
        for item in value:
            yield from _marks(item)
    elif isinstance(value, dict):
        yield from _marks(value.get("content"))
        if value.get("cache_control") is not None:
            yield value["cache_control"]


def _replaced(blocks: Sequence[bytes], text: str) -> bytes:
    """The block that stands for a run of blocks: a result keeps its call, a text its cache mark."""
    values = [decode(block) for block in blocks]
    if values[0]["type"] == "tool_result":
        return with_field(blocks[0], "content", encode(text))
    block = encode({"type": "text", "text": text})
    marks = [mark for value in values for mark in _marks(value)]
    return with_field(block, "cache_control", encode(marks[-1])) if marks else block


def _edited_reply(blocks: Sequence[bytes], action: Action) -> list[bytes]:
    """The blocks of a reply after an action: without thinking, or with another text."""
    values = [decode(block) for block in blocks]
    if isinstance(action, Keep):
        pairs = zip(blocks, values, strict=True)
        return [block for block, value in pairs if _stands_without_thinking(value)]
    assert isinstance(action, Replace)
    pieces = []
    if action.text.strip():
        pieces.append(encode({"type": "text", "text": action.text}))
    calls = iter(action.calls)
    for block, value in zip(blocks, values, strict=True):
        if value["type"] == "tool_use":
            call = next(calls, None)
            pieces.append(_with_input(block, call) if call else block)
    return pieces


def _stands_without_thinking(value: Mapping[str, Any]) -> bool:
    """Whether a block stays when the thinking of its reply leaves.

    Beside thinking, opencode writes an empty text as a space. Alone, providers refuse that.
    """
    if value["type"] == "text":
        return bool(value["text"].strip())
    return value["type"] not in THINKING


def _with_input(block: bytes, call: ToolCall) -> bytes:
    is_object = isinstance(call.arguments, dict)
    value = call.arguments if is_object else {"text": call.arguments}
    return with_field(block, "input", encode(value))


class _Events(ReplyEvents):
    """`message_start`, blocks with their deltas, `message_delta`, `message_stop`."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        # The JSON of the inputs of calls, which comes in pieces.
        self._inputs: dict[int, str] = {}
        self._is_complete = False

    def add(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self._message = dict(event["message"])
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                self._add_delta(event["index"], event["delta"])
            case "message_delta":
                self._message |= event["delta"]
                usage = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}
                self._message["usage"] = usage
            case "message_stop":
                self._is_complete = True

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta["signature"]
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]

    @property
    def has_ended(self) -> bool:
        return self._is_complete

    def value(self) -> dict[str, Any] | None:
        if not self._is_complete:
            return None
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = parsed_arguments(text)
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._message, "content": content}
