"""What reading and laying out a request costs, beside a plain decode and encode of the same body.

    python benchmarks/wire.py [--sizes 50 500 2000]

Each list has results of 2 kB. Four times are taken for each protocol: msgspec's decode and encode
of the whole body, the first sight of the list, the next request (two more messages) with everything
kept, and the next request with all but the newest 20 results folded, as they were in the request
before. The second table is the same with a session: recording, planning and layout, in a window of
120,000 tokens, beside decode and encode of the same bodies. Printed are medians of processor time.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from scroll_context.session.host import Item, Keep, Layout, Replace
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.eviction import ViewBudget
from scroll_gateway.sdk_client import LOW_MARK
from scroll_gateway.wire.chat import Chat
from scroll_gateway.wire.layouts import apply
from scroll_gateway.wire.messages import Messages
from scroll_gateway.wire.protocol import Protocol
from scroll_gateway.wire.requests import ListReader
from scroll_gateway.wire.responses import Responses
from scroll_gateway.wire.session import WiredSession

RESULT = 'A line of a file, as tools return them, with "quotes" and é.\n' * 32
ROUNDS = 15
NEWEST = 20
WINDOW = 120_000

Json = dict[str, Any]


def messages_step(number: int) -> list[Json]:
    call = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"path": "a"}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": RESULT}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def chat_step(number: int) -> list[Json]:
    function = {"name": "read", "arguments": '{"path": "a"}'}
    call = {"id": f"t{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"t{number}", "content": RESULT},
    ]


def responses_step(number: int) -> list[Json]:
    call = {"type": "function_call", "call_id": f"t{number}", "name": "read", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": f"t{number}", "output": RESULT}]


STEPS: dict[Protocol, Callable[[int], list[Json]]] = {
    Messages(): messages_step,
    Chat(): chat_step,
    Responses(): responses_step,
}


def body_of(protocol: Protocol, size: int) -> bytes:
    """A body with about this many messages, as the SDKs write it."""
    items: list[Json] = [{"role": "user", "content": "Read the files."}]
    for number in range(size // 2):
        items += STEPS[protocol](number)
    body = {protocol.list_field: items, "model": "m", "tools": []}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def folded(count: int) -> Layout:
    """Every second message is a result; the newest stay."""
    items: list[Item] = [
        Replace(number, f"[folded: seq {number}]")
        if number and number % 2 == 0 and number < count - NEWEST
        else Keep(number)
        for number in range(count)
    ]
    return Layout(items=tuple(items))


def timed(action: Callable[[], object]) -> float:
    started = time.thread_time()
    action()
    return (time.thread_time() - started) * 1e3


def measure(protocol: Protocol, size: int) -> list[float]:
    before, body = body_of(protocol, size), body_of(protocol, size + 2)
    columns: list[list[float]] = [[], [], [], []]
    for _ in range(ROUNDS):
        columns[0].append(timed(lambda: msgspec.json.encode(msgspec.json.decode(body))))
        reader = ListReader(protocol)
        columns[1].append(timed(lambda reader=reader: reader.read(before)))  # type: ignore[misc]
        count = len(ListReader(protocol).read(body).messages)
        unchanged = Layout(items=tuple(Keep(number) for number in range(count)))
        columns[2].append(timed(lambda r=reader, u=unchanged: apply(r.read(body), u)))  # type: ignore[misc]
        layout = folded(count)
        apply(reader.read(body), layout)
        reader.read(before)
        columns[3].append(timed(lambda r=reader, f=layout: apply(r.read(body), f)))  # type: ignore[misc]
    return [median(column) for column in columns]


def measure_session(protocol: Protocol, size: int) -> list[float]:
    """Decode and encode, the first request of a session, and the requests after it."""
    bodies = [body_of(protocol, size + 2 * number) for number in range(ROUNDS)]
    plain = [timed(lambda b=body: msgspec.json.encode(msgspec.json.decode(b))) for body in bodies]  # type: ignore[misc]
    options = SessionOptions(context="plain", budget=ViewBudget(low=LOW_MARK))
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder) / "store", create=True) as store,
        Session.open(store, session_id="work", options=options) as session,
    ):
        wired = WiredSession(session, window=WINDOW)
        times = []
        for body in bodies:
            times.append(timed(lambda b=body: wired.exchange("POST", protocol.path, b)))  # type: ignore[misc]
    return [median(plain), times[0], median(times[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 500, 2000])
    options = parser.parse_args()
    print(
        "| protocol | messages | body | decode+encode | first sight | next, kept | next, folded |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for protocol in STEPS:
        for size in options.sizes:
            print_row(protocol, size, measure(protocol, size))
    print()
    print("| protocol | messages | body | decode+encode | first with session | next with session |")
    print("|---|---:|---:|---:|---:|---:|")
    for protocol in STEPS:
        for size in options.sizes:
            print_row(protocol, size, measure_session(protocol, size))


def print_row(protocol: Protocol, size: int, values: list[float]) -> None:
    times = " | ".join(f"{value:.2f} ms" for value in values)
    megabytes = len(body_of(protocol, size)) / 1e6
    print(f"| {protocol.name} | {size:,} | {megabytes:.2f} MB | {times} |")


if __name__ == "__main__":
    main()
