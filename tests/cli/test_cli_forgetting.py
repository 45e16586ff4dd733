"""erase, retention, scan: what they show, ask, do and refuse."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft, Kind
from scroll_context.store.integrity import verify
from scroll_context.store.rows import prepare
from scroll_context.store.store import Store

AWS = "AKIA" + "IOSFODNN7EXAMPLE"

pytestmark = pytest.mark.usefixtures("key_file")


def test_erase_shows_asks_and_erases(filled: Any, folder: Path) -> None:
    with Store(folder) as store:
        store.append(Draft(session_id="x", content="I heard that my sister Nadia is coming"))
        total = store.log.last_seq()
    dry = filled("erase", "--search", "Nadia", "--word", "Nadia", "--dry-run")
    assert dry.exit_code == 0 and "erase  seq 1 " in dry.stdout and "copies would remain" not in dry.stdout
    unasked = filled("erase", "1")
    assert unasked.exit_code == 1 and "--yes" in unasked.stderr
    left = filled("erase", "1", "--word", "Nadia", "--yes")
    assert left.exit_code == 0 and "1 events erased" in left.stdout and "repeat the words remain" in left.stderr
    done = filled("erase", "2-3", "--word", "Nadia", "--copies", "--yes", "--json", "--reason", "other", "--by", "me")
    report = json.loads(done.stdout)
    assert report["asked"] == [2, 3] and report["remaining"] == []
    assert "Backups and exports" in done.stderr
    assert not [file for file in folder.rglob("*") if file.is_file() and b"Nadia" in file.read_bytes()]
    assert filled("verify").exit_code == 0 and "[erased]" in filled("show", "1").stdout
    with Store(folder) as store:
        record = store.log.get(report["seq"])
        assert record.kind == Kind.ERASURE and record.metadata["by"] == "me"
        assert store.log.last_seq() == total + 2
    for args, status in (((), 1), (("x",), 2), (("9-3",), 2), (("1", "--reason", "Bob"), 2), (("99999",), 1)):
        assert filled("erase", *args, "--yes").exit_code == status
    assert "nothing matches" in filled("erase", "--search", "zzzz", "--yes").stderr


def recorded_long_ago(folder: Path, drafts: list[Draft], days: int) -> None:
    past = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).isoformat(timespec="microseconds")
    with Store(folder) as store:
        store.log.write([prepare(draft, past, store.payloads) for draft in drafts])


def test_retention_goes_by_the_time_of_recording(filled: Any, folder: Path) -> None:
    assert "0 events in 0 sessions are due" in filled("retention", "--older-than", "1d").stdout  # its dates are older
    result = Draft(kind=Kind.TOOL_RESULT, content="a result " * 9_000)
    recorded_long_ago(folder, [*(Draft(content=f"old {n}") for n in range(11)), result], 40)
    shown = filled("retention", "--older-than", "30d")
    assert "12 events in " in shown.stdout and "1 payloads" in shown.stdout
    assert "1 events" in filled("retention", "--older-than", "30d", "--kind", "tool_result").stdout
    report = json.loads(filled("retention", "--older-than", "4w", "--apply", "--json").stdout)
    assert report["asked"] == list(range(31, 43)) and report["payloads"] == 1
    nothing = json.loads(filled("retention", "--older-than", "4w", "--apply", "--json").stdout)
    assert nothing["asked"] == [] and nothing["seq"] == report["seq"] + 1
    with Store(folder) as store:
        record = store.log.get(report["seq"])
        assert record.metadata["reason"] == "retention" and record.metadata["spans"] == [[31, 42]]
        assert verify(store.log).ok
    for bad in ("30", "d", "-3d", "3m"):
        assert filled("retention", "--older-than", bad).exit_code == 2
    assert filled("retention", "--older-than", "0d").exit_code == 1


def test_scan_finds_secrets_and_erases_them_when_told(filled: Any, folder: Path) -> None:
    assert filled("scan").exit_code == 0
    with Store(folder) as store:
        seq = store.append(Draft(content=f"my key is {AWS}"))
    found = filled("scan")
    assert found.exit_code == 1 and f"seq {seq}  AWS Access Key" in found.stdout and AWS not in found.output
    assert "1 secrets in 1 events" in found.stdout and "scan --erase" in found.stderr
    assert filled("scan", "--erase").exit_code == 1  # nobody can be asked
    done = filled("scan", "--erase", "--yes", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)[0]["seq"] == seq
    assert filled("scan").exit_code == 0


def test_a_service_erases_what_is_due(filled: Any, process: Any, folder: Path) -> None:
    pytest.importorskip("mcp")
    recorded_long_ago(folder, [Draft(content="an old word")], 40)
    service = process("mcp", "--retention", "30d")  # whose client says nothing, and is gone at once
    service.communicate(timeout=60)
    with Store(folder) as store:
        assert store.log.get(31).is_erased and store.log.get(32).metadata["rule"]["older_than"] == 30 * 86_400
    assert filled("mcp", "--retention", "long").exit_code == 2
