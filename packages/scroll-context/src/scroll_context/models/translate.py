"""Between Scroll's messages and replies and those of pydantic-ai.

Going out: consecutive messages that are not the assistant's become one `ModelRequest`; thinking
goes back only to the provider that wrote it, and only with what proves it (a signature, or the
field it came in). A cache mark becomes a `CachePoint` for the providers that take explicit ones;
all others cache by themselves. Coming in: text, thinking and calls are gathered, `<think>` blocks
are taken out of the text, and arguments that are not a JSON object stay raw text. Ids that tie
reasoning to the items after it travel inside the thinking's `opaque`, so that they vanish together
with it: a provider rejects one without the other.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec
from pydantic_ai import messages as foreign
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from scroll_context.contents import Usage
from scroll_context.messages import Media, Message, Thinking, ToolCall, ToolSpec
from scroll_context.models.protocol import Reply

TAKES_CACHE_POINTS = frozenset({"anthropic", "bedrock"})
FINISH_REASONS = dict.fromkeys(
    (
        "max_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "model_length",
        "model_context_window_exceeded",
    ),
    "length",
) | dict.fromkeys(
    ("eos", "eos_token", "end_turn", "end", "stop_sequence", "complete", "completed"), "stop"
)
UNREADABLE = "unreadable_arguments"
# The id that pydantic-ai gives to thinking that was written into the text.
IN_TAGS = "content"


def parameters(messages: Sequence[Message], tools: Iterable[ToolSpec]) -> ModelRequestParameters:
    """Tools and the leading system messages.

    Only the first of those counts as constant, for the cache.
    """
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=tool.parameters,
                # Strict mode rewrites schemas; the model must see the one that is hashed and
                # documented.
                strict=False,
            )
            for tool in tools
        ],
        instruction_parts=[
            foreign.InstructionPart(content=message.text, dynamic=position > 0)
            for position, message in enumerate(_leading_system(messages))
        ],
    )


def history(messages: Sequence[Message], provider: str) -> list[foreign.ModelMessage]:
    """Everything after the leading system messages."""
    out: list[foreign.ModelMessage] = []
    conversation = messages[len(_leading_system(messages)) :]
    for is_reply, group in groupby(conversation, lambda message: message.role == "assistant"):
        if is_reply:
            out.extend(_response(message, provider) for message in group)
        else:
            parts: list[foreign.ModelRequestPart] = []
            for message in group:
                parts += _request_parts(message, provider in TAKES_CACHE_POINTS)
            out.append(foreign.ModelRequest(parts=parts))
    return out


def reply(response: foreign.ModelResponse, *, cost: float | None = None) -> Reply:
    """The answer of a model, in Scroll's terms."""
    tags = ThinkTags()
    text = ""
    thinking: list[Thinking] = []
    calls: list[ToolCall] = []
    item_ids: dict[str, str] = {}
    provider = response.provider_name or ""
    for part in response.parts:
        if isinstance(part, foreign.TextPart):
            text += tags.feed(_unicode(part.content))
            if part.id:
                item_ids["text"] = part.id
        elif isinstance(part, foreign.ThinkingPart):
            thinking.append(_thinking(part, provider))
        elif isinstance(part, foreign.ToolCallPart):
            call = _tool_call(part, provider, {earlier.id for earlier in calls})
            calls.append(call)
            if part.id:
                item_ids[call.id] = part.id
    refusal = (response.provider_details or {}).get("refusal", "")
    text += tags.finish() or _unicode(str(refusal))
    thinking.extend(
        Thinking(text=block, provider=provider, opaque={"id": IN_TAGS}) for block in tags.thinking
    )
    if thinking and item_ids:
        thinking[-1] = msgspec.structs.replace(
            thinking[-1], opaque={**thinking[-1].opaque, "items": item_ids}
        )
    usage = response.usage
    reason = str((response.provider_details or {}).get("finish_reason") or "")
    return Reply(
        text=text,
        tool_calls=tuple(calls),
        thinking=tuple(thinking),
        usage=Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        ),
        # A server may have its own words for it, and a reply that was cut must not look complete.
        finish_reason=response.finish_reason or FINISH_REASONS.get(reason.lower(), reason),
        model=response.model_name or "",
        cost=cost,
    )


def _leading_system(messages: Sequence[Message]) -> list[Message]:
    leading = next(
        (n for n, message in enumerate(messages) if message.role != "system"), len(messages)
    )
    return list(messages[:leading])


def _request_parts(message: Message, marks: bool) -> list[foreign.ModelRequestPart]:
    """A message, the cache mark behind it, and its tail behind the mark."""
    media = [_content(item) for item in message.media]
    after: list[foreign.UserContent] = (
        [foreign.CachePoint()] if message.cache_mark and marks else []
    )
    if message.tail:
        after.append(message.tail)
    if message.role == "tool":
        result = foreign.ToolReturnPart(
            tool_name=message.name, content=message.text, tool_call_id=message.tool_call_id
        )
        if message.media:
            # Images go beside the result, in the user's turn that follows it.
            after = [*media, *after]
        if not after:
            return [result]
        # A cache point is user content; first in its part it attaches to the block before, the
        # result.
        return [
            result,
            foreign.UserPromptPart(content=message.tail if after == [message.tail] else after),
        ]
    if media:
        texts = [text for text in (message.text,) if text.strip()]
        return [foreign.UserPromptPart(content=[*texts, *media, *after])]
    # It is one text because not every compatible server takes a list.
    if not marks:
        return [
            foreign.UserPromptPart(content="\n\n".join(filter(None, (message.text, message.tail))))
        ]
    return [foreign.UserPromptPart(content=[message.text, *after] if after else message.text)]


def _content(media: Media) -> foreign.UserContent:
    """An image or a file for pydantic-ai, which sends it in the provider's form."""
    if media.data:
        return foreign.BinaryContent(data=media.data, media_type=media.media_type)
    if media.media_type.startswith("image/"):
        return foreign.ImageUrl(url=media.url)
    return foreign.DocumentUrl(url=media.url)


def _response(message: Message, provider: str) -> foreign.ModelResponse:
    own = [thought for thought in message.thinking if thought.provider == provider]
    item_ids: dict[str, str] = {}
    parts: list[foreign.ModelResponsePart] = []
    in_tags = ""
    for thought in own:
        item_ids.update(thought.opaque.get("items", {}))
        kind = thought.opaque.get("id")
        if kind == IN_TAGS:
            in_tags += f"{OPEN}{thought.text}{CLOSE}\n\n"
        # Without either it could only go back as if the model had said it.
        elif kind or thought.signature:
            parts.append(
                foreign.ThinkingPart(
                    content=thought.text,
                    id=kind,
                    signature=thought.signature or None,
                    provider_name=provider,
                    provider_details=thought.opaque.get("details"),
                )
            )
    if in_tags or message.text.strip():
        parts.append(
            foreign.TextPart(
                in_tags + message.text, id=item_ids.get("text"), provider_name=provider
            )
        )
    for call in message.tool_calls:
        parts.append(
            foreign.ToolCallPart(
                tool_name=call.name,
                # Sent back as valid JSON whatever the model wrote, else every later request would
                # be rejected.
                args={UNREADABLE: call.arguments}
                if isinstance(call.arguments, str)
                else call.arguments,
                tool_call_id=call.id,
                id=item_ids.get(call.id),
                provider_name=provider,
                provider_details=call.opaque or None if call.provider == provider else None,
            )
        )
    return foreign.ModelResponse(parts=parts, provider_name=provider)


def _thinking(part: foreign.ThinkingPart, provider: str) -> Thinking:
    opaque: dict[str, Any] = {}
    if part.id:
        opaque["id"] = part.id
    if part.provider_details:
        opaque["details"] = _plain(part.provider_details)
    return Thinking(
        text=_unicode(part.content),
        signature=part.signature or "",
        provider=part.provider_name or provider,
        opaque=opaque,
    )


def _tool_call(part: foreign.ToolCallPart, provider: str, taken: set[str]) -> ToolCall:
    provider_id = call_id = _unicode(part.tool_call_id)
    copy = 1
    # Some servers give every call of a reply the same id.
    while call_id in taken:
        copy += 1
        call_id = f"{provider_id}-{copy}"
    opaque = _plain(part.provider_details) if part.provider_details else {}
    return ToolCall(
        call_id,
        _unicode(part.tool_name),
        _arguments(part.args),
        provider=(part.provider_name or provider) if opaque else "",
        opaque=opaque,
    )


def _arguments(raw: str | dict[str, Any] | None) -> dict[str, Any] | str:
    if isinstance(raw, dict):
        try:
            msgspec.json.encode(raw)
            return raw
        except UnicodeEncodeError:
            raw = json.dumps(raw, ensure_ascii=False)
    raw = _unicode(raw or "")
    if not raw.strip():
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return raw


def _unicode(text: str) -> str:
    """A text that can be encoded.

    Servers cut surrogate pairs between two chunks: halves that meet again are joined.
    """
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def _plain(details: dict[str, Any]) -> dict[str, Any]:
    """Provider data as JSON values, so that it is the same after a trip through the log."""
    return msgspec.json.decode(msgspec.json.encode(details, enc_hook=str), type=dict[str, Any])


# reasoning in tags --------------------------------------------------------------------------------

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """Takes `<think>` blocks out of text that arrives in pieces: `feed` gives visible text,
    `thinking` has the blocks.

    Open-weight models write their reasoning into the text, in tags, and a stream cuts the text
    anywhere, in the middle of a tag too. A block is recognised only at the head of the reply, where
    such models put it: a tag further on is something that the model is writing about, and stays
    text. The cuts make no difference to the result, and nothing but the tags and the space around
    blocks is dropped.
    """

    def __init__(self) -> None:
        self.thinking: list[str] = []
        # The meaning of this text depends on the next piece.
        self._held = ""
        self._at_head = True

    def feed(self, piece: str) -> str:
        """The visible text that is certain after this piece."""
        if not self._at_head:
            return piece
        self._held += piece
        text = self._held.lstrip()
        while text.startswith(OPEN) and CLOSE in text:
            thought, _, self._held = text.removeprefix(OPEN).partition(CLOSE)
            self.thinking.append(thought)
            text = self._held.lstrip()
        if text.startswith(OPEN) or OPEN.startswith(text):
            # Inside a block, or nothing yet, or a tag that may still be completed.
            return ""
        return self._release()

    def finish(self) -> str:
        """The visible text that was held back. A block that was never closed is thinking."""
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self.thinking.append(text.removeprefix(OPEN))
            self._held = ""
        return self._release()

    def _release(self) -> str:
        self._at_head = False
        text, self._held = self._held, ""
        return text.lstrip() if self.thinking else text
