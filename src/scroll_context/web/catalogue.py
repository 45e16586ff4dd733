"""Every session of a store in a few numbers, kept up to date by adding what is new.

The numbers are sums over the log. Looking at them again reads only the events that were recorded since the last look,
so the list of sessions costs the same at any size. After an erasure the sums are made anew.
"""

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from scroll_context.events import EVERYTHING, IMPORTED, STORE_SESSION, Grant, Kind
from scroll_context.store.log import conditions
from scroll_context.store.store import Store

TITLE = 140  # characters of what a session is called

State = Literal["running", "answered", "stopped", "crashed", "imported", "empty"]


class SessionSums(msgspec.Struct):
    """One session in numbers; tokens and dollars are what the providers reported."""

    session_id: str
    agent_id: str = ""
    task_id: str = ""
    title: str = ""
    first_seq: int = 0
    last_seq: int = 0
    first_at: str = ""
    last_at: str = ""
    events: int = 0
    requests: int = 0
    evictions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    dollars: float = 0.0


class Catalogue:
    """The sessions within a grant. Share one instance between threads."""

    def __init__(self, store: Store, grant: Grant = EVERYTHING) -> None:
        self._store = store
        self._grant = grant
        self._lock = threading.Lock()
        self._sessions: dict[str, SessionSums] = {}
        self._forks: dict[str, list[tuple[str, int]]] = {}  # by the session that is continued: which does, from where
        self._upto = 0
        self._erasure = 0

    def sessions(self) -> list[SessionSums]:
        """Every session, the one that was used last first."""
        self._catch_up()
        return sorted(self._sessions.values(), key=lambda one: -one.last_seq)

    def get(self, session_id: str) -> SessionSums | None:
        self._catch_up()
        return self._sessions.get(session_id)

    def _catch_up(self) -> None:
        log = self._store.log
        with self._lock:
            if (erasure := log.newest_erasure()) != self._erasure:
                self._erasure, self._upto = erasure, 0
                self._sessions, self._forks = {}, {}
            until = log.applied_seq()
            if until == self._upto:
                return
            where, values = conditions(grant=self._grant)
            where = f"seq > ? AND seq <= ? AND {where}"
            between = [self._upto, until, *values]
            counted = f"(kind = '{Kind.EVICTION}' OR (kind = '{Kind.CONVERSATION}' AND role = 'assistant'))"
            usage = ", ".join(
                f"total(CASE WHEN {counted} THEN json_extract(metadata, '$.{name}') END)"
                for name in ("usage.input_tokens", "usage.output_tokens", "usage.cache_read_tokens", "cost")
            )
            rows = log.query(
                f"""SELECT s.*, a.agent_id, a.task_id, a.created_at, b.created_at FROM (
                SELECT session_id, min(seq) lo, max(seq) hi, count(*), sum(kind = '{Kind.REQUEST}'),
                sum(kind = '{Kind.EVICTION}'), {usage} FROM event WHERE {where} GROUP BY session_id) s
                JOIN event a ON a.seq = s.lo JOIN event b ON b.seq = s.hi""",
                between,
            )
            for session_id, lo, hi, events, requests, evictions, read, written, cached, cost, *ends in rows:
                if session_id == STORE_SESSION:
                    continue
                one = self._sessions.setdefault(session_id, SessionSums(session_id))
                if not one.events:
                    one.first_seq, one.agent_id, one.task_id, one.first_at = lo, *ends[:3]
                one.last_seq, one.last_at = hi, ends[3]
                one.events += events
                one.requests += requests
                one.evictions += evictions
                one.input_tokens += int(read)
                one.output_tokens += int(written)
                one.cached_tokens += int(cached)
                one.dollars += cost
            said = log.query(
                f"""SELECT session_id, substr(content, 1, 600) FROM event WHERE seq IN (SELECT min(seq) FROM event
                WHERE {where} AND kind = '{Kind.CONVERSATION}' AND role = 'user' GROUP BY session_id)""",
                between,
            )
            for session_id, content in said:
                if (named := self._sessions.get(session_id)) is not None and not named.title:
                    line = " ".join(content.split())
                    named.title = line if len(line) <= TITLE else line[: TITLE - 1] + "…"
            forks = log.query(
                f"""SELECT session_id, json_extract(metadata, '$.session_id'), json_extract(metadata, '$.at_seq')
                FROM event WHERE {where} AND kind = '{Kind.FORK}' ORDER BY seq""",
                between,
            )
            for session_id, parent, at in forks:
                self._forks.setdefault(str(parent), []).append((session_id, int(at or 0)))
            self._upto = until

    def continued_by(self, session_id: str, seq: int) -> list[str]:
        """The sessions that began with the event at `seq` of this session in their past, forks of forks included."""
        self._catch_up()
        found: list[str] = []
        waiting = [session_id]
        while waiting:
            ones = [fork for fork, at in self._forks.get(waiting.pop(0), ()) if at >= seq and fork not in found]
            found += ones
            waiting += ones
        return found

    def state(self, session_id: str) -> State:
        """How a session stands: whether a process has it open and, if none has, how it ended."""
        if self._store.log.holder(session_id) is not None:
            return "running"
        kinds = [Kind.REQUEST, Kind.CONVERSATION, Kind.CELL, Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.OBSERVATION]
        newest = self._store.log.tail(1, session_id=session_id, kind=kinds)
        if not newest:
            return "empty"
        last = newest[0]
        if last.source_key.startswith(IMPORTED) or last.is_foreign:
            return "imported"
        if last.kind in (Kind.REQUEST, Kind.CELL, Kind.TOOL_CALL):
            return "crashed"  # nothing followed: the process ended while the model or the cell was at work
        if last.kind == Kind.CONVERSATION and last.role == "assistant":
            return "stopped" if last.metadata.get("tool_calls") or last.metadata.get("cut") else "answered"
        return "stopped"


def matching(
    sessions: list[SessionSums], words: str, agent: str, task: str, since: str, until: str
) -> Iterator[SessionSums]:
    """The sessions that pass the filters; an empty filter lets everything pass."""
    wanted = words.casefold().split()
    for one in sessions:
        text = f"{one.title} {one.session_id} {one.agent_id} {one.task_id}".casefold()
        if (
            all(word in text for word in wanted)
            and agent in ("", one.agent_id)
            and task in ("", one.task_id)
            and (not since or one.last_at >= since)
            and (not until or one.first_at[: len(until)] <= until)
        ):
            yield one


def duration(first: str, last: str) -> float | None:
    """The seconds between two times of the log; None where they cannot be read."""
    try:
        return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    except (ValueError, TypeError):
        return None
