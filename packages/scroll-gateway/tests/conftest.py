"""Gateways of tests announce themselves in a folder of their own. Runs of real assistants are
printed as a table at the end, and kept in the folder that SCROLL_GATEWAY_REPORTS names."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_table import table

RUNS = pytest.StashKey[list[Any]]()


@pytest.fixture(autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def gateway_runs(pytestconfig: pytest.Config) -> Iterator[list[Any]]:
    """The reports of the runs so far; a test adds its own."""
    runs = pytestconfig.stash.setdefault(RUNS, [])
    before = len(runs)
    yield runs
    folder = os.environ.get("SCROLL_GATEWAY_REPORTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for run in runs[before:]:
            file = Path(folder) / f"{run['assistant']}-{run['window']}.json"
            file.write_text(json.dumps(run) + "\n")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    runs = config.stash.get(RUNS, [])
    if runs:
        terminalreporter.section("real assistants through a gateway, scripted upstream")
        terminalreporter.write_line(table(runs))
