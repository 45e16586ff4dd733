"""Where the system has no `fcntl`: capture, import, search, recall and the MCP tools work, and one
process at a time writes a session.

The programs are real processes in which importing `fcntl` fails. Nothing else of Windows is tested
here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

WITHOUT = """
import sys
sys.modules["fcntl"] = None
"""
WORK = """
import anyio, json
from pathlib import Path
from scroll_assistants.importers import capture
from scroll_assistants.recall_server import RecallServer
from scroll_context.events import Draft, Scope
from scroll_context.importing.run import import_file
from scroll_context.files import HAS_FCNTL
from scroll_context.log.journal import Journal
from scroll_context.store import Store

assert not HAS_FCNTL
folder, transcript, chat = map(Path, sys.argv[1:4])
found = {}
with Store(folder, create=True) as store:
    found["captured"] = capture(store, str(transcript)).added
    found["imported"] = import_file(store, chat).added
    journal = Journal(store.log, Scope("mine", task_id="shop"))
    journal.append(journal.draft("conversation", role="user", content="x" * 100_000 + " heron"))
    journal.close()
    found["hits"] = len(store.index.search("heron"))

    async def call():
        server = RecallServer(store, task="shop", reach="all")
        answers = [await server.search("kingfisher"), await server.note("The quay is closed.")]
        await server.close()
        return [answer.is_error for answer in answers]

    found["errors"] = anyio.run(call)
print(json.dumps(found))
"""
HELD = """
from pathlib import Path
from scroll_context.errors import SessionBusy
from scroll_context.events import Scope
from scroll_context.log.journal import Journal
from scroll_context.store import Store

with Store(sys.argv[1]) as store:
    try:
        journal = Journal(store.log, Scope("mine"))
    except SessionBusy as error:
        print("busy", error.holder.process, flush=True)
    else:
        print("free", flush=True)
        sys.stdin.read()
        journal.close()
"""
LINE = {
    "type": "user",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "sessionId": "00000000-0000-4000-8000-000000000000",
    "cwd": "/nowhere/shop",
    "timestamp": "2026-11-16T10:00:00.000Z",
    "message": {"role": "user", "content": "The kingfisher nests by the weir."},
}


def started(folder: Path, program: str, *words: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT + program, *map(str, words)],
        env={**os.environ, "XDG_CACHE_HOME": str(folder), "XDG_STATE_HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_store_works_without_fcntl(tmp_path: Path) -> None:
    transcript = tmp_path / f"{LINE['sessionId']}.jsonl"
    transcript.write_text(json.dumps(LINE) + "\n")
    chat = tmp_path / "chat.jsonl"
    chat.write_text(json.dumps({"role": "user", "content": "A heron stands here."}) + "\n")
    with started(tmp_path, WORK, tmp_path / "store", transcript, chat) as process:
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(printed) == {
        "captured": 1,
        "imported": 1,
        "hits": 2,
        "errors": [False, False],
    }
    with (
        started(tmp_path, HELD, tmp_path / "store") as first,
        started(tmp_path, HELD, tmp_path / "store") as second,
    ):
        assert first.stdout is not None and second.stdout is not None
        states = sorted([first.stdout.readline().split()[0], second.stdout.readline().split()[0]])
        assert states == ["busy", "free"]
        for process in (first, second):
            process.communicate("", timeout=60)
    # A process that is killed frees its session.
    with started(tmp_path, HELD, tmp_path / "store") as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "free\n"
        killed.kill()
        killed.communicate()
    with started(tmp_path, HELD, tmp_path / "store") as last:
        printed, _ = last.communicate("", timeout=60)
        assert printed == "free\n"
