"""How the scripted upstream writes its replies and refusals in the three protocols."""

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec

from provider_rules import Json


class Call(msgspec.Struct, frozen=True):
    """A tool call of a scripted reply."""

    name: str
    # A text for a custom tool of the Responses protocol.
    arguments: dict[str, Any] | str
    # The namespace of a tool of the Responses protocol.
    namespace: str = ""


class Answer(msgspec.Struct, frozen=True):
    """A scripted reply. `cut` ends the connection in the middle of it."""

    text: str
    calls: tuple[Call, ...] = ()
    thinking: bool = False
    cut: bool = False
    # Content blocks, or items of the Responses protocol, before the text.
    blocks: tuple[Json, ...] = ()


class Issued(msgspec.Struct, frozen=True):
    """An answer as one reply of a conversation, with the ids that belong to it."""

    number: str
    answer: Answer
    tokens: int
    repeated: int
    body: Json

    @property
    def signature(self) -> str:
        return f"signature-{self.number}"

    @property
    def reasoning_id(self) -> str:
        return f"rs_{self.number}"

    @property
    def item_ids(self) -> list[str]:
        calls = [f"fc_{self.number}_{place}" for place in range(len(self.answer.calls))]
        return [f"msg_{self.number}", *calls]

    def call_id(self, place: int) -> str:
        return f"call_{self.number}_{place}"


class Wire(ABC):
    """One protocol, from the provider's side."""

    @abstractmethod
    def reply(self, issued: Issued) -> Json:
        """The body of a reply."""

    @abstractmethod
    def events(self, issued: Issued) -> Iterator[Json | str]:
        """The events of a streamed reply."""

    @abstractmethod
    def too_long(self, tokens: int, window: int) -> str:
        """How the provider says that the request does not fit."""

    def error(self, status: int, message: str) -> Json:
        kind = "invalid_request_error" if status == 400 else "server_error"
        return {"error": {"message": message, "type": kind, "code": None}}

    def signatures(self, body: Json) -> Iterator[tuple[int, str]]:
        """The signatures of thinking in a request, with the positions of their messages."""
        del body
        yield from ()

    def invalid_thinking(self, position: int) -> str:
        return f"messages.{position}: thinking could not be verified"

    def item_ids(self, body: Json) -> set[str]:
        """The ids of the items in a request, where a protocol has them."""
        del body
        return set()


class _Messages(Wire):
    def _usage(self, issued: Issued) -> Json:
        new = issued.tokens - issued.repeated
        return {
            "input_tokens": min(new, 3),
            "cache_creation_input_tokens": max(new - 3, 0),
            "cache_read_input_tokens": issued.repeated,
            "output_tokens": 20,
        }

    def _content(self, issued: Issued) -> list[Json]:
        content: list[Json] = []
        if issued.answer.thinking:
            thought = {"type": "thinking", "thinking": f"Thinking about {issued.number}."}
            content.append({**thought, "signature": issued.signature})
        content += issued.answer.blocks
        content.append({"type": "text", "text": issued.answer.text})
        for place, call in enumerate(issued.answer.calls):
            block = {"type": "tool_use", "id": issued.call_id(place), "name": call.name}
            content.append({**block, "input": call.arguments})
        return content

    def reply(self, issued: Issued) -> Json:
        return {
            "id": f"msg_{issued.number}",
            "type": "message",
            "role": "assistant",
            "model": issued.body["model"],
            "content": self._content(issued),
            "stop_reason": "tool_use" if issued.answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": self._usage(issued),
        }

    def events(self, issued: Issued) -> Iterator[Json | str]:
        reply = self.reply(issued)
        start = {**reply, "content": [], "stop_reason": None}
        yield {"type": "message_start", "message": start}
        for index, block in enumerate(reply["content"]):
            empty, deltas = _block_events(block)
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": reply["usage"]}
        yield {"type": "message_stop"}

    def too_long(self, tokens: int, window: int) -> str:
        return f"prompt is too long: {tokens} tokens > {window} maximum"

    def error(self, status: int, message: str) -> Json:
        kind = {400: "invalid_request_error", 429: "rate_limit_error", 529: "overloaded_error"}
        error = {"type": kind.get(status, "api_error"), "message": message}
        return {"type": "error", "error": error}

    def signatures(self, body: Json) -> Iterator[tuple[int, str]]:
        for position, message in enumerate(body["messages"]):
            blocks = message["content"] if isinstance(message["content"], list) else []
            for block in blocks:
                if block["type"] == "thinking":
                    yield position, block["signature"]

    def invalid_thinking(self, position: int) -> str:
        return f"messages.{position}.content.0: Invalid `signature` in `thinking` block"


def _block_events(block: Json) -> tuple[Json, list[Json]]:
    """How a content block begins, and the deltas that complete it."""
    if block["type"] == "text":
        half = len(block["text"]) // 2
        pieces = (block["text"][:half], block["text"][half:])
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        return {**block, "text": ""}, deltas
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if block["type"] != "tool_use":
        return block, []
    text = json.dumps(block["input"])
    pieces = (text[:5], text[5:])
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return {**block, "input": {}}, deltas


class _Chat(Wire):
    def _usage(self, issued: Issued) -> Json:
        return {
            "prompt_tokens": issued.tokens,
            "completion_tokens": 20,
            "total_tokens": issued.tokens + 20,
            "prompt_tokens_details": {"cached_tokens": issued.repeated},
        }

    def _calls(self, issued: Issued) -> list[Json]:
        return [
            {
                "id": issued.call_id(place),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for place, call in enumerate(issued.answer.calls)
        ]

    def _envelope(self, issued: Issued, kind: str) -> Json:
        model = issued.body["model"]
        return {"id": f"chat_{issued.number}", "object": kind, "created": 1, "model": model}

    def reply(self, issued: Issued) -> Json:
        message: Json = {"role": "assistant", "content": issued.answer.text}
        if issued.answer.calls:
            message["tool_calls"] = self._calls(issued)
        finish = "tool_calls" if issued.answer.calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        envelope = self._envelope(issued, "chat.completion")
        return {**envelope, "choices": [choice], "usage": self._usage(issued)}

    def events(self, issued: Issued) -> Iterator[Json | str]:
        envelope = self._envelope(issued, "chat.completion.chunk")

        def chunk(delta: Json, finish: str | None = None) -> Json:
            return {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        yield chunk({"role": "assistant", "content": ""})
        text = issued.answer.text
        yield chunk({"content": text[:4]})
        yield chunk({"content": text[4:]})
        for index, call in enumerate(self._calls(issued)):
            function = {"name": call["function"]["name"], "arguments": ""}
            yield chunk({"tool_calls": [{**call, "index": index, "function": function}]})
            piece = {"arguments": call["function"]["arguments"]}
            yield chunk({"tool_calls": [{"index": index, "function": piece}]})
        yield chunk({}, "tool_calls" if issued.answer.calls else "stop")
        if (issued.body.get("stream_options") or {}).get("include_usage"):
            yield {**envelope, "choices": [], "usage": self._usage(issued)}
        yield "[DONE]"

    def too_long(self, tokens: int, window: int) -> str:
        return (
            f"This model's maximum context length is {window} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages."
        )


class _Responses(Wire):
    def _items(self, issued: Issued) -> list[Json]:
        items: list[Json] = []
        ids = iter(issued.item_ids)
        if issued.answer.thinking:
            summary = [{"type": "summary_text", "text": f"Thinking about {issued.number}."}]
            reasoning = {"type": "reasoning", "id": issued.reasoning_id, "summary": summary}
            items.append({**reasoning, "encrypted_content": issued.signature})
        items += issued.answer.blocks
        content = [{"type": "output_text", "text": issued.answer.text, "annotations": []}]
        message = {"type": "message", "id": next(ids), "role": "assistant", "content": content}
        items.append({**message, "status": "completed"})
        for place, call in enumerate(issued.answer.calls):
            ids_of_call = {"id": next(ids), "call_id": issued.call_id(place)}
            items.append({**_call_item(call), **ids_of_call, "status": "completed"})
        return items

    def _response(self, issued: Issued, status: str, items: list[Json]) -> Json:
        usage = {
            "input_tokens": issued.tokens,
            "input_tokens_details": {"cached_tokens": issued.repeated},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": issued.tokens + 20,
        }
        return {
            "id": f"resp_{issued.number}",
            "object": "response",
            "created_at": 1,
            "status": status,
            "model": issued.body["model"],
            "output": items,
            "usage": usage if status == "completed" else None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
        }

    def reply(self, issued: Issued) -> Json:
        return self._response(issued, "completed", self._items(issued))

    def events(self, issued: Issued) -> Iterator[Json | str]:
        numbers = itertools.count()

        def event(kind: str, **fields: Any) -> Json:
            return {"type": kind, "sequence_number": next(numbers), **fields}

        yield event("response.created", response=self._response(issued, "in_progress", []))
        for place, item in enumerate(self._items(issued)):
            empty = {**item, "content": []} if item["type"] == "message" else item
            yield event("response.output_item.added", output_index=place, item=empty)
            if item["type"] == "message":
                yield from self._text_events(event, place, item)
            yield event("response.output_item.done", output_index=place, item=item)
        yield event("response.completed", response=self.reply(issued))

    def _text_events(self, event: Any, place: int, item: Json) -> Iterator[Json]:
        part = item["content"][0]
        where = {"item_id": item["id"], "output_index": place, "content_index": 0}
        yield event("response.content_part.added", part={**part, "text": ""}, **where)
        yield event("response.output_text.delta", delta=part["text"], logprobs=[], **where)
        yield event("response.output_text.done", text=part["text"], logprobs=[], **where)
        yield event("response.content_part.done", part=part, **where)

    def too_long(self, tokens: int, window: int) -> str:
        del tokens, window
        return "Your input exceeds the context window of this model. Please adjust your input."

    def signatures(self, body: Json) -> Iterator[tuple[int, str]]:
        items = body["input"] if isinstance(body["input"], list) else []
        for position, item in enumerate(items):
            if item.get("type") == "reasoning":
                yield position, item.get("encrypted_content") or ""

    def invalid_thinking(self, position: int) -> str:
        return f"The encrypted content of input[{position}] could not be verified."

    def item_ids(self, body: Json) -> set[str]:
        items = body["input"] if isinstance(body["input"], list) else []
        return {item["id"] for item in items if item.get("id")}


def _call_item(call: Call) -> Json:
    """A call without its ids."""
    if isinstance(call.arguments, str):
        return {"type": "custom_tool_call", "name": call.name, "input": call.arguments}
    item = {
        "type": "function_call",
        "name": call.name,
        "arguments": json.dumps(call.arguments),
    }
    return {**item, "namespace": call.namespace} if call.namespace else item


WIRES: dict[str, Wire] = {"messages": _Messages(), "chat": _Chat(), "responses": _Responses()}
