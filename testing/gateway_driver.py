"""Drives a real assistant through a gateway, against a scripted upstream, and prints what happened
as JSON.

    unshare -n python gateway_driver.py PROGRAM FOLDER [WINDOW]

The name of the program says which assistant it is. It runs where there is no network but loopback.
The model that is played here reads one file per turn (SCROLL_GATEWAY_TURNS of them) and now and
then recalls a folded result by its seq.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assistant_clients import Client, client_of
from assistant_runs import loopback_up
from gateways import Json, changes_between_evictions
from scripted_upstream import Script, ScriptedUpstream, Turn
from scroll_context.events import Event, Kind
from scroll_context.projects import project_task
from scroll_context.session.media import wire_bytes
from scroll_context.store import Store
from scroll_gateway.assistants import Recall, run_of
from scroll_gateway.conversations import Conversations
from scroll_gateway.running import RunningGateway, opened
from scroll_gateway.sums import without_marks
from scroll_gateway.wire.protocol import Protocol
from scroll_gateway.wire.requests import ListReader
from scroll_gateway.wire.session import Exchange
from sdk_programs import file_text
from upstream_wire import Answer

TURNS = int(os.environ.get("SCROLL_GATEWAY_TURNS") or 12)
WINDOW = 30_000
RECALL_EVERY = 12
PROMPT = "Read all parts, one after the other."


def conversation(_: Mapping[str, str], body: Json) -> str:
    """Titles and the like are conversations of their own."""
    return "main" if body.get("tools") else "side"


def script(client: Client, project: Path) -> Script:
    """Read a file per turn; recall a folded result every few turns."""

    def play(turn: Turn) -> Answer:
        if not turn.tools:
            return Answer("A title")
        if turn.number > TURNS:
            return Answer("All parts are read.")
        folded = re.findall(r"folded seq (\d+)", turn.text)
        if turn.number % RECALL_EVERY == 0 and folded and client.offers_recall(turn.tools):
            seq = folded[turn.number % len(folded)]
            return Answer("I look it up.", (client.recall(seq),), thinking=True)
        read = client.reading(project / f"part-{turn.number:04d}.txt")
        return Answer(f"Step {turn.number}.", (read,), thinking=True)

    return play


class Watched:
    """What the clients of a gateway send."""

    def __init__(self, conversations: Conversations) -> None:
        # The messages of each session's newest list, and every message as it was first sent.
        self.newest: dict[str, list[bytes]] = {}
        self.first_sent: list[bytes] = []
        # How many lists were shorter than the one before: the client has compacted.
        self.shortened = 0
        # For each request, the estimated tokens that the client sent, and those that went on.
        self.tokens: list[tuple[int, int]] = []
        self._exchange = conversations.exchange

    def exchange(
        self, protocol: Protocol, headers: Mapping[str, str], body: bytes
    ) -> Exchange | None:
        exchange = self._exchange(protocol, headers, body)
        if exchange is not None:
            session = exchange._wired.session.scope.session_id
            listed = ListReader(protocol).read(body).messages
            raws = [message.raw for message in listed if message.role != "system" or message.notice]
            before = len(self.newest.get(session, []))
            self.first_sent += raws[before:]
            self.shortened += len(raws) < before
            self.newest[session] = raws
            self.tokens.append((len(body) * 2 // 7, len(exchange.body) * 2 // 7))
        return exchange


def returned(store: Path, watched: Watched) -> dict[str, int]:
    """How many messages the log gives back by their seq: of the clients' newest lists, cache marks
    aside, and of all messages as they were first sent, to the byte."""
    with Store(store, read_only=True) as opened_store:
        log = opened_store.log
        # A fork begins with messages of its parent, so all sessions are read.
        kinds = [Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.NOTICE]
        stored = {wire_bytes(log, event) or b"" for event in log.iterate(kind=kinds)}
    plain = {_contents(raw) for raw in stored}
    newest = [raw for raws in watched.newest.values() for raw in raws]
    return {
        "messages": len(newest),
        "apart_from_marks": sum(_contents(raw) in plain for raw in newest),
        "first_sent": len(watched.first_sent),
        "exact": sum(raw in stored for raw in watched.first_sent),
    }


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


def run(client: Client, running: RunningGateway, folder: Path) -> Any:
    task_id = project_task(folder / "project")
    recall = Recall.of(str(folder / "store"), task_id, "")
    child = run_of(
        client.name,
        client.program,
        client.words(PROMPT),
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
        timeout=60 + 16 * TURNS,
        check=False,
    )


def recalls(events: Sequence[Event]) -> list[bool]:
    """For each recall, whether it returned the file that the recalled result holds."""
    texts = {event.seq: event.content for event in events}
    calls = {
        call["id"]: call["arguments"]
        for event in events
        for call in event.metadata.get("tool_calls", ())
    }
    correct = []
    for event in events:
        if event.kind == Kind.TOOL_RESULT and event.is_echo:
            seq = int(calls[event.tool_call_id]["seqs"])
            lines = re.findall(r"part-\d+, line \d+", texts[seq])
            correct.append(bool(lines) and all(line in event.content for line in lines[:50]))
    return correct


def main(program: str, folder: Path, window: int = WINDOW) -> Json:
    loopback_up()
    client = client_of(program)
    project, store = folder / "project", folder / "store"
    for place in (project, folder / "home"):
        place.mkdir(parents=True)
    for number in range(1, TURNS + 1):
        (project / f"part-{number:04d}.txt").write_text(file_text(f"part-{number:04d}"))
    task_id = project_task(project)
    with (
        ScriptedUpstream(
            script(client, project),
            window=window,
            conversation=conversation,
        ) as upstream,
        opened(store, upstream.url, window=window, task_id=task_id) as running,
    ):
        watched = Watched(running.conversations)
        running.conversations.exchange = watched.exchange  # type: ignore[method-assign]
        with running.serving():
            done = run(client, running, folder)
        sums = running.sums()
    main_requests = [request for request in upstream.requests if request.conversation == "main"]
    with Store(store, read_only=True) as opened_store:
        events = list(opened_store.log.iterate())
    rules = Counter(
        "thinking" if _is_of_thinking(rule) else "other" for rule in upstream.broken_rules
    )
    return {
        "assistant": client.name,
        "version": version(program),
        "status": done.returncode,
        "printed": done.stdout[-500:],
        "errors": done.stderr[-1500:],
        "window": window,
        "requests": len(main_requests),
        "side": len(upstream.requests) - len(main_requests),
        "largest": max((request.tokens for request in main_requests), default=0),
        "broken_rules": upstream.broken_rules,
        "failed_thinking": rules["thinking"],
        "unpaired": rules["other"],
        "refused": [request.refusal for request in upstream.requests if request.status != 200],
        "prefix_changes": upstream.prefix_changes,
        "unexplained_changes": changes_between_evictions(main_requests, events),
        "sums": sums.row(),
        "repeated": sums.sent.repeated / max(sums.sent.tokens, 1),
        "compactions": watched.shortened,
        "retractions": sum(event.kind == Kind.RETRACTION for event in events),
        "recalls": recalls(events),
        "failures": [event.content for event in events if event.kind == Kind.FAILURE],
        "sessions": sorted({event.session_id for event in events}),
        "returned": returned(store, watched),
        "tokens": watched.tokens,
    }


def _is_of_thinking(rule: str) -> bool:
    return any(word in rule for word in ("thinking", "encrypted content", "reasoning"))


def version(program: str) -> str:
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+[.\d]*", printed.stdout)
    return found[0] if found else ""


if __name__ == "__main__":
    arguments = sys.argv[1:]
    print(json.dumps(main(arguments[0], Path(arguments[1]), *map(int, arguments[2:]))))
