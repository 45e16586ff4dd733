"""Scroll under the Google Agent Development Kit: the shared scenario, and what only the kit has."""

from pathlib import Path

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed: make test-hosts")

from google.adk.agents import LlmAgent

import host_scenario as scenario
from host_google_adk import Host, read_report
from host_scenario import Says
from snippets import run_snippet


def test_120_steps_in_a_small_window(folder: Path) -> None:
    scenario.long_run(Host, folder)


def test_a_cancelled_run_interrupts_its_cell_and_the_variables_stay(folder: Path) -> None:
    scenario.cancellation(Host, folder)


def test_a_refused_request_is_sent_again_in_every_mode(tmp_path: Path) -> None:
    scenario.refused_requests(Host, tmp_path)


def test_a_killed_process_is_resumed_with_the_history_that_the_host_saved(tmp_path: Path) -> None:
    scenario.kill_and_resume(Host, tmp_path)


def test_the_snippet_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    host = Host(None)
    host._plays.append(Says("To Lisbon."))
    agent = LlmAgent(name="guide", model=host.fake_model(), tools=[read_report])
    events = run_snippet("FRAMEWORKS.md", "Google ADK", {"agent": agent})["events"]
    assert events[-1].content.parts[0].text == "To Lisbon."
    assert (tmp_path / "work.scroll" / "log.db").is_file()
