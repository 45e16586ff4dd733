"""OpenAI Chat Completions on the wire, as many other servers speak it too.

Each result is a message of its own, and a reply with its calls is one message. System and developer
messages at the head of the list are the system prompt; further down they are notices. Servers that
return reasoning put it into fields that the standard does not have.
"""

from collections.abc import Mapping, Sequence
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
    from_base64,
    longer_content,
    make_reply,
    media_of_url,
    text_block,
)
from scroll_gateway.wire.slices import (
    encode,
    field_spans,
    item_spans,
    with_field,
    without_fields,
)

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


class Chat(Protocol):
    """`POST /v1/chat/completions`."""

    name = "chat"
    path = "/chat/completions"
    list_field = "messages"

    def parts(
        self, values: Sequence[Any], names: dict[str, str], *, at_head: bool
    ) -> tuple[Part, ...]:
        message = values[0]
        content = message.get("content")
        match message["role"]:
            case "user":
                return tuple(self.user_parts(content))
            case "assistant":
                return (self.reply_part(message, names),)
            case "tool":
                result = self.result(message["tool_call_id"], self.content(content), names)
                return (Part(result),)
            case "system" | "developer":
                text, media = self.content(content)
                return (
                    Part(HostMessage(role="system", text=text, media=media, notice=not at_head)),
                )
            case role:
                raise ValueError(f"unknown role {role!r}")

    def reply_content(self, value: Any) -> ReplyContent:
        if value.get("function_call"):
            raise ValueError("a call in the form that was used before tools")
        text = self.content(value.get("content"))[0] or value.get("refusal") or ""
        calls = [_call(call) for call in value.get("tool_calls") or ()]
        return ReplyContent(text, calls, _thinking(value))

    def block(self, block: Mapping[str, Any]) -> str | Media | None:
        match block["type"]:
            case "text":
                text: str = block["text"]
                return text
            case "refusal":
                refusal: str = block["refusal"]
                return refusal
            case "image_url":
                return media_of_url(block["image_url"]["url"], "image/*")
            case "input_audio":
                audio = block["input_audio"]
                return Media(media_type=f"audio/{audio['format']}", data=from_base64(audio["data"]))
            case "file":
                return _file(block["file"])
            case _:
                return None

    def system(self, fields: Mapping[str, bytes]) -> str:
        del fields
        return ""

    def edited(self, message: bytes, parts: Sequence[Part], actions: Sequence[Action]) -> bytes:
        if parts[0].message.role == "user":
            content = field_spans(message)["content"]
            return edited_content(message, content, parts, actions, text_block("text"))
        action = actions[0]
        if parts[0].message.role != "assistant":
            assert isinstance(action, Replace)
            return with_field(message, "content", encode(action.text))
        message = without_fields(message, set(REASONING_FIELDS))
        if isinstance(action, Keep):
            return message
        assert isinstance(action, Replace)
        text = action.text if action.text.strip() else None
        message = with_field(message, "content", encode(text))
        if not action.calls:
            return message
        return _with_calls(message, action.calls)

    def inserted(self, text: str, mark: bytes) -> bytes:
        del mark
        return encode({"role": "user", "content": text})

    def with_tail(self, message: bytes, text: str) -> bytes:
        block = encode({"type": "text", "text": text})
        return longer_content(message, field_spans(message)["content"], text, block)

    def reply(self, value: Mapping[str, Any]) -> WireReply:
        choice = value["choices"][0]
        tokens = value.get("usage")
        return make_reply(
            self.reply_content(choice["message"]),
            Usage(
                input_tokens=count(tokens, "prompt_tokens"),
                output_tokens=count(tokens, "completion_tokens"),
                cache_read_tokens=count(tokens, "prompt_tokens_details", "cached_tokens"),
            ),
            choice.get("finish_reason") or "",
            value,
        )

    def events(self) -> ReplyEvents:
        return _Events()


def _thinking(message: Mapping[str, Any]) -> list[Thinking]:
    """The reasoning of a reply, in the fields that servers have for it."""
    text = message.get("reasoning_content") or message.get("reasoning") or ""
    details = message.get("reasoning_details")
    if not text and not details:
        return []
    opaque = {"reasoning_details": details} if details else {}
    return [Thinking(text=str(text), provider="openai", opaque=opaque)]


def _call(call: Mapping[str, Any]) -> ToolCall:
    if "custom" in call:
        return ToolCall(call["id"], call["custom"]["name"], call["custom"]["input"])
    function = call["function"]
    return ToolCall(call["id"], function["name"], parsed_arguments(function.get("arguments")))


def _with_calls(message: bytes, calls: Sequence[ToolCall]) -> bytes:
    """A reply whose calls have other arguments."""
    span = field_spans(message)["tool_calls"]
    items = []
    for item, call in zip(item_spans(message, *span), calls, strict=True):
        raw = item.of(message)
        fields = field_spans(raw)
        kind, field = ("custom", "input") if "custom" in fields else ("function", "arguments")
        function = with_field(fields[kind].of(raw), field, encode(arguments_text(call)))
        items.append(with_field(raw, kind, function))
    return message[: span.start] + b"[" + b",".join(items) + b"]" + message[span.end :]


def _file(file: Mapping[str, Any]) -> Media:
    name = file.get("filename") or ""
    if file.get("file_data"):
        return media_of_url(file["file_data"], "application/pdf", name)
    return Media(media_type="application/octet-stream", url=f"file:{file['file_id']}", name=name)


class _Events(ReplyEvents):
    """Chunks with deltas of the first choice; usage may come in a chunk without choices."""

    def __init__(self) -> None:
        self._envelope: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish = ""

    def add(self, event: Mapping[str, Any]) -> None:
        for name in ("id", "model", "usage"):
            if event.get(name):
                self._envelope[name] = event[name]
        for choice in event.get("choices") or ():
            if choice.get("index", 0) == 0:
                self._add_delta(choice.get("delta") or {})
                self._finish = choice.get("finish_reason") or self._finish

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for name in ("content", "refusal", "reasoning_content", "reasoning"):
            piece = delta.get(name)
            if isinstance(piece, str):
                self._message[name] = (self._message.get(name) or "") + piece
        for position, piece in enumerate(delta.get("tool_calls") or ()):
            empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            call = self._calls.setdefault(piece.get("index", position), empty)
            call["id"] = piece.get("id") or call["id"]
            function = piece.get("function") or {}
            call["function"]["name"] += function.get("name") or ""
            call["function"]["arguments"] += function.get("arguments") or ""

    def value(self) -> dict[str, Any] | None:
        if not self._finish:
            return None
        calls = [self._calls[index] for index in sorted(self._calls)]
        message = {**self._message, "tool_calls": calls}
        return {**self._envelope, "choices": [{"message": message, "finish_reason": self._finish}]}
