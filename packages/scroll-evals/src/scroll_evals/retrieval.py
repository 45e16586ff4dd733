"""How much of the evidence search finds by the words of a question, without any model, and
comparisons of that.

Recall@k is the part of a question's evidence turns among the first k hits within its history.
Session coverage@k is the part of the evidence's sessions that have any turn among those hits; it
matters most for questions about how something developed over time. Hit@k is the share of questions
with any evidence turn among the first k hits, and MRR the mean of 1 / the place of the first one (0
beyond place 50). Session hit@k and session MRR are the same for sessions, each of which counts at
the place of its first hit. Questions without evidence (abstention) are not counted.

Many histories share one temporary log, which is replaced when it has grown large, and each question
searches its own history. The weights of words therefore come from all of them. An agent under
evaluation has a log with one history, where the same search finds as much: on 39 chats of BEAM,
recall@10 is 0.549 there and 0.550 here.

A report keeps what each question found, so reports of two versions, or of several settings, can be
compared question by question. Intervals come from a bootstrap over chats, since questions about one
chat are not independent. Among several settings, the choice is cross-validated: for each chat, the
setting that is best on all other chats. Each benchmark counts the same there, however many
questions it has.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from scroll_context.errors import BadInput
from scroll_context.store import Store
from scroll_evals import beam, locomo, longmemeval
from scroll_evals.beam import Beam
from scroll_evals.locomo import Locomo, locomo_file
from scroll_evals.longmemeval import LongMemEval
from scroll_evals.tasks import Benchmark, DataFault, History, Question

CUTS = (5, 10, 50)
LARGE = 100_000  # turns in one log
RESAMPLES = 2_000  # for an interval

Progress = Callable[[int, int], None]
"""Told how many histories are done, and how many there are."""


class RetrievalFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Means over questions."""

    questions: int
    recall_5: float = msgspec.field(name="recall@5")
    recall_10: float = msgspec.field(name="recall@10")
    recall_50: float = msgspec.field(name="recall@50")
    coverage_5: float = msgspec.field(name="session_coverage@5")
    coverage_10: float = msgspec.field(name="session_coverage@10")
    coverage_50: float = msgspec.field(name="session_coverage@50")
    hit_1: float = msgspec.field(name="hit@1")
    hit_5: float = msgspec.field(name="hit@5")
    mrr: float
    session_hit_1: float = msgspec.field(name="session_hit@1")
    session_hit_5: float = msgspec.field(name="session_hit@5")
    session_mrr: float


class SearchedQuestion(msgspec.Struct, frozen=True):
    """The hits of one question's search, at each of the cuts."""

    task_id: str
    history_id: str
    ability: str
    recall: tuple[float, float, float]
    coverage: tuple[float, float, float]
    first_turn: int = 0  # the place of the first hit that is evidence; 0 when there is none
    first_session: int = 0  # the same among the sessions of the hits


class RetrievalReport(msgspec.Struct, frozen=True):
    """Retrieval in numbers."""

    overall: RetrievalFigures
    by_ability: dict[str, RetrievalFigures]
    faults: tuple[DataFault, ...] = ()
    questions: tuple[SearchedQuestion, ...] = ()


def benchmarks_in(folder: Path, splits: Sequence[str] = ()) -> list[Benchmark]:
    """The benchmarks in a folder: the splits named, or all that are there.

    What is missing says so when it is read.
    """
    beams = [
        name
        for name, size in beam.SPLITS.items()
        if (folder / size).is_dir() or (folder / name).is_dir()
    ]
    others = [name for name in longmemeval.SPLITS if any(folder.glob(f"longmemeval_{name}*.json"))]
    people = list(locomo.SPLITS)[:1] if locomo_file(folder) else []
    there = [*beams, *others, *people] or list(beam.SPLITS)[:1]
    return [_benchmark(folder, split) for split in splits or there]


def _benchmark(folder: Path, split: str) -> Benchmark:
    if split in longmemeval.SPLITS:
        return LongMemEval(folder, split)
    if split in locomo.SPLITS:
        return Locomo(folder, split)
    return Beam(folder, split)


def measure(
    benchmarks: Iterable[Benchmark], *, progress: Progress | None = None
) -> RetrievalReport:
    """Ask every question of these benchmarks; all count together."""
    listed = [one for benchmark in benchmarks for one in benchmark.histories()]
    histories = [one for one in listed if not isinstance(one, DataFault)]
    found: list[SearchedQuestion] = []
    for done, part in enumerate(_searched(histories), 1):
        found += part
        if progress is not None:
            progress(done, len(histories))
    return report_of(found, tuple(one for one in listed if isinstance(one, DataFault)))


def report_of(
    questions: Sequence[SearchedQuestion], faults: tuple[DataFault, ...] = ()
) -> RetrievalReport:
    """The means of what questions found."""
    abilities = sorted({one.ability for one in questions})
    by_ability = {
        name: _figures([one for one in questions if one.ability == name]) for name in abilities
    }
    return RetrievalReport(_figures(questions), by_ability, faults, tuple(questions))


def _searched(histories: Sequence[History]) -> Iterator[list[SearchedQuestion]]:
    """The hits of the questions about each history."""
    waiting = list(reversed(histories))
    while waiting:
        with (
            tempfile.TemporaryDirectory(prefix="scroll-retrieval-") as folder,
            Store(folder, create=True) as store,
        ):
            store.index.start()
            ingested: list[tuple[History, dict[str, str]]] = []
            while waiting and store.log.last_seq() < LARGE:
                ingested.append((waiting[-1], _append(store, waiting[-1])))
                waiting.pop()
            store.index.catch_up()
            for history, sessions in ingested:
                yield [
                    _search(store, question, sessions)
                    for question in history.questions()
                    if question.evidence
                ]


def _append(store: Store, history: History) -> dict[str, str]:
    """Append a history; the session of each turn, by its source id."""
    drafts = list(history.drafts())
    store.log.append_many(drafts)
    return {str(draft.metadata["source_id"]): draft.session_id for draft in drafts}


def _search(store: Store, question: Question, sessions: dict[str, str]) -> SearchedQuestion:
    hits = store.index.search(question.text, k=max(CUTS), task_id=question.history_id)
    turns = [str(hit.event.metadata["source_id"]) for hit in hits]
    places = [hit.event.session_id for hit in hits]
    wanted = set(question.evidence)
    held = {sessions[turn] for turn in wanted}
    return SearchedQuestion(
        question.task_id,
        question.history_id,
        question.ability,
        _at_cuts(wanted, turns),
        _at_cuts(held, places),
        _first_place(wanted, turns),
        _first_place(held, list(dict.fromkeys(places))),
    )


def _first_place(wanted: set[str], found: Sequence[str]) -> int:
    return next((place for place, name in enumerate(found, 1) if name in wanted), 0)


def _at_cuts(wanted: set[str], found: Sequence[str]) -> tuple[float, float, float]:
    """The part of what is wanted among the first 5, 10 and 50 that were found."""
    first, second, third = (len(wanted.intersection(found[:k])) / len(wanted) for k in CUTS)
    return first, second, third


def _figures(found: Sequence[SearchedQuestion]) -> RetrievalFigures:
    recall = [fmean(values) for values in zip(*(one.recall for one in found), strict=True)] or [
        0.0
    ] * 3
    coverage = [fmean(values) for values in zip(*(one.coverage for one in found), strict=True)] or [
        0.0
    ] * 3
    turns = [one.first_turn for one in found] or [0]
    sessions = [one.first_session for one in found] or [0]
    return RetrievalFigures(
        questions=len(found),
        recall_5=recall[0],
        recall_10=recall[1],
        recall_50=recall[2],
        coverage_5=coverage[0],
        coverage_10=coverage[1],
        coverage_50=coverage[2],
        hit_1=fmean(map(_hit_at(1), turns)),
        hit_5=fmean(map(_hit_at(5), turns)),
        mrr=fmean(map(_reciprocal, turns)),
        session_hit_1=fmean(map(_hit_at(1), sessions)),
        session_hit_5=fmean(map(_hit_at(5), sessions)),
        session_mrr=fmean(map(_reciprocal, sessions)),
    )


def _hit_at(cut: int) -> Callable[[int], float]:
    return lambda place: float(0 < place <= cut)


def _reciprocal(place: int) -> float:
    return 1 / place if place else 0.0


# comparing --------------------------------------------------------------------------------------------------


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """A figure before and after, over the questions that both reports have; the interval holds 95 %
    of resamples.
    """

    questions: int
    before: float
    after: float
    low: float
    high: float


class Comparison(msgspec.Struct, frozen=True):
    """Two reports side by side: for each ability and overall, the change of each measure."""

    changes: dict[str, dict[str, FigureChange]]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which of several settings to take, by cross-validation over chats."""

    measure: str
    means: tuple[float, ...]  # of each setting, over the benchmarks' means
    chosen: tuple[int, ...]  # for how many chats each was best on all the others
    held_out: float  # the same mean, each question under the setting chosen without its chat


MEASURES: dict[str, Callable[[SearchedQuestion], float]] = {
    "recall@10": lambda one: one.recall[1],
    "recall@50": lambda one: one.recall[2],
    "session_coverage@10": lambda one: one.coverage[1],
    "hit@1": lambda one: float(one.first_turn == 1),
    "mrr": lambda one: _reciprocal(one.first_turn),
    "session_hit@1": lambda one: float(one.first_session == 1),
    "session_mrr": lambda one: _reciprocal(one.first_session),
}


def compare(before: RetrievalReport, after: RetrievalReport) -> Comparison:
    """The differences between two reports on the same data."""
    earlier = {one.task_id: one for one in before.questions}
    pairs = [(earlier[one.task_id], one) for one in after.questions if one.task_id in earlier]
    if not pairs:
        raise BadInput(
            "the reports have no question in common; make both with `scroll eval retrieval --json`"
        )
    abilities = sorted({one.ability for _, one in pairs})
    parts = {name: [pair for pair in pairs if pair[1].ability == name] for name in abilities} | {
        "overall": pairs
    }
    return Comparison(
        {
            name: {measure: _change(part, of) for measure, of in MEASURES.items()}
            for name, part in parts.items()
        }
    )


def choose(reports: Sequence[RetrievalReport], measure: str = "recall@10") -> Choice:
    """Choose among settings, leaving out one chat at a time."""
    value = MEASURES[measure]
    tables = [{one.task_id: value(one) for one in report.questions} for report in reports]
    shared = [one for one in reports[0].questions if all(one.task_id in table for table in tables)]
    if not shared:
        raise BadInput(
            "the reports have no question in common; make all with `scroll eval retrieval --json`"
        )
    sizes = Counter(map(_benchmark_of, shared))
    sums: dict[tuple[str, str], list[float]] = {}  # by benchmark and chat, for each setting
    for question in shared:
        benchmark = _benchmark_of(question)
        share = 1 / (sizes[benchmark] * len(sizes))
        chat = sums.setdefault((benchmark, question.history_id), [0.0] * len(tables))
        for setting, table in enumerate(tables):
            chat[setting] += table[question.task_id] * share
    settings = range(len(tables))
    totals = [sum(chat[setting] for chat in sums.values()) for setting in settings]
    chosen = [0] * len(tables)
    held_out = 0.0
    for chat in sums.values():
        without = [total - part for total, part in zip(totals, chat, strict=True)]
        best = max(settings, key=without.__getitem__)
        chosen[best] += 1
        held_out += chat[best]
    return Choice(measure=measure, means=tuple(totals), chosen=tuple(chosen), held_out=held_out)


def _benchmark_of(question: SearchedQuestion) -> str:
    return question.task_id.partition("/")[0]


def _change(
    pairs: Sequence[tuple[SearchedQuestion, SearchedQuestion]],
    value: Callable[[SearchedQuestion], float],
) -> FigureChange:
    chats: dict[str, list[float]] = {}
    for earlier, later in pairs:
        chats.setdefault(later.history_id, []).append(value(later) - value(earlier))
    drawn = random.Random(0)
    groups = list(chats.values())
    means = []
    for _ in range(RESAMPLES):
        sample = drawn.choices(groups, k=len(groups))
        means.append(sum(map(sum, sample)) / sum(map(len, sample)))
    means.sort()
    return FigureChange(
        questions=len(pairs),
        before=fmean(value(earlier) for earlier, _ in pairs),
        after=fmean(value(later) for _, later in pairs),
        low=means[RESAMPLES * 25 // 1000],
        high=means[RESAMPLES * 975 // 1000 - 1],
    )
