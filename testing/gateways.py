"""A gateway in this process, the programs that speak through it, and what its store then holds."""

import asyncio
import contextlib
import inspect
import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anthropic
import openai

from scripted_upstream import ScriptedUpstream, Seen
from scroll_context.connections import listen
from scroll_context.events import Event, Kind
from scroll_context.session.media import wire_bytes
from scroll_context.store import Store
from scroll_gateway.running import RunningGateway, opened
from scroll_gateway.wire.requests import ListReader
from scroll_gateway.wire.session import PROTOCOLS
from sdk_programs import PROGRAMS, start

Json = dict[str, Any]

WINDOW = 30_000
TASK = "project"
PROMPT = "Read all files."
SESSION = "x-claude-code-session-id"
AGENT = "x-claude-code-agent-id"


@contextlib.contextmanager
def gateway(
    folder: Path, upstream: ScriptedUpstream, *, window: int = WINDOW
) -> Iterator[RunningGateway]:
    """A gateway that answers."""
    with (
        opened(folder, upstream.url, window=window, task_id=TASK) as running,
        running.serving(),
    ):
        yield running


# A fork of a process that has imported everything starts in a moment.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["gateways", "listed_program"])


class GatewayProcess:
    """A gateway as a process of its own, at a port that stays."""

    def __init__(
        self,
        store: Path,
        upstream: str,
        *,
        window: int = WINDOW,
        task_id: str = TASK,
        port: int = 0,
    ) -> None:
        self._arguments = (store, upstream, window, task_id, port or _free_port())
        self._start()

    def _start(self) -> None:
        ours, theirs = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=_serve, args=(theirs, *self._arguments))
        self._process.start()
        theirs.close()
        self.url: str = ours.recv()

    def restart(self) -> None:
        """Kill it, and start the next one at its address."""
        self.kill()
        self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(
    pipe: Connection, store: Path, upstream: str, window: int, task_id: str, port: int
) -> None:
    with opened(store, upstream, window=window, task_id=task_id, port=port) as running:
        pipe.send(running.url)
        running.serve()


def _free_port() -> int:
    with listen("127.0.0.1", 0) as listening:
        return int(listening.getsockname()[1])


def client_for(name: str, url: str, headers: Mapping[str, str] | None = None) -> Any:
    """The async client of an SDK for one of the three protocols."""
    options: Json = {"api_key": "key", "default_headers": headers, "max_retries": 3}
    if name == "messages":
        return anthropic.AsyncAnthropic(base_url=url, **options)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", **options)


def talk(
    name: str,
    url: str,
    listed: list[Json] | None = None,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Json]:
    """Let a program with a tool loop work through a gateway. Returns its list."""
    messages = start(name, PROMPT) if listed is None else listed

    async def work() -> None:
        client = client_for(name, url, headers)
        await PROGRAMS[name](client, messages, **options)
        closing = client.close()
        assert inspect.isawaitable(closing)
        await closing

    asyncio.run(work())
    return messages


def events_of(folder: Path, session: str | None = None) -> list[Event]:
    with Store(folder, read_only=True) as store:
        return list(store.log.iterate(session_id=session))


def sessions_of(folder: Path) -> list[str]:
    with Store(folder, read_only=True) as store:
        return [row.session_id for row in store.log.sessions()]


def changes_between_evictions(requests: Sequence[Seen], events: Sequence[Event]) -> list[int]:
    """The numbers of the requests that do not begin with the one before, without an eviction or a
    retraction in between."""
    reasons = (Kind.EVICTION, Kind.RETRACTION)
    changed = []
    has_reason = False
    for event in events:
        if event.kind in reasons:
            has_reason = True
        elif event.kind == Kind.REQUEST:
            changed.append(has_reason)
            has_reason = False
    assert len(changed) == len(requests)
    return [
        number
        for number, request in enumerate(requests)
        if not (request.extends or changed[number])
    ]


def missing_bytes(name: str, listed: Sequence[Json], folder: Path, session: str) -> list[int]:
    """The places of messages whose exact bytes the log does not give back."""
    protocol = next(protocol for protocol in PROTOCOLS if protocol.name == name)
    body = json.dumps(
        {protocol.list_field: listed}, ensure_ascii=False, separators=(",", ":")
    ).encode()
    messages = [
        message for message in ListReader(protocol).read(body).messages if message.role != "system"
    ]
    kinds = [Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.NOTICE]
    with Store(folder, read_only=True) as store:
        events = list(store.log.iterate(session_id=session, kind=kinds))
        stored = [wire_bytes(store.log, event) for event in events]
    assert len(stored) == len(messages)
    pairs = enumerate(zip(stored, messages, strict=True))
    return [place for place, (raw, message) in pairs if raw != message.raw]
