"""What the log knows of a session before it goes on: its past, its settings, and what a crash left open.

The past of a session is its own events after those that it inherited by being forked. Settings are recorded when a
session is opened and hold for every resume that does not name others. Only events that were recorded here count:
imported ones are text to read, so an imported fork names no parent, and an imported setting widens nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scroll_context.events import Event, Kind
from scroll_context.store.journal import Journal
from scroll_context.store.store import Store
from scroll_context.surface.toolbox import settle

CUT_OFF = (
    "[the process ended while this cell was running. What it printed and bound is lost, unless a line above says "
    "otherwise; the calls that it had made are in the log.]"
)


def lineage(store: Store, session_id: str, upto: int | None = None) -> Iterator[Event]:
    """The events of a session, after those that it inherited by being forked."""
    own = store.log.iterate(session_id=session_id, until=upto)
    first = next(own, None)
    if first is None:
        return
    if origin := forked_from(store, first):
        yield from lineage(store, *origin)
        yield from _late_snapshot(store, *origin, first.seq)
    yield first
    yield from own


def forked_from(store: Store, event: Event) -> tuple[str, int] | None:
    """The session that a fork continues, and its last seq there; None for anything else.

    A fork stays with its agent: an event that names the session of another one is no fork.
    """
    if event.kind != Kind.FORK or event.is_foreign:
        return None
    parent, at = event.metadata.get("session_id"), event.metadata.get("at_seq")
    if not isinstance(parent, str) or not isinstance(at, int) or not 0 < at < event.seq:
        return None
    found = store.log.get_many([at])
    if not found or found[0].session_id != parent or found[0].agent_id != event.agent_id:
        return None
    return parent, at


def _late_snapshot(store: Store, session_id: str, at: int, before: int) -> Iterator[Event]:
    """The snapshot of the last cell up to a seq, if it came after it: variables are saved while the log goes on."""
    late = next(store.log.iterate(after=at, until=before, session_id=session_id, kind=Kind.SNAPSHOT), None)
    if late is not None and late.reply_to is not None:
        ended = store.log.iterate(after=late.reply_to, until=at, session_id=session_id, kind=Kind.OBSERVATION)
        if any(event.reply_to == late.reply_to for event in ended):
            yield late


def recorded_settings(store: Store, session_id: str, upto: int | None = None) -> dict[str, Any]:
    """The settings that a session last worked under, by itself or before it was forked; empty where none are known."""
    found: dict[str, Any] = {}
    kinds = [Kind.SESSION, Kind.FORK]
    for event in reversed(list(store.log.iterate(session_id=session_id, until=upto, kind=kinds))):
        if origin := forked_from(store, event):
            return recorded_settings(store, *origin) | found
        if not event.is_foreign:
            named = event.metadata.get("settings")
            found = (named if isinstance(named, dict) else {}) | found
            if isinstance(context := event.metadata.get("context"), str):
                found.setdefault("context", context)  # sessions of earlier versions name nothing else
    return found


def snapshots_of(events: Iterable[Event]) -> list[Event]:
    """The snapshots to restore. What an import brought is never unpickled, not even inside a jail."""
    return [event for event in events if event.kind == Kind.SNAPSHOT and not (event.is_foreign or event.is_erased)]


def bound_since(events: Iterable[Event], snapshots: Sequence[Event]) -> list[str]:
    """The variables bound by cells that the newest snapshot does not include."""
    saved = (snapshots[-1].reply_to or 0) if snapshots else 0
    names: dict[str, None] = {}
    for event in events:
        if event.kind == Kind.OBSERVATION and not event.is_foreign and (event.reply_to or 0) > saved:
            names.update(dict.fromkeys(name for name in event.metadata.get("bound", ()) if str(name).isidentifier()))
    return list(names)


def close_open_work(journal: Journal) -> list[str]:
    """End what a crash left open, before the view is rebuilt; returns what the model should know about it.

    A cell without an observation and a tool call without a result were under way when the process ended. Each gets an
    ending that says so, so a resumed view has no loose ends, and nothing that may have had effects is done again
    without being reported.
    """
    told = [
        f"The call {call.name} (seq {call.seq}) had not returned when the process ended."
        + (
            " It has effects: find out whether they happened before you call it again."
            if "effects" in call.metadata
            else ""
        )
        for call in settle(journal)
    ]
    rows = journal.log.query(
        """SELECT seq FROM event WHERE session_id = :session AND kind = :cell AND seq NOT IN (SELECT reply_to
        FROM event WHERE session_id = :session AND kind = :end AND reply_to IS NOT NULL) ORDER BY seq""",
        {"session": journal.session_id, "cell": str(Kind.CELL), "end": str(Kind.OBSERVATION)},
    )
    for cell in journal.log.get_many([row[0] for row in rows]):
        if cell.is_foreign:
            continue
        journal.append(
            journal.draft(
                Kind.OBSERVATION, role="tool", name=cell.name, tool_call_id=cell.tool_call_id, reply_to=cell.seq,
                content=CUT_OFF, tool_state="killed", metadata={"echo": True},
            )
        )  # fmt: skip
        told.append(f"The cell at seq {cell.seq} was running when the process ended.")
    return told
