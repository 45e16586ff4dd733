"""A session as its steps, in pages: what was said, what each reply did, and what happened to the view in between.

A page is a run of events that begins where something new begins: a request to the model, or a message of the user. So
a reply stands on one page with its cells, their calls and their results. Pages are found by seq, at any place of a
session, and cost the same wherever that is.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from scroll_context.events import EVERYTHING, Event, Grant, Kind
from scroll_context.store.log import EventLog
from scroll_context.web.catalogue import duration

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
        return self.result is not None and self.result.tool_state not in ("", "ok", "done", "success", "completed")


class Item(msgspec.Struct):
    """One entry of a session's page. `kind` is that of its event, or `step` for a reply with its calls."""

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


def page(
    log: EventLog, session_id: str, *, after: int = 0, before: int | None = None, grant: Grant = EVERYTHING
) -> StepsPage:
    """The page that follows the event at `after`; it ends before the event at `before`, where that is given."""
    events: list[Event] = []
    more = False
    limit = LONGEST * 4 if before is not None else LONGEST
    until = None if before is None else before - 1
    for event in log.iterate(after=after, until=until, session_id=session_id, grant=grant):
        begins = event.kind == Kind.REQUEST or (event.kind == Kind.CONVERSATION and event.role == "user")
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
    """The seq after which the page begins that ends before the event at `before`; None where nothing is before."""
    rows = log.query(
        "SELECT seq FROM event WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?", [session_id, before, PAGE]
    )
    return beginning(log, session_id, int(rows[-1][0])) if rows else None


def items_of(events: Iterable[Event]) -> list[Item]:
    """The events in groups, in the order in which the first of each was recorded."""
    items: list[Item] = []
    calls: dict[int, Call] = {}  # by the seq of the call
    step: Item | None = None
    request: Event | None = None
    for event in events:
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
                home = calls[inside].calls if inside in calls else step.calls if step and not inside else None
                if home is not None:
                    home.append(call)
                    calls[event.seq] = call
                    continue
            case Kind.OBSERVATION | Kind.TOOL_RESULT | Kind.ARTIFACT:
                answered = calls.get(event.reply_to or 0) or (_by_id(step, event) if not inside else None)
                if answered is not None:
                    if event.kind == Kind.ARTIFACT:
                        answered.artifacts.append(event)
                    else:
                        answered.result = event
                    continue
                if step is not None and not inside and event.kind == Kind.TOOL_RESULT:
                    step.calls.append(Call(event, event, [], []))  # a result whose call is part of the reply alone
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
    """The calls of a reply that nothing in the log carries out, so that they are shown from the reply itself."""
    carried = {call.event.tool_call_id for call in item.calls}
    made = item.event.metadata.get("tool_calls")
    return (
        [one for one in made if isinstance(one, dict) and one.get("id") not in carried]
        if isinstance(made, list)
        else []
    )
