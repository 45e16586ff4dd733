"""Every session of a store in a few numbers, and one session step by step.

The numbers are sums over the log. Looking at them again reads only the events that were recorded
since the last look, so the list of sessions costs the same at any size. After an erasure the sums
are made anew.

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
from scroll_context.origin import TURN_SQL
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
        self._forks: dict[
            str, list[tuple[str, int]]
        ] = {}  # by the session that is continued: which does, from where
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
            where, values = conditions(self._grant)
            where = f"seq > ? AND seq <= ? AND {where}"
            between = [self._upto, until, *values]
            counted = f"(kind = '{Kind.EVICTION}' OR (kind = '{Kind.CONVERSATION}' AND role = 'assistant'))"
            usage = ", ".join(
                f"total(CASE WHEN {counted} THEN {number_at(name)} END)"
                for name in (
                    "usage.input_tokens",
                    "usage.output_tokens",
                    "usage.cache_read_tokens",
                    "cost",
                )
            )
            rows = log.query(
                f"""SELECT s.*, a.agent_id, a.task_id, a.created_at, b.created_at FROM (
                SELECT session_id, min(seq) lo, max(seq) hi, count(*), sum(kind = '{Kind.REQUEST}'),
                sum(kind = '{Kind.EVICTION}'), {usage} FROM event WHERE {where} GROUP BY session_id) s
                JOIN event a ON a.seq = s.lo JOIN event b ON b.seq = s.hi""",
                between,
            )
            for (
                session_id,
                lo,
                hi,
                events,
                requests,
                evictions,
                read,
                written,
                cached,
                cost,
                *ends,
            ) in rows:
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
                WHERE {where} AND {TURN_SQL} GROUP BY session_id)""",
                between,
            )
            for session_id, content in said:
                if (named := self._sessions.get(session_id)) is not None and not named.title:
                    named.title = clip(content, TITLE)
            forks = log.query(
                f"""SELECT session_id, {text_at("session_id")}, {number_at("at_seq")}
                FROM event WHERE {where} AND kind = '{Kind.FORK}' ORDER BY seq""",
                between,
            )
            for session_id, parent, at in forks:
                if isinstance(at, int) and parent is not None:
                    self._forks.setdefault(parent, []).append((session_id, at))
            self._upto = until

    def continued_by(self, session_id: str, seq: int) -> list[str]:
        """The sessions that began with the event at `seq` of this session in their past, forks of
        forks included.
        """
        self._catch_up()
        found: list[str] = []
        waiting = [session_id]
        while waiting:
            ones = [
                fork
                for fork, at in self._forks.get(waiting.pop(0), ())
                if at >= seq and fork not in found
            ]
            found += ones
            waiting += ones
        return found

    def state(self, session_id: str) -> State:
        """How a session stands: whether a process has it open and, if none has, how it ended."""
        if self._store.log.holder(session_id) is not None:
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
            # the provider failed, or the process ended while the model was at work
            return "unanswered"
        if last.kind in (Kind.CELL, Kind.TOOL_CALL):
            # nothing followed: the process ended while the cell or the tool was at work
            return "crashed"
        if last.kind == Kind.CONVERSATION and last.role == "assistant":
            return (
                "stopped"
                if last.metadata.get("tool_calls") or last.metadata.get("cut")
                else "answered"
            )
        return "stopped"


def matching(
    sessions: list[SessionSums], words: str, agent: str, task: str, since: str, until: str
) -> Iterator[SessionSums]:
    """The sessions that pass the filters; an empty filter lets everything pass."""
    wanted = words.casefold().split()
    since = times.bound(since, upper=False) if since else ""
    until = times.bound(until, upper=True) if until else ""
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


# steps --------------------------------------------------------------------------------------------------

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
        f"SELECT seq, {_BEGINS} FROM event WHERE session_id = ? AND seq <= ? ORDER BY seq DESC LIMIT ?",
        [session_id, seq, LONGEST],
    )
    return next((int(found) for found, begins in rows if begins), rows[0][0] if rows else seq) - 1


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
                home = (
                    calls[inside].calls
                    if inside in calls
                    else step.calls
                    if step and not inside
                    else None
                )
                if home is not None:
                    home.append(call)
                    calls[event.seq] = call
                    continue
            case Kind.OBSERVATION | Kind.TOOL_RESULT | Kind.ARTIFACT:
                answered = calls.get(event.reply_to or 0) or (
                    _by_id(step, event) if not inside else None
                )
                if answered is not None:
                    if event.kind == Kind.ARTIFACT:
                        answered.artifacts.append(event)
                    else:
                        answered.result = event
                    continue
                if step is not None and not inside and event.kind == Kind.TOOL_RESULT:
                    step.calls.append(
                        Call(event, event, [], [])
                    )  # a result whose call is part of the reply alone
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
    carried = {call.event.tool_call_id for call in item.calls}
    made = item.event.metadata.get("tool_calls")
    return (
        [one for one in made if isinstance(one, dict) and one.get("id") not in carried]
        if isinstance(made, list)
        else []
    )
