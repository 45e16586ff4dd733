"""A real assistant under hooks, then under a gateway, then imported: one session, nothing twice.

Without the programs these tests are skipped: `make test-gateway` installs them. The model is played on
loopback (testing/one_session_driver.py).
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from assistant_clients import PROGRAMS
from assistant_runs import run_without_network


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_hooks_gateway_and_import_give_one_session(name: str, tmp_path: Path) -> None:
    report: Any = run_without_network("one_session_driver.py", *PROGRAMS[name], tmp_path / name)
    assert report["faults"] == 0
    assert report["broken_rules"] == []
    assert report["sessions"] == [report["session"]]
    # The import finds everything recorded, by the hooks or by the gateway.
    assert {added for added, _, _ in report["imported"]} == {0}
    events = report["events"]
    origins = {event["text"]: event["origin"] for event in events if event["text"]}
    assert origins["Read the first part."] == origins["Part 1 is read."] == "captured"
    assert origins["Read the second part."] == origins["Part 2 is read."] == "host_id"
    messages = ("conversation", "notice", "meta", "thinking")
    texts = Counter(event["text"] for event in events if event["kind"] in messages)
    results = Counter(event["call"] for event in events if event["kind"] == "tool_result")
    calls = Counter(call for event in events for call in event["calls"])
    calls += Counter(event["call"] for event in events if event["kind"] == "tool_call")
    assert len(results) == len(calls) == 2
    assert {*texts.values(), *results.values(), *calls.values()} == {1}
