"""How much of the evidence search finds by the words of a question, without any model.

Recall@k is the part of a question's evidence turns among the first k hits within its history. For questions about the
course of things, coverage@k is the part of the evidence's sessions that have any turn among those hits. Questions
without evidence (abstention) are not counted. Histories lie in one log side by side and each question searches its
own; the log is temporary, and begun anew when it has grown large. The weights of words therefore come from all of
them. An agent under evaluation has a log with one history, where the same search finds as much: on 39 chats of BEAM,
recall@10 is 0.549 there and 0.550 here.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

import msgspec

from scroll_context.store.store import Store
from scroll_evals import beam, longmemeval
from scroll_evals.beam import Beam
from scroll_evals.longmemeval import LongMemEval
from scroll_evals.tasks import Benchmark, DataFault, History, Question

CUTS = (5, 10, 50)
COVERED = frozenset({"event_ordering", "summarization", "multi-session"})
"""The abilities whose evidence is spread over sessions by their nature."""
LARGE = 100_000  # turns in one log

Progress = Callable[[int, int], None]
"""Told how many histories are done, and how many there are."""


class RetrievalFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Means over questions; coverage only over those of the covered abilities, where there are any."""

    questions: int
    recall_5: float = msgspec.field(name="recall@5")
    recall_10: float = msgspec.field(name="recall@10")
    recall_50: float = msgspec.field(name="recall@50")
    coverage_5: float | None = msgspec.field(name="session_coverage@5", default=None)
    coverage_10: float | None = msgspec.field(name="session_coverage@10", default=None)
    coverage_50: float | None = msgspec.field(name="session_coverage@50", default=None)


class RetrievalReport(msgspec.Struct, frozen=True):
    """Retrieval in numbers."""

    overall: RetrievalFigures
    by_ability: dict[str, RetrievalFigures]
    faults: tuple[DataFault, ...] = ()


class _Found(msgspec.Struct, frozen=True):
    """What one question's search found, at each of the cuts."""

    ability: str
    recall: tuple[float, ...]
    coverage: tuple[float, ...]


def benchmarks_in(folder: Path, splits: Sequence[str] = ()) -> list[Benchmark]:
    """The benchmarks in a folder: the splits named, or all that are there. What is missing says so when it is read."""
    beams = [name for name, size in beam.SPLITS.items() if (folder / size).is_dir() or (folder / name).is_dir()]
    others = [name for name in longmemeval.SPLITS if any(folder.glob(f"longmemeval_{name}*.json"))]
    found: list[Benchmark] = []
    for split in splits or [*beams, *others] or list(beam.SPLITS)[:1]:
        found.append(LongMemEval(folder, split) if split in longmemeval.SPLITS else Beam(folder, split))
    return found


def measure(benchmarks: Iterable[Benchmark], *, progress: Progress | None = None) -> RetrievalReport:
    """Ask every question of these benchmarks; all count together."""
    listed = [one for benchmark in benchmarks for one in benchmark.histories()]
    histories = [one for one in listed if not isinstance(one, DataFault)]
    found: list[_Found] = []
    for done, part in enumerate(_searched(histories), 1):
        found += part
        if progress is not None:
            progress(done, len(histories))
    found.sort(key=lambda one: one.ability)
    by_ability = {ability: _figures(list(group)) for ability, group in groupby(found, lambda one: one.ability)}
    return RetrievalReport(_figures(found), by_ability, tuple(one for one in listed if isinstance(one, DataFault)))


def _searched(histories: Sequence[History]) -> Iterator[list[_Found]]:
    """What the questions about each history find."""
    waiting = list(reversed(histories))
    while waiting:
        with tempfile.TemporaryDirectory(prefix="scroll-retrieval-") as folder, Store(folder, create=True) as store:
            store.index.start()
            ingested: list[tuple[History, dict[str, str]]] = []
            while waiting and store.log.last_seq() < LARGE:
                ingested.append((waiting[-1], _append(store, waiting[-1])))
                waiting.pop()
            store.index.catch_up()
            for history, sessions in ingested:
                yield [_search(store, question, sessions) for question in history.questions() if question.evidence]


def _append(store: Store, history: History) -> dict[str, str]:
    """Append a history; the session of each turn, by its source id."""
    drafts = list(history.drafts())
    store.log.append_many(drafts)
    return {str(draft.metadata["source_id"]): draft.session_id for draft in drafts}


def _search(store: Store, question: Question, sessions: dict[str, str]) -> _Found:
    hits = store.index.search(question.text, k=max(CUTS), task_id=question.history_id)
    turns = [str(hit.event.metadata["source_id"]) for hit in hits]
    places = [hit.event.session_id for hit in hits]
    wanted = set(question.evidence)
    held = {sessions[turn] for turn in wanted}
    return _Found(
        question.ability,
        tuple(len(wanted.intersection(turns[:k])) / len(wanted) for k in CUTS),
        tuple(len(held.intersection(places[:k])) / len(held) for k in CUTS),
    )


def _figures(found: Sequence[_Found]) -> RetrievalFigures:
    recall = _means([one.recall for one in found]) or (0.0, 0.0, 0.0)
    covered = _means([one.coverage for one in found if one.ability in COVERED]) or (None, None, None)
    return RetrievalFigures(
        questions=len(found),
        recall_5=recall[0], recall_10=recall[1], recall_50=recall[2],
        coverage_5=covered[0], coverage_10=covered[1], coverage_50=covered[2],
    )  # fmt: skip


def _means(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(fmean(column) for column in zip(*rows, strict=True))
