"""From verdicts to the figures of a benchmark's tables.

BEAM: an ability is the mean of its questions, and the overall score the mean of the abilities. LongMemEval: the overall
score is the share of questions answered correctly (micro); macro is the mean over question types, and abstention
questions count in the type they belong to and once more by themselves. A question without a verdict counts 0. Pure.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean

from scroll_context.errors import BadInput
from scroll_evals.judge import JudgeVerdict
from scroll_evals.protocols import Scores
from scroll_evals.tasks import Question

Scored = tuple[Question, JudgeVerdict | None]


def summarize(benchmark: str, results: Sequence[Scored], *, official: bool = False) -> Scores:
    """The figures of a run. `official` adds to BEAM's what its published report calls the overall score."""
    if benchmark not in ("beam", "longmemeval"):
        raise BadInput(f"there is no scoring for {benchmark!r}; there are beam and longmemeval")
    scores: dict[str, list[float]] = {}
    for question, verdict in results:
        scores.setdefault(question.ability, []).append(verdict.score if verdict else 0.0)
    by_ability = {ability: fmean(values) for ability, values in sorted(scores.items())}
    counts = {ability: len(values) for ability, values in sorted(scores.items())}
    macro = _mean(by_ability.values())
    extra = {"unreadable": float(sum(bool(v and v.outcome == "judge-unreadable") for _, v in results))}
    if benchmark == "beam":
        extra |= _ordering(results)
        if official and (norms := [_tau_norm(v) for q, v in results if q.ability == "event_ordering"]):
            extra["overall_with_tau_norm"] = _mean((by_ability | {"event_ordering": _mean(norms)}).values())
        return Scores(overall=macro, by_ability=by_ability, counts=counts, extra=extra)
    micro = _mean(value for values in scores.values() for value in values)
    extra |= {"micro": micro, "macro": macro}
    if abstained := [v.score if v else 0.0 for q, v in results if q.metadata.get("abstention")]:
        extra["abstention"] = _mean(abstained)
    return Scores(overall=micro, by_ability=by_ability, counts=counts, extra=extra)


def _ordering(results: Sequence[Scored]) -> dict[str, float]:
    """Means of what was measured of event ordering, over the questions for which it could be."""
    found = [verdict.extra for question, verdict in results if verdict and question.ability == "event_ordering"]
    names = dict.fromkeys(name for extra in found for name in extra)
    return {name: _mean(extra[name] for extra in found if name in extra) for name in names}


def _tau_norm(verdict: JudgeVerdict | None) -> float:
    """The published report scores event ordering by this."""
    return verdict.extra.get("tau_norm", 0.0) if verdict else 0.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else 0.0
