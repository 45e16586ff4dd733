"""One session step by step, in pages.

A page is a run of events that begins where something new begins: at a request to the model or a
message of the user. So a reply stands on one page with its cells, their calls and their results.
Pages are found by seq, at any place of a session, and cost the same wherever that is.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from scroll_context.contents import well_formed
from scroll_context.events import EVERYTHING, Event, Grant, Kind
from scroll_context.log.log import EventLog
from scroll_context.view.steps import succeeded


def duration(first: str, last: str) -> float | None:
    """The seconds between two times of the log; None where they cannot be read."""
    try:
        return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    except (ValueError, TypeError):
        return None


PAGE = 100
"""Events of a page, before the step that is under way is finished."""
LONGEST = 600
"""Events of a page that meets no beginning."""

_BEGINS = f"(kind = '{Kind.REQUEST}' OR (kind = '{Kind.CONVERSATION}' AND role = 'user'))"


class Call(msgspec.Struct):
    """A cell, or a call of a tool, with what it brought."""

    event: Event
    result: Event | None = None
    # The calls that a cell made.
    calls: list["Call"] = []
    artifacts: list[Event] = []

    @property
    def seconds(self) -> float | None:
        return duration(self.event.recorded_at, self.result.recorded_at) if self.result else None

    @property
    def failed(self) -> bool:
        return self.result is not None and not succeeded(self.result.tool_state)


class Item(msgspec.Struct):
    """One entry of a session's page.

    `kind` is that of its event, or `step` for a reply with its calls.
    """

    kind: str
    event: Event
    request: Event | None = None
    calls: list[Call] = []
    # The snapshot after its cells.
    saved: Event | None = None

    @property
    def seconds(self) -> float | None:
        """How long the model took to reply."""
        return duration(self.request.recorded_at, self.event.recorded_at) if self.request else None


class StepsPage(msgspec.Struct, frozen=True):
    """A run of a session."""

    items: tuple[Item, ...]
    # The seq of its first event; 0 when it has none.
    first: int
    last: int
    # Whether something follows.
    more: bool


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
    if not events:
        return StepsPage((), first=0, last=after, more=more)
    items = tuple(items_of(events))
    return StepsPage(items, first=events[0].seq, last=events[-1].seq, more=more)


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
    groups = _Groups()
    for event in map(well_formed, events):
        groups.add(event)
    return groups.finished()


class _Groups:
    """Puts the events of a session into items, one after the other."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        # By the seq of the call.
        self._calls: dict[int, Call] = {}
        self._step: Item | None = None
        # The newest request, as long as no reply to it came.
        self._request: Event | None = None

    def add(self, event: Event) -> None:
        is_placed = False
        match event.kind:
            case Kind.REQUEST:
                self._end_request()
                self._request = event
                is_placed = True
            case Kind.CONVERSATION if event.role == "assistant":
                self._step = Item("step", event, self._request, [])
                self._request = None
                self._items.append(self._step)
                is_placed = True
            case Kind.CELL | Kind.TOOL_CALL:
                is_placed = self._add_call(event)
            case Kind.OBSERVATION | Kind.TOOL_RESULT | Kind.ARTIFACT:
                is_placed = self._add_result(event)
            case Kind.SNAPSHOT if self._step is not None and event.reply_to in self._calls:
                self._step.saved = event
                is_placed = True
        if not is_placed:
            self._items.append(Item(event.kind, event))

    def finished(self) -> list[Item]:
        self._end_request()
        return self._items

    def _end_request(self) -> None:
        """Show a request by itself: no reply to it is recorded."""
        if self._request is not None:
            self._items.append(Item("request", self._request))
            self._request = None

    def _add_call(self, event: Event) -> bool:
        """Add a cell or a call to its step, or to the cell that made it; whether there is one."""
        cell = event.metadata.get("inside_cell")
        call = Call(event, None, [], [])
        if cell in self._calls:
            self._calls[cell].calls.append(call)
        elif self._step is not None and not cell:
            self._step.calls.append(call)
        else:
            return False
        self._calls[event.seq] = call
        return True

    def _add_result(self, event: Event) -> bool:
        """Add a result or a file to its call; whether there is one."""
        is_inside = bool(event.metadata.get("inside_cell"))
        call = self._calls.get(event.reply_to or 0)
        if call is None and not is_inside:
            call = self._unanswered(event.tool_call_id)
        if call is None:
            if self._step is None or is_inside or event.kind != Kind.TOOL_RESULT:
                return False
            # The call of this result is recorded as part of the reply alone.
            self._step.calls.append(Call(event, event, [], []))
        elif event.kind == Kind.ARTIFACT:
            call.artifacts.append(event)
        else:
            call.result = event
        return True

    def _unanswered(self, call_id: str) -> Call | None:
        for call in self._step.calls if self._step else ():
            if call.result is None and call.event.tool_call_id == call_id:
                return call
        return None


def calls_without_events(item: Item) -> list[dict[str, Any]]:
    """The calls of a reply that nothing in the log carries out, so that they are shown from the
    reply itself.
    """
    recorded_ids = {call.event.tool_call_id for call in item.calls}
    calls = item.event.metadata.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [call for call in calls if isinstance(call, dict) and call.get("id") not in recorded_ids]
