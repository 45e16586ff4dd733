"""Folders that arrived with a repository: what an import finds in them by itself, beside the path
that the user named.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scroll_context.store import Store

PRIVATE = "the private words of another project"

IMPORT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (1_000 << 20, 1_000 << 20))
from scroll_context.errors import BadInput
from scroll_context.importing.run import import_file
from scroll_context.store import Store
with Store(sys.argv[1], create=True) as store:
    try:
        import_file(store, sys.argv[2])
    except BadInput as error:
        print(error)
"""


def imported(tmp_path: Path, path: Path) -> str:
    """Import a path in a process with little memory and time: everything that was recorded, or the
    refusal.
    """
    store = tmp_path / "store"
    command = [sys.executable, "-c", IMPORT, str(store), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    with Store(store) as opened:
        events = [f"{event.content} {event.metadata}" for event in opened.log.iterate()]
    return "\n".join([done.stdout, *events])


def claude_code_line(text: str, uuid: str) -> str:
    line = {
        "type": "user",
        "sessionId": "s1",
        "uuid": uuid,
        "timestamp": "2026-01-01T00:00:00Z",
        "message": {"role": "user", "content": text},
    }
    return json.dumps(line) + "\n"


def slack_day(text: str, ts: str) -> str:
    return json.dumps([{"type": "message", "ts": ts, "user": "U1", "text": text}])


def claude_code(folder: Path, place: Callable[[Path, str], None]) -> Path:
    transcript = folder / "evil.jsonl"
    transcript.write_text(claude_code_line("the words in the repository", "u1"))
    (folder / "evil" / "subagents").mkdir(parents=True)
    place(folder / "evil" / "subagents" / "agent-1.jsonl", claude_code_line(PRIVATE, "u2"))
    return transcript


def claude_code_folder(folder: Path, place: Callable[[Path, str], None]) -> Path:
    transcript = folder / "evil.jsonl"
    transcript.write_text(claude_code_line("the words in the repository", "u1"))
    (folder / "evil").mkdir()
    place(folder / "evil" / "subagents", claude_code_line(PRIVATE, "u2"))
    return transcript


def gemini(folder: Path, place: Callable[[Path, str], None]) -> Path:
    session = {"sessionId": "g1", "projectHash": "abc", "startTime": "2026-01-01T00:00:00Z"}
    message = {"id": "m1", "type": "user", "content": "the words in the repository"}
    chat = folder / "chat.jsonl"
    chat.write_text(f"{json.dumps(session)}\n{json.dumps(message)}\n")
    place(folder / ".project_root", PRIVATE)
    return chat


def slack(folder: Path, place: Callable[[Path, str], None], *, name: str) -> Path:
    (folder / "general").mkdir()
    (folder / "channels.json").write_text('[{"id": "C1", "name": "general"}]')
    day = slack_day("the words in the repository", "1700000000.1")
    (folder / "general" / "2024-01-01.json").write_text(day)
    place(folder / name, slack_day(PRIVATE, "1700000001.1"))
    return folder


def slack_day_file(folder: Path, place: Callable[[Path, str], None]) -> Path:
    return slack(folder, place, name="general/2024-01-02.json")


def slack_people(folder: Path, place: Callable[[Path, str], None]) -> Path:
    return slack(folder, place, name="users.json")


def slack_channel(folder: Path, place: Callable[[Path, str], None]) -> Path:
    return slack(folder, place, name="private")


KINDS = [
    claude_code,
    claude_code_folder,
    gemini,
    slack_day_file,
    slack_people,
    slack_channel,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trap", ["a link to a file", "a link to a device", "a named pipe"])
def test_only_plain_files_beside_a_named_one_are_read(
    tmp_path: Path, kind: Callable[[Path, Callable[[Path, str], None]], Path], trap: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "repository"
    folder.mkdir()

    def place(path: Path, text: str) -> None:
        if trap == "a named pipe":
            os.mkfifo(path)
        elif trap == "a link to a device":
            path.symlink_to("/dev/zero")
        elif path.suffix or path.name.startswith("."):
            (outside / path.name).write_text(text)
            path.symlink_to(outside / path.name)
        else:
            name = "2024-01-02.json" if kind is slack_channel else "agent-1.jsonl"
            (outside / name).write_text(text)
            path.symlink_to(outside)

    records = imported(tmp_path, kind(folder, place))

    assert "the words in the repository" in records
    assert PRIVATE not in records and PRIVATE.replace(" ", "-") not in records


def test_plain_files_beside_a_named_one_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    records = imported(tmp_path, claude_code(folder, lambda path, text: path.write_text(text)))
    assert PRIVATE in records


def test_a_named_link_to_a_device_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "chat.jsonl"
    link.symlink_to("/dev/zero")
    assert "device" in imported(tmp_path, link)
