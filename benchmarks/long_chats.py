"""Real chats, measured: an eviction, and the first request of a session that has many before it.

    python benchmarks/long_chats.py --data DIR [--messages 40000] [--json FILE]

DIR is BEAM's own folder (its layout is in scroll_evals/beam.py). Two parts:

* evictions       chats are played message by message at windows of 32k and 128k tokens; planning
  and applying an eviction are timed together
* first requests  the same messages in few long or many short sessions; between two requests, one
  more session of ten messages is added. "first" is the first one after the notes on the sessions
  were made, "without notes" a first one that has to make them

Times are processor time of the measuring thread in milliseconds, and medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import beam
from scroll_context.events import EVERYTHING, Draft, Event, Kind
from scroll_context.session.earlier_work import earlier_work, note_sessions
from scroll_context.store import Store
from scroll_context.view.eviction import Budget, plan_eviction, prepare_ahead
from scroll_context.view.working import WorkingView

WINDOWS = (32_000, 128_000)
LAYOUTS = ((16_600, 1_040), (16_600, 57), (40_000, 57))
"""Messages, and messages of a session: about 16, 300 and 700 sessions."""
EVICTED = 6_000
"""Messages that are played for evictions."""
ROUNDS = 7
ADDED = 10

Row = dict[str, Any]


def evictions(messages: Sequence[Draft]) -> Iterator[Row]:
    for window in WINDOWS:
        times = list(_evicting(messages, Budget(window=window)))
        yield {"window": window, "evictions": len(times), "ms": round(statistics.median(times), 2)}


def _evicting(messages: Sequence[Draft], budget: Budget) -> Iterator[float]:
    view = WorkingView()
    for draft in messages:
        seq = view.last_seq + 1
        view.add(Event(seq=seq, recorded_at="", role=draft.role, content=draft.content))
        if draft.role != "user":
            continue
        begun = time.thread_time()
        plan = plan_eviction(view, budget)
        if plan is None:
            prepare_ahead(view)
        else:
            view.add(
                Event(seq=seq + 1, recorded_at="", kind=Kind.EVICTION, metadata=plan.metadata())
            )
            yield (time.thread_time() - begun) * 1e3
        upto = view.last_seq
        view.add(Event(seq=upto + 1, recorded_at="", kind=Kind.REQUEST, metadata={"upto": upto}))


def first_requests(messages: Sequence[Draft]) -> Iterator[Row]:
    for count, size in LAYOUTS:
        stretch = messages[:count]
        added = messages[count : count + ROUNDS * ADDED] or messages[: ROUNDS * ADDED]
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            Store(Path(folder) / "store", create=True) as store,
        ):
            for start in range(0, len(stretch), size):
                part = stretch[start : start + size]
                store.log.append_many(replace(draft, session_id=f"chat-{start}") for draft in part)
            store.index.catch_up()
            sessions = len(store.log.sessions())
            without = _first_request(store, with_notes=False)
            note_sessions(store.log, store.index)
            first = _first_request(store)
            later = []
            for number in range(ROUNDS):
                part = added[number * ADDED : (number + 1) * ADDED]
                store.log.append_many(
                    replace(draft, session_id=f"added-{number}") for draft in part
                )
                store.index.catch_up()
                later.append(_first_request(store))
            yield {
                "messages": len(stretch),
                "sessions": sessions,
                "ms": round(statistics.median(later), 1),
                "first": round(first, 1),
                "without notes": round(without, 1),
            }


def _first_request(store: Store, with_notes: bool = True) -> float:
    index = store.index if with_notes else None
    begun = time.thread_time()
    work = earlier_work(store.log, EVERYTHING, "now", Budget(window=128_000), index=index)
    took = (time.thread_time() - begun) * 1e3
    assert work.topics
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="BEAM's folder")
    parser.add_argument("--messages", type=int, default=40_000, help="read no more than these")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    messages: list[Draft] = []
    for chat in beam.read(options.data):
        messages += chat.messages
    messages = messages[: options.messages]
    parts = {
        "evictions": list(evictions(messages[:EVICTED])),
        "first requests": list(first_requests(messages)),
    }
    for name, rows in parts.items():
        print(name)
        for row in rows:
            print("  " + ", ".join(f"{key} {value:,}" for key, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps(parts))


if __name__ == "__main__":
    main()
