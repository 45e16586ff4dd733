"""The paper's tables, from the folders of runs: results per ability, contexts, backbones, cost,
outcomes.

A table is a value; printing is the business of the command line. Scores are percentages with one
decimal, as in the paper. Every table says how many trials stand behind a number, so an unfinished
run cannot pass for a finished one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from scroll_evals.protocols import Metrics
from scroll_evals.results import RunConfig, Summary, runs_below
from scroll_evals.summary import MEASURES, scoring_of, summarized

ORDER = {
    "beam": (
        "information_extraction",
        "multi_session_reasoning",
        "event_ordering",
        "temporal_reasoning",
        "knowledge_update",
        "contradiction_resolution",
        "summarization",
        "preference_following",
        "instruction_following",
        "abstention",
    ),
    "longmemeval": (
        "single-session-user",
        "single-session-assistant",
        "single-session-preference",
        "multi-session",
        "temporal-reasoning",
        "knowledge-update",
        "abstention",
    ),
    "locomo": ("single-hop", "multi-hop", "temporal", "open-domain", "adversarial", "abstention"),
    "loca": ("8k", "16k", "32k", "64k", "96k", "128k", "256k"),
}
"""Abilities in the order of the paper's tables; others follow."""

CONTEXTS = (
    "react",
    "summarize",
    "retrieval",
    "codeact",
    "scroll-lossy",
    "scroll-no-repl",
    "scroll-no-index",
    "scroll",
)
"""Contexts in the order of the paper's tables and figures."""

SPLITS = {
    "longmemeval": ("oracle", "s", "m"),
    "beam": ("128K", "500K", "1M", "10M"),
    "locomo": ("people", "assistant"),
    "loca": (),
}
"""Benchmarks in the order of the paper's tables, and their splits from small to large."""

TITLES = {"beam": "BEAM", "longmemeval": "LongMemEval", "locomo": "LoCoMo", "loca": "LOCA"}


class Table(msgspec.Struct, frozen=True):
    """Rows under headings; all but the first column are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class ReportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run as the report sees it."""

    path: Path
    config: RunConfig
    summary: Summary
    metrics: tuple[Metrics, ...]  # of the trials that ended

    @property
    def benchmark(self) -> str:
        """Benchmark and split, as a heading."""
        return f"{TITLES.get(self.config.benchmark, self.config.benchmark)} {self.config.split}"

    @property
    def overall(self) -> float | None:
        """The overall score; None where nothing was scored, which is not a score of 0."""
        return self.summary.scores.overall if self.summary.scored else None

    @property
    def extra(self) -> dict[str, float]:
        """Further measurements."""
        return self.summary.scores.extra if self.summary.scored else {}


def read_runs(paths: Sequence[Path]) -> list[ReportedRun]:
    """Every run in these folders, added up from its files, in the order of the paper."""
    runs = []
    for folder in runs_below(list(paths)):
        config = folder.config()
        before = folder.summary()
        scoring = scoring_of(config.benchmark, official=config.compat == "official")
        summary, _ = summarized(folder, scoring, total=before.trials if before else None)
        metrics = tuple(attempt.metrics for attempt in folder.attempts() if attempt.is_final)
        runs.append(ReportedRun(path=folder.path, config=config, summary=summary, metrics=metrics))
    return sorted(runs, key=_place)


def tables(runs: Sequence[ReportedRun]) -> list[Table]:
    """All tables that these runs have something for."""
    found = [
        _by_ability(name, of)
        for name, of in _grouped(runs, lambda run: run.config.benchmark).items()
    ]
    contexts, models = (
        {getattr(run.config, field) for run in runs} for field in ("context", "model")
    )
    if len(contexts) > 1 or len(models) == 1:
        found += [
            _overall(
                f"Contexts, {model}" if len(contexts) > 1 else f"Overall, {model}", of, "context"
            )
            for model, of in _grouped(runs, lambda run: run.config.model).items()
        ]
    if len(models) > 1:
        found += [
            _overall(f"Backbones, context {context}", of, "model")
            for context, of in _grouped(runs, lambda run: run.config.context).items()
        ]
    return [*found, _cost(runs), _outcomes(runs)]


def labels(runs: Sequence[ReportedRun]) -> list[str]:
    """A short name for each run: only what tells it from the others."""
    parts = {
        "benchmark": [run.benchmark for run in runs],
        "model": [run.config.model for run in runs],
        "context": [run.config.context for run in runs],
        "compat": [run.config.compat for run in runs],
        "path": [str(run.path) for run in runs],
    }
    telling: list[str] = []
    for name, values in parts.items():
        if name == "path" and len(set(zip(*(parts[one] for one in telling), strict=True))) == len(
            runs
        ):
            # what a run is tells it apart; where it lies is for runs that are otherwise alike
            break
        if len(set(values)) > 1:
            telling.append(name)
    if not telling:
        return [run.config.context for run in runs]
    return [
        " · ".join(parts[name][at] for name in telling if parts[name][at])
        for at in range(len(runs))
    ]


def abilities(benchmark: str, runs: Sequence[ReportedRun]) -> list[str]:
    """The abilities that these runs have scores for, in the order of the paper."""
    known = ORDER.get(benchmark, ())
    found = {ability for run in runs for ability in run.summary.scores.by_ability}
    return sorted(found, key=lambda one: (known.index(one) if one in known else len(known), one))


def percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.1f}"


def titled(ability: str) -> str:
    """An ability as a person writes it."""
    said = ability.replace("_", " ").replace("-", " ")
    return (
        said.replace("multi session", "multi-session")
        .replace("single session", "single-session")
        .capitalize()
    )


def _by_ability(benchmark: str, runs: Sequence[ReportedRun]) -> Table:
    rows = [
        (titled(ability), *(percent(run.summary.scores.by_ability.get(ability)) for run in runs))
        for ability in abilities(benchmark, runs)
    ]
    rows.append(("Overall", *(percent(run.overall) for run in runs)))
    extras = dict.fromkeys(name for run in runs for name in run.extra if name != "unreadable")
    rows += [
        (titled(name), *(_extra(name, run.extra.get(name)) for run in runs)) for name in extras
    ]
    rows.append(("Trials scored", *(_of(run) for run in runs)))
    return Table(
        f"{TITLES.get(benchmark, benchmark)}, score (%)", ("Ability", *labels(runs)), tuple(rows)
    )


def _overall(title: str, runs: Sequence[ReportedRun], by: str) -> Table:
    """One row for each context or model, one column for each benchmark and split, or size of LOCA."""
    names = [getattr(run.config, by) for run in runs]
    cells: dict[str, dict[str, float]] = {
        name: {} for name in sorted(names, key=lambda name: _rank(name, CONTEXTS))
    }
    columns: dict[str, None] = {}
    for name, run in zip(names, runs, strict=True):
        if run.config.benchmark == "loca":
            found = {
                f"LOCA {size}": run.summary.scores.by_ability[size]
                for size in abilities("loca", [run])
            }
        else:
            columns[run.benchmark] = None
            found = {} if run.overall is None else {run.benchmark: run.overall}
        cells[name].update(found)
        columns.update(dict.fromkeys(found))
    rows = [
        (name, *(percent(row.get(column)) for column in columns)) for name, row in cells.items()
    ]
    sizes = [column for column in columns if column.startswith("LOCA ")]
    if len(sizes) > 1:  # the drop from the smallest to the largest
        rows = [
            (
                *line,
                f"{100 * (row[sizes[-1]] - row[sizes[0]]):+.1f}"
                if {sizes[0], sizes[-1]} <= set(row)
                else "–",
            )
            for line, row in zip(rows, cells.values(), strict=True)
        ]
    return Table(
        f"{title} (%)",
        (by.capitalize(), *columns, *(("Δ LOCA",) if len(sizes) > 1 else ())),
        tuple(rows),
    )


def _cost(runs: Sequence[ReportedRun]) -> Table:
    columns = (
        "Run",
        "Input tokens, median",
        "Output tokens, median",
        "Turns, median",
        "Seconds, median",
        "Input, all",
        "Output, all",
        "Dollars, agent",
        "Dollars, judge",
    )
    rows = []
    for label, run in zip(labels(runs), runs, strict=True):
        spent = run.summary
        tokens_in = spent.agent.tokens_in + spent.ingestion.tokens_in
        tokens_out = spent.agent.tokens_out + spent.ingestion.tokens_out
        medians = [_median(run, measure) for measure in MEASURES]
        dollars = (
            _dollars(spent.agent.dollars + spent.ingestion.dollars),
            _dollars(spent.judging.dollars),
        )
        rows.append((label, *medians, f"{tokens_in:,}", f"{tokens_out:,}", *dollars))
    return Table("Cost of a trial", columns, tuple(rows))


def _outcomes(runs: Sequence[ReportedRun]) -> Table:
    names = sorted(
        {name for run in runs for name in (*run.summary.outcomes, *run.summary.faults)}
        - {"answered"}
    )
    rows = [
        (
            label,
            _of(run),
            str(run.summary.outcomes.get("answered", 0)),
            *(
                str(max(run.summary.outcomes.get(name, 0), run.summary.faults.get(name, 0)))
                for name in names
            ),
        )
        for label, run in zip(labels(runs), runs, strict=True)
    ]
    return Table("Outcomes", ("Run", "Scored", "answered", *names), tuple(rows))


def _extra(name: str, value: float | None) -> str:
    """A correlation runs from -1 to 1 and is no percentage."""
    return f"{value:.2f}" if value is not None and name.startswith("tau") else percent(value)


def _of(run: ReportedRun) -> str:
    return f"{run.summary.scored} of {run.summary.trials}"


def _median(run: ReportedRun, measure: str) -> str:
    middle = run.summary.medians.get(measure)
    if middle is None:
        return "–"
    return f"{middle:,.1f}" if measure == "wall_time_s" else f"{middle:,.0f}"


def _dollars(amount: float) -> str:
    return f"{amount:,.2f}" if amount else "–"


def _place(run: ReportedRun) -> tuple[int, int, str, int]:
    config = run.config
    splits = SPLITS.get(config.benchmark, ())
    return (
        _rank(config.benchmark, tuple(SPLITS)),
        _rank(config.split, splits),
        config.model,
        _rank(config.context, CONTEXTS),
    )


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _grouped(
    runs: Sequence[ReportedRun], key: Callable[[ReportedRun], str]
) -> dict[str, list[ReportedRun]]:
    found: dict[str, list[ReportedRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found
