"""Scroll beside QwenPaw's context strategy, on the same messages in one run: `python
benchmarks/beside_qwenpaw.py [--messages N] [--data DIR] [--json FILE]`.

QwenPaw is the product of the paper's authors. It runs in the environment that `make test-hosts`
makes for it, as a process of its own (qwenpaw_side.py). The two take turns, so that both meet the
same moods of the machine. The messages have about 2 kB; with --data they are those of BEAM chats.
Figures are medians; a ratio above 1 means that Scroll is faster.
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import beam
import hosts
from scroll_context.events import Draft
from scroll_context.search.query import parse, terms_of
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from store import CHUNK, Corpus, from_chats, made_up, timed

HERE = Path(__file__).parent
ROUNDS = 60
CELLS = 15
# Characters of a made-up message.
CHARACTERS = 2_000

Case = TypeVar("Case")


class Line(msgspec.Struct):
    """One measured thing. Milliseconds, or messages a second."""

    what: str
    ours: float
    theirs: float
    unit: str = "ms"

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.unit == "/s" else self.theirs / self.ours


class Peer:
    """QwenPaw in its own environment and process."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            [python, HERE / "qwenpaw_side.py", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, name: str, *arguments: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"QwenPaw ended with status {self._process.wait()} in {name}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def long_messages(count: int) -> Corpus:
    """Made-up messages of about 2 kB."""
    corpus = made_up(count * 5)
    messages = []
    for start in range(0, len(corpus.messages), 5):
        part = corpus.messages[start : start + 5]
        text = " ".join(draft.content for draft in part)[:CHARACTERS]
        messages.append(msgspec.structs.replace(part[0], content=text))
    return Corpus(messages, corpus.questions)


def measure(peer: Peer, store: Store, corpus: Corpus, folder: Path) -> list[Line]:
    lines = [measure_import(peer, store, corpus.messages, folder)]
    lines.append(
        alternating(
            "durable append",
            corpus.messages[:ROUNDS],
            lambda draft: timed(lambda: store.append(draft)),
            lambda draft: peer("append", fields(draft)),
        )
    )
    store.index.catch_up()
    lines.append(
        alternating(
            "open a store",
            range(20),
            lambda _: timed(lambda: Store(store.folder).close()),
            lambda _: peer("open"),
        )
    )
    six = queries(corpus, ROUNDS)
    lines.append(
        alternating(
            "search, six words",
            six,
            lambda words: timed(lambda: store.index.search(words)),
            lambda words: peer("search", words),
        )
    )
    lines.append(measure_cells(peer, store, six[:CELLS]))
    return lines


def measure_import(peer: Peer, store: Store, messages: Sequence[Draft], folder: Path) -> Line:
    """Quarters take turns, because one import cannot be repeated in the same store."""
    ours = theirs = 0.0
    quarter = -(-len(messages) // 4)
    for start in range(0, len(messages), quarter):
        part = messages[start : start + quarter]
        file = folder / "messages.jsonl"
        file.write_text("\n".join(json.dumps(fields(draft)) for draft in part))
        theirs += peer("load", str(file))
        ours += timed(lambda part=part: load(store, part))
    count = len(messages)
    return Line("import until searchable", count / ours, count / theirs, "/s")


def load(store: Store, messages: Sequence[Draft]) -> None:
    store.index.start()
    for start in range(0, len(messages), CHUNK):
        store.log.append_many(messages[start : start + CHUNK])
    store.index.catch_up()


def measure_cells(peer: Peer, store: Store, queries: Sequence[str]) -> Line:
    def source(words: str) -> str:
        return f"rows = ms.search({words!r})\nprint(rows[0]['seq'] if rows else None)"

    with Session.open(store, session_id="cells", options=SessionOptions(reach="all")) as session:
        variables = session.environment.variables
        session.run("pass", "warm")

        def cell(words: str) -> float:
            variables.wait_for_save()
            return timed(lambda: session.run(source(words), f"c{time.perf_counter_ns()}"))

        return alternating(
            "recall cell: a search and a print",
            queries,
            cell,
            lambda words: peer("cell", source(words)),
        )


def alternating(
    what: str,
    cases: Sequence[Case],
    ours: Callable[[Case], float],
    theirs: Callable[[Case], float],
) -> Line:
    pairs = [(ours(case), theirs(case)) for case in cases]
    mine, other = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    return Line(what, mine, other)


def queries(corpus: Corpus, count: int) -> list[str]:
    """Six words each that stand in one message, so that both find something."""
    rng = random.Random(5)
    chosen: list[str] = []
    while len(chosen) < count:
        terms = terms_of(parse(rng.choice(corpus.messages).content, every_word=True))
        words = sorted({term.tokens[0] for term in terms if term.is_word and term.stem})
        if len(words) >= 6:
            chosen.append(" ".join(rng.sample(words, 6)))
    return chosen


def fields(draft: Draft) -> dict[str, str]:
    names = ("session_id", "role", "content", "created_at")
    return {name: getattr(draft, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--data", type=Path, help="folder with BEAM chats")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    try:
        python = hosts.install("qwenpaw", "newest")
    except hosts.Unavailable as error:
        raise SystemExit(f"QwenPaw {error}") from error
    if options.data:
        corpus = from_chats(list(beam.read(options.data)), options.messages)
    else:
        corpus = long_messages(options.messages)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "peer").mkdir()
        peer = Peer(python, folder / "peer")
        release = peer("version")
        with Store(folder / "store", create=True) as store:
            lines = measure(peer, store, corpus, folder)
        peer.close()
    print(f"Scroll beside QwenPaw {release}, {options.messages:,} messages")
    for line in lines:
        print(
            f"{line.what:40} {line.ours:12,.2f} {line.theirs:12,.2f} {line.unit:3} "
            f"{line.ratio:8,.1f}×"
        )
    if options.json:
        figures = {
            "version": release,
            "messages": options.messages,
            "lines": msgspec.to_builtins(lines),
        }
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
