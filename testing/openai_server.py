"""Answers in the OpenAI chat-completions protocol, good and bad, for `ProviderServer`."""

import signal
import threading
from typing import Any

from provider_server import Exchange, Play

USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 7,
    "total_tokens": 127,
    "prompt_tokens_details": {"cached_tokens": 96},
}


def chunk(
    delta: dict[str, Any] | None, finish: str | None = None, usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    out = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny-1",
        "choices": choices,
    }
    return {**out, "usage": usage} if usage else out


def text_deltas(*pieces: str, field: str = "content") -> list[dict[str, Any]]:
    return [{field: piece} for piece in pieces]


def call_delta(index: int, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    call = {"index": index, "function": function}
    return {"tool_calls": [{**call, "id": call_id, "type": "function"} if call_id else call]}


def streamed(
    *deltas: dict[str, Any], finish: str = "stop", usage: dict[str, Any] | None = USAGE
) -> Play:
    def play(exchange: Exchange) -> None:
        exchange.start_stream()
        for delta in deltas:
            exchange.send(chunk(delta))
        exchange.send(chunk({}, finish))
        if usage:
            exchange.send(chunk(None, usage=usage))
        exchange.send("[DONE]")
        exchange.end_stream()

    return play


def whole(
    message: dict[str, Any], finish: str = "stop", usage: dict[str, Any] | None = USAGE
) -> Play:
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": None, **message},
    }
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny-1",
        "choices": [choice],
    }
    return lambda exchange: exchange.respond(200, {**body, "usage": usage} if usage else body)


def no_choices(exchange: Exchange) -> None:
    """A well-formed answer with nothing in it."""
    if exchange.body.get("stream"):
        exchange.start_stream()
        exchange.send(chunk(None, usage=USAGE))
        exchange.send("[DONE]")
        exchange.end_stream()
    else:
        exchange.respond(
            200,
            {
                "id": "c1",
                "object": "chat.completion",
                "created": 1,
                "model": "tiny-1",
                "choices": [],
            },
        )


def cut(*pieces: str, chunked: bool) -> Play:
    """A stream whose connection ends in the middle; without chunks that looks like a proper end."""

    def play(exchange: Exchange) -> None:
        exchange.start_stream(chunked=chunked)
        for delta in text_deltas(*pieces):
            exchange.send(chunk(delta))

    return play


def error_in_stream(exchange: Exchange) -> None:
    """An error that is reported after the stream began."""
    exchange.start_stream()
    exchange.send(chunk({"content": "Well"}))
    exchange.send(
        {
            "error": {
                "message": "the engine restarted",
                "type": "server_error",
                "code": "server_error",
            }
        }
    )
    exchange.end_stream()


def endless(*pieces: str, interrupt: bool = False) -> Play:
    """A stream that never ends by itself; it can press Ctrl-C in the main thread."""

    def play(exchange: Exchange) -> None:
        exchange.start_stream()
        for delta in text_deltas(*pieces):
            exchange.send(chunk(delta))
        if interrupt:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        exchange.linger()

    return play


def meet(barrier: threading.Barrier) -> Play:
    """Answers only when as many requests as the barrier counts are here at the same time."""

    def play(exchange: Exchange) -> None:
        barrier.wait(60)
        streamed(*text_deltas("met"))(exchange)

    return play
