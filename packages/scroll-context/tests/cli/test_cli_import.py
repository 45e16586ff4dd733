"""`scroll import`: each file whole or not at all, and a second time adds nothing."""

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft
from scroll_context.store import Store

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}


def write(path: Path, *messages: Any) -> Path:
    path.write_text("".join(json.dumps(message) + "\n" for message in messages))
    return path


def contents(folder: Path) -> list[tuple[str, str, str]]:
    with Store(folder) as store:
        return [(event.session_id, event.role, event.content) for event in store.log.iterate()]


def reports(result: Any) -> Any:
    return json.loads(result.stdout)


def test_a_file_becomes_events_that_can_be_found(scroll: Any, folder: Path, trip: Path) -> None:
    result = scroll("import", trip)
    assert result.exit_code == 0, result.output
    assert "30 messages; 30 events added, 0 already in the store" in result.stdout
    with Store(folder) as store:
        assert store.log.last_seq() == 30
        assert store.index.indexed_seq == 30
        first = store.log.get(1)
    assert first.created_at == "2026-02-03T18:00:00+00:00"
    assert first.content.startswith("I want to take my sister Nadia")


def test_an_import_leaves_notes_on_its_sessions(scroll: Any, folder: Path, trip: Path) -> None:
    assert scroll("import", trip).exit_code == 0
    names = [file.name.partition("-")[0] for file in (folder / "index").glob("v*/*-*")]
    assert "earlier" in names


def test_a_second_run_adds_nothing(scroll: Any, folder: Path, trip: Path) -> None:
    scroll("import", trip)
    before = contents(folder)
    (report,) = reports(scroll("import", trip, "--json"))
    assert (report["file"], report["messages"], report["added"], report["known"]) == (
        str(trip),
        30,
        0,
        30,
    )
    assert contents(folder) == before


def test_a_grown_file_adds_what_is_new_and_repeats_are_kept(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "chat.jsonl", USER, REPLY, USER, REPLY)
    scroll("import", path)
    write(path, USER, REPLY, USER, REPLY, USER, {"role": "assistant", "content": "again?"})
    (report,) = reports(scroll("import", path, "--json"))
    assert (report["added"], report["known"]) == (2, 4)
    assert [content for _, _, content in contents(folder)] == [
        "hi",
        "hello",
        "hi",
        "hello",
        "hi",
        "again?",
    ]


def test_equal_lines_in_different_files_are_both_kept(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    rome, oslo = {"role": "user", "content": "Rome?"}, {"role": "user", "content": "Oslo?"}
    files = [
        write(tmp_path / "a.jsonl", USER),
        write(tmp_path / "b.jsonl", USER),
        write(tmp_path / "c.jsonl", rome, USER),
        write(tmp_path / "sub" / "c.jsonl", oslo, USER),
    ]
    assert scroll("import", *files).exit_code == 0
    assert [content for _, _, content in contents(folder)].count("hi") == 4


def test_a_bad_line_keeps_the_whole_file_out_and_no_other_file(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(USER) + "\n{broken\n" + json.dumps(REPLY) + '\n{"role": "user"}\n')
    good = write(tmp_path / "good.jsonl", USER)
    result = scroll("import", bad, good)
    assert result.exit_code == 1
    assert f"{bad}:2: not JSON" in result.stderr
    assert f"{bad}:4: a message needs content" in result.stderr
    assert "so this file was not imported" in result.stderr
    assert contents(folder) == [("good", "user", "hi")]


def test_skip_bad_imports_the_others_and_a_repair_adds_one(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(USER) + "\n{broken\n" + json.dumps(REPLY) + "\n")
    result = scroll("import", path, "--skip-bad")
    assert result.exit_code == 0
    assert f"{path}:2: not JSON" in result.stderr
    assert "2 messages, 1 bad ones skipped; 2 events added" in result.stdout
    write(path, USER, {"role": "user", "content": "mended"}, REPLY)
    (report,) = reports(scroll("import", path, "--json"))
    assert (report["added"], report["known"]) == (1, 2)
    assert [content for _, _, content in contents(folder)] == ["hi", "hello", "mended"]


def test_faults_are_listed_up_to_a_bound_and_then_counted(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("scroll_assistants", reason="scroll-assistants is not installed")
    path = tmp_path / "noise.jsonl"
    path.write_text("noise\n" * 500)
    result = scroll("import", path)
    assert result.exit_code == 1
    assert result.stderr.count(": not JSON") == 20
    assert "480 more" in result.stderr
    assert "500 messages cannot be read" in result.stderr
    assert not folder.exists()


@pytest.mark.parametrize("case", ["missing", "folder", "empty", "blank", "nothing"])
def test_files_without_messages_are_told_apart(
    scroll: Any, folder: Path, tmp_path: Path, case: str
) -> None:
    path = tmp_path / "file.json"
    match case:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "blank":
            path.write_text("\n \n")
        case "nothing":
            path.write_text("[]")
    said = {
        "missing": "No such file",
        "folder": "there is no file in it that could hold messages",
        "empty": "the file is empty",
        "blank": "no messages",
        "nothing": "no messages",
    }[case]
    result = scroll("import", path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"scroll: {path}: ")
    assert said in result.stderr
    assert not folder.exists()


def test_stdin_and_labels(scroll: Any, folder: Path) -> None:
    text = json.dumps([USER, REPLY], indent=2)
    result = scroll(
        "import", "-", "--session", "s", "--agent", "a", "--task", "t", "--kind", "memo", input=text
    )
    assert result.exit_code == 0, result.output
    with Store(folder) as store:
        events = list(store.log.iterate())
    assert [(e.session_id, e.agent_id, e.task_id, e.kind) for e in events] == [
        ("s", "a", "t", "memo")
    ] * 2
    assert scroll("import", "-", input="").exit_code == 1
    assert scroll("import", "-", "--kind", "salvage", input=text).exit_code == 1


def test_a_pipe_is_read_though_it_can_be_read_only_once(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, (json.dumps(USER) + "\n").encode())
    os.close(write_end)
    try:
        assert scroll("import", f"/dev/fd/{read_end}", "--session", "s").exit_code == 0
    finally:
        os.close(read_end)
    assert contents(folder) == [("s", "user", "hi")]


def test_tool_calls_and_media_are_events_of_their_own(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    body = bytes(range(256)) * 400
    image = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(body).decode()}
    call = {"type": "tool_use", "id": "t1", "name": "screenshot", "input": {"of": "map"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "image", "source": image}],
    }
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps(
            {
                "system": "be brief",
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "text", "text": "look"}, call]},
                    {"role": "user", "content": [result]},
                ],
            }
        )
    )
    for _ in range(2):
        assert scroll("import", path).exit_code == 0
    with Store(folder) as store:
        events = list(store.log.iterate())
        assert [(e.kind, e.role, e.name) for e in events] == [
            ("conversation", "system", ""),
            ("conversation", "user", ""),
            ("conversation", "assistant", ""),
            ("tool_call", "assistant", "screenshot"),
            ("tool_result", "tool", "screenshot"),
        ]
        shot = events[-1].payload
        assert shot is not None
        assert (shot.media_type, shot.size) == ("image/png", len(body))
        assert store.payloads.read(shot.digest) == body


def test_an_export_restores_exactly_and_merges_once(
    filled: Any, folder: Path, tmp_path: Path
) -> None:
    big = write(
        tmp_path / "big.jsonl", {"role": "user", "content": "long " * 20_000, "session_id": "big"}
    )
    filled("import", big)
    exported = tmp_path / "all.jsonl"
    assert filled("export", exported).exit_code == 0
    copy = tmp_path / "copy"
    result = filled("import", exported, "--store", copy, "--trust")
    assert result.exit_code == 0, result.output
    with Store(folder) as one, Store(copy) as two:
        assert list(one.log.iterate()) == list(two.log.iterate())
    assert filled("verify", "--store", copy).exit_code == 0

    other = tmp_path / "other"
    filled("import", write(tmp_path / "own.jsonl", USER), "--store", other)
    for added in (31, 0):
        (report,) = reports(filled("import", exported, "--store", other, "--json"))
        assert report["added"] == added
    assert len(contents(other)) == 32


def test_a_damaged_export_leaves_nothing(filled: Any, folder: Path, tmp_path: Path) -> None:
    exported = tmp_path / "all.jsonl"
    filled("export", exported)
    lines = exported.read_bytes().splitlines(keepends=True)
    exported.write_bytes(b"".join(lines[:-1]))
    for target in (tmp_path / "new", folder):
        result = filled("import", exported, "--store", target)
        assert result.exit_code == 1
        assert "cut short" in result.stderr
    assert not (tmp_path / "new").exists()
    assert len(contents(folder)) == 30
    exported.write_bytes(b"".join(lines).replace(b"Nadia", b"Maria", 1))
    assert filled("import", exported, "--store", tmp_path / "new").exit_code == 1
    assert filled("import", exported, "--session", "x").exit_code == 1


def test_usage_faults(scroll: Any, trip: Path) -> None:
    for args in (
        ["import"],
        ["import", trip, "--format", "xml"],
        ["import", trip, "--lock-timeout", "-1"],
        ["impart"],
    ):
        result = scroll(*args)
        assert result.exit_code == 2
        assert "Usage:" in result.stderr


def test_the_command_says_what_a_taken_name_became_and_into_adds_to_it(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    with Store(folder, create=True) as store:
        store.append(Draft(session_id="chat", role="user", content="my own"))
    path = write(tmp_path / "chat.jsonl", USER)
    result = scroll("import", path)
    assert (
        result.exit_code == 0
        and "so this one is called 'chat-2'; --into chat adds" in result.stderr
    )
    assert contents(folder) == [("chat", "user", "my own"), ("chat-2", "user", "hi")]
    assert scroll("import", path, "--into", "chat").exit_code == 0
    assert contents(folder)[-1] == ("chat", "user", "hi")
    assert scroll("import", path, "--into", "chat", "--session", "chat").exit_code == 2


def test_hints_work_as_printed(scroll: Any, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("scroll_assistants", reason="scroll-assistants is not installed")
    bad = tmp_path / "bad.jsonl"
    bad.write_text("noise\n")
    for options in ([], ["--skip-bad"]):
        result = scroll("import", bad, *options)
        assert result.exit_code == 1 and "skip-bad" not in result.stderr
    bad.write_text("noise\n" + json.dumps(USER) + "\n")
    assert "--skip-bad imports the others" in scroll("import", bad).stderr
    elsewhere = tmp_path / "a store"
    result = scroll("verify", "--store", elsewhere)
    assert f"`scroll import FILE --store '{elsewhere}'` creates one" in result.stderr
    scroll("import", write(tmp_path / "x.jsonl", USER), "--store", elsewhere)
    packed = tmp_path / "e.gz"
    packed.write_bytes(gzip.compress(scroll("export", "--store", elsewhere).stdout_bytes))
    assert scroll("import", packed, "--trust").exit_code == 0
    assert contents(folder) == [("x", "user", "hi")]
    log = elsewhere / "log.db"
    log.write_bytes(log.read_bytes().replace(b"hi", b"ho"))
    assert f"`scroll repair --store '{elsewhere}'`" in scroll("verify", "--store", elsewhere).stderr


def test_the_command_line_knows_every_format() -> None:
    pytest.importorskip("scroll_assistants", reason="scroll-assistants is not installed")
    from scroll_assistants.importers.records import Format
    from scroll_context.cli.importing import FORMATS

    assert sorted(Format) == sorted(FORMATS)


def test_everything_on_this_machine_is_shown_and_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scroll_assistants", reason="scroll-assistants is not installed")
    from click.testing import CliRunner

    from scroll_context.cli.app import app
    from scroll_context.cli.importing import import_

    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "XDG_DATA_HOME",
        "XDG_CONFIG_HOME",
        "SCROLL_STORE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / ".claude" / "projects" / "-api"
    project.mkdir(parents=True)
    line = {
        "type": "user",
        "uuid": "u1",
        "sessionId": "s1",
        "cwd": "/api",
        "timestamp": "2026-03-01T09:30:00Z",
        "message": {"role": "user", "content": "DB_PASSWORD=hunter2"},
    }
    (project / "s1.jsonl").write_text(json.dumps(line) + "\n{torn\n")
    run = CliRunner().invoke
    shown = run(import_, ["--all", "--dry-run"])
    assert (
        shown.exit_code == 0
        and "Claude Code" in shown.output
        and not (tmp_path / ".local").exists()
    )
    done = run(import_, ["--all"])
    assert (
        done.exit_code == 0
        and "s1.jsonl:2: not JSON" in done.output
        and (tmp_path / ".local/share/scroll").is_dir()
    )
    assert "1 message read, 1 unreadable; 1 event added" in done.output
    assert "secrets replaced: 1 .env line" in done.output
    (found,) = json.loads(run(import_, ["--all", "--json"]).stdout)
    assert (found["assistant"], found["files"], found["added"], found["errors"]) == (
        "Claude Code",
        1,
        0,
        [],
    )
    assert run(import_, []).exit_code == 2 and run(import_, ["--all", "x.jsonl"]).exit_code == 2
    assert run(app, ["--store", str(tmp_path / "other"), "import", "--all"]).exit_code == 0
    assert contents(tmp_path / "other")[0][0] == "s1"


def test_watching_once_records_and_refuses_what_cannot_be_followed(
    scroll: Any, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("scroll_assistants", reason="scroll-assistants is not installed")
    chat = write(tmp_path / "chat.jsonl", USER)
    (tmp_path / "notes.md").write_text("# Notes\n\nAlways water the roses.\n")
    for file in (chat, tmp_path / "notes.md"):
        refused = scroll("watch", file, "--once")
        assert (
            refused.exit_code == 1 and f"{file} is not a history of an assistant" in refused.output
        )
    line = {"type": "user", "uuid": "u1", "sessionId": "s1", "cwd": "/api", "message": USER}
    path = write(tmp_path / "s1.jsonl", line)
    assert scroll("watch", path, "--once").stdout == f"{path}: 1 event\n"
    assert (
        json.loads(
            scroll("watch", write(path, line, line | {"uuid": "u2"}), "--once", "--json").stdout
        )["added"]
        == 1
    )
    assert contents(folder) == [("s1", "user", "hi")] * 2


def test_a_folder_stands_for_the_files_in_it(
    scroll: Any, folder: Path, trip: Path, tmp_path: Path
) -> None:
    chats = tmp_path / "chats"
    (chats / "more").mkdir(parents=True)
    write(chats / "a.jsonl", USER, REPLY)
    (chats / "more" / "trip.jsonl").write_bytes(trip.read_bytes())
    (chats / ".hidden.jsonl").write_text("noise")
    (chats / "picture.png").write_bytes(b"\x89PNG")
    (chats / "link.jsonl").symlink_to(trip)
    (first, second) = reports(scroll("import", chats, "--json"))
    assert first["file"].endswith("a.jsonl") and first["added"] == 2
    assert second["file"].endswith("trip.jsonl") and second["added"] == 30


def test_an_unknown_format_gets_one_line(scroll: Any, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "sound.bin"
    path.write_bytes(bytes(range(256)) * 40)
    refused = scroll("import", path)
    assert refused.exit_code == 1 and len(refused.stderr.splitlines()) == 1
    assert f"{path}: " in refused.stderr and not folder.exists()


def test_a_mistyped_message_is_told_with_its_line(scroll: Any) -> None:
    # Without it, the error names scroll-assistants instead: see importing/test_core_alone.py.
    pytest.importorskip("scroll_assistants", reason="scroll-assistants is not installed")
    mistyped = scroll("import", "-", input='{"role": user}')
    assert "stdin:1: not JSON" in mistyped.stderr
