"""Running a suite: what a finished run leaves behind, and a name for everything that can go wrong
in one trial.
"""

import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scroll_context.agent.agent import Limits
from scroll_context.errors import (
    BadInput,
    ContextOverflow,
    ModelRefused,
    ModelUnavailable,
    UnknownSeq,
)
from scroll_context.events import Draft, Kind
from scroll_context.models import Reply, Request, exec_cell
from scroll_context.session.explain import explain
from scroll_context.store import Store
from scroll_evals.contexts import CONTEXTS
from scroll_evals.ingested_view import PROBE, inherited_by
from scroll_evals.protocols import TrialOutcome
from scroll_evals.results import RunFolder
from scroll_evals.runner import Runner, RunProgress
from scroll_evals.tasks import DataFault
from small import (
    FACTS,
    SmallBenchmark,
    SmallHistory,
    agent_model,
    diligent,
    fair,
    judge_model,
    runner,
    submit,
    thing_asked,
)

TASKS = [f"small/{history}/{thing}" for history, facts in FACTS.items() for thing in facts]


def test_a_run_and_its_folder(tmp_path: Path) -> None:
    seen: list[RunProgress] = []
    agent, judge = agent_model(), judge_model()
    summary = runner(tmp_path / "run", agent, judge, on_progress=seen.append).run()

    assert (summary.trials, summary.scored, summary.unfinished) == (4, 4, 0)
    assert summary.scores.overall == 1.0
    assert summary.scores.by_ability == {"information_extraction": 1.0, "temporal_reasoning": 1.0}
    assert summary.outcomes == {"answered": 4} and summary.faults == {}
    assert agent.steps == 8 and judge.steps == 8  # two rubric items a question
    assert (
        seen[-1].done == seen[-1].total == 4
        and seen[-1].score == 1.0
        and seen[-1].spending.tokens_in > 0
    )

    folder = RunFolder(tmp_path / "run")
    for task in TASKS:
        attempt = folder.attempt(task)
        assert (
            attempt is not None
            and attempt.task_id == task
            and attempt.outcome == TrialOutcome.ANSWERED
        )
        assert attempt.metrics.step_count == len(attempt.steps) == 2
        assert attempt.metrics.tokens_in > 0 and attempt.metrics.tokens_out > 0
        assert attempt.steps[0]["reasoning"] == "I look it up."
        assert attempt.steps[0]["action"]["tool"] == "recall_history_python"
        assert FACTS[task.split("/")[1]][task.split("/")[2]] in attempt.steps[0]["observation"]
        assert attempt.steps[1]["action"]["tool"] == "submit_answer"
        judgement = folder.judgement(task)
        assert [reply.key for reply in judgement.replies] == ["item-0", "item-1"]
        assert judgement.replies[0].reply == '{"score": 1, "reason": "looked"}'
        assert judgement.judged is not None and judgement.judged.score == 1.0
    raw = msgspec.json.decode((tmp_path / "run/trajectories/small__one__kettle.json").read_bytes())
    assert {"task_id", "metrics", "steps"} <= set(raw)
    assert {"tokens_in", "tokens_out", "wall_time_s", "step_count"} <= set(raw["metrics"])
    assert {"step_index", "reasoning", "action", "observation"} <= set(raw["steps"][0])
    assert msgspec.json.decode((tmp_path / "run/faults.json").read_bytes()) == []
    assert [file for file in (tmp_path / "run/stores").rglob("*") if file.is_file()] == []


def test_a_finished_run_asks_nobody_again(tmp_path: Path) -> None:
    first = runner(tmp_path / "run").run()
    agent, judge = agent_model(), judge_model()
    again = runner(tmp_path / "run", agent, judge).run()
    assert agent.steps == judge.steps == 0
    assert again == first


def test_no_trial_finds_what_another_said(tmp_path: Path) -> None:
    """Both questions of a history search for words that only an answer contains."""

    def nosy(request: Request, step: int) -> Reply:
        if any(message.role == "tool" for message in request.messages):
            return submit("xylophone")
        return exec_cell(
            "hits = ms.search('xylophone', scope='all') + ms.sql_query(\"SELECT seq FROM hist.conversation_history "
            "WHERE content LIKE '%xylophone' AND role = 'assistant'\")\nprint(len(hits))",
            tool="recall_history_python",
        )

    runner(tmp_path / "run", agent_model(nosy), jobs=1).run()
    attempts = list(RunFolder(tmp_path / "run").attempts())
    assert [attempt.steps[0]["observation"].split()[0] for attempt in attempts] == ["0"] * 4
    assert {attempt.answer for attempt in attempts} == {"xylophone"}


def test_the_index_of_the_history_is_in_the_first_request(tmp_path: Path) -> None:
    agent = agent_model()
    runner(tmp_path / "run", agent).run()
    first = next(request for request in agent.requests if thing_asked(request) == "kettle")
    index = first.messages[1].text
    assert re.search(r"- seq 1-2 \(.*2024-03-01\): kettle cost 31 euros\.", index)
    assert "2024-03-02): bicycle is painted green." in index
    assert "ferry" not in index  # another history
    assert (
        len(first.messages) == 2 and "Noted, thank you." not in index
    )  # the raw context was cleared


@pytest.mark.parametrize("context", list(CONTEXTS))
def test_every_context_runs(tmp_path: Path, context: str) -> None:
    def script(request: Request, _: int) -> Reply | str:
        if not request.tools:
            return "SUMMARY: a kettle or a bicycle or something else"
        return submit("I do not know.")

    agent = agent_model(script)
    summary = runner(tmp_path / "run", agent, context=context).run()
    assert summary.outcomes == {"answered": 4}
    assert summary.scores.overall == 0.5
    summaries = [request for request in agent.requests if not request.tools]
    if context in ("summarize", "scroll-lossy"):
        assert len(summaries) == 4  # one a session, not one a question
        assert summary.ingestion.tokens_in > 0
        asked = [request for request in agent.requests if request.tools]
        assert all("SUMMARY: a kettle" in request.messages[1].text for request in asked)
    else:
        assert summaries == [] and summary.ingestion.tokens_in == 0


# outcomes -------------------------------------------------------------------------------------------------


def only(tmp_path: Path, script: Any, **options: Any) -> tuple[Any, Any]:
    """One trial with this agent: the summary and the attempt."""
    run = runner(tmp_path / "run", agent_model(script), attempts=1, **options)
    return run.run(limit=1), RunFolder(tmp_path / "run").attempt(TASKS[0])


@pytest.mark.parametrize(
    ("reply", "outcome", "score"),
    [
        ("The kettle cost 31 euros.\n⟦ kettle | found | answer | done ⟧", "unsubmitted", 1.0),
        (submit("  \n"), "empty-answer", 0.0),
        (Reply(), "no-answer", 0.0),
        (ModelRefused("rejected for good"), "model-refused", 0.0),
        (ContextOverflow("too long"), "context-overflow", 0.0),
    ],
)
def test_ends_that_are_the_models(tmp_path: Path, reply: Any, outcome: str, score: float) -> None:
    def script(request: Request, step: int) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    summary, attempt = only(tmp_path, script)
    assert attempt.outcome == outcome
    assert summary.outcomes == {outcome: 1} and summary.faults == {outcome: 1}
    assert (summary.scored, summary.unfinished, summary.scores.overall) == (1, 0, score)
    assert "⟦" not in attempt.answer


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        (Limits(steps=3), "steps"),
        (Limits(tokens=500), "tokens"),
        (Limits(seconds=0), "time"),
        (Limits(dollars=0), "money"),
    ],
)
def test_limits(tmp_path: Path, limits: Limits, detail: str) -> None:
    def restless(request: Request, step: int) -> Reply:
        return exec_cell(f"print({step})", tool="recall_history_python")

    summary, attempt = only(tmp_path, restless, limits=limits)
    assert (attempt.outcome, attempt.detail) == ("limit-reached", detail)
    assert attempt.metrics.step_count <= 3
    assert summary.scored == 1 and summary.scores.overall == 0.0


def test_a_reply_that_takes_longer_than_the_task_may(tmp_path: Path) -> None:
    class Slow:
        name, window = "agent", 100_000

        def reply(self, _: Request, *, timeout: float | None = None, **options: Any) -> Reply:
            assert timeout is not None and not options["cancel"].is_set()
            time.sleep(timeout)
            raise ModelUnavailable("no reply in time")

    run = runner(tmp_path / "run", Slow(), limits=Limits(seconds=0.2))
    summary = run.run(limit=1)
    assert summary.outcomes == {"limit-reached": 1} and summary.unfinished == 0


def test_faults_that_are_not_the_models_are_tried_again(tmp_path: Path) -> None:
    """A provider that goes down within trials: they are left out of the scores and go on later,
    with their steps.
    """
    down = True

    def script(request: Request, step: int) -> Reply:
        if down and any(message.role == "tool" for message in request.messages):
            raise ModelUnavailable("busy")
        return diligent(request, step)

    agent = agent_model(script)
    summary = runner(tmp_path / "run", agent, attempts=1).run()
    assert summary.outcomes == {"model-unavailable": 4}
    assert (summary.scored, summary.unfinished) == (0, 4)
    assert {fault.outcome for fault in RunFolder(tmp_path / "run").faults()} == {
        "model-unavailable"
    }

    down = False
    agent = agent_model(script)
    summary = runner(tmp_path / "run", agent, attempts=1).run()
    assert (
        summary.scores.overall == 1.0
        and summary.outcomes == {"answered": 4}
        and summary.faults == {}
    )
    assert agent.steps == 4  # the search that was paid for is not repeated


class BrokenHistory(SmallHistory, frozen=True):
    error: Any = None

    def drafts(self) -> Iterator[Draft]:
        yield from list(super().drafts())[:2]
        raise self.error


class OneBroken(SmallBenchmark, frozen=True):
    error: Any = None

    def histories(self) -> Iterator[Any]:
        yield BrokenHistory("one", self.error)
        yield SmallHistory("two")


def test_data_and_internal_faults_stop_nothing(tmp_path: Path) -> None:
    damaged = runner(
        tmp_path / "data", benchmark=OneBroken(error=BadInput("line 7 is cut short"))
    ).run()
    assert damaged.outcomes == {"data-fault": 2, "answered": 2} and damaged.scored == 2
    assert "line 7 is cut short" in {fault.text for fault in RunFolder(tmp_path / "data").faults()}

    bug = runner(tmp_path / "bug", benchmark=OneBroken(error=ZeroDivisionError("oops"))).run()
    assert bug.outcomes == {"internal-error": 2, "answered": 2} and bug.unfinished == 2
    trace = (tmp_path / "bug/tracebacks/small__one__kettle.txt").read_text()
    assert "ZeroDivisionError: oops" in trace and "in drafts" in trace
    mended = runner(tmp_path / "bug").run()
    assert mended.outcomes == {"answered": 4} and mended.scores.overall == 1.0


def test_faults_of_the_benchmark_are_in_the_results(tmp_path: Path) -> None:
    class Doubled(SmallBenchmark, frozen=True):
        def histories(self) -> Iterator[Any]:
            yield DataFault("1M/5/chat.json", "duplicate-id", "id 12 occurs twice")
            yield SmallHistory("one")
            yield SmallHistory("one")

    summary = runner(tmp_path / "run", benchmark=Doubled()).run()
    assert summary.faults == {"duplicate-id": 1, "duplicate-task": 2} and summary.scored == 2


# the judge ------------------------------------------------------------------------------------------------


def test_a_judge_that_writes_prose(tmp_path: Path) -> None:
    def chatty(request: Request, step: int) -> str:
        return (
            "I liked this answer very much!"
            if "is polite" in request.messages[-1].text
            else fair(request, step)
        )

    summary = runner(tmp_path / "run", judge=judge_model(chatty)).run()
    assert summary.scored == 4 and summary.scores.overall == 0.5
    assert summary.faults == {"judge-unreadable": 4}
    replies = RunFolder(tmp_path / "run").judgement(TASKS[0]).replies
    assert "I liked this answer very much!" in {reply.reply for reply in replies}


def test_a_judge_that_is_down_costs_no_agent_call(tmp_path: Path) -> None:
    def down(request: Request, step: int) -> str:
        if "is polite" in request.messages[-1].text:
            raise ModelUnavailable("busy")
        return fair(request, step)

    agent = agent_model()
    summary = runner(tmp_path / "run", agent, judge_model(down), attempts=1).run()
    assert summary.faults == {"judge-unavailable": 4} and (summary.scored, summary.unfinished) == (
        0,
        4,
    )

    agent, judge = agent_model(), judge_model()
    summary = runner(tmp_path / "run", agent, judge).run()
    assert summary.scores.overall == 1.0 and summary.faults == {}
    assert agent.steps == 0 and judge.steps == 4  # the first items were judged already


# stopping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [4, 5], ids=["in a reply", "before the verdict"])
def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, at: int) -> None:
    made: list[Any] = []

    def script(request: Request, step: int) -> Reply:
        if step == at:
            threading.Thread(target=made[0].stop).start()
            assert made[0]._stop.event.wait(60)
        return diligent(request, step)

    agent = agent_model(script)
    made.append(runner(tmp_path / "run", agent, jobs=1))
    summary = made[0].run()
    assert made[0].stopped and summary.scored == 2 and summary.unfinished == 2
    first = agent.steps

    agent, judge = agent_model(), judge_model()
    summary = runner(tmp_path / "run", agent, judge).run()
    assert summary.scores.overall == 1.0 and summary.scored == 4
    assert first + agent.steps == 8 + (
        at == 4
    )  # only the reply that was under way is asked for twice
    assert judge.steps == 4
    told = [message.text for request in agent.requests for message in request.messages]
    assert not any("resumed in a new process" in text for text in told), (
        "a stop between two replies loses nothing"
    )


def test_a_history_that_is_being_summarized_can_be_left(tmp_path: Path) -> None:
    made: list[Runner] = []

    def script(request: Request, step: int) -> Reply:
        if not request.tools:
            made[0].stop()
            return Reply(text="They talked.")
        return diligent(request, step)

    agent = agent_model(script)
    made.append(runner(tmp_path / "run", agent, jobs=1, context="summarize"))
    summary = made[0].run()
    assert made[0].stopped and summary.unfinished == 4 and agent.steps == 1
    assert [*(tmp_path / "run").rglob("ingested"), *(tmp_path / "run").rglob("tracebacks/*")] == []


def test_ctrl_c_ends_the_run_and_keeps_it(tmp_path: Path) -> None:
    made: list[Runner] = []

    def script(request: Request, step: int) -> Reply:
        if step == 2:
            signal.raise_signal(signal.SIGINT)
            deadline = time.monotonic() + 60
            while (
                not made[0].stopped and time.monotonic() < deadline
            ):  # the main thread takes the signal when it wakes
                time.sleep(0.01)
        return diligent(request, step)

    made.append(runner(tmp_path / "run", agent_model(script), jobs=1))
    summary = made[0].run()
    assert made[0].stopped and summary.unfinished >= 2
    assert runner(tmp_path / "run").run().scores.overall == 1.0


def test_stores_can_be_kept(tmp_path: Path) -> None:
    runner(tmp_path / "run", keep_stores=True).run(limit=1)
    with Store(tmp_path / "run/stores/trials/small__one__kettle") as store:
        assert [info.session_id for info in store.log.sessions()][-1] == PROBE


def test_a_history_whose_removal_was_cut_short_is_no_obstacle(tmp_path: Path) -> None:
    runner(tmp_path / "run", keep_stores=True).run()
    histories = tmp_path / "run/stores/histories"
    (histories / "one").rename(histories / "one.gone")
    (histories / "one.gone/log.db").unlink()
    assert runner(tmp_path / "run").run().unfinished == 0
    assert list(histories.iterdir()) == []


@pytest.mark.parametrize("context", ["scroll", "scroll-no-index", "codeact"])
def test_what_a_question_s_agent_saw_is_explained_from_the_kept_store(
    tmp_path: Path, context: str
) -> None:
    runner(tmp_path / "run", keep_stores=True, context=context).run(limit=1)
    with Store(tmp_path / "run/stores/trials/small__one__kettle") as store:
        requests = [event.seq for event in store.log.iterate(session_id=PROBE, kind=Kind.REQUEST)]
        found = [explain(store, seq, inherited_by(store, seq)) for seq in requests]
        assert [one.doubt for one in found] == [""] * len(requests) != []
        if context == "scroll":
            assert "2024-03-01): kettle cost" in found[0].messages[1].text
            assert explain(store, requests[0]).doubt  # without what it inherited
        with pytest.raises(UnknownSeq):
            inherited_by(store, 10_000)
        assert inherited_by(store, 1) is None
