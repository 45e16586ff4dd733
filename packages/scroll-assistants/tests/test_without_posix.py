"""Without the parts of Python that only Unix has: capture, import, search, briefs, hooks, the MCP
server, plain recall and the gateway work.

The programs are real processes on Linux in which those modules cannot be imported, those functions
and flags are deleted, and files cannot be reached through handles of folders. That is not Windows:
how Windows names, locks, renames and deletes files is not tested.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripted_upstream import ScriptedUpstream
from upstream_wire import Answer

WITHOUT = """
import os, shutil, signal, sys

# Windows has it too, by another way than Linux.
disk_usage = shutil.disk_usage(os.getcwd())
shutil.disk_usage = lambda path: disk_usage
for name in ("fcntl", "termios", "tty", "pty", "resource", "pwd", "grp", "syslog"):
    sys.modules[name] = None
for name in (
    "fork forkpty geteuid getuid getegid getgid setsid getpgid killpg fchmod fchown chown mkfifo "
    "statvfs fstatvfs pread pwrite register_at_fork O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_CLOEXEC "
    "sched_getaffinity memfd_create set_blocking getloadavg uname sysconf"
).split():
    if hasattr(os, name):
        delattr(os, name)
for name in "SIGHUP SIGUSR1 SIGUSR2 SIGCONT SIGQUIT SIGALRM SIGKILL setitimer".split():
    if hasattr(signal, name):
        delattr(signal, name)
os.supports_dir_fd.clear()


def open_without_folders(path, flags, mode=0o777, *, dir_fd=None, really=os.open):
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return really(path, flags, mode)


os.open = open_without_folders
"""
MAIN = """
from scroll_context.cli.main import main
sys.argv[0] = "scroll"
main()
"""
SESSION = "00000000-0000-4000-8000-000000000000"
FACT = "The kingfisher nests by the weir of the old mill."


class Machine:
    """A machine without Unix: a home, a project, and a store."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.project = folder / "shop"
        self.project.mkdir()
        self.folder = folder
        names = ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")
        self.environment = {**os.environ, **dict.fromkeys(names, str(folder))}

    def start(self, *words: str, program: str = MAIN) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", WITHOUT + program, *words],
            env=self.environment,
            cwd=self.project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def scroll(self, *words: str, stdin: str = "") -> str:
        with self.start(*words, "--store", str(self.store)) as process:
            printed, errors = process.communicate(stdin, timeout=120)
        assert process.returncode == 0, errors
        return printed

    def hook(self, event: str, **fields: Any) -> str:
        message = {"hook_event_name": event, "cwd": str(self.project), **fields}
        return self.scroll("hook", "claude-code", stdin=json.dumps(message))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def transcript(machine: Machine, text: str) -> Path:
    line = {
        "type": "user",
        "uuid": "00000000-0000-4000-8000-000000000001",
        "sessionId": SESSION,
        "cwd": str(machine.project),
        "timestamp": "2026-11-16T10:00:00.000Z",
        "message": {"role": "user", "content": text},
    }
    path = machine.folder / f"{SESSION}.jsonl"
    path.write_text(json.dumps(line) + "\n")
    return path


def test_commands_and_hooks(machine: Machine) -> None:
    chat = machine.folder / "chat.jsonl"
    chat.write_text(json.dumps({"role": "user", "content": "x" * 100_000 + " heron"}) + "\n")
    machine.scroll("import", str(chat))
    assert "heron" in machine.scroll("search", "heron")
    # A hook captures the transcript, and the next session is offered what was said.
    path = transcript(machine, FACT)
    machine.hook("Stop", session_id=SESSION, transcript_path=str(path))
    log = machine.folder / "scroll" / "hooks.log"
    assert not log.exists(), log.read_text()
    assert FACT in machine.scroll("search", "kingfisher")
    question = "Where does the kingfisher of the old mill nest?"
    assert FACT in machine.scroll("brief", question)
    assert FACT in machine.hook("UserPromptSubmit", session_id="next", prompt=question)
    assert FACT in machine.hook("SessionStart", session_id="next", source="startup")
    assert not log.exists(), log.read_text()
    assert SESSION in machine.scroll("sessions")


def test_the_mcp_server(machine: Machine) -> None:
    machine.scroll("import", str(transcript(machine, FACT)))
    start = {"protocolVersion": "2025-06-18", "capabilities": {}}
    start["clientInfo"] = {"name": "test", "version": "1"}
    call = {"name": "search", "arguments": {"query": "kingfisher"}}
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": start},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": call},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **request}) + "\n" for request in requests]
    answers: dict[int, Any] = {}
    words = ("mcp", "--reach", "all", "--store", str(machine.store))
    with machine.start(*words) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(lines))
        process.stdin.flush()
        while 3 not in answers:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            answer = json.loads(line)
            answers[answer.get("id", 0)] = answer
        process.communicate(timeout=60)
    tools = {tool["name"] for tool in answers[2]["result"]["tools"]}
    assert {"search", "expand", "brief", "note"} <= tools
    assert FACT in json.dumps(answers[3]["result"])


RECALL = """
from scroll_context.events import Scope
from scroll_context.recall.memory import Memory
from scroll_context.recall.memory_tools import call_tool, recall_tools
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store

options = SessionOptions(context="plain")
with (
    Store(sys.argv[1]) as store,
    Session.open(store, session_id="asking", options=options) as session,
):
    tools = recall_tools(Memory(store, Scope("asking"), "all", session), ("search", "expand"))
    rows = call_tool(tools, "search", {"query": "kingfisher"})["rows"]
    print(call_tool(tools, "expand", {"seq": rows[0]["seq"]})["rows"][0]["content"])
"""


def test_plain_recall_tools(machine: Machine) -> None:
    machine.scroll("import", str(transcript(machine, FACT)))
    with machine.start(str(machine.store), program=RECALL) as process:
        printed, errors = process.communicate(timeout=120)
    assert (printed, process.returncode) == (FACT + "\n", 0), errors


GATEWAY = """
import json, urllib.request
from scroll_gateway.running import opened

store, upstream = sys.argv[1:3]
body = {"model": "any", "max_tokens": 99, "messages": [{"role": "user", "content": "Hello."}]}
with opened(store, upstream, window=30_000, task_id="t") as running, running.serving():
    request = urllib.request.Request(
        f"{running.url}/v1/messages",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-api-key": "none"},
    )
    with urllib.request.urlopen(request) as response:
        print(response.read().decode())
"""


def test_the_gateway(machine: Machine) -> None:
    with (
        ScriptedUpstream(lambda _: Answer("Good day.")) as upstream,
        machine.start(str(machine.store), upstream.url, program=GATEWAY) as process,
    ):
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(printed)["content"][-1]["text"] == "Good day."
