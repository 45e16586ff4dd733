"""Runs a suite: several trials at once, each judged as soon as it ends, every result on disk before
it counts.

Each trial ends with a named outcome, and a failed trial does not stop the others. A run can be
stopped or killed at any point. Started again on the same folder, it goes on with unfinished trials,
asks the judge only new questions, and repeats trials that failed for reasons outside the model.
`with_retries` waits for a provider that is busy.
"""

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec
from msgspec.structs import replace

from scroll_context.errors import (
    BadInput,
    ModelCancelled,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from scroll_context.models import Model, with_retries
from scroll_evals.judge_cache import StoredJudge
from scroll_evals.protocols import (
    Attempt,
    Judged,
    Result,
    Setup,
    Stop,
    Stopped,
    Suite,
    Trial,
    TrialOutcome,
)
from scroll_evals.results import RunFolder, Spending, Summary
from scroll_evals.summary import summarized
from scroll_evals.tasks import DataFault

POLL = 0.5  # seconds between two looks at the workers


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands."""

    total: int
    done: int
    failed: int  # of them, without an answer or without a verdict
    score: float | None  # overall, so far
    spending: Spending  # agents and judge, earlier processes included
    seconds_left: float | None


class Runner:
    """One run, in one folder."""

    def __init__(
        self,
        suite: Suite,
        setup: Setup,
        folder: RunFolder,
        judge: Model | None = None,
        *,
        jobs: int = 4,
        attempts: int = 6,
        keep_stores: bool = False,
        on_progress: Callable[[RunProgress], None] | None = None,
    ) -> None:
        self.suite = suite
        self.folder = folder
        self.stopped = False  # by Ctrl-C, before all trials had ended
        self._setup = replace(setup, model=with_retries(setup.model, attempts=attempts))
        self._judge = with_retries(judge, attempts=attempts) if judge is not None else None
        self._jobs = jobs
        self._keep_stores = keep_stores
        self._on_progress = on_progress
        self._stop = Stop()
        self._lock = threading.Lock()
        self._results: dict[str, Result] = {}
        self._spending = Spending()
        self._waiting: Counter[str] = Counter()  # trials of each group that are not finished
        self._faults: list[DataFault] = []

    def run(self, limit: int | None = None) -> Summary:
        """Run every trial that is not finished; `limit` takes the first trials of the suite only."""
        trials = self._trials(limit)
        open_trials = [trial for trial in trials if not self._taken_over(trial)]
        self._waiting.update(trial.group for trial in open_trials)
        for group in {trial.group for trial in trials} - set(self._waiting):
            self._release(group)  # a killed process may have left it
        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="scroll-trial")
        futures = [pool.submit(self._one, trial) for trial in open_trials]
        try:
            self._watch(futures, len(trials))
        except KeyboardInterrupt:
            self._wind_up(futures)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for future in futures:
            if not future.cancelled():
                future.result()  # a fault of the runner itself is not hidden
        summary, faults = summarized(
            self.folder, self.suite.scoring, total=len(trials), data_faults=self._faults
        )
        self.folder.save_summary(summary, faults)
        return summary

    def stop(self) -> None:
        """Stop all trials, from any thread; what they did is kept."""
        self.stopped = True
        self._stop.set()

    # waiting --------------------------------------------------------------------------------------

    def _watch(self, futures: Sequence["Future[None]"], total: int) -> None:
        begun, already = time.monotonic(), len(self._results)
        pending = set(futures)
        while pending:
            _, pending = wait(pending, timeout=POLL)
            if self._on_progress is not None:
                self._on_progress(self._progress(total, time.monotonic() - begun, already))

    def _wind_up(self, futures: Sequence["Future[None]"]) -> None:
        """Stop as soon as every trial at work can be left; interrupted again, do not wait for them."""
        pending = {future for future in futures if not future.cancel()}
        while pending:
            self.stop()
            _, pending = wait(pending, timeout=POLL)

    def _progress(self, total: int, elapsed: float, already: int) -> RunProgress:
        with self._lock:
            results = list(self._results.values())
            spending = replace(self._spending)
        counted = [result for result in results if result.counts]
        now = len(results) - already
        return RunProgress(
            total=total,
            done=len(results),
            failed=sum(result.judged is None for result in results),
            score=self.suite.scoring.scores(counted).overall if counted else None,
            spending=spending,
            seconds_left=elapsed / now * (total - len(results)) if now > 0 else None,
        )

    # one trial ------------------------------------------------------------------------------------

    def _one(self, trial: Trial) -> None:
        if self._stop.event.is_set():
            return
        attempt = self.folder.attempt(trial.task_id)  # finished, perhaps, and not judged
        try:
            if attempt is None or not attempt.is_final:
                attempt = self._attempted(trial)
            judged = (
                self._judged(attempt) if attempt.has_answer or attempt.score is not None else None
            )
        except Stopped:
            return
        self._finished(trial, Result(attempt, judged))

    def _attempted(self, trial: Trial) -> Attempt:
        """Run a trial and enter how it ended."""
        requests = []
        try:
            attempt = trial.run(self._setup, self.folder.work, self._stop)
            if attempt.is_final:
                requests = trial.requests(self.folder.work)
        except (Stopped, ModelCancelled):
            raise Stopped from None
        except ModelUnavailable as error:
            attempt = _failed(trial, TrialOutcome.UNAVAILABLE, str(error))
        except ModelError as error:
            attempt = _failed(trial, TrialOutcome.REFUSED, str(error))
        except Exception as error:  # noqa: BLE001 - the border behind which a benchmark's own code runs
            self._stop.check()
            self.folder.save_traceback(trial.task_id, traceback.format_exc())
            attempt = _failed(trial, TrialOutcome.INTERNAL, f"{type(error).__name__}: {error}")
        self.folder.save_attempt(attempt, requests)
        if not self._keep_stores and (attempt.is_final or attempt.outcome == TrialOutcome.INTERNAL):
            trial.discard(self.folder.work)
        return attempt

    def _judged(self, attempt: Attempt) -> Judged | None:
        """The verdict on an attempt; None when the judge could not be asked."""
        known = self.folder.judgement(attempt.task_id)
        if known.judged is not None:
            return known.judged
        judge = StoredJudge(self.folder, known, self._judge, self._stop.event)
        try:
            judged = self.suite.scoring.judge(attempt, judge.ask)
        except ModelCancelled:
            raise Stopped from None
        except ModelError as error:
            refused = isinstance(error, ModelRefused)
            self._fault(
                DataFault(
                    attempt.task_id, "judge-refused" if refused else "judge-unavailable", str(error)
                )
            )
            return None
        except BadInput as error:
            self._fault(DataFault(attempt.task_id, "judge-missing", str(error)))
            return None
        finally:
            with self._lock:
                self._spending.add(
                    judge.spent.tokens_in, judge.spent.tokens_out, judge.spent.dollars
                )
        judge.conclude(judged)
        return judged

    def _finished(self, trial: Trial, result: Result) -> None:
        used = result.attempt.metrics
        with self._lock:
            self._results[trial.task_id] = result
            self._spending.add(used.tokens_in, used.tokens_out, used.dollars, used.tokens_cached)
            if result.attempt.is_final:
                self._waiting[trial.group] -= 1
            is_last = not self._waiting[trial.group] and result.attempt.is_final
        if is_last:
            self._release(trial.group)

    def _release(self, group: str) -> None:
        if not self._keep_stores:
            cost = self.suite.preparation(group, self.folder.work)
            if cost.step_count:
                self.folder.save_ingestion(group, cost)
            self.suite.release(group, self.folder.work)

    def _fault(self, fault: DataFault) -> None:
        with self._lock:
            self._faults.append(fault)

    # before ---------------------------------------------------------------------------------------

    def _trials(self, limit: int | None) -> list[Trial]:
        found: dict[str, Trial] = {}
        for trial in self.suite.trials():
            if isinstance(trial, DataFault):
                self._faults.append(trial)
            elif trial.task_id in found:
                self._faults.append(
                    DataFault(trial.task_id, "duplicate-task", "the first of this name is taken")
                )
            else:
                found[trial.task_id] = trial
            if limit is not None and len(found) >= limit:
                break
        return list(found.values())

    def _taken_over(self, trial: Trial) -> bool:
        """Whether an earlier process finished this trial; if so, its result is entered."""
        attempt = self.folder.attempt(trial.task_id)
        if attempt is None or not attempt.is_final:
            return False
        judgement = self.folder.judgement(trial.task_id)
        result = Result(attempt, judgement.judged)
        if not result.counts:
            return False
        used = attempt.metrics
        self._results[trial.task_id] = result
        self._spending.add(used.tokens_in, used.tokens_out, used.dollars, used.tokens_cached)
        for reply in judgement.replies:
            self._spending.add(
                reply.usage.input_tokens, reply.usage.output_tokens, reply.cost or 0.0
            )
        return True


def _failed(trial: Trial, outcome: TrialOutcome, detail: str) -> Attempt:
    return Attempt(task_id=trial.task_id, ability=trial.ability, outcome=outcome, detail=detail)
