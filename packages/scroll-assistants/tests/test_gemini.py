"""A real Gemini CLI, without a network: installed, worked with, and left again.

It is a program of npm: `make test-assistants` installs it where npm is there, and SCROLL_GEMINI_CLI
names it.
"""

import json
from typing import Any

import pytest

from assistant_runs import POISON, UNRELATED, check_briefs, run_without_network
from gemini_driver import ASKED, SECOND, SETTINGS


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_without_network(
        "gemini_driver.py", "gemini_cli", "gemini", tmp_path_factory.mktemp("gemini")
    )


def test_gemini_is_captured_searches_and_is_told_of_the_last_session(report: Any) -> None:
    said = [
        e["content"]
        for e in report["events"]
        if e["kind"] == "conversation" and e["role"] == "user" and e["content"] != POISON
    ]
    assert said[1:] == [ASKED, SECOND, UNRELATED]
    results = [e for e in report["events"] if e["kind"] == "tool_result"]
    assert len(results) == 3 and all(
        e["echo"] and "nests by the weir" in e["content"] for e in results
    )
    told = json.dumps(report["requests"][report["unrelated_from"] - 1])
    assert (
        f"] {ASKED}" in told
        and "Always measure twice." in told.split("## Standing instructions")[1]
    )
    check_briefs(report)
    assert not [e for e in report["events"] if "Standing instructions of the user" in e["content"]]
    assert report["log"] == ""


def test_uninstalling_leaves_its_settings_as_they_were(report: Any) -> None:
    assert report["settings"] == SETTINGS
