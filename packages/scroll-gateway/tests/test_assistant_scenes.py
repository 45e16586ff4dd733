"""What happens to conversations of real assistants under a gateway: resumed, forked, rewound, killed
and more.

`make test-gateway` installs the assistants and runs these; elsewhere they are skipped, since they
take minutes. The scenes are in testing/gateway_scenes.py.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from assistant_clients import PROGRAMS
from assistant_runs import run_without_network

pytestmark = pytest.mark.skipif(
    "SCROLL_GATEWAY_TURNS" not in os.environ, reason="make test-gateway runs the scenes"
)

every_assistant = pytest.mark.parametrize("name", sorted(PROGRAMS))
# From npm: the variable SCROLL_OLDER_CLAUDE names the program.
OLDER_CLAUDE = ("older_claude", "")
WINDOW = 30_000
DONE = "All of it is done.\n"


def played(name: str, scene: str, folder: Path, *, program: tuple[str, str] | None = None) -> Any:
    """The report of a scene, after the checks that hold for all of them."""
    report = run_without_network(
        "gateway_scenes.py", *(program or PROGRAMS[name]), folder / name, scene, seconds=900
    )
    assert report["runs"][-1]["status"] == 0, report["runs"][-1]["errors"]
    assert report["broken_rules"] == []
    assert report["twice"] == 0
    returned = report["returned"]
    if returned:
        missing = returned["messages"] - returned["apart_from_marks"]
        # Codex gives items other ids when it makes a new list of them.
        assert missing <= {"fork": 1, "compact": 2}.get(scene, 0)
    reasons = report["evictions"] + report["retractions"]
    if name == "opencode":
        # It gives a fork one more tool, which stands before everything else.
        reasons += report["forks"]
    assert report["prefix_changes"] <= reasons
    return report


@every_assistant
def test_a_resumed_conversation_continues_its_session(name: str, tmp_path: Path) -> None:
    report = played(name, "resume", tmp_path)
    assert len(report["sessions"]) == 1
    assert report["replies"] == 16
    assert report["retractions"] == 0
    assert report["largest"] <= WINDOW
    assert report["evictions"] > 0


@every_assistant
def test_a_fork_begins_with_the_prefix_of_its_parent(name: str, tmp_path: Path) -> None:
    report = played(name, "fork", tmp_path)
    assert len(report["sessions"]) == 2
    assert report["forks"] == 1
    if name != "opencode":
        assert report["repeated"] > 0.9


@every_assistant
def test_a_rewound_conversation_leaves_the_view_and_stays_in_the_log(
    name: str, tmp_path: Path
) -> None:
    report = played(name, "rewind", tmp_path)
    # Codex rewinds by a fork.
    assert len(report["sessions"]) == 1 + report["forks"]
    assert report["forks"] == (name == "codex")
    assert report["retractions"] > 0
    assert report["replies"] == 14


@every_assistant
def test_a_compaction_of_the_client_loses_nothing(name: str, tmp_path: Path) -> None:
    report = played(name, "compact", tmp_path)
    assert len(report["sessions"]) == 1
    assert report["failures"] == []


@every_assistant
def test_a_sub_agent_has_a_session_of_its_own(name: str, tmp_path: Path) -> None:
    report = played(name, "sub_agent", tmp_path)
    assert len(report["conversations"]) == 2
    assert report["sessions"] == report["conversations"]
    assert report["retractions"] == 0


@every_assistant
def test_two_runs_at_once_are_two_sessions(name: str, tmp_path: Path) -> None:
    report = played(name, "two_at_once", tmp_path)
    assert [run["status"] for run in report["runs"]] == [0, 0]
    assert report["sessions"] == report["conversations"]
    assert len(report["sessions"]) == 2
    assert report["replies"] == 18


@every_assistant
def test_an_overloaded_upstream_a_cut_stream_and_a_request_too_long(
    name: str, tmp_path: Path
) -> None:
    report = played(name, "upstream_faults", tmp_path)
    # The client never sees the 400: the gateway evicts and asks once more.
    assert report["statuses"] == [529, 400]
    assert report["runs"][-1]["printed"].endswith(DONE)
    assert report["failures"] == []


@every_assistant
def test_a_killed_client_resumes(name: str, tmp_path: Path) -> None:
    report = played(name, "client_killed", tmp_path)
    assert [run["status"] for run in report["runs"]] == [-9, 0]
    assert len(report["sessions"]) == 1


@every_assistant
def test_a_killed_gateway_is_found_again_at_its_address(name: str, tmp_path: Path) -> None:
    report = played(name, "gateway_restarted", tmp_path)
    assert report["restarts"] == 2
    assert report["same_address"]
    assert len(report["sessions"]) == 1
    assert report["retractions"] == 0


@every_assistant
def test_nothing_is_lost_whoever_is_killed_at_random(name: str, tmp_path: Path) -> None:
    report = played(name, "killed_at_random", tmp_path)
    print({key: report[key] for key in ("kills", "requests", "replies", "retractions", "runs")})
    assert set(report["kills"]) == {"gateway", "client", "connection"}
    assert report["lost"] == report["failures"] == []
    assert len(report["sessions"]) == 1


@every_assistant
def test_a_file_that_was_folded_can_be_read_again(name: str, tmp_path: Path) -> None:
    """Where a client refuses, the address of the first reading is sent with the refusal."""
    report = played(name, "re_read", tmp_path)
    assert report["named"] or report["read_again"]


def test_a_client_that_refuses_to_read_again_is_given_the_address(tmp_path: Path) -> None:
    """Claude Code up to 2.1.197 at least answers "Wasted call" to a second reading."""
    report = played("claude", "re_read", tmp_path, program=OLDER_CLAUDE)
    assert report["named"]
    assert not report["read_again"]
    assert "part-0001, line 9" in report["echoes"][0]


@every_assistant
def test_one_reply_recalls_and_reads(name: str, tmp_path: Path) -> None:
    report = played(name, "recall_beside_others", tmp_path)
    assert report["echoes"]
    assert all("part-" in text for text in report["echoes"])


@every_assistant
def test_a_picture_passes_is_kept_and_is_folded(name: str, tmp_path: Path) -> None:
    report = played(name, "images", tmp_path)
    assert any(report["sent_images"])
    assert not report["sent_images"][-1]
    assert report["kept_images"] > 0


@every_assistant
def test_blocks_of_a_kind_that_scroll_does_not_know_pass(name: str, tmp_path: Path) -> None:
    report = played(name, "unknown_blocks", tmp_path)
    assert report["failures"] == []
    assert report["sent_back"] > 0


@every_assistant
def test_a_fault_of_ours_costs_the_client_nothing(name: str, tmp_path: Path) -> None:
    report = played(name, "fault_of_ours", tmp_path)
    assert report["faults"] == len(report["failures"]) == 2
    assert report["runs"][-1]["printed"].endswith(DONE)


@every_assistant
def test_after_an_hour_an_eviction_is_free(name: str, tmp_path: Path) -> None:
    report = played(name, "long_idle", tmp_path)
    assert report["before"] == 0
    assert report["evictions"] > 0
    assert report["first_after"] < 0.6 * WINDOW


def test_codex_falls_back_from_web_sockets(tmp_path: Path) -> None:
    report = played("codex", "web_socket", tmp_path)
    assert report["replies"] == 5


def test_codex_in_code_mode(tmp_path: Path) -> None:
    report = played("codex", "code_mode", tmp_path)
    assert report["custom"] > 0
    assert report["evictions"] > 0
    assert report["largest"] <= WINDOW
