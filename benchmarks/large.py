"""Measures one store while it grows to ten million messages, and draws how each figure grows.

    python benchmarks/large.py                       10k, 100k, 1M and 10M messages (half an hour)
    python benchmarks/large.py --sizes 1000 10000    other sizes
    python benchmarks/large.py --fill                measure nothing; draw and fill from the results

Messages are made up, of about 300 characters, and are not kept in memory. At each size a new process
imports the messages that are missing, and another one opens the store and measures it, so that the
memory of both is known: "own memory" is what a process allocates, without the files of the index
that the system maps into it and can drop at any time.

The exponent of a figure says how it grows: a value that is ten times as large in a store of ten
times the size has the exponent 1, and one that does not grow has 0.
"""

import argparse
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec

from plots import INK, OURS, STYLE, name_curve, short
from run import fill_between, machine, place
from scroll_context.events import Draft, Kind
from scroll_context.session.session import Session
from scroll_context.store import Store

HERE = Path(__file__).parent
ROOT = HERE.parent
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
# Words of one message.
WORDS = 42
# The messages that an import appends at once.
CHUNK = 5_000
# How often each operation is timed.
ROUNDS = 40
MARKER = "large"


class Row(msgspec.Struct, frozen=True):
    """One figure, and how it is printed."""

    key: str
    label: str
    unit: str
    # Whether a growing value means that a larger store is worse.
    grows_badly: bool = True


ROWS = (
    Row("import_rate", "import until searchable", "/s", grows_badly=False),
    Row("append_ms", "durable append", "ms"),
    Row("open_ms", "open", "ms"),
    Row("search_ms", "search, six words", "ms"),
    Row("cell_ms", "recall cell", "ms"),
    Row("bytes_per_character", "disk for each character", "B"),
    Row("import_mib", "own memory while importing", "MiB"),
    Row("search_mib", "own memory while searching", "MiB"),
)


class Measured(msgspec.Struct, frozen=True):
    """What was measured at one size."""

    messages: int
    figures: dict[str, float]


class Results(msgspec.Struct, frozen=True):
    """A run."""

    date: str
    machine: dict[str, Any]
    sizes: list[Measured]


# the messages -------------------------------------------------------------------------------------


def vocabulary() -> list[str]:
    rng = random.Random(11)
    syllables = "ba con di fer gra lo mi nel or pla qui ra sto tre ver zu".split()
    return ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(30_000)]


def weights() -> list[float]:
    """Weights with the frequencies of natural language."""
    return [1 / (rank + 8) for rank in range(30_000)]


def messages(first: int, last: int) -> Iterator[Draft]:
    """The messages with these numbers."""
    rng = random.Random(first)
    needed = min(WORDS * (last - first), 2_000_003)
    supply = cycle(rng.choices(vocabulary(), weights(), k=needed))
    for number in range(first, last):
        yield Draft(
            session_id=f"session-{number // 400}",
            agent_id="agent",
            kind=Kind.CONVERSATION,
            role="assistant" if number % 2 else "user",
            content=" ".join(islice(supply, WORDS)),
        )


def questions() -> list[str]:
    rng = random.Random(7)
    words = vocabulary()
    return [" ".join(rng.choices(words, weights(), k=6)) for _ in range(ROUNDS)]


# measuring, each in a process of its own ----------------------------------------------------------


def own_memory(name: str) -> float:
    """MiB that this process has allocated: without mapped files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) / 1024


def import_until(folder: Path, size: int) -> dict[str, float]:
    """Import what is missing until the store has so many messages, all of them searchable."""
    highest = 0.0
    with Store(folder, create=True) as store:
        store.index.start()
        first = store.log.last_seq()
        supply = messages(first, size)
        making = 0.0
        begun = time.perf_counter()
        while True:
            made = time.perf_counter()
            batch = list(islice(supply, CHUNK))
            making += time.perf_counter() - made
            if not batch:
                break
            store.log.append_many(batch)
            highest = max(highest, own_memory("RssAnon"))
        store.index.catch_up()
        took = time.perf_counter() - begun - making
    return {"import_rate": (size - first) / took, "import_mib": max(highest, own_memory("RssAnon"))}


def median_ms(action: Callable[[int], object], rounds: int = ROUNDS) -> float:
    samples = []
    for number in range(rounds):
        begun = time.perf_counter()
        action(number)
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples) * 1e3


def look(folder: Path, size: int) -> dict[str, float]:
    """Measure a store of so many messages. The few that it appends do not matter at these sizes."""
    asked = questions()
    open_ms = median_ms(lambda _: Store(folder).close(), 10)
    with Store(folder) as store:
        for question in asked:
            store.index.search(question)
        search_ms = median_ms(lambda number: store.index.search(asked[number]))
        search_mib = own_memory("RssAnon")
        drafts = list(messages(size, size + ROUNDS))
        append_ms = median_ms(lambda number: store.append(drafts[number]))
        store.index.catch_up()
        with Session.open(store, session_id=f"measured-{size}", agent_id="agent") as session:
            cell_ms = measure_cells(session, asked)
    characters = size * statistics.fmean(len(draft.content) for draft in messages(0, 1_000))
    on_disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "open_ms": open_ms,
        "search_ms": search_ms,
        "search_mib": search_mib,
        "append_ms": append_ms,
        "cell_ms": cell_ms,
        "bytes_per_character": on_disk / characters,
    }


def measure_cells(session: Session, asked: list[str]) -> float:
    environment = session.environment
    marker = session.record(Kind.CELL, content="timed")

    def cell(number: int) -> None:
        source = f"hits = ms.search({asked[number]!r})\nprint(hits[0]['seq'] if hits else None)"
        result, _ = environment.run(source, marker, 60.0)
        assert result.ended == "ok", result

    cell(0)
    return median_ms(cell)


PARTS = {"import": import_until, "look": look}


def measured(folder: Path, size: int) -> Measured:
    figures: dict[str, float] = {}
    for part in PARTS:
        command = [sys.executable, __file__, "--part", part, str(folder), str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"measuring {size:,} messages failed with status {done.returncode}")
        figures.update(json.loads(done.stdout))
    return Measured(size, figures)


def measure(sizes: list[int], folder: Path) -> Results:
    facts = machine()
    rows = []
    for size in sizes:
        print(f"{size:,} messages …", file=sys.stderr, flush=True)
        rows.append(measured(folder, size))
        print(f"  {rows[-1].figures}", file=sys.stderr, flush=True)
    return Results(time.strftime("%Y-%m-%d"), facts, rows)


# the report ---------------------------------------------------------------------------------------


def exponent(row: Row, sizes: list[Measured]) -> float:
    """The slope of the figure in a plot whose axes are both logarithmic, by least squares."""
    points = [(math.log(size.messages), math.log(size.figures[row.key])) for size in sizes]
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return rise / sum((x - mean_x) ** 2 for x, _ in points)


def printed(value: float, unit: str) -> str:
    if unit == "/s" or value >= 100:
        return f"{value:,.0f} {unit}".replace(" /s", "/s")
    return f"{value:.3g} {unit}"


def section(results: Results, image: str) -> str:
    heads = ["what", *(f"{short(size.messages)}" for size in results.sizes), "exponent"]
    lines = [heads, ["---", *("---:" for _ in heads[1:])]]
    for row in ROWS:
        values = [printed(size.figures[row.key], row.unit) for size in results.sizes]
        lines.append([row.label, *values, f"{exponent(row, results.sizes):.2f}"])
    return "\n".join(
        [
            f"Measured on {results.date}, on {place(results.machine)}.",
            "",
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            f"![How each figure grows with the store]({image})",
        ]
    )


def draw(results: Results, file: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sizes = [size.messages for size in results.sizes]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.0, 4.4), layout="constrained")
        for row, axes in zip(ROWS, figure.subplots(2, 4).flat, strict=True):
            values = [size.figures[row.key] for size in results.sizes]
            axes.plot(sizes, values, "o-", color=OURS, markersize=3)
            axes.set_title(f"{row.label} ({row.unit})", fontsize=7, loc="left", color=INK)
            axes.set_xscale("log")
            axes.set_xticks(sizes, [short(size) for size in sizes], fontsize=7)
            axes.minorticks_off()
            axes.set_ylim(0, max(values) * 1.25)
            axes.tick_params(axis="y", labelsize=7)
            slope = f"{exponent(row, results.sizes):+.2f}"
            name_curve(axes, slope, sizes[0], max(values) * 1.12, INK)
        figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--fill", action="store_true", help="draw and fill from the results alone")
    parser.add_argument("--results", type=Path, default=HERE / "results_large.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "RESULTS.md")
    parser.add_argument("--image", type=Path, default=ROOT / "docs" / "img" / "large.svg")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part, folder, size = options.part
        print(json.dumps(PARTS[part](Path(folder), int(size))))
        return
    # A missing place should be reported now and not after half an hour.
    fill_between(options.page.read_text(), MARKER, "")
    if not options.fill:
        folder = Path(tempfile.mkdtemp(prefix="scroll-large-"))
        try:
            results = measure(sorted(options.sizes), folder)
        finally:
            shutil.rmtree(folder)
        options.results.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    results = msgspec.json.decode(options.results.read_bytes(), type=Results)
    draw(results, options.image)
    text = section(results, f"img/{options.image.name}")
    print(text)
    options.page.write_text(fill_between(options.page.read_text(), MARKER, text))


if __name__ == "__main__":
    main()
