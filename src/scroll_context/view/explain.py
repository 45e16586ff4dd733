"""Why the view is what it is: each thing that left it, when, by which plan, and where it stands now.

Computed from the events alone, for any moment of a session; the view itself keeps no record of what left.
"""

from collections.abc import Iterable

import msgspec

from scroll_context.events import Event, Kind
from scroll_context.view.items import Form, Step, passages
from scroll_context.view.plan import Plan
from scroll_context.view.working import WorkingView


class Departure(msgspec.Struct, frozen=True):
    """One text or entry that left the view in part or whole."""

    seq: int
    last: int  # the end of its span; `seq` itself for a single text
    how: str  # folded, clipped or evicted
    plan: int  # seq of the eviction event
    reason: str
    now: str  # where it stands at the moment asked about


def departures(events: Iterable[Event], view: WorkingView) -> tuple[Departure, ...]:
    """Everything that has left a view, in the order in which it left; `events` are what the view was built from."""
    left: list[tuple[int, int, str, int, str]] = []
    for event in events:
        if event.kind == Kind.EVICTION:
            plan = Plan.from_metadata(event.metadata)
            left += [(seq, seq, "folded", event.seq, plan.reason) for seq in plan.folded]
            left += [(seq, seq, "clipped", event.seq, plan.reason) for seq, _ in plan.clipped]
            left += [(lo, hi, "evicted", event.seq, plan.reason) for lo, hi in plan.evicted]
    return tuple(Departure(*one, whereabouts(view, one[0])) for one in left)


def whereabouts(view: WorkingView, seq: int) -> str:
    """Where the event at `seq` stands in a view."""
    entry = view.get(seq)
    if entry is not None:
        reply = entry.reply.form if isinstance(entry, Step) else Form.FULL
        form = next((text.form for text in passages(entry) if text.seq == seq), reply)
        return {Form.FULL: "shown in full", Form.CLIPPED: "shown clipped", Form.FOLDED: "shown as a stub"}[form]
    line = view.index.find(seq)
    return f"index: {line.text.removeprefix('- ')}" if line else "not part of the view"
