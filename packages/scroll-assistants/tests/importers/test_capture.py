"""Growing transcripts: captured from where they stood, once, whatever happens in between."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scroll_assistants.importers.capture import BATCH_EVENTS, capture
from scroll_context.importing.records import ImportReport
from scroll_context.importing.run import import_file
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify

SECRET = "sk-ant-" + "a1B2" * 10


def line(number: int, kind: str, content: Any, **more: Any) -> str:
    value = {
        "type": kind,
        "uuid": f"u-{number}",
        "sessionId": "s-1",
        "cwd": "/home/ada/api",
        "timestamp": f"2026-03-01T09:30:{number % 60:02}Z",
        "message": {"role": kind, "content": content},
        **more,
    }
    return json.dumps(value) + "\n"


def add(path: Path, *texts: str) -> None:
    with path.open("a") as file:
        file.write("".join(texts))


def counts(report: ImportReport) -> tuple[int, int, int]:
    return report.added, report.known, report.bad


def contents(store: Store) -> list[str]:
    return [event.content for event in store.log.iterate()]


def test_each_run_reads_only_what_was_added(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, *(line(number, "user", f"booth {number}") for number in range(50)))
    assert counts(capture(store, path)) == (50, 0, 0)
    with path.open(
        "r+b"
    ) as file:  # what was read is not read again: nobody notices that it is gone
        file.write(b"x" * 2_000)
    add(path, line(50, "user", "booth 50"))
    report = capture(store, path)
    assert (report.format, report.messages, *counts(report)) == (
        "Claude Code transcript",
        1,
        1,
        0,
        0,
    )
    assert capture(store, path).messages == 0
    assert contents(store) == [f"booth {number}" for number in range(51)]
    assert import_file(store, path, skip_bad=True).added == 0  # the same keys as a whole import


def test_a_torn_last_line_waits_and_a_bad_one_is_named_once(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    whole = line(2, "user", "the second €")
    add(path, line(1, "user", "the first"), "{broken\n")
    with path.open("ab") as file:
        file.write(whole.encode()[:-30])
    report = capture(store, path)
    assert counts(report) == (1, 0, 1)
    assert [(fault.line, fault.reason[:8]) for fault in report.faults] == [(2, "not JSON")]
    assert counts(capture(store, path)) == (0, 0, 0)
    with path.open("ab") as file:
        file.write(whole.encode()[-30:-1])
    assert counts(capture(store, path)) == (0, 0, 0)  # whole, but its line break is missing
    add(path, "\n", "[1]\n")
    report = capture(store, path)
    assert counts(report) == (1, 0, 1) and report.faults[0].line == 4
    assert contents(store) == ["the first", "the second €"]


def test_a_result_knows_the_call_that_an_earlier_run_read(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    add(
        path,
        line(
            1,
            "assistant",
            [{"type": "tool_use", "id": "t1", "name": "mcp__scroll__search", "input": {}}],
        ),
    )
    capture(store, path)
    add(
        path,
        line(
            2,
            "user",
            [{"type": "tool_result", "tool_use_id": "t1", "content": "seq 4"}],
            cwd="/elsewhere",
        ),
    )
    capture(store, path)
    call, result = store.log.iterate()
    assert (result.name, result.is_echo, result.task_id) == (
        "mcp__scroll__search",
        True,
        call.task_id,
    )


def test_equal_items_of_a_codex_rollout_are_counted_across_runs(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "rollout-1.jsonl"
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "again"}]}
    item = (
        json.dumps({"timestamp": "2026-03-01T09:30:00Z", "type": "response_item", "payload": said})
        + "\n"
    )
    meta = {"id": "c-1", "cwd": "/home/ada/api"}
    add(
        path,
        json.dumps({"timestamp": "2026-03-01T09:29:00Z", "type": "session_meta", "payload": meta})
        + "\n",
        item,
    )
    assert counts(capture(store, path)) == (1, 0, 0)
    add(path, item)
    assert counts(capture(store, path)) == (1, 0, 0)
    assert counts(import_file(store, path)) == (0, 2, 0)
    assert {(event.session_id, event.agent_id) for event in store.log.iterate()} == {
        ("c-1", "codex")
    }


def test_subagents_are_captured_with_their_session(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    inner = tmp_path / "s-1" / "subagents" / "deep"
    inner.mkdir(parents=True)
    add(path, line(1, "user", "look around"))
    add(inner / "agent-a7.jsonl", line(2, "user", "look left", agentId="a7", isSidechain=True))
    report = capture(store, path)
    assert (report.format, report.added) == ("Claude Code transcript, 1 sub-agent", 2)
    assert [event.session_id for event in store.log.iterate()] == ["s-1", "s-1/a7"]
    add(inner / "agent-a7.jsonl", line(3, "user", "look right", agentId="a7", isSidechain=True))
    assert capture(store, path).added == 1


def test_secrets_stay_out(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, line(1, "user", f"the key is {SECRET}"))
    assert capture(store, path).redacted == {"Anthropic key": 1}
    assert SECRET not in contents(store)[0]
    add(path, line(2, "user", f"the key is {SECRET}"))
    capture(store, path, redact=False)
    assert SECRET in contents(store)[1]


def test_a_session_that_is_open_elsewhere_is_left_to_the_next_run(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, line(1, "user", "wait for me"))
    held = store.log.backend.take_lease("s-1")
    report = capture(store, path, wait=0.05)
    assert report.added == 0 and "open elsewhere" in report.left
    held.release()
    assert counts(capture(store, path)) == (1, 0, 0)


def test_a_budget_leaves_the_rest_to_the_next_run(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, *(line(number, "user", f"booth {number}") for number in range(2 * BATCH_EVENTS + 1)))
    added = [capture(store, path, budget=0).added for _ in range(4)]
    assert added == [BATCH_EVENTS, BATCH_EVENTS, 1, 0]
    assert "budget" not in capture(store, path, budget=0).left


def test_a_budget_that_ends_within_a_line_of_many_messages_loses_none_of_them(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "session-1.jsonl"
    said = [
        {"id": f"m-{n}", "type": "user", "content": f"booth {n}"} for n in range(BATCH_EVENTS + 100)
    ]
    add(path, json.dumps({"sessionId": "s-1", "projectHash": "p", "messages": said}) + "\n")
    while capture(store, path, budget=0).left:
        pass
    assert contents(store) == [one["content"] for one in said]


def test_a_transcript_that_was_written_anew_is_read_from_its_beginning(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, line(1, "user", "one"), line(2, "user", "two"))
    capture(store, path)
    path.write_text(line(1, "user", "one") + line(3, "user", "three"))
    assert counts(capture(store, path)) == (1, 1, 0)
    path.write_text(line(4, "user", "4"))  # shorter
    assert counts(capture(store, path)) == (1, 0, 0)


def test_a_store_that_was_restored_gets_what_it_lacks(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, line(1, "user", "one"))
    with Store(folder, create=True) as store:
        capture(store, path)
    shutil.copytree(folder, tmp_path / "earlier")
    add(path, line(2, "user", "two"))
    with Store(folder) as store:
        capture(store, path)
    shutil.copytree(folder / "captured", tmp_path / "earlier" / "captured", dirs_exist_ok=True)
    with Store(tmp_path / "earlier") as store:
        assert counts(capture(store, path)) == (1, 1, 0)
        (store.folder / "captured" / next((store.folder / "captured").iterdir()).name).write_text(
            "{torn"
        )
        assert counts(capture(store, path)) == (0, 2, 0)


def test_a_name_that_another_source_has_taken_is_not_added_to(store: Store, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "mine"}]')
    import_file(store, tmp_path / "chat.json", session_id="s-1")
    path = tmp_path / "s-1.jsonl"
    add(path, line(1, "user", "theirs"))
    capture(store, path)
    add(path, line(2, "user", "theirs too"))
    capture(store, path)
    assert [event.session_id for event in store.log.iterate()] == ["s-1", "s-1-2", "s-1-2"]
    assert import_file(store, path).added == 0


def test_what_was_erased_does_not_come_back(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, line(1, "user", "forget this"), line(2, "user", "keep this"))
    capture(store, path)
    store.erase(seqs=[1])
    shutil.rmtree(store.folder / "captured")
    assert counts(capture(store, path)) == (0, 2, 0)
    assert import_file(store, path).added == 0


def test_captures_of_one_transcript_at_once_double_nothing(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    add(path, *(line(one, "user", f"booth {one}") for one in range(3_000)))
    program = (
        "import sys; from scroll_assistants.importers import capture; from scroll_context.store import Store\n"
        "with Store(sys.argv[1]) as store:\n"
        "    while capture(store, sys.argv[2], budget=0).left: pass"
    )
    with Store(folder, create=True) as store:
        command = [sys.executable, "-c", program, str(folder), str(path)]
        assert [child.wait(60) for child in [subprocess.Popen(command) for _ in range(3)]] == [
            0,
            0,
            0,
        ]
        assert sorted(contents(store)) == sorted(f"booth {one}" for one in range(3_000))
        assert verify(store.log).ok


def test_killed_while_the_transcript_grows_nothing_is_lost_or_doubled(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s-1.jsonl"
    Store(folder, create=True).close()
    add(path, line(0, "user", "booth 0"))
    program = (
        "import sys; from scroll_assistants.importers import capture; from scroll_context.store import Store\n"
        "with Store(sys.argv[1]) as store:\n    while True: capture(store, sys.argv[2])"
    )
    number = 1
    for _ in range(4):
        add(
            path,
            *(
                line(one, "user", f"booth {one}")
                for one in range(number, number + 3 * BATCH_EVENTS)
            ),
        )
        number += 3 * BATCH_EVENTS
        add(path, line(number, "user", f"booth {number}")[:40])  # and is being written
        child = subprocess.Popen([sys.executable, "-c", program, str(folder), str(path)])
        with Store(folder) as store:
            before, deadline = store.log.last_seq(), time.monotonic() + 60
            while store.log.last_seq() == before:  # until it is in the middle of its work
                assert time.monotonic() < deadline and child.poll() is None
                time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        child.wait()
        add(path, line(number, "user", f"booth {number}")[40:])
        number += 1
    with Store(folder) as store:
        capture(store, path)
        assert contents(store) == [f"booth {one}" for one in range(number)]
