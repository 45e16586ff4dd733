"""OpenAI Responses on the wire.

The list holds items. All items of one reply (reasoning, calls, messages of the assistant) form one
HostMessage, since the API binds them: it refuses reasoning without the item that follows it, and an
item with the id of a reply whose reasoning is missing. So where reasoning leaves, the ids of the
other items of its reply leave too. A client that was killed during a reply may keep the reasoning
alone, and would be refused from then on; such reasoning is recorded and not sent. A request that
continues a conversation on the server (`previous_response_id`) does not hold the complete list, and
is sent on as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scroll_context.contents import Usage
from scroll_context.messages import Media, Thinking, ToolCall, arguments_text, parsed_arguments
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
    longer_content,
    make_reply,
    media_of_url,
    text_block,
)
from scroll_gateway.wire.slices import (
    decode,
    encode,
    field_spans,
    item_spans,
    with_field,
    without_fields,
)

SERVER_STATE = ("previous_response_id", "conversation", "prompt")
"""Fields of a request whose conversation, or a part of it, is kept by the provider."""


INSTRUCTIONS = frozenset({"additional_tools"})
"""Items by which Codex gives its newer models their tools, in place of the field `tools`."""


class Responses(Protocol):
    """`POST /v1/responses`."""

    name = "responses"
    path = "/responses"
    list_field = "input"
    accepts_lone_thinking = False

    def server_state(self, fields: Mapping[str, bytes]) -> str:
        names = (name for name in SERVER_STATE if fields.get(name, b"null") != b"null")
        return next(names, "")

    def has_tools(self, fields: Mapping[str, bytes], body: bytes) -> bool:
        return super().has_tools(fields, body) or any(
            b'"%s"' % kind.encode() in body for kind in INSTRUCTIONS
        )

    def groups(self, values: Sequence[Any]) -> Iterator[range]:
        start = 0
        for position, item in enumerate(values):
            if not _is_of_reply(item):
                if start < position:
                    yield range(start, position)
                yield range(position, position + 1)
                start = position + 1
        if start < len(values):
            yield range(start, len(values))

    def parts(
        self, values: Sequence[Any], names: dict[str, str], *, at_head: bool
    ) -> tuple[Part, ...]:
        item = values[0]
        if _is_of_reply(item):
            return (self.reply_part(values, names, len(values)),)
        if _type(item) in INSTRUCTIONS:
            # Always sent, wherever it stands: without it, the model has no tools.
            return (Part(HostMessage(role="system", text=encode(item).decode())),)
        if _type(item) != "message":
            return (Part(self._result(item, names)),)
        if item["role"] == "user":
            return tuple(self.user_parts(item["content"]))
        text, media = self.content(item["content"])
        return (Part(HostMessage(role="system", text=text, media=media, notice=not at_head)),)

    def _result(self, item: Mapping[str, Any], names: Mapping[str, str]) -> HostMessage:
        output = item.get("output")
        text, media = self.content(output if isinstance(output, str | list) else None)
        if output is not None and not text and not media:
            text = encode(output).decode()
        is_incomplete = item.get("status") == "incomplete"
        return self.result(item["call_id"], (text, media), names, failed=is_incomplete)

    def reply_content(self, value: Any) -> ReplyContent:
        texts: list[str] = []
        calls: list[ToolCall] = []
        thinking: list[Thinking] = []
        for item in value:
            if _type(item) == "message":
                texts.append(self.content(item["content"])[0])
            elif _type(item) == "reasoning":
                thinking.append(self._thinking(item))
            elif "call_id" in item:
                calls.append(_call(item))
            else:
                texts.append(encode(item).decode())
        return ReplyContent("\n".join(texts), calls, thinking)

    def _thinking(self, item: Mapping[str, Any]) -> Thinking:
        return Thinking(
            text=self.content(item.get("summary") or item.get("content"))[0],
            signature=item.get("encrypted_content") or "",
            provider="openai",
        )

    def block(self, block: Mapping[str, Any]) -> str | Media | None:
        match block["type"]:
            case "input_text" | "output_text" | "summary_text" | "reasoning_text" | "text":
                text: str = block["text"]
                return text
            case "refusal":
                refusal: str = block["refusal"]
                return refusal
            case "input_image":
                address = block.get("image_url") or f"file:{block.get('file_id')}"
                return media_of_url(address, "image/*")
            case "input_file":
                address = block.get("file_data") or block.get("file_url")
                address = address or f"file:{block.get('file_id')}"
                return media_of_url(address, name=block.get("filename") or "")
            case _:
                return None

    def system(self, fields: Mapping[str, bytes]) -> str:
        return self.content(decode(fields.get("instructions", b"null")))[0]

    def edited(self, message: bytes, parts: Sequence[Part], actions: Sequence[Action]) -> bytes:
        part, action = parts[0], actions[0]
        if part.message.role == "assistant":
            listed = b"[" + message + b"]"
            items = [span.of(listed) for span in item_spans(listed)]
            return b",".join(_edited_reply(items, action))
        if part.message.role == "tool":
            assert isinstance(action, Replace)
            return with_field(message, "output", encode(action.text))
        content = field_spans(message)["content"]
        return edited_content(message, content, parts, actions, text_block("input_text"))

    def inserted(self, text: str, mark: bytes) -> bytes:
        del mark
        block = {"type": "input_text", "text": text}
        return encode({"type": "message", "role": "user", "content": [block]})

    def with_tail(self, message: bytes, text: str) -> bytes:
        fields = field_spans(message)
        block = encode({"type": "input_text", "text": text})
        return longer_content(message, fields.get("content") or fields["output"], text, block)

    def reply(self, value: Mapping[str, Any]) -> WireReply:
        content = self.reply_content(value["output"])
        finish = (value.get("incomplete_details") or {}).get("reason") or value.get("status") or ""
        if content.calls and finish == "completed":
            finish = "tool_calls"
        tokens = value.get("usage")
        return make_reply(
            content,
            Usage(
                input_tokens=count(tokens, "input_tokens"),
                output_tokens=count(tokens, "output_tokens"),
                cache_read_tokens=count(tokens, "input_tokens_details", "cached_tokens"),
            ),
            finish,
            value,
        )

    def events(self) -> ReplyEvents:
        return _Events()


def _type(item: Mapping[str, Any]) -> str:
    kind = item.get("type") or "message"
    assert isinstance(kind, str)
    return kind


def _is_of_reply(item: Mapping[str, Any]) -> bool:
    """Whether an item was made by the model or by the provider's own tools."""
    if _type(item) == "message":
        return bool(item["role"] == "assistant")
    return _type(item) not in INSTRUCTIONS and not (
        _type(item).endswith("_output") and "call_id" in item
    )


def _call(item: Mapping[str, Any]) -> ToolCall:
    """A function call, a call of a custom tool, or an action of the provider's own kinds."""
    raw = item.get("arguments", item.get("input", item.get("action")))
    name = item.get("name") or _type(item)
    # Codex keeps the name of an MCP server apart from that of its tool.
    server = item.get("namespace") or ""
    if server.startswith("mcp__"):
        name = f"{server}__{name}"
    return ToolCall(item["call_id"], name, parsed_arguments(raw))


def _edited_reply(items: Sequence[bytes], action: Action) -> list[bytes]:
    """The items of a reply after an action: without reasoning, or with another text."""
    values = [decode(item) for item in items]
    pairs = list(zip(items, values, strict=True))
    if isinstance(action, Keep):
        return [
            without_fields(item, {"id"}) for item, value in pairs if _type(value) != "reasoning"
        ]
    assert isinstance(action, Replace)
    pieces = []
    if action.text.strip():
        block = {"type": "output_text", "text": action.text}
        pieces.append(encode({"type": "message", "role": "assistant", "content": [block]}))
    calls = iter(action.calls)
    for item, value in pairs:
        if "call_id" in value:
            call = next(calls, None)
            piece = _with_arguments(item, value, call) if call else item
            pieces.append(without_fields(piece, {"id"}))
    return pieces


def _with_arguments(item: bytes, value: Mapping[str, Any], call: ToolCall) -> bytes:
    for name in ("arguments", "input"):
        if name in value:
            return with_field(item, name, encode(arguments_text(call)))
    return item


class _Events(ReplyEvents):
    """The last event holds the complete response; the items come before it too."""

    LAST = frozenset({"response.completed", "response.incomplete"})

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}
        self._response: dict[str, Any] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "response.output_item.done":
            self._items[event["output_index"]] = event["item"]
        elif kind in self.LAST:
            self._response = dict(event["response"])

    @property
    def has_ended(self) -> bool:
        return self._response is not None

    def value(self) -> dict[str, Any] | None:
        if self._response is None:
            return None
        items = [self._items[index] for index in sorted(self._items)]
        return {**self._response, "output": self._response.get("output") or items}
