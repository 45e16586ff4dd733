"""Scenes of real assistants under a gateway, against a scripted upstream; what happened is printed
as JSON.

    unshare -n python gateway_scenes.py PROGRAM FOLDER SCENE

The name of the program says which assistant it is, and SCENE is a function of this module. The
model that is played reads a file per turn. `test_assistant_scenes.py` says what must be true
afterwards.
"""

import contextlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from assistant_clients import Client, client_of
from assistant_runs import loopback_up
from gateway_driver import Watched, environment, returned
from gateway_kills import Victims
from gateways import GatewayProcess, Json
from scripted_upstream import OVERLOADED, TOO_LONG, Refusal, ScriptedUpstream, Turn
from scroll_context.events import Event, Kind
from scroll_context.projects import project_task
from scroll_context.session.media import wire_bytes
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify
from scroll_gateway import conversations
from scroll_gateway.assistants import Recall, run_of
from scroll_gateway.running import RunningGateway, opened
from sdk_programs import file_text
from upstream_wire import Answer

WINDOW = 30_000
SECONDS = 400
KILLS = int(os.environ.get("SCROLL_GATEWAY_KILLS") or 12)
KILL_SEED = int(os.environ.get("SCROLL_GATEWAY_SEED") or 7)
KILL_TURNS = 2 * KILLS + 4
FILES = max(40, 2 * KILL_TURNS)
# Seconds after the arrival of a request within which a kill comes.
KILL_SPREAD = 0.3
SUBTASK = "Look into the tests."
DONE = "All of it is done."

Step = Answer | Refusal | None
Special = Mapping[int, Callable[[Turn], Step]]


class Stage:
    """An assistant with a project, the upstream that plays its model, and the runs so far."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.project, self.store = folder / "project", folder / "store"
        for place in (self.project, folder / "home"):
            place.mkdir(parents=True)
        for number in range(FILES):
            (self.project / f"part-{number:04d}.txt").write_text(file_text(f"part-{number:04d}"))
        self.task_id = project_task(self.project)
        self.runs: list[Json] = []
        self.extra: Json = {}
        self.upstream: ScriptedUpstream
        self.watched: Watched | None = None
        self.processes: list[subprocess.Popen[str]] = []

    @contextlib.contextmanager
    def played(
        self,
        ends: set[int],
        special: Special | None = None,
        *,
        is_fork: bool = False,
        binds_tools: bool = True,
    ) -> Iterator[ScriptedUpstream]:
        """An upstream whose model reads a file per turn, and is done at some of them."""

        def play(turn: Turn) -> Answer | Refusal:
            if not turn.tools:
                return Answer(f"A title or a summary, number {turn.number}.")
            step = (special or {}).get(turn.number, lambda _: None)(turn)
            if step is not None:
                return step
            if turn.number in ends or SUBTASK in _last_words(turn):
                return Answer(DONE, thinking=True)
            read = self.client.reading(self.project / f"part-{turn.number:04d}.txt")
            return Answer(f"Step {turn.number}.", (read,), thinking=True)

        def conversation(headers: Mapping[str, str], body: Json) -> str:
            name = "main" if is_fork else self.client.conversation(headers)
            return name if body.get("tools") or "additional_tools" in str(body) else "side"

        self.upstream = ScriptedUpstream(
            play,
            window=WINDOW,
            conversation=conversation,
            # opencode gives a fork one more tool.
            binds_tools=binds_tools and not is_fork,
        )
        with self.upstream as upstream:
            yield upstream

    @contextlib.contextmanager
    def gateway(self) -> Iterator[RunningGateway]:
        with opened(self.store, self.upstream.url, window=WINDOW, task_id=self.task_id) as running:
            watched = Watched(running.conversations)
            if self.watched is not None:
                watched.newest = self.watched.newest
            self.watched = watched
            running.conversations.exchange = watched.exchange  # type: ignore[method-assign]
            with running.serving():
                yield running
            self.extra["faults"] = running.sums().faults

    def started(self, url: str, words: list[str], **variables: str) -> "subprocess.Popen[str]":
        recall = Recall.of(str(self.store), self.task_id, "")
        own = environment(self.folder / "home", "") | variables
        child = run_of(self.client.name, self.client.program, words, url, recall, own)
        process = subprocess.Popen(
            child.command,
            cwd=self.project,
            env=child.environment,
            stdin=subprocess.PIPE if "app-server" in words else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def server(self, url: str, words: list[str]) -> "Iterator[subprocess.Popen[str]]":
        """The assistant as a server, which is ended at the end of the block."""
        process = self.started(url, words)
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)

    def ended(self, process: "subprocess.Popen[str]") -> str:
        printed, errors = process.communicate(timeout=SECONDS)
        self.runs.append(
            {"status": process.returncode, "printed": printed[-300:], "errors": errors[-1500:]}
        )
        return printed

    def run(self, url: str, words: list[str], **variables: str) -> str:
        return self.ended(self.started(url, words, **variables))

    @property
    def session(self) -> str:
        """The client's name for its first conversation."""
        request = next(r for r in self.upstream.requests if r.conversation != "side")
        return self.client.conversation(request.headers)

    def report(self) -> Json:
        requests = [r for r in self.upstream.requests if r.conversation != "side"]
        with Store(self.store, read_only=True) as store:
            log = store.log
            events = list(log.iterate())
            kept = [
                (event.session_id, raw)
                for event in events
                if _is_of_work(event) and (raw := wire_bytes(log, event))
            ]
        kinds = Counter(event.kind for event in events)
        return {
            "runs": self.runs,
            "requests": len(requests),
            "largest": max((request.tokens for request in requests), default=0),
            "statuses": [r.status for r in requests if r.status != 200],
            "broken_rules": self.upstream.broken_rules,
            "prefix_changes": sum(not r.extends for r in requests if r.status == 200),
            "evictions": kinds[Kind.EVICTION],
            "retractions": kinds[Kind.RETRACTION],
            "forks": kinds[Kind.FORK],
            "failures": [event.content for event in events if event.kind == Kind.FAILURE],
            "sessions": sorted({event.session_id for event in events}),
            "replies": sum(
                event.kind == Kind.CONVERSATION and event.role == "assistant" for event in events
            ),
            "twice": sum(count - 1 for count in Counter(kept).values()),
            "echoes": [
                event.content[:1000]
                for event in events
                if event.kind == Kind.TOOL_RESULT and event.is_echo
            ],
            "returned": returned(self.store, self.watched) if self.watched else {},
            **self.extra,
        }


def _is_of_work(event: Event) -> bool:
    """Whether two equal ones would mean that something was recorded twice: calls have ids.

    Claude Code puts the same reply into its list whenever it resumes after a kill.
    """
    return event.kind == Kind.TOOL_RESULT or bool(event.metadata.get("tool_calls"))


def _last_words(turn: Turn) -> str:
    items = turn.body.get("input") or turn.body["messages"]
    asked = [item for item in items if isinstance(item, dict) and item.get("role") == "user"]
    return json.dumps(asked[:4])


# the scenes -------------------------------------------------------------------------------------


def resume(stage: Stage) -> None:
    """The assistant is started a second time, and continues its conversation."""
    with stage.played({9, 16}), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))
        stage.extra["first"] = len(stage.upstream.requests)
        stage.run(running.url, stage.client.words("Read on.", session=stage.session))


def fork(stage: Stage) -> None:
    """A copy of the conversation continues under a name of its own."""
    with stage.played({9, 13}, is_fork=True), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))
        number = len(stage.upstream.accepted)
        stage.run(running.url, stage.client.words("Read on.", session=stage.session, fork=True))
    after = [r for r in stage.upstream.accepted[number:] if r.conversation == "main"]
    stage.extra["repeated"] = after[0].repeated / after[0].tokens if after else 0


def rewind(stage: Stage) -> None:
    """The newest turns are taken back, and another prompt takes their place."""
    # Codex rewinds by a fork, which has a name of its own.
    is_fork = stage.client.name == "codex"
    with stage.played({7, 11, 14}, is_fork=is_fork), stage.gateway() as running:
        stage.client.rewind(stage, running.url)


def compact(stage: Stage) -> None:
    """The client replaces its list by a summary."""
    # Codex asks for its summary without tools.
    binds_tools = stage.client.name != "codex"
    with stage.played({9, 16}, binds_tools=binds_tools), stage.gateway() as running:
        stage.client.compact(stage, running.url)


def sub_agent(stage: Stage) -> None:
    """The model starts a sub-agent, which has a conversation of its own."""

    def delegate(turn: Turn) -> Step:
        if SUBTASK in _last_words(turn):
            return None
        return stage.client.delegation(SUBTASK)

    with (
        stage.played({7}, {3: delegate, **stage.client.after_delegation(4)}) as upstream,
        stage.gateway() as running,
    ):
        stage.run(running.url, stage.client.words("Read the parts."))
    names = [request.conversation for request in upstream.requests]
    stage.extra["conversations"] = sorted(set(names) - {"side"})


def two_at_once(stage: Stage) -> None:
    """Two runs of the assistant at the same time, under one gateway."""
    with stage.played({9}) as upstream, stage.gateway() as running:
        first = stage.started(running.url, stage.client.words("Read the parts, Ada."))
        # opencode creates its database at its first start, and fails if another one does so too.
        while not upstream.requests and first.poll() is None:
            time.sleep(0.05)
        second = stage.started(running.url, stage.client.words("Read the parts, Grace."))
        stage.ended(first)
        stage.ended(second)
    names = {request.conversation for request in upstream.requests}
    stage.extra["conversations"] = sorted(names - {"side"})


def upstream_faults(stage: Stage) -> None:
    """The provider is overloaded, cuts a stream, and calls a request too long."""

    def once(step: Answer | Refusal) -> Callable[[Turn], Step]:
        return lambda turn: step if turn.attempt == 1 else None

    special = {
        3: once(OVERLOADED),
        5: once(Answer("This is cut off in the middle of a sentence.", cut=True)),
        8: once(TOO_LONG),
    }
    with stage.played({12}, special), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))


def client_killed(stage: Stage) -> None:
    """The assistant is killed while the model answers, and resumes."""

    def kill(turn: Turn) -> Step:
        if turn.attempt == 1:
            stage.processes[-1].kill()
            stage.processes[-1].wait()
            # The reply is lost: nobody is there to read it.
            return Answer("Nobody reads this answer.", cut=True)
        return None

    with stage.played({14}, {7: kill}), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))
        stage.run(running.url, stage.client.words("Read on.", session=stage.session))


def gateway_restarted(stage: Stage) -> None:
    """The gateway is killed during a request and started again, and the client goes on."""
    gateways: list[GatewayProcess] = []

    def restart(turn: Turn) -> Step:
        if turn.attempt == 1:
            gateways[0].restart()
            stage.extra["restarts"] = stage.extra.get("restarts", 0) + 1
        return None

    with stage.played({14}, {7: restart, 11: restart}) as upstream:
        gateways.append(
            GatewayProcess(stage.store, upstream.url, window=WINDOW, task_id=stage.task_id)
        )
        address = gateways[0].url
        try:
            stage.run(address, stage.client.words("Read the parts."))
        finally:
            gateways[0].kill()
    stage.extra["same_address"] = gateways[0].url == address


def killed_at_random(stage: Stage) -> None:
    """The gateway, the assistant and connections of the upstream are killed at random moments."""
    dice = random.Random(KILL_SEED)
    victims = Victims(dice)
    counts: Counter[str] = Counter()
    timers: list[threading.Timer] = []
    gateways: list[GatewayProcess] = []
    lock = threading.Lock()

    def restart() -> None:
        with lock:
            gateways[0].restart()

    def strike(turn: Turn) -> Step:
        if counts.total() >= KILLS or dice.random() > 0.5:
            return None
        victim = victims.next()
        counts[victim] += 1
        if victim == "connection":
            return Answer(f"Step {turn.number} is cut off in the middle.", cut=True)
        kill = restart if victim == "gateway" else stage.processes[-1].kill
        timers.append(threading.Timer(dice.random() * KILL_SPREAD, kill))
        timers[-1].start()
        return None

    strikes = dict.fromkeys(range(2, FILES), strike)
    with stage.played(set(range(KILL_TURNS, 10 * FILES)), strikes) as upstream:
        gateways.append(
            GatewayProcess(stage.store, upstream.url, window=WINDOW, task_id=stage.task_id)
        )
        try:
            printed = stage.run(gateways[0].url, stage.client.words("Read the parts."))
            while DONE not in printed:
                assert len(stage.runs) < 2 * KILLS, stage.runs[-1]
                words = stage.client.words(f"Read on, {len(stage.runs)}.", session=stage.session)
                printed = stage.run(gateways[0].url, words)
                for timer in timers:
                    timer.join()
        finally:
            gateways[0].kill()
    stage.extra["kills"] = dict(counts)
    stage.extra["lost"] = _lost(stage)


def _lost(stage: Stage) -> list[str]:
    """The ids of calls and results that the client sent, and that the log lacks."""
    bodies = b"".join(request.body for request in stage.upstream.requests)
    sent = set(re.findall(rb'"(?:tool_use_id|call_id)": ?"([^"]+)"', bodies))
    with Store(stage.store, read_only=True) as store:
        assert verify(store.log).ok
        events = list(store.log.iterate())
    results = {event.tool_call_id for event in events if event.kind == Kind.TOOL_RESULT}
    calls = {call["id"] for event in events for call in event.metadata.get("tool_calls", ())}
    return sorted(name for name in map(bytes.decode, sent) if not {name} <= results & calls)


def re_read(stage: Stage) -> None:
    """The model reads a file again that was folded; the client refuses; it recalls the result."""
    read = stage.client.reading(stage.project / "part-0001.txt")

    def again(_: Turn) -> Step:
        return Answer("I read it again.", (read,), thinking=True)

    def recall(turn: Turn) -> Step:
        match = re.search(r"the earlier result is seq (\d+)", turn.text)
        last = (turn.body.get("input") or turn.body["messages"])[-1]
        stage.extra["named"] = bool(match)
        stage.extra["read_again"] = "part-0001, line 9" in json.dumps(last)
        if match is None:
            return None
        return Answer("I look it up.", (stage.client.recall(match[1]),), thinking=True)

    with stage.played({16}, {12: again, 13: recall}), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))


def recall_beside_others(stage: Stage) -> None:
    """One reply recalls a result and reads a file."""

    def both(turn: Turn) -> Step:
        folded = re.findall(r"folded seq (\d+)", turn.text)
        if not folded:
            return None
        read = stage.client.reading(stage.project / f"part-{turn.number:04d}.txt")
        calls = (read, stage.client.recall(folded[0]))
        return Answer("I look it up and read on.", calls, thinking=True)

    with stage.played({16}, {10: both, 12: both}), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))


def images(stage: Stage) -> None:
    """The model looks at a picture; later it is folded."""
    picture = _png()
    file = stage.project / "picture.png"
    file.write_bytes(picture)

    def look(_: Turn) -> Step:
        return Answer("I look at it.", (stage.client.looking(file),), thinking=True)

    with stage.played({12}, {2: look}) as upstream, stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))
    bodies = [request.body for request in upstream.requests]
    stage.extra["sent_images"] = [b"image/png" in body and b"iVBORw0" in body for body in bodies]
    with Store(stage.store, read_only=True) as store:
        stage.extra["kept_images"] = sum(
            store.log.payloads.read(event.payload.digest)[:8] == picture[:8]
            for event in store.log.iterate(kind=Kind.ARTIFACT)
            if event.payload
        )


def _png() -> bytes:
    """A picture of 64 times 64 pixels."""
    rows = b"".join(b"\0" + bytes((x * y) % 256 for x in range(64 * 3)) for y in range(64))

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


def unknown_blocks(stage: Stage) -> None:
    """The provider sends a kind of block that Scroll does not know."""
    blocks = stage.client.unknown_blocks()

    def strange(_: Turn) -> Step:
        read = stage.client.reading(stage.project / "part-0002.txt")
        return Answer("Something new.", (read,), blocks=blocks)

    with stage.played({12}, {2: strange}) as upstream, stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))
    word = b"kingfisher-block"
    stage.extra["sent_back"] = sum(word in request.body for request in upstream.requests)


def fault_of_ours(stage: Stage) -> None:
    """Scroll fails at two requests: the client's own bytes are sent, and then all is well."""
    follow = Session.follow
    calls = iter(range(1, 1000))

    def sometimes(self: Session, *arguments: Any, **options: Any) -> Any:
        if next(calls) in (4, 5):
            raise RuntimeError("out of order")
        return follow(self, *arguments, **options)

    Session.follow = sometimes  # type: ignore[method-assign]
    with stage.played({10}), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))


def long_idle(stage: Stage) -> None:
    """An hour passes, so the provider's cache has expired: an eviction is free."""
    with stage.played({4, 8}), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))
        with Store(stage.store, read_only=True) as store:
            stage.extra["before"] = len(list(store.log.iterate(kind=Kind.EVICTION)))
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * 3600)
        conversations.time = clock  # type: ignore[assignment]
        first = len(stage.upstream.accepted)
        stage.run(running.url, stage.client.words("Read on.", session=stage.session))
    main = [r for r in stage.upstream.accepted[first:] if r.conversation != "side"]
    stage.extra["first_after"] = main[0].tokens


def web_socket(stage: Stage) -> None:
    """Codex with its built-in provider asks for a WebSocket first."""
    with stage.played({5}), stage.gateway() as running:
        words = stage.client.words("Read the parts.")
        place = words.index("-c")
        words[place:place] = ["-c", f'openai_base_url="{running.url}/v1"']
        words[place:place] = ["-c", 'model_provider="openai"']
        stage.run(running.url, words)


def code_mode(stage: Stage) -> None:
    """A newer model of Codex, which gets its tools in the list and writes JavaScript."""
    import assistant_clients

    assistant_clients.CODEX_MODEL = "gpt-6-astra"
    with stage.played({12}), stage.gateway() as running:
        stage.run(running.url, stage.client.words("Read the parts."))
    stage.extra["custom"] = sum(
        b'"type":"custom_tool_call_output"' in request.body for request in stage.upstream.requests
    )


def main(program: str, folder: Path, scene: str) -> Json:
    loopback_up()
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    stage = Stage(client_of(program), folder)
    globals()[scene](stage)
    # For whoever looks into a failure.
    (folder / "requests.jsonl").write_bytes(
        b"".join(request.body + b"\n" for request in stage.upstream.requests)
    )
    return stage.report()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
