"""The past of a session: its own events, and the sessions before it that it may reach.

The events of a session are its own after those that it inherited by being forked. Settings are
recorded when a session is opened and hold for every resume that does not name others. Only events
that were recorded here count: imported ones are text to read, so an imported fork names no parent,
and an imported setting widens nothing.

`earlier_work` says what the other sessions within reach were about and what the user asked for once
and for all. It is read from the log once, before the first request, and recorded in an event; the
view and everything that rebuilds it take it from there. It costs about a tenth of a millisecond for
each turn that is read, and the number of those is bounded: what is older keeps its seqs and dates
and has no terms. What was read of a session is noted beside the search index and used as long as
the session has not grown and nothing was erased; without the notes the same is found, only later.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EarlierWork, Topic, well_formed
from scroll_context.events import Event, Grant, Kind
from scroll_context.log.log import EventLog, SessionInfo
from scroll_context.search.search import SearchIndex
from scroll_context.store import Store
from scroll_context.text.dates import misdated
from scroll_context.text.stance import Statement, statements
from scroll_context.text.terms import CountedTerms, TermTable, counted_terms, title
from scroll_context.view.eviction import Budget
from scroll_context.view.index import outline
from scroll_context.view.standing import chosen_statements, standing_limit


class Segment(NamedTuple):
    """A session, or the part of one that a fork inherits."""

    session_id: str
    until: int | None  # its last seq that counts; None for all of it
    fork: int = 0  # seq of the event with which the next segment continues it


def segments(store: Store, session_id: str) -> list[Segment]:
    """The sessions that one continues, oldest first, and itself."""
    found = [Segment(session_id, None)]
    while (first := next(store.log.iterate(session_id=found[0].session_id), None)) is not None:
        origin = forked_from(store, first)
        if origin is None:
            break
        found.insert(0, Segment(*origin, first.seq))
    return found


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
    found = store.log.get_many([at])
    if not found or found[0].session_id != parent or found[0].agent_id != event.agent_id:
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


# the sessions before it -------------------------------------------------------------------------

MOST_EVENTS = 40_000  # of the newest sessions that are read
TURNS = 96  # of a session, spread over it, whose words are counted
TURN_CHARS = 2_000  # of a turn
# more of them find a session less often by the words of a question (26 chats of BEAM, 461
# questions)
SESSION_TERMS = 4
FEW_TURNS = 3  # up to which a title tells more than terms
OUTLINE_TOKENS = 4_000
FEW_SESSIONS = 20  # up to which their turns are read one session after the other
NOTES_VERSION = 3  # to be raised when anything changes that notes are made by, here or in text/


class _Notes(msgspec.Struct, frozen=True, array_like=True):
    """The data read from one session, valid until something is added to it."""

    last: tuple[
        int, bytes, int
    ]  # the last seq within reach, the chain value there, and how many events there are
    turns: int
    texts: tuple[str, ...]  # the turns, when they are few
    counted: CountedTerms
    stated: tuple[tuple[int, Statement], ...]  # what binds later work, with its seq


class _NotesFile(msgspec.Struct, frozen=True, array_like=True):
    """Notes on the sessions within one grant."""

    version: int
    erased: int  # seq of the newest erasure
    sessions: dict[str, _Notes]


def earlier_work(
    log: EventLog,
    grant: Grant,
    session_id: str,
    budget: Budget,
    *,
    index: SearchIndex | None = None,
    most_events: int = MOST_EVENTS,
) -> EarlierWork:
    """The sessions within a grant but this one, and the standing instructions of the user in them.

    With an index, notes on the sessions are kept beside it, so that only what is new is read. They
    change nothing but the time that it takes.
    """
    everything = log.sessions(grant)
    numbers = {info.session_id: number for number, info in enumerate(everything, 1)}
    sessions = [info for info in everything if info.session_id != session_id]
    suspect = misdated([info.first_at for info in sessions])
    doubtful = {sessions[place].first_seq for place in suspect}
    read, events = len(sessions), 0
    while read and (events := events + sessions[read - 1].events) <= most_events:
        read -= 1
    told = _Told(log, grant, sessions[read:], index)
    topics = [_topic(info, info.events, "", ()) for info in sessions[:read]] + told.topics()
    by_start = {info.first_seq: numbers[info.session_id] for info in sessions}
    topics = [_placed(topic, by_start, doubtful) for topic in topics]
    room = min(OUTLINE_TOKENS, int(budget.window * budget.index_share / 2))
    standing, unlisted = chosen_statements(told.statements(), standing_limit(budget.window))
    return EarlierWork(outline(topics, room) if topics else (), standing, unlisted)


class _Told:
    """The sessions that are read: from notes, or from the log."""

    def __init__(
        self,
        log: EventLog,
        grant: Grant,
        sessions: Sequence[SessionInfo],
        index: SearchIndex | None,
    ) -> None:
        self._log = log
        self._grant = grant
        erased = log.newest_erasure()
        name = f"earlier-{hashlib.sha256(repr(grant).encode()).hexdigest()[:16]}"
        kept = _read_notes(index.notes(name) if index else None, erased)
        chains = log.column("chain", [info.last_seq for info in sessions])
        self._notes: dict[str, _Notes] = {}
        new = []
        for info in sessions:
            last = (info.last_seq, chains[info.last_seq], info.events)
            known = kept.get(info.session_id)
            if known is not None and known.last == last:
                self._notes[info.session_id] = known
            else:
                new.append((info, last))
        said = self._said([info for info, _ in new])
        for info, last in new:
            self._notes[info.session_id] = _note(last, said[info.session_id])
        self._spoken = [info for info in sessions if self._notes[info.session_id].turns]
        if index is not None and new:
            data = msgspec.msgpack.encode(_NotesFile(NOTES_VERSION, erased, self._notes))
            index.keep_notes(name, data, lambda: log.newest_erasure() == erased)

    def topics(self) -> list[Topic]:
        """The topics of the sessions; sessions without user messages have none."""
        table = TermTable()
        for info in self._spoken[:-1]:
            table.add_counted(self._notes[info.session_id].counted)
        for info in self._spoken[-1:]:
            table.add(self._texts(info))
        topics = []
        for number, info in enumerate(self._spoken):
            notes = self._notes[info.session_id]
            terms = table.terms(number)[:SESSION_TERMS]
            says_little = notes.turns <= FEW_TURNS or len(terms) < 2
            name = title(self._texts(info), terms) if says_little else ""
            topics.append(_topic(info, notes.turns, name, terms))
        return topics

    def statements(self) -> list[tuple[int, Statement]]:
        """The instructions, preferences and decisions of the user with their seqs, in order."""
        stated: list[tuple[int, Statement]] = []
        for notes in self._notes.values():
            stated += notes.stated
        return sorted(stated, key=itemgetter(0))

    def _texts(self, info: SessionInfo) -> Sequence[str]:
        """The turns of a session that are counted."""
        notes = self._notes[info.session_id]
        return notes.texts or _counted(self._said([info])[info.session_id])

    def _said(self, sessions: Sequence[SessionInfo]) -> dict[str, list[Event]]:
        """The turns of the user in some sessions."""
        said: dict[str, list[Event]] = {info.session_id: [] for info in sessions}
        if sessions:
            first, last = (
                min(info.first_seq for info in sessions),
                max(info.last_seq for info in sessions),
            )
            named = list(said) if len(said) <= FEW_SESSIONS else None
            for event in self._log.iterate(
                after=first - 1, until=last, grant=self._grant, role="user", session_id=named
            ):
                if event.session_id in said and event.is_searchable and event.content.strip():
                    said[event.session_id].append(event)
        return said


def _read_notes(data: bytes | None, erased: int) -> dict[str, _Notes]:
    try:
        found = msgspec.msgpack.decode(data, type=_NotesFile) if data else None
    except (msgspec.MsgspecError, UnicodeDecodeError):  # damaged, or of another version
        return {}
    is_valid = found is not None and (found.version, found.erased) == (NOTES_VERSION, erased)
    return found.sessions if found is not None and is_valid else {}


def _note(last: tuple[int, bytes, int], said: Sequence[Event]) -> _Notes:
    texts = _counted(said)
    stated = tuple(
        (event.seq, statement) for event in said for statement in statements(event.content)
    )
    return _Notes(
        last, len(said), texts if len(said) <= FEW_TURNS else (), counted_terms(texts), stated
    )


def _topic(info: SessionInfo, turns: int, name: str, terms: tuple[str, ...]) -> Topic:
    spans = ((info.first_seq, info.last_seq),)
    return Topic(spans, turns, 1, info.first_at[:10], info.last_at[:10], name, terms)


def _placed(topic: Topic, numbers: Mapping[int, int], doubtful: Collection[int]) -> Topic:
    """The topic of one session with its number, and whether its date is doubtful."""
    start = topic.spans[0][0]
    number = numbers[start]
    return replace(topic, numbers=(number, number), is_misdated=start in doubtful)


def _counted(said: Sequence[Event]) -> tuple[str, ...]:
    """As many of the turns as are counted, evenly over all of them."""
    step = max(1.0, len(said) / TURNS)
    return tuple(said[int(n * step)].content[:TURN_CHARS] for n in range(min(TURNS, len(said))))
