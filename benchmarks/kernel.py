"""The kernel, beside a fresh interpreter for each cell and beside a Jupyter kernel. Prints one
table.

    python benchmarks/kernel.py [--json FILE]

Every figure is the median of repeated runs on this machine. The floor is what any design with a
second process pays: one small msgpack message there and back, between two bare interpreters. The
Jupyter rows need ipykernel (the extra `bench`); without it they say so.
"""

import argparse
import gc
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from scroll_context.kernel.kernel import Kernel, KernelOptions
from scroll_context.kernel.protocol import Prelude

VARIABLES, BYTES_EACH = 101, 430_000
HITS = [
    {"seq": seq, "role": "user", "created_at": "2024-05-01", "text": "x" * 1000}
    for seq in range(10)
]
CALLS = """
def give(size): return call("give", size)
def empty(): return call("empty")
def find(words): return call("find", words)
"""
ROW = "{:<44} {:>12} {:>12} {:>12} {:>10}"


def median(
    action: Callable[[], object], runs: int, before: Callable[[], object] = lambda: None
) -> float:
    """Milliseconds, the median of `runs` after one that is not counted."""
    times = []
    for run in range(runs + 1):
        before()
        begun = time.perf_counter()
        action()
        if run:
            times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)


class Blobs:
    """A blob store in memory that names blobs as the payload store does."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, data: bytes, /) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.held[digest] = data
        return digest

    def get(self, digest: str, /) -> bytes:
        return self.held[digest]


def started(**options: object) -> Kernel:
    functions = {"give": lambda size: "x" * size, "empty": lambda: None, "find": lambda _: HITS}
    kernel = Kernel(
        functions,
        preludes=(Prelude("host", CALLS, ("give", "empty", "find")),),
        blobs=Blobs(),
        options=KernelOptions(**options),
    )
    kernel.start()
    return kernel


def start_times() -> tuple[float, float]:
    kernels: list[Kernel] = []

    def close() -> None:
        while kernels:
            kernels.pop().close()

    cold = median(lambda: kernels.append(started(share_fork_server=False)), 11, close)
    warm = median(lambda: kernels.append(started()), 31, close)
    close()
    return cold, warm


def floor() -> float:
    """A message to another process and back, with nothing done there."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while received := theirs.recv(65_536):
            theirs.send(msgspec.msgpack.encode(msgspec.msgpack.decode(received)))
        os._exit(0)
    theirs.close()

    def trip() -> None:
        ours.send(msgspec.msgpack.encode(["execute", 1, ""]))
        msgspec.msgpack.decode(ours.recv(65_536))

    with ours:
        return median(trip, 1000)


def measure_ours() -> dict[str, float]:
    times: dict[str, float] = {"floor: a message and back": floor()}
    times["cold start"], times["start from the fork server"] = start_times()
    kernel = started()
    gc.collect()
    times["round trip, empty cell"] = median(lambda: kernel.execute(""), 1000)
    times["round trip, print(1)"] = median(lambda: kernel.execute("print(1)"), 500)
    recall = "hits = find('budget')\nfor hit in hits[:3]:\n    print(hit['seq'], hit['text'][:20])"
    times["round trip, 10 rows found, 3 printed"] = median(lambda: kernel.execute(recall), 300)
    times["capability call, in a cell"] = calls_in_a_cell(kernel, "empty()")
    times["capability call, 10 rows of 1 kB"] = calls_in_a_cell(kernel, "find('budget')")
    for megabytes in (1, 10):
        source = f"text = give({megabytes << 20}); del text"
        times[f"capability result of {megabytes} MB"] = median(
            lambda source=source: kernel.execute(source), 15
        )
        source = f"print('x' * {megabytes << 20})"
        times[f"printed text of {megabytes} MB"] = median(
            lambda source=source: kernel.execute(source), 15
        )
    times |= measure_snapshots(kernel)
    kernel.close()
    return times


def calls_in_a_cell(kernel: Kernel, call: str) -> float:
    source = (
        "from time import perf_counter\ntimes = []\nfor _ in range(500):\n    t = "
        f"perf_counter(); {call};"
        " times.append(perf_counter() - t)\nprint(sorted(times)[250])"
    )
    return float(kernel.execute(source).stdout) * 1000


def measure_snapshots(kernel: Kernel) -> dict[str, float]:
    times: dict[str, float] = {}
    kernel.execute(
        f"def rows(i): return [f'{{i}} {{n}} ' + 'x' * 400 for n in range({BYTES_EACH // 415})]"
    )
    kernel.execute(
        f"for i in range({VARIABLES}): globals()[f'v{{i}}'] = rows(i)\ndel i, rows, times"
    )
    begun = time.perf_counter()
    manifest = kernel.save().manifest
    size = sum(variable.size for variable in manifest.variables) / 1e6
    times[f"first save, {VARIABLES} variables, {size:.0f} MB"] = (
        time.perf_counter() - begun
    ) * 1000
    touch = "v1.append('new'); v2[0] = 'new' + v2[0]; v3 = v3 + ['new']"
    times["save, 3 variables touched"] = median(kernel.save, 21, lambda: kernel.execute(touch))
    times["save, nothing touched"] = median(kernel.save, 21)
    times["full save, nothing changed"] = median(lambda: kernel.save(full=True), 5)
    manifest = kernel.save().manifest
    times["restart and restore all of it"] = median(lambda: kernel.restore(manifest), 5)
    return times


def measure_fresh_process() -> dict[str, float]:
    """What a design without a living kernel pays for each cell: a new interpreter."""

    def run(source: str) -> None:
        subprocess.run([sys.executable, "-I", "-c", source], check=True, capture_output=True)

    return {
        "cold start": (start := median(lambda: run(""), 15)),
        "start from the fork server": start,
        "round trip, empty cell": start,
        "round trip, print(1)": median(lambda: run("print(1)"), 15),
        "printed text of 1 MB": median(lambda: run("print('x' * (1 << 20))"), 9),
        "printed text of 10 MB": median(lambda: run("print('x' * (10 << 20))"), 9),
    }


@contextmanager
def jupyter() -> Iterator[Callable[[str], None]]:
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(
        extra_arguments=["--HistoryManager.enabled=False"], stderr=subprocess.DEVNULL
    )
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)

    def run(source: str) -> None:
        client.execute_interactive(
            source, store_history=False, timeout=60, output_hook=lambda _: None
        )

    try:
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def measure_jupyter() -> dict[str, float]:
    times: dict[str, float] = {}
    starts = []
    for _ in range(3):
        begun = time.perf_counter()
        with jupyter() as run:
            run("")
            starts.append((time.perf_counter() - begun) * 1000)
    times["cold start"] = times["start from the fork server"] = statistics.median(starts)
    with jupyter() as run:
        times["round trip, empty cell"] = median(lambda: run(""), 50)
        times["round trip, print(1)"] = median(lambda: run("print(1)"), 50)
        times["printed text of 1 MB"] = median(lambda: run("print('x' * (1 << 20))"), 9)
        times["printed text of 10 MB"] = median(lambda: run("print('x' * (10 << 20))"), 9)
    return times


TARGETS = {
    "cold start": 100.0,
    "start from the fork server": 35.0,
    "round trip, empty cell": 0.1,
    "save, 3 variables touched": 20.0,
}


def cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with Kernel() as kernel:
        print(
            f"jail tier {kernel.start().tier}, Python {sys.version.split()[0]}; "
            "milliseconds, medians\n"
        )
    ours = measure_ours()
    fresh = measure_fresh_process()
    try:
        import ipykernel  # noqa: F401
        import jupyter_client  # noqa: F401
    except ImportError as error:
        others, note = (
            {},
            f"Jupyter kernel: not measured, because {error.name} is not installed (extra `bench`).",
        )
    else:
        others, note = measure_jupyter(), ""
    print(ROW.format("", "Scroll", "new process", "Jupyter", "target"))
    for name, value in ours.items():
        print(
            ROW.format(
                name,
                cell(value),
                cell(fresh.get(name)),
                cell(others.get(name)),
                cell(TARGETS.get(name)),
            )
        )
    print(note)
    if options.json:
        options.json.write_text(
            json.dumps({"ours": ours, "fresh": fresh, "jupyter": others}, indent=1)
        )


if __name__ == "__main__":
    main()
