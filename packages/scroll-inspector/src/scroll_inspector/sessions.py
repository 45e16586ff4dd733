"""Every session of a store in a few numbers, and one session step by step.

The numbers are sums over the log. Looking at them again reads only the events that were recorded
since the last look, so the list of sessions costs the same at any size. After an erasure the sums
are computed again.

The steps of a session come in pages: runs of events that begin where something new begins, at a
request to the model or a message of the user. So a reply stands on one page with its cells, their
calls and their results. Pages are found by seq, at any place of a session, and cost the same
wherever that is.
"""

import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from scroll_context.contents import well_formed
from scroll_context.events import EVERYTHING, IMPORTED, STORE_SESSION, Event, Grant, Kind
from scroll_context.log import times
from scroll_context.log.filters import conditions
from scroll_context.log.log import EventLog
from scroll_context.log.rows import number_at, text_at
from scroll_context.origin import FROM_PERSON_SQL
from scroll_context.store import Store
from scroll_context.text.words import clip

TITLE = 140  # characters of what a session is called

State = Literal["running", "answered", "stopped", "unanswered", "crashed", "imported", "empty"]


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
            self._add_sums(where, between)
            self._add_titles(where, between)
            self._add_forks(where, between)
            self._upto = until

    def _add_sums(self, where: str, values: list[Any]) -> None:
        has_usage = (
            f"(kind = '{Kind.EVICTION}' OR (kind = '{Kind.CONVERSATION}' AND role = 'assistant'))"
        )
        fields = ("input_tokens", "output_tokens", "cache_read_tokens")
        numbers = [*(number_at(f"usage.{field}") for field in fields), number_at("cost")]
        usage = ", ".join(f"total(CASE WHEN {has_usage} THEN {number} END)" for number in numbers)
        rows = self._store.log.query(
            f"""SELECT s.*, a.agent_id, a.task_id, a.created_at, b.created_at FROM (
            SELECT session_id, min(seq) lo, max(seq) hi, count(*), sum(kind = '{Kind.REQUEST}'),
            sum(kind = '{Kind.EVICTION}'), {usage} FROM event WHERE {where} GROUP BY session_id) s
            JOIN event a ON a.seq = s.lo JOIN event b ON b.seq = s.hi""",
            values,
        )
        for row in rows:
            session_id, first_seq, last_seq, events, requests, evictions, *rest = row
            input_tokens, output_tokens, cached_tokens, dollars, *labels_and_times = rest
            agent_id, task_id, first_at, last_at = labels_and_times
            if session_id == STORE_SESSION:
                continue
            session = self._sessions.setdefault(session_id, SessionSums(session_id))
            if not session.events:
                session.first_seq = first_seq
                session.agent_id = agent_id
                session.task_id = task_id
                session.first_at = first_at
            session.last_seq = last_seq
            session.last_at = last_at
            session.events += events
            session.requests += requests
            session.evictions += evictions
            session.input_tokens += int(input_tokens)
            session.output_tokens += int(output_tokens)
            session.cached_tokens += int(cached_tokens)
            session.dollars += dollars

    def _add_titles(self, where: str, values: list[Any]) -> None:
        """Call each session by the beginning of its first user message."""
        rows = self._store.log.query(
            f"""SELECT session_id, substr(content, 1, 600) FROM event
            WHERE seq IN (SELECT min(seq) FROM event
            WHERE {where} AND {FROM_PERSON_SQL} GROUP BY session_id)""",
            values,
        )
        for session_id, content in rows:
            session = self._sessions.get(session_id)
            if session is not None and not session.title:
                session.title = clip(content, TITLE)

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


def matching(
    sessions: list[SessionSums], words: str, agent: str, task: str, since: str, until: str
) -> Iterator[SessionSums]:
    """The sessions that pass the filters; an empty filter lets everything pass."""
    query_words = words.casefold().split()
    since = times.bound(since, upper=False) if since else ""
    until = times.bound(until, upper=True) if until else ""
    for session in sessions:
        names = (session.title, session.session_id, session.agent_id, session.task_id)
        text = " ".join(names).casefold()
        if (
            all(word in text for word in query_words)
            and agent in ("", session.agent_id)
            and task in ("", session.task_id)
            and (not since or session.last_at >= since)
            and (not until or session.first_at[: len(until)] <= until)
        ):
            yield session


def duration(first: str, last: str) -> float | None:
    """The seconds between two times of the log; None where they cannot be read."""
    try:
        return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    except (ValueError, TypeError):
        return None


# steps --------------------------------------------------------------------------------------------

PAGE = 100  # events of a page, before the step that is under way is finished
LONGEST = 600  # events of a page that meets no beginning

_BEGINS = f"(kind = '{Kind.REQUEST}' OR (kind = '{Kind.CONVERSATION}' AND role = 'user'))"


class Call(msgspec.Struct):
    """A cell, or a call of a tool, with what it brought."""

    event: Event
    result: Event | None = None
    calls: list["Call"] = []  # that a cell made
    artifacts: list[Event] = []

    @property
    def seconds(self) -> float | None:
        return duration(self.event.recorded_at, self.result.recorded_at) if self.result else None

    @property
    def failed(self) -> bool:
        return self.result is not None and self.result.tool_state not in (
            "",
            "ok",
            "done",
            "success",
            "completed",
        )


class Item(msgspec.Struct):
    """One entry of a session's page.

    `kind` is that of its event, or `step` for a reply with its calls.
    """

    kind: str
    event: Event
    request: Event | None = None
    calls: list[Call] = []
    saved: Event | None = None  # the snapshot after its cells

    @property
    def seconds(self) -> float | None:
        """How long the model took to reply."""
        return duration(self.request.recorded_at, self.event.recorded_at) if self.request else None


class StepsPage(msgspec.Struct, frozen=True):
    """A run of a session."""

    items: tuple[Item, ...]
    first: int  # seq of its first event; 0 when it has none
    last: int
    more: bool  # whether something follows


def steps_page(
    log: EventLog,
    session_id: str,
    *,
    after: int = 0,
    before: int | None = None,
    grant: Grant = EVERYTHING,
) -> StepsPage:
    """The page that follows the event at `after`; it ends before the event at `before`, where that
    is given.
    """
    events: list[Event] = []
    more = False
    limit = LONGEST * 4 if before is not None else LONGEST
    until = None if before is None else before - 1
    for event in log.iterate(after=after, until=until, session_id=session_id, grant=grant):
        begins = event.kind == Kind.REQUEST or (
            event.kind == Kind.CONVERSATION and event.role == "user"
        )
        if len(events) >= limit or (before is None and len(events) >= PAGE and begins):
            more = True
            break
        events.append(event)
    first, last = (events[0].seq, events[-1].seq) if events else (0, after)
    return StepsPage(tuple(items_of(events)), first, last, more)


def beginning(log: EventLog, session_id: str, seq: int) -> int:
    """The seq after which the page begins that shows the event at `seq`."""
    rows = log.query(
        f"SELECT seq, {_BEGINS} FROM event WHERE session_id = ? AND seq <= ? "
        "ORDER BY seq DESC LIMIT ?",
        [session_id, seq, LONGEST],
    )
    for row_seq, begins in rows:
        if begins:
            return int(row_seq) - 1
    return int(rows[0][0]) - 1 if rows else seq - 1


def earlier(log: EventLog, session_id: str, before: int) -> int | None:
    """The seq after which the page begins that ends before the event at `before`; None where
    nothing is before.
    """
    rows = log.query(
        "SELECT seq FROM event WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
        [session_id, before, PAGE],
    )
    return beginning(log, session_id, int(rows[-1][0])) if rows else None


def items_of(events: Iterable[Event]) -> list[Item]:
    """The events in groups, in the order in which the first of each was recorded."""
    items: list[Item] = []
    calls: dict[int, Call] = {}  # by the seq of the call
    step: Item | None = None
    request: Event | None = None
    for event in map(well_formed, events):
        inside = event.metadata.get("inside_cell")
        match event.kind:
            case Kind.REQUEST:
                if request is not None:
                    items.append(Item("request", request))
                request = event
                continue
            case Kind.CONVERSATION if event.role == "assistant":
                step = Item("step", event, request, [])
                request = None
                items.append(step)
                continue
            case Kind.CELL | Kind.TOOL_CALL:
                call = Call(event, None, [], [])
                siblings: list[Call] | None = None
                if inside in calls:
                    siblings = calls[inside].calls
                elif step is not None and not inside:
                    siblings = step.calls
                if siblings is not None:
                    siblings.append(call)
                    calls[event.seq] = call
                    continue
            case Kind.OBSERVATION | Kind.TOOL_RESULT | Kind.ARTIFACT:
                answered_call = calls.get(event.reply_to or 0)
                if answered_call is None and not inside:
                    answered_call = _by_id(step, event)
                if answered_call is not None:
                    if event.kind == Kind.ARTIFACT:
                        answered_call.artifacts.append(event)
                    else:
                        answered_call.result = event
                    continue
                if step is not None and not inside and event.kind == Kind.TOOL_RESULT:
                    # The call of this result is recorded as part of the reply alone.
                    step.calls.append(Call(event, event, [], []))
                    continue
            case Kind.SNAPSHOT:
                if step is not None and event.reply_to in calls:
                    step.saved = event
                    continue
        items.append(Item(event.kind, event))
    if request is not None:
        items.append(Item("request", request))
    return items


def _by_id(step: Item | None, event: Event) -> Call | None:
    waiting = [call for call in step.calls if call.result is None] if step else []
    return next((call for call in waiting if call.event.tool_call_id == event.tool_call_id), None)


def arguments_of(item: Item) -> list[dict[str, Any]]:
    """The calls of a reply that nothing in the log carries out, so that they are shown from the
    reply itself.
    """
    recorded_ids = {call.event.tool_call_id for call in item.calls}
    calls = item.event.metadata.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [call for call in calls if isinstance(call, dict) and call.get("id") not in recorded_ids]
