"""Scroll under AgentScope 2: the shared scenario, and what only AgentScope has."""

from pathlib import Path

import pytest

pytest.importorskip("agentscope", reason="agentscope is not installed: make test-hosts")

import host_scenario as scenario
from host_agentscope import FakeModel, Host
from host_scenario import Says, reading
from scroll_context.events import Kind
from snippets import run_snippet


def test_120_steps_in_a_small_window(folder: Path) -> None:
    scenario.long_run(Host, folder)


def test_a_cancelled_run_interrupts_its_cell_and_the_variables_stay(folder: Path) -> None:
    scenario.cancellation(Host, folder)


def test_a_refused_request_is_sent_again_in_every_mode(tmp_path: Path) -> None:
    scenario.refused_requests(Host, tmp_path)


def test_a_killed_process_is_resumed_with_the_history_that_the_host_saved(tmp_path: Path) -> None:
    scenario.kill_and_resume(Host, tmp_path)


def test_one_request_of_forty_steps_stays_in_the_window(folder: Path) -> None:
    host = Host.open(folder)
    with host.adapter as middleware:
        host.run("Read forty reports.", [*(reading(n) for n in range(40)), Says("Done.")])
        assert len(host.messages) == 2, "AgentScope keeps all steps in one message"
        assert max(map(scenario.text_tokens, host.requests)) <= scenario.WINDOW
        assert "Read forty reports." in scenario.shown(host.requests[-1])
        kinds = [event.kind for event in middleware.session.events()]
        assert kinds.count(Kind.EVICTION) >= 1 and kinds.count(Kind.TOOL_RESULT) == 40


def test_the_snippet_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    host = Host(None)
    host._plays.append(Says("To Lisbon."))
    names = {"model": FakeModel(host, stream=False), "tools": []}
    answer = run_snippet("FRAMEWORKS.md", "AgentScope", names)["answer"]
    assert answer.get_text_content() == "To Lisbon."
    assert (tmp_path / "work.scroll" / "log.db").is_file()
