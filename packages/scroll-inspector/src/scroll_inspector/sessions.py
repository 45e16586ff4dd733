"""Every session of a store in a few numbers.

The numbers are sums over the log. Looking at them again reads only the events that were recorded
since the last look, so the list of sessions costs the same at any size. After an erasure the sums
are computed again.
"""

import threading
from typing import Any, Literal, NamedTuple

import msgspec

from scroll_context.events import EVERYTHING, IMPORTED, STORE_SESSION, Grant, Kind
from scroll_context.log import times
from scroll_context.log.filters import conditions
from scroll_context.log.rows import number_at, text_at
from scroll_context.log.titles import TURNS, session_titles
from scroll_context.origin import FROM_PERSON_SQL, NOT_IMPORTED_SQL, Origin
from scroll_context.store import Store

MOST_NAMES = 500
"""Sessions whose titles are asked for by name."""

State = Literal["running", "answered", "stopped", "unanswered", "crashed", "imported", "empty"]


class SessionSums(msgspec.Struct):
    """One session in numbers; tokens and dollars are what the providers reported.

    Requests and evictions of an imported history are not counted, as in `session.accounts`:
    they were made elsewhere.
    """

    session_id: str
    agent_id: str = ""
    task_id: str = ""
    title: str = ""
    first_seq: int = 0
    last_seq: int = 0
    first_at: str = ""
    last_at: str = ""
    events: int = 0
    turns: int = 0
    requests: int = 0
    evictions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    dollars: float = 0.0

    @property
    def name(self) -> str:
        """The session's name on the pages."""
        return self.title or self.session_id


_OWN = f"""(CASE WHEN {NOT_IMPORTED_SQL}
    THEN json_type(metadata, '$.{Origin.CAPTURED}') IS NULL ELSE 0 END)"""
"""Whether an event is not foreign, as a condition on the event table."""


def _count(kind: Kind) -> str:
    return f"total(CASE WHEN kind = '{kind}' THEN {_OWN} END)"


def _total(field: str) -> str:
    """The sum of a number that own replies, and evictions with a summary, were recorded with."""
    is_reply = f"(kind = '{Kind.CONVERSATION}' AND role = 'assistant')"
    has_usage = f"({is_reply} OR kind = '{Kind.EVICTION}')"
    return f"total(CASE WHEN {has_usage} AND {_OWN} THEN {number_at(field)} END)"


class _Row(NamedTuple):
    """The sums of the events of a session that were recorded since the last look."""

    session_id: str
    first_seq: int
    last_seq: int
    events: int
    turns: int
    requests: float
    evictions: float
    input_tokens: float
    output_tokens: float
    cached_tokens: float
    dollars: float
    agent_id: str
    task_id: str
    first_at: str
    last_at: str


class Catalogue:
    """The sessions within a grant. Share one instance between threads."""

    def __init__(self, store: Store, grant: Grant = EVERYTHING) -> None:
        self._store = store
        self._grant = grant
        self._lock = threading.Lock()
        self._sessions: dict[str, SessionSums] = {}
        # The forks of each session, with the seq that each continues from.
        self._forks: dict[str, list[tuple[str, int]]] = {}
        self._upto = 0
        self._erasure = 0

    def sessions(self) -> list[SessionSums]:
        """Every session, the one that was used last first."""
        self._catch_up()
        return sorted(self._sessions.values(), key=lambda session: -session.last_seq)

    def get(self, session_id: str) -> SessionSums | None:
        self._catch_up()
        return self._sessions.get(session_id)

    def _catch_up(self) -> None:
        log = self._store.log
        with self._lock:
            erasure = log.newest_erasure()
            if erasure != self._erasure:
                self._erasure = erasure
                self._upto = 0
                self._sessions = {}
                self._forks = {}
            until = log.applied_seq()
            if until == self._upto:
                return
            where, values = conditions(self._grant)
            where = f"seq > ? AND seq <= ? AND {where}"
            between = [self._upto, until, *values]
            self._set_titles(self._add_sums(where, between))
            self._add_forks(where, between)
            self._upto = until

    def _add_sums(self, where: str, values: list[Any]) -> list[SessionSums]:
        """Add the events that were recorded since. Returns the sessions whose title may be new."""
        sums = ", ".join(
            [
                "count(*)",
                f"sum({FROM_PERSON_SQL})",
                _count(Kind.REQUEST),
                _count(Kind.EVICTION),
                _total("usage.input_tokens"),
                _total("usage.output_tokens"),
                _total("usage.cache_read_tokens"),
                _total("cost"),
            ]
        )
        rows = self._store.log.query(
            f"""SELECT s.*, a.agent_id, a.task_id, a.created_at, b.created_at FROM (
            SELECT session_id, min(seq) lo, max(seq) hi, {sums} FROM event
            WHERE {where} GROUP BY session_id) s
            JOIN event a ON a.seq = s.lo JOIN event b ON b.seq = s.hi""",
            values,
        )
        untitled = []
        for row in map(_Row._make, rows):
            if row.session_id == STORE_SESSION:
                continue
            session = self._sessions.setdefault(row.session_id, SessionSums(row.session_id))
            if row.turns and session.turns < TURNS:
                untitled.append(session)
            _add(session, row)
        return untitled

    def _set_titles(self, sessions: list[SessionSums]) -> None:
        """Give sessions the titles that `scroll sessions` shows."""
        names = [session.session_id for session in sessions]
        if not names:
            return
        # SQLite takes a bounded number of values.
        few = names if len(names) <= MOST_NAMES else None
        titles = session_titles(self._store.log, self._grant, few)
        for session in sessions:
            session.title = titles.get(session.session_id, "")

    def _add_forks(self, where: str, values: list[Any]) -> None:
        rows = self._store.log.query(
            f"""SELECT session_id, {text_at("session_id")}, {number_at("at_seq")}
            FROM event WHERE {where} AND kind = '{Kind.FORK}' ORDER BY seq""",
            values,
        )
        for session_id, parent, at in rows:
            if isinstance(at, int) and parent is not None:
                self._forks.setdefault(parent, []).append((session_id, at))

    def continued_by(self, session_id: str, seq: int) -> list[str]:
        """The sessions that began with the event at `seq` of this session in their past, forks of
        forks included.
        """
        self._catch_up()
        continuations: list[str] = []
        waiting = [session_id]
        while waiting:
            for fork, at in self._forks.get(waiting.pop(0), ()):
                if at >= seq and fork not in continuations:
                    continuations.append(fork)
                    waiting.append(fork)
        return continuations

    def state(self, session_id: str) -> State:
        """How a session stands: whether a process has it open and, if none has, how it ended."""
        if self._store.log.backend.holder(session_id) is not None:
            return "running"
        kinds = [
            Kind.REQUEST,
            Kind.CONVERSATION,
            Kind.CELL,
            Kind.TOOL_CALL,
            Kind.TOOL_RESULT,
            Kind.OBSERVATION,
        ]
        newest = self._store.log.tail(1, session_id=session_id, kind=kinds)
        if not newest:
            return "empty"
        last = newest[0]
        if last.source_key.startswith(IMPORTED) or last.is_foreign:
            return "imported"
        if last.kind == Kind.REQUEST:
            # The provider failed, or the process ended while the model was at work.
            return "unanswered"
        if last.kind in (Kind.CELL, Kind.TOOL_CALL):
            # Nothing followed: the process ended while the cell or the tool was at work.
            return "crashed"
        if last.kind == Kind.CONVERSATION and last.role == "assistant":
            is_unfinished = last.metadata.get("tool_calls") or last.metadata.get("cut")
            return "stopped" if is_unfinished else "answered"
        return "stopped"


def _add(session: SessionSums, row: _Row) -> None:
    if not session.events:
        session.first_seq = row.first_seq
        session.agent_id = row.agent_id
        session.task_id = row.task_id
        session.first_at = row.first_at
    session.last_seq = row.last_seq
    session.last_at = row.last_at
    session.events += row.events
    session.turns += row.turns
    session.requests += int(row.requests)
    session.evictions += int(row.evictions)
    session.input_tokens += int(row.input_tokens)
    session.output_tokens += int(row.output_tokens)
    session.cached_tokens += int(row.cached_tokens)
    session.dollars += row.dollars


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions a list shows; an empty field lets every session pass."""

    words: str = ""
    agent: str = ""
    task: str = ""
    # Times as a reader writes them: a date, or the beginning of one.
    since: str = ""
    until: str = ""

    def matches(self, sessions: list[SessionSums]) -> list[SessionSums]:
        """The sessions that pass."""
        since = times.bound(self.since, upper=False) if self.since else ""
        until = times.bound(self.until, upper=True) if self.until else ""
        return [
            session
            for session in sessions
            if self._has_names(session)
            and (not since or session.last_at >= since)
            and (not until or session.first_at[: len(until)] <= until)
        ]

    def _has_names(self, session: SessionSums) -> bool:
        names = (session.title, session.session_id, session.agent_id, session.task_id)
        text = " ".join(names).casefold()
        has_words = all(word in text for word in self.words.casefold().split())
        has_agent = self.agent in ("", session.agent_id)
        has_task = self.task in ("", session.task_id)
        return has_words and has_agent and has_task
