"""A short soak on every run of the tests, and proof that its inspection would notice what it looks for."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft
from scroll_context.store.store import Store

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak"


def test_a_minute_of_everything_going_wrong() -> None:
    command = [sys.executable, str(SOAK), "--minutes", "0.7", "--seed", "11", "--agents", "2", "--others", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SOAK_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=420, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("survived")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SOAK))
    return pytest.importorskip("notes")


def test_what_was_acknowledged_is_compared_whole(folder: Path, tmp_path: Path, notes: Any) -> None:
    with Store(folder, create=True) as store:
        notes.Ledger(tmp_path, "w").watch(store)
        store.log.append_many([Draft(content="short"), Draft(content="long " * 20_000, metadata={"n": 1})])
        store.append(Draft(content="label", payload=store.payloads.put(b"body", "application/x-body")))
        noted = list(notes.acknowledged(tmp_path))
        assert [seq for seq, _, _ in noted] == [1, 2, 3]
        assert all(notes.is_as_noted(store, *line) for line in noted)
        digests = [digest for _, _, digest in noted]
        assert not notes.is_as_noted(store, 1, "-", digests[1])
        assert not notes.is_as_noted(store, 3, "0" * 64, digests[2])
        assert not notes.is_as_noted(store, 4, "-", digests[0])


def test_a_line_that_a_kill_cut_short_is_not_claimed(tmp_path: Path, notes: Any) -> None:
    (tmp_path / "w.1.acks").write_text("1 - abc\n2 - de")
    assert list(notes.acknowledged(tmp_path)) == [(1, "-", "abc")]
    (tmp_path / "w.1.reports").write_text('{"at": 1.0, "worker": "w", "what": "ok"}\n{"at": 2.0, "wor')
    reports = notes.Reports(tmp_path)
    assert [report.what for report in reports.refresh()] == ["ok"]
    with (tmp_path / "w.1.reports").open("a") as file:
        file.write('ker": "w", "what": "StoreFull"}\n')
    assert [report.what for report in reports.refresh()] == ["StoreFull"]
