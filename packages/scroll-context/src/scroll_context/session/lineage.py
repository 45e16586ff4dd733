"""The events of a session: its own, after those that it inherited by being forked.

Only events that were recorded here count. Imported ones are text to read, so an imported fork names
no parent, and an imported setting widens nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from scroll_context.contents import well_formed
from scroll_context.events import Event, Kind
from scroll_context.store import Store


class Segment(NamedTuple):
    """A session, or the part of one that a fork inherits."""

    session_id: str
    # The last seq that counts; None for the complete session.
    until: int | None
    # The seq of the event with which the next segment continues it.
    fork: int = 0


def segments(store: Store, session_id: str) -> list[Segment]:
    """The sessions that one continues, oldest first, and itself."""
    chain = [Segment(session_id, None)]
    while True:
        first = next(store.log.iterate(session_id=chain[0].session_id), None)
        origin = forked_from(store, first) if first is not None else None
        if first is None or origin is None:
            return chain
        chain.insert(0, Segment(*origin, first.seq))


def lineage(store: Store, session_id: str) -> Iterator[Event]:
    """The events of a session, after those that it inherited by being forked."""
    for segment in segments(store, session_id):
        yield from map(
            well_formed, store.log.iterate(session_id=segment.session_id, until=segment.until)
        )
        if segment.until is not None:
            yield from _late_snapshot(store, segment.session_id, segment.until, segment.fork)


def forked_from(store: Store, event: Event) -> tuple[str, int] | None:
    """The session that a fork continues, and its last seq there; None for anything else.

    A fork stays with its agent: an event that names the session of another one is no fork.
    """
    if event.kind != Kind.FORK or event.is_foreign:
        return None
    parent, at = event.metadata.get("session_id"), event.metadata.get("at_seq")
    if not isinstance(parent, str) or not isinstance(at, int) or not 0 < at < event.seq:
        return None
    last = next(iter(store.log.get_many([at])), None)
    if last is None or last.session_id != parent or last.agent_id != event.agent_id:
        return None
    return parent, at


def _late_snapshot(store: Store, session_id: str, at: int, before: int) -> Iterator[Event]:
    """The snapshot of the last cell up to a seq, if it came after it: variables are saved while the
    log goes on.
    """
    late = next(
        store.log.iterate(after=at, until=before, session_id=session_id, kind=Kind.SNAPSHOT), None
    )
    if late is not None and late.reply_to is not None:
        ended = store.log.iterate(
            after=late.reply_to, until=at, session_id=session_id, kind=Kind.OBSERVATION
        )
        if any(event.reply_to == late.reply_to for event in ended):
            yield late
