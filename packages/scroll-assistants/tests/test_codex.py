"""A real Codex, without a network: installed, worked with, and left again.

The program is the one in the wheel `openai-codex-cli-bin`, which `make test-assistants` installs.
"""

import json
from typing import Any

import pytest

from assistant_runs import POISON, UNRELATED, check_briefs, run_without_network
from codex_driver import ASKED, SECOND


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_without_network(
        "codex_driver.py", "codex_cli_bin", "bin/codex", tmp_path_factory.mktemp("codex")
    )


def test_codex_is_captured_searches_and_is_told_of_the_last_session(report: Any) -> None:
    said = [
        e["content"]
        for e in report["events"]
        if e["kind"] == "conversation" and e["role"] == "user" and e["content"] != POISON
    ]
    assert said[1:] == [ASKED, SECOND, UNRELATED]
    results = [
        e
        for e in report["events"]
        if e["kind"] == "tool_result" and e["name"] == "mcp__scroll__search"
    ]
    assert len(results) == 3 and all(
        e["echo"] and "nests by the weir" in e["content"] for e in results
    )
    told = json.dumps(report["requests"][report["unrelated_from"] - 1])
    assert f"] {ASKED}" in told and "- [" in told.split("## Standing instructions")[1]
    check_briefs(report)
    handovers = [e for e in report["events"] if "Standing instructions of the user" in e["content"]]
    assert handovers and all(e["echo"] for e in handovers), "what Scroll said is no history"
    assert report["doctor"]["captured"] and not report["doctor"]["missing"]
    assert report["log"] == ""


def test_a_compacted_session_is_told_where_it_stood(report: Any) -> None:
    told = next(
        text for request in report["requests"] if "was compacted" in (text := json.dumps(request))
    )
    context = told.split("<scroll-context>")[1].split("</scroll-context>")[0]
    seq = next(event["seq"] for event in report["events"] if event["content"] == ASKED)
    assert f"[{seq}] {ASKED}" in context and "This session has seqs " in context


def test_uninstalling_leaves_its_files_as_they_were(report: Any) -> None:
    assert report["config_untouched"] and report["hooks_gone"]
