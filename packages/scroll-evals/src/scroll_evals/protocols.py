"""The unit of an evaluation: a trial is one task given to one agent, and ends in an attempt with a
named outcome.

A suite is a benchmark that is ready to run: it lists its trials and knows how they are scored. The
runner knows nothing else of a benchmark, so memory benchmarks (a history and a question) and acting
ones (an environment and a verifier) run the same way. This module holds values and protocols only.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from scroll_context.agent.agent import Agent, Limits
from scroll_context.models import Model, Settings
from scroll_evals.tasks import DataFault

Ask = Callable[[str, str], str]
"""Asks the judge: a key that is unique and stable within the trial, and a prompt; returns the raw
reply.
"""


class TrialOutcome(StrEnum):
    """How a trial ended."""

    ANSWERED = "answered"
    # the model ended with plain text, not with the finishing tool; the text is its answer
    UNSUBMITTED = "unsubmitted"
    EMPTY_ANSWER = "empty-answer"
    NO_ANSWER = "no-answer"  # only empty replies
    LIMIT = "limit-reached"  # steps, tokens, time or money; the detail says which
    OVERFLOW = (
        "context-overflow"  # the provider calls the request too long, and nothing more can leave it
    )
    REFUSED = "model-refused"
    UNAVAILABLE = "model-unavailable"  # after all retries
    DATA = "data-fault"
    ENVIRONMENT = (
        "environment-failed"  # the benchmark's own server or environment; the detail says what
    )
    # a fault of ours or of the machine; the traceback is in the folder of the run
    INTERNAL = "internal-error"


RETRIED = frozenset(
    {
        TrialOutcome.REFUSED,
        TrialOutcome.UNAVAILABLE,
        TrialOutcome.DATA,
        TrialOutcome.ENVIRONMENT,
        TrialOutcome.INTERNAL,
    }
)
"""Not the last word: a resumed run tries these again."""

UNSCORED = RETRIED - {TrialOutcome.REFUSED}
"""Say nothing about the model: left out of scores and counted as unfinished.

Other ends without an answer score 0.
"""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that a run evaluates."""

    model: Model
    context: str = "scroll"
    limits: Limits = Limits()
    settings: Settings = Settings()


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a trial used.

    Tokens are the provider's count; time is that spent working, in however many processes.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    wall_time_s: float = 0.0
    step_count: int = 0
    tokens_cached: int = 0  # of tokens_in, read from the provider's cache
    dollars: float = 0.0  # where prices are known


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A trial as it ended: the paper's trajectory, and what the scores need to know."""

    task_id: str
    ability: str
    outcome: TrialOutcome
    detail: str = ""
    task: dict[str, Any] = {}  # what was asked, as the benchmark has it
    prompt: str = ""
    answer: str = ""
    score: float | None = None  # of a rule-based verifier; None where a judge decides
    metrics: Metrics = Metrics()
    steps: list[dict[str, Any]] = []

    @property
    def is_final(self) -> bool:
        return self.outcome not in RETRIED

    @property
    def has_answer(self) -> bool:
        return self.outcome in (TrialOutcome.ANSWERED, TrialOutcome.UNSUBMITTED)


class Judged(msgspec.Struct, frozen=True):
    """The score that a judge or a verifier gave an attempt, from 0 to 1; `verdict` is the benchmark's
    own form of it.
    """

    score: float
    verdict: dict[str, Any] = {}


class Result(msgspec.Struct, frozen=True):
    """One line of the results: an attempt with its judgement, if it was judged."""

    attempt: Attempt
    judged: Judged | None

    @property
    def counts(self) -> bool:
        """Whether it belongs into the scores: judged, or ended by the model without anything to
        judge.
        """
        if self.judged is not None:
            return True
        return (
            not self.attempt.has_answer
            and self.attempt.score is None
            and self.attempt.outcome not in UNSCORED
        )


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers, each from 0 to 1."""

    overall: float = 0.0
    by_ability: dict[str, float] = {}
    counts: dict[str, int] = {}  # trials of each ability that were scored
    extra: dict[str, float] = {}  # what only one benchmark has, such as micro, macro or tau_b


class Trial(Protocol):
    """One task."""

    @property
    def task_id(self) -> str:
        """Unique in the suite."""

    @property
    def ability(self) -> str:
        """The ability that the task tests; scores are given for each."""

    @property
    def group(self) -> str:
        """The trials of a group share one preparation, such as an ingested history, and run one
        after another.
        """

    def run(self, setup: Setup, work: Path, stop: "Stop") -> Attempt:
        """Carry out the task in a folder that survives a crash, and go on where an earlier process
        stopped.

        It returns an attempt for every behaviour of the model, and raises `Stopped` when the run is
        to stop. It may raise faults of the model or the machine, to which the runner gives a name.
        """

    def requests(self, work: Path) -> list[dict[str, Any]]:
        """The messages that the model saw at each step, after `run`; empty if the trial does not
        keep them.
        """

    def discard(self, work: Path) -> None:
        """Remove what `run` left in the folder."""


class Scoring(Protocol):
    """How attempts become numbers.

    It needs nothing but the attempts, so a run can be scored again without its data.
    """

    def judge(self, attempt: Attempt, ask: Ask) -> Judged:
        """Score an attempt that has an answer."""

    def scores(self, results: Sequence[Result]) -> Scores:
        """Add up the results that count; one without a judgement counts as 0."""


class Suite(Protocol):
    """A benchmark, ready to be run."""

    @property
    def name(self) -> str: ...

    @property
    def split(self) -> str: ...

    @property
    def scoring(self) -> Scoring: ...

    def trials(self) -> Iterator[Trial | DataFault]:
        """Every task in a stable order; what cannot be read comes as a DataFault."""

    def preparation(self, group: str, work: Path) -> Metrics:
        """The cost of preparing a group of trials; none once it was released."""

    def release(self, group: str, work: Path) -> None:
        """Remove what was prepared for a group whose trials are all finished, or what a killed
        process left of it.
        """


class VerifierScoring:
    """Scores of a rule-based verifier, taken as they are; overall is the mean of the abilities."""

    def judge(self, attempt: Attempt, ask: Ask) -> Judged:  # noqa: ARG002
        return Judged(attempt.score or 0.0)

    def scores(self, results: Sequence[Result]) -> Scores:
        found: dict[str, list[float]] = {}
        for result in results:
            found.setdefault(result.attempt.ability, []).append(
                result.judged.score if result.judged else 0.0
            )
        means = {ability: sum(scores) / len(scores) for ability, scores in found.items()}
        return Scores(
            overall=sum(means.values()) / len(means) if means else 0.0,
            by_ability=means,
            counts={ability: len(scores) for ability, scores in found.items()},
        )


class Stopped(Exception):
    """The run was asked to stop before this trial ended; what it did so far is kept."""


class Stop:
    """A request to stop that reaches every agent at work."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._agents: set[Agent] = set()
        self._lock = threading.Lock()

    def set(self) -> None:
        """May be called again: an agent that was just being started is stopped by the next call."""
        self.event.set()
        with self._lock:
            agents = list(self._agents)
        for agent in agents:
            agent.stop()

    def check(self) -> None:
        if self.event.is_set():
            raise Stopped

    @contextlib.contextmanager
    def reaching(self, agent: Agent) -> Iterator[None]:
        """Stop this agent too, if it comes to that."""
        with self._lock:
            self._agents.add(agent)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._agents.discard(agent)


def slug(task_id: str) -> str:
    """A file name for a task: readable, and different for different tasks."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", task_id.replace("/", "__")).strip(".")
    if plain and plain.replace("__", "/") == task_id and len(plain) <= 120:
        return plain
    return f"{plain[:100] or 'task'}-{sha256(task_id.encode()).hexdigest()[:8]}"
