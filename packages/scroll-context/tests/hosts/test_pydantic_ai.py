"""Scroll under pydantic-ai: the shared scenario."""

from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: make test-hosts")

import host_scenario as scenario
from host_pydantic_ai import Host


def test_120_steps_in_a_small_window(folder: Path) -> None:
    scenario.long_run(Host, folder)


def test_a_cancelled_run_interrupts_its_cell_and_the_variables_stay(folder: Path) -> None:
    scenario.cancellation(Host, folder)


def test_a_refused_request_is_sent_again_in_every_mode(tmp_path: Path) -> None:
    scenario.refused_requests(Host, tmp_path)


def test_a_killed_process_is_resumed_with_the_history_that_the_host_saved(tmp_path: Path) -> None:
    scenario.kill_and_resume(Host, tmp_path)
