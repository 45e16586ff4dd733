"""Scroll under Inspect AI: the shared scenario, and the samples of an evaluation."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed: make test-hosts")

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model

from host_inspect_ai import ENDLESS, Host, read_report, waiting
from host_scenario import (
    WINDOW,
    Calls,
    Says,
    ScenarioTests,
    check,
    reading,
    shown,
    text_tokens,
    work,
)
from scroll_adapters.inspect_ai import NOTHING_YET, ScrollCompaction
from scroll_context.events import Kind
from scroll_context.store import Store


class TestScenario(ScenarioTests):
    host = Host

    def test_a_cancelled_run_interrupts_its_cell_and_the_variables_stay(self, folder: Path) -> None:
        """There are no cells: a tool of the agent is cancelled, and the conversation goes on."""
        host = Host.open(folder)
        assert host.adapter is not None
        with host.adapter:
            work(host, 10)
            host.cancel("Read the endless report.", [reading(ENDLESS)], waiting)
            work(host, 10, first=10)
            check(host)

    def test_the_snippet_of_the_documentation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("INSPECT_DISPLAY", "none")
        super().test_the_snippet_of_the_documentation(tmp_path, monkeypatch)


def sessions(store: Store) -> list[str]:
    return sorted({event.session_id for event in store.log.iterate(kind=[Kind.REQUEST])})


def test_one_task_of_many_steps_stays_in_the_window(folder: Path) -> None:
    host = Host.open(folder)
    assert host.adapter is not None
    plays = [*(reading(number, number + 1) for number in range(0, 120, 2)), Says("All are read.")]
    with host.adapter:
        assert host.run("Read all the reports that you find.", plays) == "All are read."
        assert max(map(text_tokens, host.requests)) <= WINDOW
        host.check_prefixes(list(host.session.events()))
    assert shown(host.sent(host.messages)).count("code 4711-") == 120, "the history is complete"


def test_without_scroll_the_window_is_exceeded() -> None:
    host = Host(None)
    host.run("Read.", [*(reading(number) for number in range(60)), Says("Done.")])
    assert text_tokens(host.requests[-1]) > WINDOW


def test_nothing_to_recall_before_the_first_compaction(folder: Path) -> None:
    host = Host.open(folder)
    assert host.adapter is not None
    with host.adapter:
        host.run("Read.", [Calls((("expand", {"seq": 1}),)), Says("Nothing.")])
    assert host.requests[-1][-1].text == NOTHING_YET


def test_samples_of_an_evaluation_have_sessions_of_their_own(folder: Path, tmp_path: Path) -> None:
    def answer(messages: Any, *rest: Any) -> Any:
        # Every sample reads reports of its own number.
        number = int(messages[1].text.split()[1])
        script.setdefault(number, [reading(1000 * number + step) for step in range(40)])
        host._plays.append(script[number].pop(0) if script[number] else Says("Done."))
        return host.answer(messages, *rest)

    script: dict[int, list[Any]] = {}
    host = Host(None)
    model = get_model("scroll-scripted/model", custom_outputs=answer, memoize=False)
    with ScrollCompaction(folder, window=WINDOW) as compaction:
        agent = react(
            prompt="You read reports.",
            tools=[read_report(), *compaction.tools],
            submit=False,
            compaction=compaction,
        )
        samples = [Sample(input=f"Task {number}") for number in range(3)]
        task = Task(dataset=samples, solver=agent)
        (log,) = eval(task, model=model, display="none", log_dir=str(tmp_path / "logs"))
    assert log.status == "success", log.error
    with Store(folder) as store:
        names = sessions(store)
        assert len(names) == 3
        for name in names:
            events = list(store.log.iterate(session_id=name))
            thousands = {
                event.content.split()[1][:-3]
                for event in events
                if event.kind == Kind.TOOL_RESULT and event.content.startswith("report")
            }
            assert len(thousands) == 1, "two samples were mixed"
