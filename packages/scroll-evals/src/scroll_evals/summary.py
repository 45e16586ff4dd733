"""A run added up from its files alone: scores, outcomes, medians, what was spent."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from scroll_context.errors import BadInput
from scroll_evals.judge_cache import UnaskedJudge
from scroll_evals.protocols import Metrics, Result, Scoring, TrialOutcome, VerifierScoring
from scroll_evals.results import Judgement, RunFolder, Spending, Summary
from scroll_evals.tasks import DataFault

Measure = Literal["tokens_in", "tokens_out", "step_count", "wall_time_s"]
MEASURES: tuple[Measure, ...] = ("tokens_in", "tokens_out", "step_count", "wall_time_s")


def scoring_of(benchmark: str, *, official: bool = False) -> Scoring:
    """How a benchmark is scored; needs none of its data."""
    if benchmark == "loca":
        return VerifierScoring()
    from scroll_evals.memory import MemoryScoring

    return MemoryScoring(benchmark, official=official)


def results_of(folder: RunFolder) -> list[tuple[Result, Judgement]]:
    """Every trial of a run that ended, with what the judge said."""
    found = []
    for attempt in folder.attempts():
        judgement = folder.judgement(attempt.task_id)
        found.append((Result(attempt, judgement.judged), judgement))
    return found


def summarized(
    folder: RunFolder,
    scoring: Scoring,
    *,
    total: int | None = None,
    data_faults: Sequence[DataFault] = (),
) -> tuple[Summary, list[DataFault]]:
    """The numbers of a run, and everything in it that did not go as it should."""
    config = folder.config()
    found = results_of(folder)
    results = [result for result, _ in found]
    counted = [result for result in results if result.counts]
    faults = [*data_faults, *(fault for result, _ in found if (fault := _trouble(result)))]
    total = max(total or 0, len(results))
    judging = Spending()
    for _, judgement in found:
        for reply in judgement.replies:
            judging.add(reply.usage.input_tokens, reply.usage.output_tokens, reply.cost or 0.0)
    summary = Summary(
        benchmark=config.benchmark,
        split=config.split,
        model=config.model,
        context=config.context,
        judge=config.judge,
        trials=total,
        scored=len(counted),
        unfinished=total - len(counted),
        scores=scoring.scores(counted),
        outcomes=dict(Counter(str(result.attempt.outcome) for result in results)),
        faults=dict(Counter(fault.outcome for fault in faults)),
        medians={
            measure: statistics.median(values)
            for measure in MEASURES
            if (
                values := [
                    getattr(result.attempt.metrics, measure)
                    for result in results
                    if result.attempt.is_final
                ]
            )
        },
        agent=_spent([result.attempt.metrics for result in results]),
        judging=judging,
        ingestion=_spent(folder.ingestion()),
    )
    return summary, faults


def rescored(folder: RunFolder) -> tuple[Summary, list[DataFault]]:
    """Judge a run again from what the judge said then.

    Makes no calls; writes verdicts and scores.
    """
    config = folder.config()
    scoring = scoring_of(config.benchmark, official=config.compat == "official")
    missing: list[DataFault] = []
    for result, judgement in results_of(folder):
        attempt = result.attempt
        if not attempt.has_answer and attempt.score is None:
            continue
        try:
            judged = scoring.judge(attempt, UnaskedJudge(judgement).ask)
        except BadInput as error:
            missing.append(DataFault(attempt.task_id, "judge-missing", str(error)))
            judged = None
        if judged != judgement.judged:
            folder.save_judgement(replace(judgement, judged=judged))
    before = folder.summary()
    trials = {attempt.task_id for attempt in folder.attempts()}
    data_faults = [fault for fault in folder.faults() if fault.where not in trials]
    summary, faults = summarized(
        folder,
        scoring,
        total=before.trials if before else None,
        data_faults=[*data_faults, *missing],
    )
    folder.save_summary(summary, faults)
    return summary, faults


def _trouble(result: Result) -> DataFault | None:
    """The report of a trial that did not end with a judged answer."""
    attempt, judged = result.attempt, result.judged
    if attempt.outcome != TrialOutcome.ANSWERED:
        return DataFault(
            attempt.task_id,
            str(attempt.outcome),
            attempt.detail or _MEANING.get(attempt.outcome, ""),
        )
    if judged is not None and judged.verdict.get("outcome") not in (None, "judged"):
        return DataFault(
            attempt.task_id, str(judged.verdict["outcome"]), "see its file in judgements/"
        )
    return None


def _spent(all_metrics: Sequence[Metrics]) -> Spending:
    spending = Spending()
    for metrics in all_metrics:
        spending.add(metrics.tokens_in, metrics.tokens_out, metrics.dollars, metrics.tokens_cached)
    return spending


_MEANING = {
    TrialOutcome.UNSUBMITTED: "ended with plain text instead of the finishing tool; the text was taken as the answer",
    TrialOutcome.EMPTY_ANSWER: "the answer that was submitted is empty",
}
