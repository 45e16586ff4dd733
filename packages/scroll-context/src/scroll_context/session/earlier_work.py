"""The sessions before one that it may reach: their subjects, and what the user asked for once and
for all.

This is read from the log once, before the first request, and recorded in an event; the view and
everything that rebuilds it take it from there. It costs about a tenth of a millisecond for each
turn that is read, and the number of those is bounded: older sessions keep their seqs and dates and
have no terms. The facts read from a session are noted beside the search index and used as long as
the session has not grown and nothing was erased. Without the notes the result is the same, only
later.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EarlierWork, Topic
from scroll_context.events import Event, Grant
from scroll_context.log.log import EventLog, SessionInfo
from scroll_context.search.search import SearchIndex
from scroll_context.text.dates import misdated
from scroll_context.text.stance import Statement, statements
from scroll_context.text.terms import CountedTerms, TermTable, counted_terms, title
from scroll_context.view.eviction import Budget
from scroll_context.view.index import outline
from scroll_context.view.standing import chosen_statements, standing_limit

# Events of the newest sessions that are read.
MOST_EVENTS = 40_000
# Turns of a session, spread over it, whose words are counted.
TURNS = 96
# Characters of a turn that are counted.
TURN_CHARS = 2_000
# More terms find a session less often by the words of a question (26 chats of BEAM, 461 questions).
SESSION_TERMS = 4
# Up to this many turns, a title says more than terms.
FEW_TURNS = 3
OUTLINE_TOKENS = 4_000
# Up to this many sessions, their turns are read one session after the other.
FEW_SESSIONS = 20
# To be raised when anything changes that notes are made by, here or in text/.
NOTES_VERSION = 3


class _Notes(msgspec.Struct, frozen=True, array_like=True):
    """The facts read from one session, valid until something is added to it."""

    # The last seq within reach, the chain value there, and how many events there are.
    last: tuple[int, bytes, int]
    turns: int
    # The turns, when they are few.
    texts: tuple[str, ...]
    counted: CountedTerms
    # The statements that bind later work, with their seqs.
    stated: tuple[tuple[int, Statement], ...]


class _NotesFile(msgspec.Struct, frozen=True, array_like=True):
    """Notes on the sessions within one grant."""

    version: int
    # The seq of the newest erasure.
    erased: int
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

    With an index, notes on the sessions are kept beside it, so that only new events are read. They
    change nothing but the time that it takes.
    """
    everything = log.sessions(grant)
    numbers = {info.session_id: number for number, info in enumerate(everything, 1)}
    sessions = [info for info in everything if info.session_id != session_id]
    unread, newest = _split(sessions, most_events)
    reader = _SessionReader(log, grant, newest, index)
    topics = [_topic(info, info.events, "", ()) for info in unread] + reader.topics()
    by_start = {info.first_seq: numbers[info.session_id] for info in sessions}
    suspect = misdated([info.first_at for info in sessions])
    doubtful = {sessions[place].first_seq for place in suspect}
    topics = [_placed(topic, by_start, doubtful) for topic in topics]
    room = min(OUTLINE_TOKENS, int(budget.window * budget.index_share / 2))
    standing, unlisted = chosen_statements(reader.statements(), standing_limit(budget.window))
    return EarlierWork(outline(topics, room) if topics else (), standing, unlisted)


def _split(
    sessions: Sequence[SessionInfo], most_events: int
) -> tuple[Sequence[SessionInfo], Sequence[SessionInfo]]:
    """The older sessions, and the newest ones that have at most so many events together."""
    place, events = len(sessions), 0
    while place:
        events += sessions[place - 1].events
        if events > most_events:
            break
        place -= 1
    return sessions[:place], sessions[place:]


class _SessionReader:
    """Reads sessions from notes, or from the log."""

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
        stored = _decoded(index.notes(name) if index else None, erased)
        chains = log.column("chain", [info.last_seq for info in sessions])
        self._notes: dict[str, _Notes] = {}
        changed = []
        for info in sessions:
            last = (info.last_seq, chains[info.last_seq], info.events)
            notes = stored.get(info.session_id)
            if notes is not None and notes.last == last:
                self._notes[info.session_id] = notes
            else:
                changed.append((info, last))
        turns = self._turns([info for info, _ in changed])
        for info, last in changed:
            self._notes[info.session_id] = _note(last, turns[info.session_id])
        # Sessions in which the user said something.
        self._spoken = [info for info in sessions if self._notes[info.session_id].turns]
        if index is not None and changed:
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
        pairs: list[tuple[int, Statement]] = []
        for notes in self._notes.values():
            pairs += notes.stated
        return sorted(pairs, key=itemgetter(0))

    def _texts(self, info: SessionInfo) -> Sequence[str]:
        """The turns of a session that are counted."""
        notes = self._notes[info.session_id]
        return notes.texts or _counted_texts(self._turns([info])[info.session_id])

    def _turns(self, sessions: Sequence[SessionInfo]) -> dict[str, list[Event]]:
        """The turns of the user in some sessions."""
        turns: dict[str, list[Event]] = {info.session_id: [] for info in sessions}
        if not sessions:
            return turns
        events = self._log.iterate(
            after=min(info.first_seq for info in sessions) - 1,
            until=max(info.last_seq for info in sessions),
            grant=self._grant,
            role="user",
            session_id=list(turns) if len(turns) <= FEW_SESSIONS else None,
        )
        for event in events:
            if event.session_id in turns and event.is_searchable and event.content.strip():
                turns[event.session_id].append(event)
        return turns


def _decoded(data: bytes | None, erased: int) -> dict[str, _Notes]:
    """The notes in a file; none if it is of another version, or older than an erasure."""
    if data is None:
        return {}
    try:
        file = msgspec.msgpack.decode(data, type=_NotesFile)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # It is damaged, or of another version.
        return {}
    is_valid = (file.version, file.erased) == (NOTES_VERSION, erased)
    return file.sessions if is_valid else {}


def _note(last: tuple[int, bytes, int], turns: Sequence[Event]) -> _Notes:
    texts = _counted_texts(turns)
    stated = [(turn.seq, statement) for turn in turns for statement in statements(turn.content)]
    few = texts if len(turns) <= FEW_TURNS else ()
    return _Notes(last, len(turns), few, counted_terms(texts), tuple(stated))


def _topic(info: SessionInfo, turns: int, name: str, terms: tuple[str, ...]) -> Topic:
    spans = ((info.first_seq, info.last_seq),)
    return Topic(spans, turns, 1, info.first_at[:10], info.last_at[:10], name, terms)


def _placed(topic: Topic, numbers: Mapping[int, int], doubtful: Collection[int]) -> Topic:
    """The topic of one session with its number, and whether its date is doubtful."""
    start = topic.spans[0][0]
    number = numbers[start]
    return replace(topic, numbers=(number, number), is_misdated=start in doubtful)


def _counted_texts(turns: Sequence[Event]) -> tuple[str, ...]:
    """As many of the turns as are counted, evenly over all of them."""
    step = max(1.0, len(turns) / TURNS)
    return tuple(turns[int(n * step)].content[:TURN_CHARS] for n in range(min(TURNS, len(turns))))
