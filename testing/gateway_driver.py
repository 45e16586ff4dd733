"""Drives a real assistant through a gateway, against a scripted upstream, and prints what happened
as JSON.

    unshare -n python gateway_driver.py PROGRAM FOLDER

The name of the program says which assistant it is. It runs where there is no network but loopback.
The model that is played here reads one file per turn (SCROLL_GATEWAY_TURNS of them) and now and
then recalls something by its seq.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assistant_runs import loopback_up
from gateways import Json, changes_between_evictions
from scripted_upstream import Script, ScriptedUpstream, Turn
from scroll_context.events import Kind
from scroll_context.hosts.wire import Protocol
from scroll_context.hosts.wire_requests import ListReader
from scroll_context.hosts.wired import Exchange
from scroll_context.projects import project_task
from scroll_context.session.wire_form import wire_bytes
from scroll_context.store import Store
from scroll_gateway.assistants import Recall, run_of
from scroll_gateway.conversations import Conversations
from scroll_gateway.running import RunningGateway, opened
from scroll_gateway.sums import without_marks
from sdk_programs import file_text
from upstream_wire import Answer, Call

TURNS = int(os.environ.get("SCROLL_GATEWAY_TURNS") or 12)
WINDOW = int(os.environ.get("SCROLL_GATEWAY_WINDOW") or 30_000)
RECALL_EVERY = 12
PROMPT = "Read all parts, one after the other."
ARGUMENTS = {
    "claude": [
        "-p",
        PROMPT,
        "--allowedTools=Read,mcp__scroll__expand",
        "--model",
        "claude-opus-4-1",
    ],
    "codex": [
        "exec",
        "--skip-git-repo-check",
        "-c",
        'model="any"',
        "--dangerously-bypass-approvals-and-sandbox",
        PROMPT,
    ],
    "opencode": ["run", "--model", "anthropic/claude-sonnet-4-5", PROMPT],
}


def conversation(_: Mapping[str, str], body: Json) -> str:
    """Titles and the like are conversations of their own."""
    return "main" if body.get("tools") else "side"


def script(assistant: str, project: Path) -> Script:
    """Read a file per turn; recall every few turns."""

    def read(number: int) -> Call:
        file = project / f"part-{number:04d}.txt"
        if assistant == "claude":
            return Call("Read", {"file_path": str(file)})
        if assistant == "opencode":
            return Call("read", {"filePath": str(file)})
        return Call("exec_command", {"cmd": f"cat {file.name}", "max_output_tokens": 10_000})

    def play(turn: Turn) -> Answer:
        if not turn.tools:
            return Answer("A title")
        if turn.number > TURNS:
            return Answer("All parts are read.")
        folded = re.findall(r"folded seq (\d+)", turn.text)
        recall = sorted(name for name in turn.tools if name.endswith("scroll__expand"))
        recall += sorted(name for name in turn.tools if name == "scroll_expand")
        if turn.number % RECALL_EVERY == 0 and folded and recall:
            return Answer("I look it up.", (Call(recall[0], {"seqs": folded[0]}),), thinking=True)
        return Answer(f"Step {turn.number}.", (read(turn.number),), thinking=True)

    return play


class Watched:
    """The newest body of each conversation, as the client sent it."""

    def __init__(self, conversations: Conversations) -> None:
        self.bodies: dict[str, tuple[Protocol, bytes]] = {}
        self.requests = 0
        # For each request, the estimated tokens that the client sent, and those that went on.
        self.tokens: list[tuple[int, int]] = []
        self._exchange = conversations.exchange

    def exchange(
        self, protocol: Protocol, headers: Mapping[str, str], body: bytes
    ) -> Exchange | None:
        exchange = self._exchange(protocol, headers, body)
        if exchange is not None:
            session = exchange._wired.session.scope.session_id
            self.bodies[session] = (protocol, body)
            self.requests += 1
            self.tokens.append((len(body) * 2 // 7, len(exchange.body) * 2 // 7))
        return exchange


def returned(store: Path, watched: Watched) -> dict[str, int]:
    """How many messages of the clients' newest lists the log gives back, to the byte."""
    counts = {"messages": 0, "exact": 0, "apart_from_marks": 0}
    with Store(store, read_only=True) as opened_store:
        log = opened_store.log
        # A fork begins with messages of its parent, so all sessions are read.
        kinds = [Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.NOTICE]
        raws = {wire_bytes(log, event) or b"" for event in log.iterate(kind=kinds)}
        plain = {_contents(raw) for raw in raws}
        for protocol, body in watched.bodies.values():
            for message in ListReader(protocol).read(body).messages:
                if message.role != "system" or message.notice:
                    counts["messages"] += 1
                    counts["exact"] += message.raw in raws
                    counts["apart_from_marks"] += _contents(message.raw) in plain
    return counts


def _contents(raw: bytes) -> bytes:
    """A message without cache marks. A client may later put a prompt behind a result, into the
    same message, so the brackets around the blocks do not count."""
    plain = without_marks(raw)
    return plain.removeprefix(b'{"role":"user","content":[').rstrip(b",]}")


def environment(home: Path, upstream: str) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "ANTHROPIC_API_KEY": "sk-ant-none",
        "ANTHROPIC_BASE_URL": upstream,
        "OPENAI_API_KEY": "sk-none",
        "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def run(program: str, assistant: str, running: RunningGateway, folder: Path) -> Any:
    task_id = project_task(folder / "project")
    recall = Recall.of(str(folder / "store"), task_id, "")
    child = run_of(
        assistant,
        program,
        ARGUMENTS[assistant],
        running.url,
        recall,
        environment(folder / "home", ""),
    )
    return subprocess.run(
        child.command,
        cwd=folder / "project",
        env=child.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 + 8 * TURNS,
        check=False,
    )


def main(program: str, folder: Path) -> Json:
    loopback_up()
    assistant = next(name for name in ARGUMENTS if name in Path(program).name)
    project, store = folder / "project", folder / "store"
    for place in (project, folder / "home"):
        place.mkdir(parents=True)
    for number in range(1, TURNS + 1):
        (project / f"part-{number:04d}.txt").write_text(file_text(f"part-{number:04d}"))
    task_id = project_task(project)
    with (
        ScriptedUpstream(
            script(assistant, project),
            window=WINDOW,
            conversation=conversation,
            binds_tools=assistant != "codex",
        ) as upstream,
        opened(store, upstream.url, window=WINDOW, task_id=task_id) as running,
    ):
        watched = Watched(running.conversations)
        running.conversations.exchange = watched.exchange  # type: ignore[method-assign]
        with running.serving():
            done = run(program, assistant, running, folder)
        sums = running.sums()
    main_requests = [request for request in upstream.requests if request.conversation == "main"]
    with Store(store, read_only=True) as opened_store:
        events = list(opened_store.log.iterate())
    return {
        "status": done.returncode,
        "printed": done.stdout[-500:],
        "errors": done.stderr[-1500:],
        "window": WINDOW,
        "requests": len(main_requests),
        "side": len(upstream.requests) - len(main_requests),
        "largest": max((request.tokens for request in main_requests), default=0),
        "broken_rules": upstream.broken_rules,
        "refused": [request.refusal for request in upstream.requests if request.status != 200],
        "prefix_changes": upstream.prefix_changes,
        "unexplained_changes": changes_between_evictions(main_requests, events),
        "sums": sums.row(),
        "repeated": sums.sent.repeated / max(sums.sent.tokens, 1),
        "recalls": sum(event.kind == Kind.TOOL_RESULT and event.is_echo for event in events),
        "recalled": [
            event.content[:200]
            for event in events
            if event.kind == Kind.TOOL_RESULT and event.is_echo
        ][:2],
        "failures": [event.content for event in events if event.kind == Kind.FAILURE],
        "sessions": sorted({event.session_id for event in events}),
        "returned": returned(store, watched),
        "tokens": watched.tokens,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
