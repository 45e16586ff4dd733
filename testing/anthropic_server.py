"""Answers in the Anthropic messages protocol, for `ProviderServer`."""

from typing import Any

from provider_server import Exchange, Play

USAGE = {
    "input_tokens": 20,
    "cache_read_input_tokens": 70,
    "cache_creation_input_tokens": 10,
    "output_tokens": 9,
}


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How a block begins and what follows, as the protocol streams it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "tool_use":
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": block["input"]}
            ]
        case _:
            return block, []


def streamed(*blocks: dict[str, Any], stop: str | None = "end_turn", name: str = "m1") -> Play:
    """The blocks as a stream; without a stop reason the stream is cut after them.

    `name` is the id of the message.
    """

    def play(exchange: Exchange) -> None:
        def send(kind: str, **fields: Any) -> None:
            exchange.send({"type": kind, **fields}, event=kind)

        exchange.start_stream(chunked=False)
        message = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": [],
        }
        send(
            "message_start",
            message={**message, "stop_reason": None, "stop_sequence": None, "usage": USAGE},
        )
        for index, block in enumerate(blocks):
            start, deltas = _deltas(block)
            send("content_block_start", index=index, content_block=start)
            for delta in deltas:
                send("content_block_delta", index=index, delta=delta)
            send("content_block_stop", index=index)
        if stop is not None:
            send("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=USAGE)
            send("message_stop")

    return play


def error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}
