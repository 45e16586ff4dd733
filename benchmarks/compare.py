"""Two versions of Scroll in one run: the same small measurements, in turns, and how the times
changed.

    python benchmarks/compare.py --base REV [--rounds 15] [--messages 20000] [--only NAME …]
        [--json FILE]

REV is taken from git into a temporary folder, or is a folder with another checkout; the other side
is this checkout as it is. Each side has a process of its own that measures what it is asked for, a
batch at a time. The figure of a batch is its lower quartile, since a busy machine only ever adds to
a time. The sides take turns, so both meet the same moods of the machine. Work that one process does
is measured in processor time, which others on the machine disturb least; what crosses processes
(cells, the start of a kernel) in real time. Printed are the medians of the rounds and the ratio,
new / old, with the quartiles of the rounds' ratios. The status is 1 when the lower quartile of a
ratio is above --most (1.05): slower, and not by chance.

Where a module has moved, both names are tried; what only one version can do has no ratio.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SERVE = "--serve"
CHUNK = 1_000
THREAD, PROCESS = time.thread_time, time.process_time


# one side ---------------------------------------------------------------------------------------


class Side:
    """The measurements, with what they need.

    Runs in a process that imports one of the two versions.
    """

    def __init__(self, folder: Path, messages: int) -> None:
        from scroll_context import Store

        self.folder = folder
        self.drafts = list(made_up(messages))
        self.store = Store(folder / "store", create=True)
        self.load(self.store, len(self.drafts))
        self.session: Any = None
        self.kernel: Any = None
        self.calls = 0
        words = random.Random(3)
        self.six = [" ".join(words.choices(VOCABULARY, WEIGHTS, k=6)) for _ in range(200)]
        self.questions = [" ".join(words.choices(VOCABULARY, WEIGHTS, k=14)) for _ in range(200)]

    def load(self, store: Any, count: int) -> None:
        store.index.start()
        for at in range(0, count, CHUNK):
            store.log.append_many(self.drafts[at : min(at + CHUNK, count)])
        store.index.catch_up()

    def opened(self) -> Any:
        """A session with a running kernel that may read the whole store."""
        if self.session is None:
            from scroll_context import Session, SessionOptions

            self.session = Session.open(
                self.store, session_id="measured", options=SessionOptions(reach="all")
            )
            self.run_cell("pass")
        return self.session

    def run_cell(self, source: str) -> None:
        from scroll_context.messages import ToolCall

        session = self.session
        self.calls += 1
        name = f"c{self.calls}"
        ran = (
            session.run_cell(ToolCall(name, "exec", {}), source)
            if hasattr(session, "run_cell")
            else session.run(source, name)
        )
        state = getattr(ran, "tool_state", "ok") or "ok"
        assert state == "ok", ran

    def settle(self) -> None:
        """Let snapshots that run beside the session end."""
        environment = getattr(self.session, "environment", self.session)
        variables = getattr(environment, "variables", None)
        if variables is not None:
            variables.wait_for_save()
        else:
            # The name in older versions.
            getattr(environment, "settle", lambda: None)()

    # each yields times in milliseconds; none where the version cannot do it ----------------------

    def append(self) -> Iterator[float]:
        for draft in self.drafts[:20]:
            yield timed(lambda draft=draft: self.store.append(draft), THREAD)

    def session_event(self) -> Iterator[float]:
        session = self.opened()
        for number in range(20):
            yield timed(lambda number=number: session.notice(f"remark {number}"), THREAD)

    def bulk_import(self) -> Iterator[float]:
        from scroll_context import Store

        with (
            tempfile.TemporaryDirectory(dir=self.folder) as folder,
            Store(folder, create=True) as store,
        ):
            count = min(5_000, len(self.drafts))
            yield timed(lambda: self.load(store, count), PROCESS) * 1_000 / count

    def verify(self) -> Iterator[float]:
        module = first_of("scroll_context.upkeep.integrity", "scroll_context.store.integrity")
        verify = module.verify
        yield timed(lambda: verify(self.store.log), THREAD) * 1_000 / self.store.log.last_seq()

    def open_store(self) -> Iterator[float]:
        from scroll_context import Store

        for _ in range(10):
            yield timed(lambda: Store(self.folder / "store").close(), THREAD)

    def search_six_words(self) -> Iterator[float]:
        for words in self.six[:40]:
            yield timed(lambda words=words: self.store.index.search(words), THREAD)

    def search_question(self) -> Iterator[float]:
        for words in self.questions[:40]:
            yield timed(lambda words=words: self.store.index.search(words), THREAD)

    def recall_cell(self) -> Iterator[float]:
        self.opened()
        for words in self.six[:20]:
            source = (
                f"hits = ms.search({' '.join(words.split()[:3])!r})\nprint(hits[0]['seq'] "
                "if hits else None)"
            )
            yield timed(lambda source=source: self.run_cell(source))
            self.settle()

    def sql_cell(self) -> Iterator[float]:
        self.opened()
        source = (
            "rows = ms.sql_query('SELECT seq, role FROM hist.conversation_history WHERE "
            "seq = 77')\nprint(len(rows))"
        )
        for _ in range(20):
            yield timed(lambda: self.run_cell(source))
            self.settle()

    def rebinding_cell(self) -> Iterator[float]:
        self.opened()
        self.run_cell("rows = [{'n': n, 'text': str(n)} for n in range(2_000)]")
        for number in range(20):
            source = (
                f"total = {number}\nnames = [str(n) for n in range(500)]\nrows = rows[1:] "
                "+ rows[:1]"
            )
            yield timed(lambda source=source: self.run_cell(source))
            self.settle()

    def evict_chat(self, window: int) -> Iterator[float]:
        from scroll_context.events import Event
        from scroll_context.view.eviction import Budget, plan_eviction
        from scroll_context.view.working import WorkingView

        view, seq = WorkingView(), 0
        while view.tokens <= window * 0.8:
            draft = self.drafts[seq]
            seq += 1
            view.add(
                Event(seq=seq, role=draft.role, content=draft.content, recorded_at=draft.created_at)
            )
        for _ in range(3):
            yield timed(lambda: plan_eviction(view, Budget(window)), THREAD)

    def begin_session(self) -> Iterator[float]:
        """What the first request of a new session costs in a store with history."""
        from scroll_context import Session, SessionOptions

        for _ in range(2):
            self.calls += 1
            name = f"begun-{self.calls}"
            with Session.open(
                self.store, session_id=name, options=SessionOptions(reach="all")
            ) as session:
                session.say("good morning")
                yield timed(lambda session=session: session.view("Be brief."), THREAD)

    def grep(self, pattern: str, **options: bool) -> Iterator[float]:
        environment = getattr(self.opened(), "environment", None)
        memory = getattr(environment, "memory", None)
        for _ in range(5):
            if hasattr(memory, "call"):
                yield timed(lambda: memory.call("ms.grep", pattern, **options), THREAD)
            elif memory is not None:
                yield timed(lambda: memory.methods()["ms.grep"](pattern, **options), THREAD)

    def cell_round_trip(self) -> Iterator[float]:
        if self.kernel is None:
            self.kernel = self.started()
        for _ in range(100):
            yield timed(lambda: self.kernel.execute(""))

    def kernel_start_cold(self) -> Iterator[float]:
        from scroll_context.kernel.kernel import KernelOptions

        name = next(
            name
            for name in ("share_fork_server", "share_zygote")
            if name in KernelOptions.__struct_fields__
        )
        yield from self.starts(2, **{name: False})

    def kernel_start_warm(self) -> Iterator[float]:
        yield from self.starts(5)

    def starts(self, count: int, **options: bool) -> Iterator[float]:
        for _ in range(count):
            kernels: list[Any] = []
            yield timed(lambda kernels=kernels: kernels.append(self.started(**options)))
            kernels[0].close()

    def started(self, **options: bool) -> Any:
        from scroll_context.kernel.kernel import Kernel, KernelOptions

        kernel = Kernel({}, options=KernelOptions(**options))
        kernel.start()
        return kernel


MEASUREMENTS: dict[str, Callable[[Side], Iterator[float]]] = {
    "recall cell": Side.recall_cell,
    "cell that rebinds variables": Side.rebinding_cell,
    "SQL cell": Side.sql_cell,
    "append": Side.append,
    "event of a session": Side.session_event,
    "bulk import, 1,000 messages": Side.bulk_import,
    "verify, 1,000 rows": Side.verify,
    "open": Side.open_store,
    "search, six words": Side.search_six_words,
    "search, a question": Side.search_question,
    "grep, a rare text": lambda side: side.grep("quiverzu"),
    "grep, a common letter": lambda side: side.grep("a"),
    "grep, any text": lambda side: side.grep(r"\w+", regex=True),
    "eviction of a chat, 32k": lambda side: side.evict_chat(32_000),
    "eviction of a chat, 128k": lambda side: side.evict_chat(128_000),
    "first request of a session": Side.begin_session,
    "cell round trip": Side.cell_round_trip,
    "kernel start, cold": Side.kernel_start_cold,
    "kernel start, warm": Side.kernel_start_warm,
}
# Milliseconds of processor time that a process takes.
PROCESSOR = {
    "import scroll_context, CPU": ["-c", "import scroll_context"],
    "scroll --help, CPU": ["-c", "from scroll_context.cli.main import main; main()", "--help"],
}

SYLLABLES = "ba con di fer gra lo mi nel or pla qui ra sto tre ver zu".split()
_words = random.Random(11)
VOCABULARY = ["".join(_words.choices(SYLLABLES, k=_words.randint(2, 4))) for _ in range(20_000)]
WEIGHTS = [1 / (rank + 8) for rank in range(len(VOCABULARY))]


def made_up(count: int) -> Iterator[Any]:
    """Messages of words with the frequencies of natural language."""
    from scroll_context.events import Draft

    rng = random.Random(5)
    for number in range(count):
        user = number % 2 == 0
        text = " ".join(
            rng.choices(
                VOCABULARY, WEIGHTS, k=rng.randint(10, 30) if user else rng.randint(40, 140)
            )
        )
        month, day = number // 2_000 % 12 + 1, number // 80 % 28 + 1
        yield Draft(
            session_id=f"session-{number // 400}",
            role="user" if user else "assistant",
            content=text,
            created_at=f"2024-{month:02}-{day:02}T10:00:00+00:00",
        )


def first_of(*names: str) -> Any:
    """The first of these modules that this version has."""
    for name in names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ImportError(f"this version has none of {', '.join(names)}")


def timed(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begun = clock()
    action()
    return (clock() - begun) * 1e3


def serve(folder: Path, messages: int) -> None:
    """Measure what standard input names, a line each, and answer with the times as JSON."""
    answers = os.fdopen(os.dup(1), "w")
    # Whatever is printed by accident must not look like an answer.
    os.dup2(2, 1)
    side = Side(folder, messages)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(list(MEASUREMENTS[line.strip()](side))), file=answers, flush=True)
    # Nothing of it is needed any more.
    os._exit(0)


# both sides -------------------------------------------------------------------------------------


class Measured:
    """One version, measured in a process of its own."""

    def __init__(self, source: Path, work: Path, messages: int) -> None:
        work.mkdir()
        # Both layouts: one distribution in src, or several below packages.
        folders = [source / "src", source / "evals" / "src", *sorted(source.glob("packages/*/src"))]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        self.process: subprocess.Popen[str] | None = None
        self._start = lambda: subprocess.Popen(
            [sys.executable, __file__, SERVE, str(work), str(messages)],
            env=self.environment,
            cwd=work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, name: str) -> float:
        """The lower quartile of a batch, in milliseconds; not a number where this version cannot do
        it.
        """
        if name in PROCESSOR:
            return min(self._processor_time(PROCESSOR[name]) for _ in range(3))
        if self.process is None:
            self.process = self._start()
            self._answer("the beginning")
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        times = sorted(self._answer(name))
        return float(times[len(times) // 4]) if times else math.nan

    def _answer(self, what: str) -> Any:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a side ended in {what}; its words are above")
        return json.loads(line)

    def _processor_time(self, arguments: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *arguments],
            env=self.environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(60)


def main() -> None:
    names = [*MEASUREMENTS, *PROCESSOR]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--base", required=True, metavar="REV", help="the older version, or its folder"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="batches of each measurement on each side"
    )
    parser.add_argument("--messages", type=int, default=20_000, help="in the store")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help="some measurements"
    )
    parser.add_argument("--most", type=float, default=1.05, help="the ratio that is too much")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(
        prefix="scroll-compare-", ignore_cleanup_errors=True
    ) as temporary:
        folder = Path(temporary)
        old = Measured(checked_out(chosen.base, folder), folder / "old", chosen.messages)
        new = Measured(ROOT, folder / "new", chosen.messages)
        try:
            figures = {
                name: measured_in_turns(old, new, name, chosen.rounds) for name in chosen.only
            }
        finally:
            old.close()
            new.close()
    slower = [name for name, figure in figures.items() if figure["low"] > chosen.most]
    facts = f"{chosen.messages:,} messages, {chosen.rounds} rounds, load {os.getloadavg()[0]:.1f}"
    print(f"{chosen.base} → this checkout; {facts}")
    print(f"{'':<30}{'old ms':>10}{'new ms':>10}{'new/old':>9}  quartiles")
    for name, figure in figures.items():
        times = (
            f"{figure['old']:>10.3f}{figure['new']:>10.3f}{figure['ratio']:>9.2f}  "
            f"{figure['low']:.2f}-{figure['high']:.2f}"
        )
        print(f"{name:<30}{times}{'  SLOWER' if name in slower else ''}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))
    sys.exit(1 if slower else 0)


def checked_out(base: str, folder: Path) -> Path:
    """The older version as a folder."""
    if Path(base).is_dir():
        return Path(base).absolute()
    archive = subprocess.run(
        ["git", "archive", base], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    (folder / "base").mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder / "base")], input=archive, check=True)
    return folder / "base"


def measured_in_turns(old: Measured, new: Measured, name: str, rounds: int) -> dict[str, float]:
    print(f"{name} … ", end="", file=sys.stderr, flush=True)
    begun = time.perf_counter()
    pairs = []
    for number in range(rounds + 1):
        sides = [old, new] if number % 2 else [new, old]
        times = {side: side.measure(name) for side in sides}
        # The first round only warms up.
        if number:
            pairs.append((times[old], times[new]))
    print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    ratios = [after / before for before, after in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {"old": before, "new": after, "ratio": middle, "low": low, "high": high}


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
