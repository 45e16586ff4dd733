"""Runs the benchmarks, prints one table beside the targets, and puts the numbers where people read
them.

    python benchmarks/run.py              a few minutes; search in stores of up to 100,000 messages
    python benchmarks/run.py --data DIR   evidence recall on BEAM chats too, and the token cost of
                                          questions about one (DIR as in scroll_evals/beam.py)
    python benchmarks/run.py --fill       measure nothing; draw and fill again from the last results

The peers are measured in the same run. What is found goes to benchmarks/results.json; the plots in
docs/img and the numbers in docs/RESULTS.md are made from that file alone, so all three always agree.
"""

import argparse
import json
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import plots

HERE = Path(__file__).parent
ROOT = HERE.parent
MARKER = "numbers"
SIZES = (1_000, 10_000, 50_000, 100_000)
AGENT_PARTS = ("task", "events", "recall")
# Milliseconds for a search of six words, by the number of messages.
SEARCH_TARGETS = {50_000: 1.0, 1_000_000: 5.0}
# In milliseconds.
HELP_CPU = 150

# The days on which targets were set.
FIRST_TARGETS = "2026-11-15"
SECOND_TARGETS = "2026-11-16"
THIRD_TARGETS = "2026-11-18"


class Line(msgspec.Struct, frozen=True):
    """One measured thing, beside a peer and a target where there are any."""

    what: str
    ours: float
    unit: str
    command: str
    beside: str = ""
    other: float | None = None
    target: float | None = None
    more_is_better: bool = False
    # The peer's figure when the target was set, if the target builds on it.
    floor: float | None = None
    # The day on which the target was set.
    target_date: str = ""

    @property
    def bound(self) -> float | None:
        """The target of this run.

        One that builds on a floor moves with it: a slower disk is slower for both.
        """
        if self.target is None or self.floor is None or self.other is None:
            return self.target
        return self.target * self.other / self.floor

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer."""
        if self.other is None or not min(self.ours, self.other):
            return None
        return self.ours / self.other if self.more_is_better else self.other / self.ours

    @property
    def met(self) -> bool | None:
        if self.bound is None:
            return None
        return self.ours >= self.bound if self.more_is_better else self.ours <= self.bound

    def goal(self) -> str:
        if self.target is None or self.bound is None:
            return ""
        sign = "≤ " if self.target else ""
        if self.more_is_better:
            sign = "≥ "
        goal = sign + shown(self.bound, self.unit)
        if self.floor is not None:
            goal += f" ({self.target / self.floor:.3g}× {self.beside})"
        return f"{goal}, set on {self.target_date}" if self.target_date else goal


class Results(msgspec.Struct, frozen=True):
    """All of a run: where, how long, the table, and what is drawn."""

    machine: dict[str, Any]
    seconds: dict[str, float]
    lines: list[Line]
    series: plots.Series


# measuring --------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "ipykernel": ipykernel_version(),
        "load at start": round(os.getloadavg()[0], 1),
    }


def ipykernel_version() -> str:
    try:
        return version("ipykernel")
    except PackageNotFoundError:
        return ""


class Bench:
    """Runs the scripts one after the other, each in a process of its own, and remembers how long
    they took.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, script: str, *options: object) -> Any:
        """What the script writes as JSON."""
        print(f"{name} … ", end="", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "figures.json"
            command = [sys.executable, str(HERE / script), *map(str, options), "--json", str(file)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{script} failed with status {done.returncode}:\n{done.stderr}")
            figures = json.loads(file.read_bytes())
        self.seconds[name] = round(time.perf_counter() - begun, 1)
        print(f"{self.seconds[name]:.0f} s", file=sys.stderr, flush=True)
        return figures


def help_cpu(runs: int = 10) -> float:
    """Milliseconds of processor time that `scroll --help` takes, the median."""
    command = [sys.executable, "-c", "from scroll_context.cli.main import main; main()", "--help"]
    took = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append((after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3)
    return statistics.median(took)


def measure(data: Path | None) -> Results:
    facts, bench = machine(), Bench()
    store = bench.run("store, 50,000 messages", "store.py")
    growth = bench.run("search by size", "store.py", "--growth", *SIZES)["growth"]
    kernel = bench.run("kernel", "kernel.py")
    agent = bench.run("agent", "agent.py", "--only", *AGENT_PARTS)
    chats = ("--data", data) if data else ()
    qwenpaw = bench.run("beside QwenPaw", "beside_qwenpaw.py", *chats)
    recall = bench.run("evidence recall", "store.py", "--data", data, "--recall") if data else None
    tokens = bench.run("tokens of questions", "tokens.py", "--data", data) if data else None
    long_chats = bench.run("long chats", "long_chats.py", "--data", data) if data else None
    lines = [
        *agent_lines(agent),
        *kernel_lines(kernel),
        *store_lines(store),
        *growth_lines(growth),
        *recall_lines(recall),
        *token_lines(tokens),
        *long_chat_lines(long_chats),
        *qwenpaw_lines(qwenpaw),
        Line(
            "scroll --help, processor time",
            help_cpu(),
            "ms",
            "run.py",
            target=HELP_CPU,
            target_date=FIRST_TARGETS,
        ),
    ]
    return Results(facts, bench.seconds, lines, series(growth, agent))


# the lines of the table -------------------------------------------------------------------------


def store_lines(results: dict[str, Any]) -> Iterator[Line]:
    def line(
        what: str,
        name: str,
        target: float | None,
        beside: str = "",
        floor: float | None = None,
        target_date: str = "",
    ) -> Line:
        measured = next(row for row in results["lines"] if row["what"] == name)
        scale = 1e3 if measured["unit"] == "ms" else 1
        ours = statistics.median(measured["ours"]) * scale
        other = statistics.median(measured["other"]) * scale if measured["other"] else None
        return Line(
            what,
            ours,
            measured["unit"],
            "store.py",
            beside,
            other,
            target,
            measured["more_is_better"],
            floor,
            target_date,
        )

    yield line(
        "durable append",
        "append, durable",
        0.276,
        "raw SQLite",
        floor=0.24,
        target_date=SECOND_TARGETS,
    )
    yield line(
        "durable appends, 8 threads",
        "append, durable, 8 threads: rate",
        None,
        "raw SQLite, one thread",
    )
    yield line(
        "bulk import until searchable",
        "bulk import until searchable",
        20_000,
        "SQLite FTS5, no hash chain",
        target_date=SECOND_TARGETS,
    )
    yield line("open a store of 50k messages", "open", 20, target_date=FIRST_TARGETS)
    yield line(
        "search, script without spaces, 50k",
        "search, script without spaces",
        2,
        "SQLite LIKE",
        target_date=FIRST_TARGETS,
    )


def growth_lines(results: Sequence[dict[str, Any]]) -> Iterator[Line]:
    for result in results:
        if target := SEARCH_TARGETS.get(result["messages"]):
            history, command = (
                plots.short(result["messages"]),
                f"store.py --growth {result['messages']}",
            )
            six, question, *peers = (
                statistics.median(result[name]) * 1e3
                for name in ("six", "ours", "six_other", "other")
            )
            yield Line(
                f"search, six words, {history}",
                six,
                "ms",
                command,
                "SQLite FTS5",
                peers[0],
                target,
                target_date=FIRST_TARGETS,
            )
            yield Line(
                f"search, a question of 14 words, {history}",
                question,
                "ms",
                command,
                "SQLite FTS5",
                peers[1],
            )


def kernel_lines(results: dict[str, dict[str, float]]) -> Iterator[Line]:
    def line(what: str, name: str, target: float | None, beside: str, target_date: str) -> Line:
        peer = results["jupyter" if beside == "ipykernel" else "fresh"].get(name)
        ours = results["ours"][name]
        return Line(what, ours, "ms", "kernel.py", beside, peer, target, target_date=target_date)

    trip, process = "round trip, empty cell", "a new Python process, no jail"
    yield line("cell, round trip", trip, 0.1, "ipykernel", FIRST_TARGETS)
    yield line("cell, round trip", trip, None, process, "")
    yield line("kernel start, jailed, cold", "cold start", 80, "ipykernel", SECOND_TARGETS)
    yield line(
        "kernel start, jailed, from the fork server",
        "start from the fork server",
        15,
        process,
        SECOND_TARGETS,
    )


def agent_lines(results: dict[str, list[dict[str, Any]]]) -> Iterator[Line]:
    def line(*values: Any, **more: Any) -> Line:
        what, ours, unit, *target = values
        date = FIRST_TARGETS if target else ""
        return Line(
            what,
            ours,
            unit,
            "agent.py",
            target=target[0] if target else None,
            target_date=date,
            **more,
        )

    small, large, whole = results["task"]
    assert not whole["evictions"], "the last run of the task is the one without evictions"
    yield line(
        "recall cell: a search and a print, 50k messages",
        results["recall"][0]["cell ms"],
        "ms",
        1.0,
    )
    sent, unbounded = (sum(row["series"]["sent"]) for row in (small, whole))
    yield line(
        "tokens sent, 500 steps, 32k window",
        sent,
        "tokens",
        beside="nothing evicted",
        other=unbounded,
    )
    yield line(
        "input repeating a prefix, 32k window", small["reuse"], "%", 0.90, more_is_better=True
    )
    yield line(
        "input repeating a prefix, 128k window", large["reuse"], "%", 0.95, more_is_better=True
    )
    yield line(
        "one eviction, session of 10k events",
        max(row["eviction ms"] for row in results["events"]),
        "ms",
        10,
    )
    lost = sum(row["lost"] for part in ("task", "events") for row in results[part])
    events = sum(row["events"] for part in ("task", "events") for row in results[part])
    yield line(f"of {events:,} events, not recovered exactly", lost, "events", 0)


def recall_lines(results: dict[str, Any] | None) -> Iterator[Line]:
    if results:
        ours, fts5 = results["recall"]["all"]["ours"], results["recall"]["all"]["fts5"]
        command = "store.py --data DIR --recall"
        yield Line(
            "evidence recall@10, BEAM",
            ours,
            "",
            command,
            "SQLite FTS5",
            fts5,
            0.6,
            more_is_better=True,
            target_date=SECOND_TARGETS,
        )


def token_lines(results: dict[str, Any] | None) -> Iterator[Line]:
    if results:
        questions, command = results["questions"].values(), "tokens.py --data DIR"
        first = max(question["first request"] for question in questions)
        what = f"first request over {results['turns']:,} turns"
        # Half of the figure before sessions had outlines.
        yield Line(what, first, "tokens", command, target=3_462, target_date=SECOND_TARGETS)
        sent = results["all"]["input tokens"]
        yield Line(f"{len(questions)} questions of five cells over them", sent, "tokens", command)


def long_chat_lines(results: dict[str, Any] | None) -> Iterator[Line]:
    """Evictions and first requests of real chats, in processor time."""
    if not results:
        return
    command = "long_chats.py --data DIR"
    for row, target in zip(results["evictions"], (10, 30), strict=True):
        what = f"one eviction, real chat, {plots.short(row['window'])} window"
        yield Line(what, row["ms"], "ms", command, target=target, target_date=THIRD_TARGETS)
    for row, target in zip(results["first requests"], (25, 100, 250), strict=True):
        what = f"first request after {row['sessions']} sessions, {row['messages']:,} messages"
        yield Line(what, row["ms"], "ms", command, target=target, target_date=THIRD_TARGETS)


def qwenpaw_lines(results: dict[str, Any]) -> Iterator[Line]:
    for line in results["lines"]:
        is_rate = line["unit"] == "/s"
        target = 1.2 * line["theirs"] if is_rate else None
        yield Line(
            f"{line['what']}, {results['messages']:,} messages",
            line["ours"],
            line["unit"],
            "beside_qwenpaw.py",
            f"QwenPaw {results['version']}",
            line["theirs"],
            target,
            more_is_better=is_rate,
            floor=line["theirs"] if is_rate else None,
            target_date=THIRD_TARGETS if is_rate else "",
        )


def series(
    growth: Sequence[dict[str, Any]], agent: dict[str, list[dict[str, Any]]]
) -> plots.Series:
    return plots.Series(
        search=[
            plots.Size(
                result["messages"],
                statistics.median(result["ours"]) * 1e3,
                statistics.median(result["other"]) * 1e3,
            )
            for result in growth
        ],
        sent={row["window"]: row["series"]["sent"] for row in agent["task"]},
        index=[plots.Index(**result) for result in agent["events"][0]["series"]["index"]],
    )


# the table and the page -------------------------------------------------------------------------


def shown(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}".replace(".0%", "%").replace("%", " %")
    number = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{number}{'' if unit.startswith('/') else ' '}{unit}".strip()


def cells(line: Line) -> list[str]:
    """The columns that the table and the page share: what, ours, peer, ratio, target, verdict."""
    other = "not installed" if line.other is None else shown(line.other, line.unit)
    beside = f"{line.beside}: {other}" if line.beside else ""
    ratio = "" if line.ratio is None else f"{line.ratio:,.1f}×"
    verdict = {True: "met", False: "missed", None: ""}[line.met]
    return [line.what, shown(line.ours, line.unit), beside, ratio, line.goal(), verdict]


def table(results: Results) -> str:
    head = ["", "Scroll", "peer, in this run", "ratio", "target", ""]
    rows = [head, *map(cells, results.lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, 2, 4, 5)
    rows.insert(1, ["-" * width for width in widths])
    lines = []
    for row in rows:
        columns = enumerate(zip(row, widths, strict=True))
        line = [text.ljust(w) if at in left else text.rjust(w) for at, (text, w) in columns]
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)


def place(facts: dict[str, Any]) -> str:
    peers = f"SQLite {facts['sqlite']}"
    if facts.get("ipykernel"):
        peers += f", ipykernel {facts['ipykernel']}"
    return (
        f"{facts['cores']} cores ({facts['processor']}), {facts['kernel']}, Python "
        f"{facts['python']}, {peers}, load {facts['load at start']} at the start"
    )


def numbers(results: Results, images: Sequence[str]) -> str:
    """The section of the page."""
    rows = [["what", "Scroll", "peer, in this run", "ratio", "target", "", "made by"]]
    rows += [["---", "---:", "---", "---:", "---", "---", "---"]]
    rows += [[*cells(line), f"`benchmarks/{line.command}`"] for line in results.lines]
    return "\n".join(
        [
            (
                "`make bench` measures all of this again, the peers in the same run, and fills "
                "this section. Medians"
            ),
            (
                "over made-up messages and a scripted model. A ratio says how many times better "
                "Scroll is than the peer;"
            ),
            (
                "below 1, the peer is. Targets were set on an idle machine, some as fractions of "
                "earlier results. Measured on"
            ),
            f"{place(results.machine)}.",
            "",
            *("| " + " | ".join(row) + " |" for row in rows),
            "",
            *(f"![{plots.TITLES[Path(image).stem]}]({image})" for image in images),
        ]
    )


def fill_between(text: str, marker: str, section: str) -> str:
    """The page with the section between its markers; filling twice changes nothing."""
    first, last = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        sys.exit(
            f"the page has no place for the numbers: put the lines {first} and {last} where they "
            "belong"
        )
    return f"{head}{first}\n{section}\n{last}{tail}"


def publish(results: Results, page: Path, folder: Path) -> None:
    images = [
        Path(os.path.relpath(file, page.parent)).as_posix()
        for file in plots.draw(results.series, folder)
    ]
    page.write_text(fill_between(page.read_text(), MARKER, numbers(results, images)))


def stored(results: Results) -> str:
    """The results as JSON with one line for each thing, so that a diff shows what changed."""
    parts = []
    for name, held in msgspec.to_builtins(results, str_keys=True).items():
        if isinstance(held, dict):
            begin, end, rows = (
                "{",
                "}",
                [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in held.items()],
            )
        else:
            begin, end, rows = "[", "]", [json.dumps(value, ensure_ascii=False) for value in held]
        parts.append(f'"{name}": {begin}\n  ' + ",\n  ".join(rows) + f"\n {end}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with BEAM chats")
    parser.add_argument(
        "--fill", action="store_true", help="measure nothing; draw and fill from the results"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "RESULTS.md")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "img")
    options = parser.parse_args()
    # A missing place should be reported now and not after minutes.
    fill_between(options.page.read_text(), MARKER, "")
    if not options.fill:
        options.results.write_text(stored(measure(options.data)))
    elif not options.results.exists():
        sys.exit(f"there are no results in {options.results}; measure first, without --fill")
    results = msgspec.json.decode(options.results.read_bytes(), type=Results)
    print(f"\n{place(results.machine)}; {sum(results.seconds.values()):.0f} s\n\n{table(results)}")
    publish(results, options.page, options.images)


if __name__ == "__main__":
    main()
