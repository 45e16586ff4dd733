"""Measures the store beside raw SQLite and SQLite FTS5 on the same messages, and prints one table.

    python benchmarks/store.py                      50,000 made-up messages, about two minutes
    python benchmarks/store.py --data DIR           BEAM chats (see beam.py), with recall@10
    python benchmarks/store.py --data DIR --recall  the recall alone
    python benchmarks/store.py --large              a million messages
    python benchmarks/store.py --growth 1000 10000  search alone, in one store of these sizes

Every figure is the median of repeated runs, with the 95th percentile beside it. "SQLite" is the
same table with the same durability and no hash chain, the floor for an append; "FTS5" is that table
with a unicode61 full-text index, ranked by bm25. A ratio above 1 means that ours is faster.
"""

import argparse
import random
import re
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

import beam
from scroll_context.events import Draft, Kind
from scroll_context.log.rows import COLUMNS
from scroll_context.search.query import parse, terms_of
from scroll_context.store import Store

# The number of messages that an import appends at once.
CHUNK = 1_000


class Line(msgspec.Struct):
    """One line of the table. Seconds, unless the unit says otherwise."""

    what: str
    ours: list[float]
    other: list[float] = []
    beside: str = ""
    unit: str = "ms"
    more_is_better: bool = False

    def cells(self) -> list[str]:
        cells = [self.what]
        for samples in (self.ours, self.other):
            cells += (
                [self._show(statistics.median(samples)), self._show(_p95(samples))]
                if samples
                else ["", ""]
            )
        return [*cells, self.beside, f"{self.ratio:.1f}×" if self.other else ""]

    @property
    def ratio(self) -> float:
        ours, other = statistics.median(self.ours), statistics.median(self.other)
        return ours / other if self.more_is_better else other / max(ours, 1e-9)

    def _show(self, value: float) -> str:
        return f"{value * 1e3:,.2f} ms" if self.unit == "ms" else f"{value:,.0f} {self.unit}"


def _p95(samples: Sequence[float]) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.95))]


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


# the messages -----------------------------------------------------------------------------------


class Corpus(msgspec.Struct):
    """Messages to store and questions to ask of them."""

    messages: list[Draft]
    questions: list[str]

    def words(self, count: int) -> Iterator[list[str]]:
        """The first words of each question that are not stop words."""
        for question in self.questions:
            words = [term.tokens[0] for term in terms_of(parse(question)) if len(term.tokens) == 1]
            if len(words) >= count:
                yield words[:count]


SPACELESS = (
    "会議の予定を確認する",
    "東京の予算は三百万円",
    "한국어 검색 테스트",
    "项目进度报告",
    "แผนการเดินทาง",
    "データベースの移行",
)


def made_up(count: int) -> Corpus:
    """Chats of words with the frequencies of natural language; one message in fifty is in a
    spaceless script.
    """
    rng = random.Random(11)
    syllables = "ba con di fer gra lo mi nel or pla qui ra sto tre ver zu".split()
    vocabulary = ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(30_000)]
    weights = [1 / (rank + 8) for rank in range(len(vocabulary))]
    supply = iter(cycle(rng.choices(vocabulary, weights, k=2_000_003)))
    messages = []
    for number in range(count):
        user = number % 2 == 0
        text = " ".join(islice(supply, rng.randint(10, 30) if user else rng.randint(40, 140)))
        if number % 50 == 0:
            text += " " + SPACELESS[number // 50 % len(SPACELESS)]
        messages.append(_draft(number, "user" if user else "assistant", text))
    questions = [" ".join(rng.choices(vocabulary, weights, k=14)) for _ in range(200)]
    return Corpus(messages, questions)


def from_chats(chats: Sequence[beam.Chat], count: int) -> Corpus:
    """The chats over and over until there are enough messages, with a few in spaceless scripts."""
    texts = [(message.role, message.content) for chat in chats for message in chat.messages]
    messages = []
    for number, (role, text) in enumerate(islice(cycle(texts), count)):
        text = text if number % 50 else f"{text} {SPACELESS[number // 50 % len(SPACELESS)]}"
        messages.append(_draft(number, role, text))
    questions = [question.text for chat in chats for question in chat.questions]
    random.Random(11).shuffle(questions)
    return Corpus(messages, questions)


def _draft(number: int, role: str, text: str) -> Draft:
    day = number // 400
    year = 2010 + day // 336
    return Draft(
        session_id=f"session-{number // 400}",
        agent_id=f"agent-{number // 2_000}",
        task_id=f"task-{number // 10_000}",
        kind=Kind.CONVERSATION if number % 10 else "note",
        role=role,
        content=text,
        step_index=day,
        msg_index=number % 400,
        created_at=f"{year}-{day % 336 // 28 + 1:02}-{day % 28 + 1:02}T10:00:00+00:00",
    )


# the other side ---------------------------------------------------------------------------------


class PlainSqlite:
    """A table with the columns of the log, on WAL and synchronous FULL, without triggers, chain or
    checks.
    """

    def __init__(self, file: Path, *, full_text: bool) -> None:
        self.file = file
        self.database = sqlite3.connect(file, isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute(
            f"CREATE TABLE event (seq INTEGER PRIMARY KEY, {', '.join(COLUMNS[1:])})"
        )
        self.database.execute("CREATE INDEX by_session ON event (session_id, seq)")
        self.full_text = full_text
        if full_text:
            self.database.execute(
                "CREATE VIRTUAL TABLE words USING fts5 (content, content=event, content_rowid=seq)"
            )

    def append(self, drafts: Sequence[Draft]) -> None:
        columns = (
            "session_id agent_id task_id kind role content step_index msg_index created_at".split()
        )
        values = attrgetter(*columns)
        insert = (
            f"INSERT INTO event ({', '.join(columns)}, metadata) VALUES "
            f"({'?, ' * len(columns)}'{{}}')"
        )
        self.database.execute("BEGIN IMMEDIATE")
        before = self.database.execute("SELECT ifnull(max(seq), 0) FROM event").fetchone()[0]
        self.database.executemany(insert, map(values, drafts))
        if self.full_text:
            self.database.execute(
                "INSERT INTO words (rowid, content) SELECT seq, content FROM event WHERE seq > ?",
                (before,),
            )
        self.database.execute("COMMIT")

    def search(
        self, words: Sequence[str], joined_by: str, condition: str = "1"
    ) -> list[tuple[Any, ...]]:
        match = f" {joined_by} ".join(f'"{word}"' for word in words)
        return self.database.execute(
            f"""SELECT event.seq, event.content, bm25(words)
            FROM words JOIN event ON event.seq = words.rowid
            WHERE words MATCH ? AND {condition} ORDER BY bm25(words) LIMIT 10""",
            (match,),
        ).fetchall()

    def scan(self, text: str) -> None:
        self.database.execute(
            "SELECT seq, content FROM event WHERE content LIKE ? LIMIT 10000", (f"%{text}%",)
        ).fetchall()


# measurements -----------------------------------------------------------------------------------


def measure_appends(folder: Path, messages: Sequence[Draft]) -> Iterator[Line]:
    plain = PlainSqlite(folder / "floor.db", full_text=False)
    with Store(folder / "appends", create=True) as store:
        drafts = messages[:300]
        ours, floor = [], []
        # In turns, so that both meet the same moods of the disk.
        for draft in drafts:
            ours.append(timed(lambda draft=draft: store.append(draft)))
            floor.append(timed(lambda draft=draft: plain.append([draft])))
        yield Line("append, durable", ours, floor, "SQLite")
        shared: list[float] = []
        with ThreadPoolExecutor(8) as pool:
            whole = timed(
                lambda: shared.extend(
                    pool.map(lambda d: timed(lambda: store.append(d)), drafts * 4)
                )
            )
        yield Line("append, durable, 8 threads: latency", shared)
        rate = len(shared) / whole
        yield Line(
            "append, durable, 8 threads: rate",
            [rate],
            [1 / statistics.median(floor)],
            "SQLite",
            "/s",
            True,
        )


def measure_import(folder: Path, messages: Sequence[Draft]) -> tuple[Store, PlainSqlite, Line]:
    store = Store(folder / "store", create=True)
    fts5 = PlainSqlite(folder / "fts5.db", full_text=True)

    def ours() -> None:
        store.index.start()
        for at in range(0, len(messages), CHUNK):
            store.log.append_many(messages[at : at + CHUNK])
        store.index.catch_up()

    def theirs() -> None:
        for at in range(0, len(messages), CHUNK):
            fts5.append(messages[at : at + CHUNK])

    rates = [len(messages) / timed(ours)], [len(messages) / timed(theirs)]
    return store, fts5, Line("bulk import until searchable", *rates, "FTS5", "/s", True)


def measure_open(folder: Path) -> Iterator[Line]:
    def just_open() -> None:
        Store(folder).close()

    def open_and_search() -> None:
        with Store(folder) as store:
            store.index.search("plan")

    yield Line("open", [timed(just_open) for _ in range(20)])
    yield Line("open and first search", [timed(open_and_search) for _ in range(20)])


def _question_words(question: str) -> list[str]:
    return [term.tokens[0] for term in terms_of(parse(question))]


def measure_search(store: Store, fts5: PlainSqlite, corpus: Corpus, repeats: int) -> Iterator[Line]:
    def line(
        what: str,
        queries: Sequence[Sequence[str]],
        join: str,
        condition: str = "1",
        **filters: object,
    ) -> Line:
        ours, theirs = [], []
        glue = f" {join} " if join else " "
        for words in queries:
            ours.append(timed(lambda words=words: store.index.search(glue.join(words), **filters)))
        for words in queries[: max(5, repeats // 8)]:
            theirs.append(timed(lambda words=words: fts5.search(words, join or "OR", condition)))
        return Line(what, ours, theirs, "FTS5")

    for count in (1, 3, 6):
        queries = list(islice(corpus.words(count), repeats))
        yield line(f"search, {count} word{'s' if count > 1 else ''}", queries, "")
        if count > 1:
            yield line(f"search, {count} words, AND", queries, "AND")
            yield line(f"search, {count} words, OR", queries, "OR")
    whole = list(map(_question_words, corpus.questions[:repeats]))
    yield line("search, whole question", whole, "")
    middle = corpus.messages[len(corpus.messages) // 2]
    half = (len(corpus.messages) // 4, len(corpus.messages) * 3 // 4)
    six = list(islice(corpus.words(6), repeats))
    for name in ("session_id", "agent_id", "task_id", "kind", "role"):
        value = getattr(middle, name)
        yield line(
            f"search, 6 words, {name}", six, "", f"event.{name} = '{value}'", **{name: value}
        )
    yield line(
        "search, 6 words, seq_range",
        six,
        "",
        f"event.seq BETWEEN {half[0]} AND {half[1]}",
        seq_range=half,
    )
    day = middle.created_at[:10]
    yield line(
        "search, 6 words, created_to", six, "", f"event.created_at <= '{day}T24'", created_to=day
    )
    texts = [text[:4].strip() for text in SPACELESS] * max(1, repeats // len(SPACELESS))
    ours = [timed(lambda text=text: store.index.search(text)) for text in texts]
    yield Line(
        "search, script without spaces",
        ours,
        [timed(lambda t=t: fts5.scan(t)) for t in texts[:6]],
        "LIKE",
    )


class Size(msgspec.Struct):
    """What searches take in a store of so many messages: of a whole question, and of six words of
    it.
    """

    messages: int
    ours: list[float]
    other: list[float]
    six: list[float]
    six_other: list[float]


def measure_growth(
    folder: Path, corpus: Corpus, sizes: Sequence[int], repeats: int
) -> Iterator[Size]:
    """One store and one FTS5 table that grow from size to size, and the same questions at each."""
    fts5 = PlainSqlite(folder / "grown.db", full_text=True)
    questions = list(map(_question_words, corpus.questions[:repeats]))
    six = list(islice(corpus.words(6), repeats))
    with Store(folder / "grown", create=True) as store:

        def ours(asked: Sequence[Sequence[str]]) -> list[float]:
            return [
                timed(lambda words=words: store.index.search(" ".join(words))) for words in asked
            ]

        def theirs(asked: Sequence[Sequence[str]]) -> list[float]:
            return [timed(lambda words=words: fts5.search(words, "OR")) for words in asked]

        have = 0
        for size in sizes:
            for at in range(have, size, CHUNK):
                chunk = corpus.messages[at : min(at + CHUNK, size)]
                store.log.append_many(chunk)
                fts5.append(chunk)
            store.index.catch_up()
            have = size
            yield Size(size, ours(questions), theirs(questions), ours(six), theirs(six))


def measure_expand(store: Store, fts5: PlainSqlite, repeats: int) -> Iterator[Line]:
    rng = random.Random(5)
    last = store.log.last_seq()
    seqs = [rng.randint(1, last - 20) for _ in range(repeats)]

    def theirs(lo: int, hi: int) -> None:
        fts5.database.execute("SELECT * FROM event WHERE seq BETWEEN ? AND ?", (lo, hi)).fetchall()

    for what, more in (("expand, one event", 0), ("expand, a span of 20", 19)):
        ours = [timed(lambda seq=seq, more=more: store.log.span(seq, seq + more)) for seq in seqs]
        yield Line(
            what,
            ours,
            [timed(lambda seq=seq, more=more: theirs(seq, seq + more)) for seq in seqs],
            "SQLite",
        )


def measure_size(folder: Path, store: Store, fts5: PlainSqlite) -> Iterator[Line]:
    fts5.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    stats = store.stats()
    log, index = float(stats.log_bytes), float(stats.index_bytes)
    theirs = float(fts5.file.stat().st_size)
    yield Line("size on disk: log", [log / 1e6], unit="MB")
    yield Line("size on disk: index", [index / 1e6], unit="MB")
    yield Line("size on disk: both", [(log + index) / 1e6], [theirs / 1e6], "FTS5", "MB")
    yield Line(
        "memory: this process, at its peak",
        [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3],
        unit="MB",
    )
    code = (
        "import sys; from pathlib import Path; from scroll_context.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "for word in sys.argv[2:]: store.index.search(word)\n"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(folder / "store"), "plan", "budget", "ba*"],
        capture_output=True,
        check=True,
    )
    yield Line("memory: a process that opens and searches", [float(child.stdout) / 1e3], unit="MB")


def measure_recall(
    chats: list[beam.Chat], folder: Path
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Evidence recall@10 by ability, each question asked within its own chat: ours, and that of
    FTS5.
    """
    fts5 = PlainSqlite(folder / "recall.db", full_text=True)

    def theirs(question: str, chat: str) -> list[int]:
        return [
            row[0]
            for row in fts5.search(re.findall(r"\w+", question), "OR", f"session_id = '{chat}'")
        ]

    with Store(folder / "recall", create=True) as store:
        firsts = []
        for chat in chats:
            firsts.append(store.log.append_many(chat.messages)[0])
            fts5.append(chat.messages)
        store.index.catch_up()
        ours = beam.recall(
            chats,
            firsts,
            lambda text, chat: [hit.seq for hit in store.index.search(text, session_id=chat)],
        )
        return ours, beam.recall(chats, firsts, theirs)


# the report -------------------------------------------------------------------------------------


HEAD = ("", "ours", "p95", "other", "p95", "beside", "ratio")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in [head, ["-" * width for width in widths], *rows]:
        print(
            "  ".join(
                cell.ljust(w) if at == 0 else cell.rjust(w)
                for at, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        )


def grow(sizes: Sequence[int]) -> dict[str, Any]:
    corpus = made_up(sizes[-1])
    with tempfile.TemporaryDirectory() as folder:
        results = list(measure_growth(Path(folder), corpus, sizes, 40))
    lines = []
    for result in results:
        lines.append(
            Line(
                f"search, six words, {result.messages:,} messages",
                result.six,
                result.six_other,
                "FTS5",
            )
        )
        lines.append(
            Line(
                f"search, whole question, {result.messages:,} messages",
                result.ours,
                result.other,
                "FTS5",
            )
        )
    print_table(HEAD, [line.cells() for line in lines])
    return {"growth": results}


def ask(chats: list[beam.Chat]) -> dict[str, Any]:
    """Evidence recall, ours and that of FTS5, by ability and over all questions."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = measure_recall(chats, Path(folder))
    for shares in (ours, theirs):
        shares["all"] = [share for ability in shares.values() for share in ability]
    answers = {
        ability: {
            "ours": statistics.fmean(ours[ability]),
            "fts5": statistics.fmean(theirs[ability]),
        }
        for ability in ours
    }
    rows = [
        [name, f"{answer['ours']:.3f}", f"{answer['fts5']:.3f}", str(len(ours[name]))]
        for name, answer in answers.items()
    ]
    print_table(["evidence recall@10", "ours", "FTS5", "questions"], rows)
    return {"recall": answers}


def compare(corpus: Corpus, repeats: int = 40) -> dict[str, Any]:
    """Everything but growth and recall."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = list(measure_appends(folder, corpus.messages))
        store, fts5, line = measure_import(folder, corpus.messages)
        lines.append(line)
        lines += measure_open(folder / "store")
        lines += measure_search(store, fts5, corpus, repeats)
        lines += measure_expand(store, fts5, repeats)
        lines += measure_size(folder, store, fts5)
        store.close()
    characters = sum(len(message.content) for message in corpus.messages)
    print(f"{len(corpus.messages):,} messages, {characters / 1e6:,.0f} million characters\n")
    print_table(HEAD, [line.cells() for line in lines])
    return {"messages": len(corpus.messages), "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with BEAM chats")
    parser.add_argument(
        "--recall", action="store_true", help="evidence recall in them, and nothing else"
    )
    parser.add_argument("--large", action="store_true", help="a million messages instead of 50,000")
    parser.add_argument("--messages", type=int, help="any other number of messages")
    parser.add_argument(
        "--growth", type=int, nargs="+", metavar="N", help="search at these sizes, and nothing else"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.recall and not options.data:
        parser.error("--recall needs the chats: give their folder with --data")
    figures: dict[str, Any] = {}
    chats = list(beam.read(options.data)) if options.data else []
    if options.growth:
        figures = grow(sorted(options.growth))
    elif not options.recall:
        count = options.messages or (1_000_000 if options.large else 50_000)
        figures = compare(from_chats(chats, count) if chats else made_up(count))
    if chats and not options.growth:
        figures |= ask(chats)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
