"""Erasing in a large log: how long it takes, how much memory, and how long others wait meanwhile.

    python benchmarks/erase.py --events 1000000 --erase 10000

Makes a store in a temporary folder, erases every hundredth event with its copies, and verifies.
Another thread appends all the while; the longest that one of its appends took is what a session
would have waited.
"""

import argparse
import json
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

from scroll_context.events import Draft
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure an erasure in a large log.")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--erase", type=int, default=1_000)
    parser.add_argument(
        "--index", action="store_true", help="build the search index first, and again afterwards"
    )
    arguments = parser.parse_args()
    figures: dict[str, float] = {"events": arguments.events, "erased": arguments.erase}
    with tempfile.TemporaryDirectory(prefix="scroll-erase-") as folder:
        store = Store(Path(folder) / "store", create=True, lock_timeout=600)
        figures["fill_seconds"] = _timed(lambda: _fill(store, arguments.events))
        if arguments.index:
            figures["index_seconds"] = _timed(store.index.catch_up)
        step = arguments.events // arguments.erase
        seqs = range(step, arguments.events + 1, step)[: arguments.erase]
        waits: list[float] = []
        over = threading.Event()
        writer = threading.Thread(target=_append_until, args=(store.folder, over, waits))
        writer.start()
        figures["erase_seconds"] = _timed(lambda: store.erase(seqs=seqs, copies=True))
        over.set()
        writer.join()
        figures["longest_append_seconds"] = max(waits)
        if arguments.index:
            figures["reindex_seconds"] = _timed(store.index.catch_up)
        figures["verify_seconds"] = _timed(lambda: _require(verify(store.log).ok))
        store.close()
    figures["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}, indent=2))
    return 0


def _fill(store: Store, events: int) -> None:
    for start in range(0, events, 10_000):
        store.log.append_many(
            Draft(
                session_id=f"s{n % 500}",
                role="user",
                content=f"message {n} about the harbour, the weather " * 6,
            )
            for n in range(start, min(start + 10_000, events))
        )


def _append_until(folder: Path, over: threading.Event, waits: list[float]) -> None:
    with Store(folder, lock_timeout=600) as store:
        while not over.is_set():
            waits.append(
                _timed(lambda: store.append(Draft(session_id="meanwhile", content="goes on")))
            )
            over.wait(0.05)


def _require(is_so: bool) -> None:
    if not is_so:
        raise SystemExit("the log does not verify after the erasure")


def _timed(work: object) -> float:
    start = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
