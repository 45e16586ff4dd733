"""What reading and laying out a request costs, beside a plain decode and encode of the same body.

    python benchmarks/wire.py [--sizes 50 500 2000]

Each list has results of 2 kB. Four times are taken for each protocol: msgspec's decode and encode
of the whole body, the first sight of the list, the next request (two more messages) with everything
kept, and the next request with all but the newest 20 results folded, as they were in the request
before. Printed is the median processor time of several rounds. `Session.follow` is not part of it.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec

from scroll_context.hosts.wire import Protocol
from scroll_context.hosts.wire_chat import Chat
from scroll_context.hosts.wire_layouts import apply
from scroll_context.hosts.wire_messages import Messages
from scroll_context.hosts.wire_requests import ListReader
from scroll_context.hosts.wire_responses import Responses
from scroll_context.session.host import Item, Keep, Layout, Replace

RESULT = 'A line of a file, as tools return them, with "quotes" and é.\n' * 32
ROUNDS = 15
NEWEST = 20

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
            times = " | ".join(f"{value:.2f} ms" for value in measure(protocol, size))
            megabytes = len(body_of(protocol, size)) / 1e6
            print(f"| {protocol.name} | {size:,} | {megabytes:.2f} MB | {times} |")


if __name__ == "__main__":
    main()
