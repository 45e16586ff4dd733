"""Histories that real assistants wrote, without a network: each works twice in one session, and is
imported after each time.

They are programs of npm: `make test-assistants` installs them where npm is there, and SCROLL_PI,
SCROLL_QWEN and SCROLL_COPILOT name them.
"""

import json
from pathlib import Path

import pytest

from assistant_runs import run_without_network
from history_driver import ASKED, MISSING, NOTE, THEN


@pytest.mark.parametrize(
    ("program", "agent"), [("pi", "pi"), ("qwen", "qwen-code"), ("copilot", "copilot")]
)
def test_a_session_is_imported_as_it_happened(tmp_path: Path, program: str, agent: str) -> None:
    report = run_without_network("history_driver.py", program, program, tmp_path, program)
    events = [event for event in report["events"] if event["kind"] not in ("meta", "thinking")]
    assert [(event["role"], event["kind"]) for event in events] == [
        ("user", "conversation"),
        ("assistant", "conversation"),
        ("assistant", "tool_call"),
        ("tool", "tool_result"),
        ("assistant", "conversation"),
    ] * 2
    texts = [event["content"] for event in events]
    assert texts[0] == ASKED and texts[5] == THEN
    assert NOTE in texts[3] and "notes.txt" in texts[2]
    assert json.loads(texts[7])["command"] == MISSING and "No such file" in texts[8]
    assert texts[4] == "Answer 2." and texts[9] == "Answer 4."
    calls = [event["call"] for event in events if event["kind"].startswith("tool")]
    assert calls[0] == calls[1] != calls[2] == calls[3]
    assert len({event["session"] for event in events}) == 1
    assert {event["agent"] for event in events} == {agent}
    assert all(event["task"].startswith("shop-") for event in events)
    # A captured history is the user's own.
    assert not any(event["imported"] for event in events)
    # Qwen Code reports the status of a command in its text only.
    assert events[3]["state"] != "error"
    assert program == "qwen" or events[8]["state"] == "error"
    assert report["refused"] == []
