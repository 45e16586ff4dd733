"""Memory benchmarks as suites: a history is ingested once, and each question about it is a trial on
its own copy.

Each trial has its own copy because the agent's words are recorded too: in a shared store, the
search of one question would find the answer to another. A trial's store outlives the process, so an
interrupted trial goes on where it stopped.

Scores: for BEAM, an ability is the mean of its questions, and the overall score is the mean of the
abilities. For LongMemEval and LoCoMo, the overall score is the share of questions answered
correctly (micro); macro is the mean over the types of questions. Abstention questions count in
their type, and once more by themselves; LoCoMo's `without_adversarial` is the share that other
reports give, which leave these questions out. A question without a verdict counts 0.
"""

import shutil
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from scroll_context.errors import BadInput, ContextOverflow, ModelRefused, ModelUnavailable
from scroll_context.events import Kind
from scroll_context.models.protocol import Stoppable
from scroll_context.session.context import Actions, WindowedContext
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.store import Store
from scroll_evals import judge
from scroll_evals.ingested_view import (
    PROBE,
    ProbeSession,
    clear_sessions,
    copied_context,
    ingest,
    starting_context,
    summary_costs,
)
from scroll_evals.judge import JudgeVerdict
from scroll_evals.protocols import (
    Ask,
    Attempt,
    Judged,
    Metrics,
    Result,
    Scores,
    Setup,
    Stop,
    Stopped,
    TrialOutcome,
    slug,
)
from scroll_evals.replay import (
    SUBMIT,
    DeadlineModel,
    given_answer,
    limits_left,
    metrics_and_steps,
    requests_seen,
)
from scroll_evals.tasks import Benchmark, DataFault, History, Question
from scroll_evals.trial_agent import TrialAgent

Scored = tuple[Question, JudgeVerdict | None]
_READY = "ingested"  # a file in the folder of a history whose ingestion is complete


class MemoryScoring:
    """Answers scored by a judge model, with the questions that the attempts carry."""

    def __init__(self, name: str, *, official: bool = False) -> None:
        self._name = name
        self._official = official

    def judge(self, attempt: Attempt, ask: Ask) -> Judged:
        verdict = judge.judge(
            self._name, _question(attempt), attempt.answer, ask, official=self._official
        )
        return Judged(verdict.score, msgspec.to_builtins(verdict))

    def scores(self, results: Sequence[Result]) -> Scores:
        pairs = [
            (
                _question(one.attempt),
                msgspec.convert(one.judged.verdict, JudgeVerdict) if one.judged else None,
            )
            for one in results
        ]
        return summarize(self._name, pairs, official=self._official)


def summarize(benchmark: str, results: Sequence[Scored], *, official: bool = False) -> Scores:
    """The figures of a run.

    `official` adds to BEAM's what its published report calls the overall score.
    """
    if benchmark not in judge.BENCHMARKS:
        known = ", ".join(judge.BENCHMARKS)
        raise BadInput(f"there is no scoring for {benchmark!r}; there are {known}")
    scores: dict[str, list[float]] = {}
    for question, verdict in results:
        scores.setdefault(question.ability, []).append(verdict.score if verdict else 0.0)
    by_ability = {ability: fmean(values) for ability, values in sorted(scores.items())}
    counts = {ability: len(values) for ability, values in sorted(scores.items())}
    macro = _mean(by_ability.values())
    extra = {
        "unreadable": float(sum(bool(v and v.outcome == "judge-unreadable") for _, v in results))
    }
    if benchmark == "beam":
        extra |= _ordering(results)
        if official and (
            norms := [_tau_norm(v) for q, v in results if q.ability == "event_ordering"]
        ):
            extra["overall_with_tau_norm"] = _mean(
                (by_ability | {"event_ordering": _mean(norms)}).values()
            )
        return Scores(overall=macro, by_ability=by_ability, counts=counts, extra=extra)
    micro = _mean(value for values in scores.values() for value in values)
    extra |= {"micro": micro, "macro": macro}
    if abstained := [v.score if v else 0.0 for q, v in results if q.metadata.get("abstention")]:
        extra["abstention"] = _mean(abstained)
    if benchmark == "locomo":
        answerable = [values for ability, values in scores.items() if ability != "adversarial"]
        extra["without_adversarial"] = _mean(value for values in answerable for value in values)
    return Scores(overall=micro, by_ability=by_ability, counts=counts, extra=extra)


def _ordering(results: Sequence[Scored]) -> dict[str, float]:
    """Means of what was measured of event ordering, over the questions for which it could be."""
    found = [
        verdict.extra
        for question, verdict in results
        if verdict and question.ability == "event_ordering"
    ]
    names = dict.fromkeys(name for extra in found for name in extra)
    return {name: _mean(extra[name] for extra in found if name in extra) for name in names}


def _tau_norm(verdict: JudgeVerdict | None) -> float:
    """The published report scores event ordering by this."""
    return verdict.extra.get("tau_norm", 0.0) if verdict else 0.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else 0.0


class MemorySuite:
    """A benchmark of histories and questions, ready to be run."""

    def __init__(self, benchmark: Benchmark, *, official: bool = False) -> None:
        self.name = benchmark.name
        self.split = benchmark.split
        self.scoring = MemoryScoring(benchmark.name, official=official)
        self._benchmark = benchmark
        self._shared: defaultdict[str, _Shared] = defaultdict(_Shared)

    def trials(self) -> Iterator["MemoryTrial | DataFault"]:
        rubric = self._benchmark.rubric_prompt()
        for history in self._benchmark.histories():
            if isinstance(history, DataFault):
                yield history
            else:
                shared = self._shared[history.history_id]
                yield from (
                    MemoryTrial(history, question, rubric, shared)
                    for question in history.questions()
                )

    def preparation(self, group: str, work: Path) -> Metrics:
        folder = _history_folder(work, group)
        if not (folder / _READY).exists():
            return Metrics()
        with Store(folder) as store:
            facts = summary_costs(store)
        return Metrics(
            tokens_in=sum(fact["usage"].get("input_tokens", 0) for fact in facts),
            tokens_out=sum(fact["usage"].get("output_tokens", 0) for fact in facts),
            step_count=len(facts),
            dollars=sum(fact.get("cost") or 0.0 for fact in facts),
        )

    def release(self, group: str, work: Path) -> None:
        self._shared[group].context = None
        folder = _history_folder(work, group)
        gone = folder.with_name(
            folder.name + ".gone"
        )  # an incomplete store is never mistaken for a complete one
        shutil.rmtree(gone, ignore_errors=True)
        if (folder / _READY).exists():
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


class _Shared:
    """The state that the trials of one history share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while it is prepared
        self.context: tuple[Path, WindowedContext] | None = (
            None  # what trials in this folder start from
        )


class MemoryTrial:
    """One question about one history."""

    def __init__(self, history: History, question: Question, rubric: str, shared: _Shared) -> None:
        self.task_id = question.task_id
        self.ability = question.ability
        self.group = history.history_id
        self._history = history
        self._question = question
        self._rubric = rubric
        self._shared = shared

    def run(self, setup: Setup, work: Path, stop: Stop) -> Attempt:
        try:
            own = self._own_store(setup, work, stop)
        except BadInput as error:
            return self._attempt(TrialOutcome.DATA, str(error))
        stop.check()
        options = SessionOptions(reach="task", context=setup.context)
        with (
            Store(own) as store,
            closing(
                ProbeSession.begin(store, options, self._context(store, setup.context, work))
            ) as session,
        ):
            try:
                outcome, detail, answer = self._answered(session, setup, stop)
            except ContextOverflow as error:
                outcome, detail, answer = TrialOutcome.OVERFLOW, str(error), ""
            except ModelRefused as error:
                outcome, detail, answer = TrialOutcome.REFUSED, str(error), ""
            metrics, steps = metrics_and_steps(list(session.own_events()), store.log.text)
        return self._attempt(outcome, detail, answer=answer, metrics=metrics, steps=steps)

    def requests(self, work: Path) -> list[dict[str, Any]]:
        with Store(self._folder(work)) as store:
            events = list(lineage(store, PROBE))
            names = [
                str(event.metadata["context"]) for event in events if "context" in event.metadata
            ]
            return (
                requests_seen(store, events, self._context(store, names[0], work)) if names else []
            )

    def discard(self, work: Path) -> None:
        shutil.rmtree(self._folder(work), ignore_errors=True)

    def _answered(
        self, session: ProbeSession, setup: Setup, stop: Stop
    ) -> tuple[TrialOutcome, str, str]:
        """Let the agent work until it ends; how it ended, with a detail, and its answer."""
        text = session.store.log.text
        events = list(session.own_events())
        given = given_answer(events, text)  # in a process that was killed before it could say so
        if given is None:
            limits = limits_left(setup.limits, metrics_and_steps(events, text)[0])
            model = DeadlineModel(setup.model, limits.seconds)
            agent = TrialAgent(
                session,
                model,
                limits=limits,
                settings=setup.settings,
                cell_tools=("recall_history_python",)
                if session.context.actions.ms
                else ("repl_exec",),
                instructions=f"{self._rubric}\n\n{access(session.context.actions)}".strip(),
                finish_tool=SUBMIT,
            )
            asked = any(
                event.kind == Kind.CONVERSATION and event.role == "user" for event in events
            )
            try:
                with stop.reaching(agent):
                    run = agent.run(None if asked else self._prompt())
            except ModelUnavailable:
                if model.is_late:
                    return TrialOutcome.LIMIT, "time", ""
                raise
            if run.state == "stopped":
                raise Stopped
            if run.state == "silent":
                return TrialOutcome.NO_ANSWER, "only empty replies", ""
            if run.state != "answered":
                return TrialOutcome.LIMIT, run.state, ""
            given = given_answer(session.own_events(), text)
            assert given is not None, "an agent that answered has recorded its answer"
        return given[0], "", given[1]

    def _attempt(self, outcome: TrialOutcome, detail: str, **fields: Any) -> Attempt:
        return Attempt(
            task_id=self.task_id,
            ability=self.ability,
            outcome=outcome,
            detail=detail,
            prompt=self._prompt(),
            task=msgspec.to_builtins(self._question),
            **fields,
        )

    def _prompt(self) -> str:
        asked_at = self._question.asked_at
        return self._question.text + (f"\n\n(This is asked on {asked_at}.)" if asked_at else "")

    def _folder(self, work: Path) -> Path:
        return work / "trials" / slug(self.task_id)

    def _own_store(self, setup: Setup, work: Path, stop: Stop) -> Path:
        """This trial's copy of the ingested history, made whole or not at all."""
        own = self._folder(work)
        if own.exists():
            return own
        source = self._ingested(setup, work, stop)
        partial = own.with_name(own.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns(_READY))
        return partial.rename(own)

    def _ingested(self, setup: Setup, work: Path, stop: Stop) -> Path:
        folder = _history_folder(work, self.group)
        with self._shared.lock:
            stop.check()  # others may have waited here meanwhile
            if not (folder / _READY).exists():
                with Store(
                    folder, create=True
                ) as store:  # what a killed process had ingested is not added twice
                    ingest(self._history, store)
                    if not store.log.last_seq():
                        raise BadInput(f"the history {self.group} has no turns")
                    clear_sessions(store, setup.context, Stoppable(setup.model, stop.event))
                    store.index.catch_up()
                (folder / _READY).touch()
        return folder

    def _context(self, store: Store, name: str, work: Path) -> WindowedContext:
        """A context of this trial's own, as the ingestion left it."""
        with self._shared.lock:
            known = self._shared.context
            if known is None or known[0] != work:
                known = self._shared.context = (work, starting_context(store, name))
        return copied_context(known[1], store.log.excerpt)


def access(actions: Actions) -> str:
    """One remark for a context that does not offer what the rubric speaks of; the rubric itself is
    always the same.
    """
    if actions.ms:
        return ""
    if "search" in actions.memory_tools:
        return (
            "In this setting there are no cells: `ms.search`, `ms.expand` and `ms.sql_query` are the tools "
            "`ms_search`, `ms_expand` and `ms_sql_query`, which you call directly."
        )
    if actions.memory_tools:
        return f"In this setting there is no `ms`: the one way to the history is the tool `{actions.memory_tools[0]}`."
    return "In this setting there is no `ms`: of the history you have what is shown to you, and nothing else."


def _question(attempt: Attempt) -> Question:
    return msgspec.convert(attempt.task, Question)


def _history_folder(work: Path, history_id: str) -> Path:
    return work / "histories" / slug(history_id)
