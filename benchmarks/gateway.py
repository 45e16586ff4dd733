"""What a gateway adds to each request, beside an empty proxy of the same kind in the same run.

    python benchmarks/gateway.py [--sizes 50 500 2000] [--results 2000 9000]

A client on loopback sends lists of the given sizes to an upstream on loopback that answers at once:
directly, through a proxy that only passes bytes on, and through the gateway. Each request has two
messages more than the one before, and a cache mark on its last block, as Claude Code sends it.

"Added" is the gateway less the empty proxy, each the median of several requests; "processor" is the
same in processor time of the process, other threads included. "First sight" is the first request of
the list, in which all messages are new, less that of the empty proxy; indexing goes on behind it.
Times by the clock mean little while other programs run.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx2

from scroll_context.connections import listen
from scroll_context.store import Store
from scroll_gateway.conversations import Conversations
from scroll_gateway.running import RunningGateway, collect_garbage_rarely, opened
from scroll_gateway.server import Gateway, server

Json = dict[str, Any]

ROUNDS = 9
WINDOW = 120_000
NEXT = "x-next-step"
"""The header in which the client says which step the upstream is to answer with."""


class Upstream(BaseHTTPRequestHandler):
    """Reads a request and answers at once."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        content = json.dumps(reply(int(self.headers[NEXT]))).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def upstream_process() -> Iterator[str]:
    """An upstream in a process of its own, so that it takes no time from the gateway."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    process = multiprocessing.get_context("fork").Process(target=httpd.serve_forever, daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        process.terminate()
        process.join()


class EmptyProxy(Conversations):
    """Follows no conversation."""

    def exchange(self, *_: object) -> None:
        return None


@contextmanager
def empty_proxy(folder: Path, upstream: str) -> Iterator[str]:
    with Store(folder, create=True) as store, listen("127.0.0.1", 0) as listening:
        conversations = EmptyProxy(store, window=WINDOW)
        port = listening.getsockname()[1]
        gateway = Gateway(conversations, upstream, token="t", port=port)
        running = RunningGateway(
            f"http://127.0.0.1:{port}/k/t", conversations, server(gateway), listening
        )
        with running.serving():
            yield running.url


def reply(number: int) -> Json:
    """The message with which the next list continues."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
    usage = {"input_tokens": 9, "output_tokens": 3}
    return {**message, "content": [call(number)], "stop_reason": "tool_use", "usage": usage}


def call(number: int) -> Json:
    return {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"path": "a"}}


def step(number: int, size: int) -> list[Json]:
    text = f"Result {number}.\n" + "A line of a file, as tools return them.\n" * (size // 40)
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text}
    return [
        {"role": "assistant", "content": [call(number)]},
        {"role": "user", "content": [result]},
    ]


def bodies(count: int, size: int) -> list[bytes]:
    """A list of `count` messages, and longer ones with two messages more each."""
    # Each list begins differently: one that begins like a known list would be a fork of it.
    prompt = f"Read {count} files of {size} characters."
    messages: list[Json] = [{"role": "user", "content": prompt}]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    listed = []
    for number in range(count // 2 + ROUNDS):
        messages += step(number, size)
        if number >= count // 2 - 1:
            marked = [*messages[:-1], with_mark(messages[-1])]
            body = {"model": "m", "max_tokens": 9, "messages": marked, "tools": tools}
            listed.append(json.dumps(body, separators=(",", ":")).encode())
    return listed


def with_mark(message: Json) -> Json:
    """A message with a cache mark on its last block."""
    *blocks, last = message["content"]
    last = {**last, "cache_control": {"type": "ephemeral"}}
    return {**message, "content": [*blocks, last]}


class Taken(NamedTuple):
    """Milliseconds of a request."""

    clock: float
    processor: float

    def less(self, other: "Taken") -> "Taken":
        return Taken(self.clock - other.clock, self.processor - other.processor)


def taken(send: Callable[[bytes, int], object], body: bytes, number: int) -> Taken:
    clock, processor = time.perf_counter(), time.process_time()
    send(body, number)
    return Taken(
        (time.perf_counter() - clock) * 1e3,
        (time.process_time() - processor) * 1e3,
    )


def times(
    url: str,
    listed: list[bytes],
    first: int,
    session: str,
    settle: Callable[[], object] = lambda: None,
) -> tuple[Taken, Taken]:
    """The first request, and the median of the others, once everything has settled."""
    headers = {"content-type": "application/json", "x-claude-code-session-id": session}
    with httpx2.Client(trust_env=False, timeout=60) as client:

        def send(body: bytes, number: int) -> None:
            named = headers | {NEXT: str(number)}
            client.post(f"{url}/v1/messages", content=body, headers=named).raise_for_status()

        first_request = taken(send, listed[0], first)
        settle()
        later = [taken(send, body, number) for number, body in enumerate(listed[1:], first + 1)]
    clock = median(request.clock for request in later)
    processor = median(request.processor for request in later)
    return first_request, Taken(clock, processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 500, 2000])
    parser.add_argument(
        "--results", type=int, nargs="+", default=[2000, 9000], help="Characters of one result."
    )
    options = parser.parse_args()

    print(
        "| messages | body | direct | empty proxy | gateway | added | processor "
        "| first sight | processor |"
    )
    print("|---:" * 9 + "|")
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream_process() as upstream,
        empty_proxy(Path(folder) / "empty", upstream) as proxy,
        opened(Path(folder) / "store", upstream, window=WINDOW, task_id="bench") as gateway,
        gateway.serving(),
    ):
        collect_garbage_rarely()
        for size, count in product(options.results, options.sizes):
            listed = bodies(count, size)
            _, direct = times(upstream, listed, count // 2, "")
            first_empty, empty = times(proxy, listed, count // 2, "")
            session = f"session-{size}-{count}"
            # The messages of the first sight are indexed behind it, which later requests are not
            # to pay for.
            index = gateway.conversations._store.index
            first, through = times(gateway.url, listed, count // 2, session, index.catch_up)
            added, first_added = through.less(empty), first.less(first_empty)
            print(
                f"| {count:,} | {len(listed[-1]) / 1e6:.2f} MB | {direct.clock:.1f} ms "
                f"| {empty.clock:.1f} ms | {through.clock:.1f} ms | {added.clock:.1f} ms "
                f"| {added.processor:.1f} ms | {first_added.clock:.0f} ms "
                f"| {first_added.processor:.0f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
