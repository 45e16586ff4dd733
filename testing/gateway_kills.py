"""Kills a gateway, its clients and the connections of its upstream at random, and reports what is
left.

    python testing/gateway_kills.py --kills 200 --seed 7

Clients are programs of the SDKs that keep their list in a file, as assistants keep a transcript.
Each kill comes at a random moment of a request. A killed gateway is started again
at its address; a killed client is started again and continues its list. In the end every message of
every list must be in the log once, and no request may have broken a rule of the provider.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import listed_program
from gateways import FORKS, SESSION, WINDOW, GatewayProcess, Json
from scripted_upstream import Refusal, ScriptedUpstream, Turn, reading
from scroll_context.events import Event, Kind
from scroll_context.session.media import wire_bytes
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify
from scroll_gateway.sums import without_marks
from scroll_gateway.wire.requests import ListReader
from scroll_gateway.wire.session import PROTOCOLS
from upstream_wire import Answer

APIS = ("messages", "chat", "responses")
TURNS = 12
# Seconds after the arrival of a request within which a kill comes: before, in and after its reply.
SPREAD = 0.12
PATIENCE = 300.0


class Victims:
    """Who is killed next: at random, but each of them once in three kills."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._left: list[str] = []

    def next(self) -> str:
        if not self._left:
            self._left = ["gateway", "client", "connection"]
            self._dice.shuffle(self._left)
        return self._left.pop()


class Hunt:
    """The victims, and who was killed how often."""

    def __init__(
        self, folder: Path, kills: int, seed: int, progress: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.counts: Counter[str] = Counter()
        self.restarts = 0
        self._kills = kills
        self._random = random.Random(seed)
        self._victims = Victims(self._random)
        self._progress = progress
        self._gateway: GatewayProcess | None = None
        self._client: Any = None
        self._timers: list[threading.Timer] = []
        self._lock = threading.Lock()
        self.upstream = ScriptedUpstream(
            self._play, window=WINDOW, conversation=lambda headers, _: headers.get(SESSION, "")
        )

    @property
    def is_over(self) -> bool:
        return self.counts.total() >= self._kills

    def _play(self, turn: Turn) -> Answer | Refusal:
        """A reply of the model, after which somebody may die."""
        answer = reading(TURNS)(turn)
        assert isinstance(answer, Answer)
        # A reply that nobody read is asked for again, so each one has a text of its own.
        answer = replace(answer, text=f"{answer.text} Reply {turn.number}.")
        if self.is_over or self._random.random() > 0.5:
            return answer
        victim = self._victims.next()
        self.counts[victim] += 1
        self._progress(f"{self.counts.total()} of {self._kills} kills: {victim}")
        if victim == "connection":
            return replace(answer, cut=True)
        kill = {"gateway": self._kill_gateway, "client": self._kill_client}[victim]
        timer = threading.Timer(self._random.random() * SPREAD, kill)
        self._timers.append(timer)
        timer.start()
        return answer

    def _kill_gateway(self) -> None:
        with self._lock:
            assert self._gateway is not None
            self._gateway.restart()

    def _kill_client(self) -> None:
        if self._client is not None:
            self._client.kill()

    def converse(self, name: str, api: str, file: Path) -> None:
        """Let a program come to the end of its work, however often it is killed."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self._gateway is not None
            arguments = (api, self._gateway.url, name, file)
            self._client = FORKS.Process(target=listed_program.main, args=arguments)
            self._client.start()
            self._client.join(PATIENCE)
            if self._client.exitcode == 0:
                break
            self.restarts += 1
            assert time.monotonic() < deadline, f"{name} does not come to its end"
        for timer in self._timers:
            timer.join()
        self._timers.clear()

    def run(self) -> Json:
        """Conversations until all kills are done."""
        lists: dict[str, tuple[str, Path]] = {}
        with self.upstream:
            self._gateway = GatewayProcess(self.store, self.upstream.url)
            try:
                while not self.is_over or not lists:
                    api = APIS[len(lists) % len(APIS)]
                    name = f"conversation-{len(lists) + 1}"
                    lists[name] = (api, self.folder / f"{name}.jsonl")
                    self.converse(name, *lists[name])
            finally:
                self._gateway.kill()
        return self.report(lists)

    def report(self, lists: Mapping[str, tuple[str, Path]]) -> Json:
        with Store(self.store, read_only=True) as store:
            log = store.log
            events = list(log.iterate())
            raws = {name: _raws(log, events, name) for name in lists}
            verdict = verify(log)
        messages = lost = 0
        for name, (api, file) in lists.items():
            for raw in _messages(api, file):
                messages += 1
                lost += raw not in raws[name]
        kinds = Counter(event.kind for event in events)
        return {
            "kills": dict(self.counts),
            "conversations": len(lists),
            "requests": len(self.upstream.requests),
            "client_starts": len(lists) + self.restarts,
            "messages": messages,
            "lost": lost,
            "twice": _twice(events),
            "broken_rules": self.upstream.broken_rules,
            "refused": [r.refusal for r in self.upstream.requests if r.status != 200],
            "evictions": kinds[Kind.EVICTION],
            "retractions": kinds[Kind.RETRACTION],
            "failures": [event.content for event in events if event.kind == Kind.FAILURE],
            "prefix_changes": self.upstream.prefix_changes,
            "sessions": len({event.session_id for event in events}),
            "is_verified": verdict.ok,
        }


def _raws(log: Any, events: list[Event], session: str) -> set[bytes]:
    kinds = (Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.NOTICE)
    of_session = [event for event in events if event.session_id == session and event.kind in kinds]
    return {without_marks(wire_bytes(log, event) or b"") for event in of_session}


def _messages(api: str, file: Path) -> list[bytes]:
    """The messages of a client's list that are in a request, so not the last reply."""
    protocol = next(protocol for protocol in PROTOCOLS if protocol.name == api)
    listed = [json.loads(line) for line in file.read_text().splitlines()]
    body = json.dumps(
        {protocol.list_field: listed}, ensure_ascii=False, separators=(",", ":")
    ).encode()
    messages = [m for m in ListReader(protocol).read(body).messages if m.role != "system"]
    return [without_marks(message.raw) for message in messages[:-1]]


def _twice(events: list[Event]) -> list[str]:
    """Calls, results and prompts that were recorded more than once."""
    marks: Counter[str] = Counter()
    for event in events:
        if event.kind == Kind.TOOL_RESULT:
            marks[f"{event.session_id} result {event.tool_call_id}"] += 1
        elif event.kind == Kind.CONVERSATION and event.role == "user":
            marks[f"{event.session_id} prompt {event.content[:40]}"] += 1
        elif event.kind == Kind.CONVERSATION and event.role == "assistant":
            marks[f"{event.session_id} reply {event.content}"] += 1
    return [mark for mark, count in marks.items() if count > 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")
        hunt = Hunt(Path(folder), options.kills, options.seed, lambda line: print(line, flush=True))
        report = hunt.run()
    print(json.dumps(report, indent=2))
    is_well = not (report["lost"] or report["twice"] or report["broken_rules"])
    return 0 if is_well and report["is_verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
