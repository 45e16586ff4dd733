"""A real Claude Code, without a network: installed, worked with, compacted, and left again.

The program is the one in the wheel `claude-agent-sdk` (160 MB, so it is no dependency of the tests:
`make test-assistants` installs it). The model is played on loopback (claude_code_driver.py), in a
network namespace that has nothing else.
"""

import json
from typing import Any

import pytest

from assistant_runs import POISON, UNRELATED, run_without_network
from claude_code_driver import (
    ASKED,
    ASKED_AGAIN,
    COUNTED,
    EDITED,
    LAST,
    SEARCHED,
)
from scroll_context.view.tokens import estimate


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("claude-code")
    return run_without_network(
        "claude_code_driver.py", "claude_agent_sdk", "_bundled/claude", folder
    )


def _texts(request: str) -> list[str]:
    texts = []
    for message in json.loads(request):
        content = message["content"]
        texts += (
            [content] if isinstance(content, str) else [block.get("text", "") for block in content]
        )
    return texts


def injected(request: str) -> str:
    """The context that a request to the model carries from our hook."""
    texts = _texts(request)
    (found,) = [text for text in texts if "SessionStart hook additional context: " in text]
    context = found.split("SessionStart hook additional context: ")[-1]
    return str(context.split("</scroll-context>")[0] + "</scroll-context>")


def test_it_works_with_our_tools(report: Any) -> None:
    assert report["installed_again"] == ""
    assert report["wrote"] == "The heron.\n"
    expanded = [event for event in report["events"] if event["name"] == "mcp__scroll__expand"]
    assert [event["kind"] for event in expanded] == ["tool_call", "tool_result"]
    assert expanded[1]["content"].endswith(
        "The kingfisher nests by the weir; its other name is halcyon."
    )
    searches = [event for event in report["events"] if event["name"].startswith("mcp__scroll")]
    assert not [event for event in searches if SEARCHED in event["content"]], (
        "a question is no answer to itself"
    )
    assert len(searches) == 4 and all(event["echo"] for event in searches)
    assert report["log"] == ""


def test_everything_that_was_said_is_captured_once(report: Any) -> None:
    said = [
        e["content"]
        for e in report["events"]
        if e["kind"] == "conversation" and e["role"] == "user" and e["content"] != POISON
    ]
    second = ["Hello again.", ASKED_AGAIN, ASKED_AGAIN, UNRELATED, EDITED]
    assert said[1:] == [ASKED, COUNTED, SEARCHED, LAST, *second]
    assert len({event["task"] for event in report["events"]}) == 1
    assert not [
        event
        for event in report["events"]
        if "Standing instructions of the user" in event["content"]
    ]
    (doctor,) = [one for one in report["doctor"] if one["assistant"] == "claude-code"]
    assert doctor["captured"] and not doctor["missing"]


def test_an_output_that_it_keeps_in_a_file_is_captured_completely(report: Any) -> None:
    (counted,) = report["counted"]
    assert counted.split() == [str(number) for number in range(1, 20_001)]


def test_a_compacted_session_is_told_where_it_stood(report: Any) -> None:
    context = injected(report["first_requests"][-1])
    assert ASKED in context and SEARCHED in context
    seqs = [event["seq"] for event in report["events"] if event["content"] == ASKED]
    assert f"This session has seqs {seqs[0]}-" in context
    assert "## Files changed, newest first\n- notes.txt" in context
    assert "we decided to keep it short" in context.split("## Decisions")[1]
    assert "Always indent with tabs." in context.split("## Standing instructions")[1]
    assert "`search` (words)" in context
    assert estimate(context) <= 1_500


def test_the_next_session_is_told_too(report: Any) -> None:
    context = injected(report["second_requests"][0])
    assert LAST in context and "Always indent with tabs." in context
    assert estimate(context) <= 1_500


def test_a_fact_of_an_earlier_session_is_offered_once_by_itself(report: Any) -> None:
    last = "\n".join(_texts(report["second_requests"][-1]))
    briefs = last.split("UserPromptSubmit hook additional context: ")[1:]
    assert len(briefs) == 2, "nothing for the prompts that nothing bears on"
    fact, notes = (brief.split("</scroll-context>")[0] for brief in briefs)
    assert "halcyon" not in notes, "once"
    assert "notes.txt about the heron" in notes, "the second prompt about the notes"
    lines = fact.splitlines()
    assert [line for line in lines if " user in project-" in line and "halcyon" in line]
    assert all("imported, not this user's words" in line for line in lines if "deleted" in line)


def test_a_file_about_to_be_written_is_offered_its_last_change(report: Any) -> None:
    last = "\n".join(_texts(report["second_requests"][-1]))
    assert "notes.txt was last changed" in last.split("PreToolUse")[-1]


def test_uninstalling_leaves_the_files_as_they_were(report: Any) -> None:
    assert report["settings_untouched"] and report["settings_edited"]
    before, after = report["servers_before"], report["servers_after"]
    assert before.pop("mcpServers").keys() == {"scroll"}
    assert after == before
