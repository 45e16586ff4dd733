"""The sessions before one that it may reach: their subjects, and what the user asked for once and
for all.

This is read from the log once, before the first request, and recorded in an event; the view and
everything that rebuilds it take it from there. It costs about a tenth of a millisecond for each
turn that is read, and the number of those is bounded: older sessions keep their seqs and dates and
have no terms.

The facts read from a session are noted beside the search index and used as long as the session has
not grown and nothing was erased. Two files hold them: one has what every first request needs, the
other the counts of words, by which topics are chosen. A topic sets its session apart from all
others, so each new session may change the topic of every one. It is chosen again when its own
session has grown, when there are more sessions just behind it, or when all sessions together have
grown or shrunk by a tenth (GROWTH); a few more are chosen again each time, the oldest first.
Without notes all topics are chosen again.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence, Set
from operator import itemgetter
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EarlierWork, Topic
from scroll_context.events import EVERYTHING, Event, Grant
from scroll_context.log.log import EventLog, SessionInfo
from scroll_context.log.times import misdated
from scroll_context.search.search import SearchIndex
from scroll_context.text.stance import Statement, statements
from scroll_context.text.terms import (
    NEIGHBOURS,
    CountedTerms,
    SummedTerms,
    TermTable,
    counted_terms,
    title,
)
from scroll_context.view.eviction import Budget
from scroll_context.view.index import outline
from scroll_context.view.standing import chosen_statements, standing_limit
from scroll_context.work import check as check_work

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
# A topic is chosen again when the turns of all sessions have grown or shrunk by this share.
GROWTH = 0.1
# The oldest topics, as many as this, are chosen again with every new session. So no request has to
# choose hundreds at once because the last tenth was reached.
RENEWED = 10
# To be raised when anything changes that notes are made by, here or in text/.
NOTES_VERSION = 4

# The last seq of a session within reach, the chain value there, and how many events there are.
_Last = tuple[int, bytes, int]


class _Chosen(msgspec.Struct, frozen=True, array_like=True):
    """The topic of one session, and what it was chosen among."""

    title: str
    terms: tuple[str, ...]
    # Turns of all sessions.
    among: int
    # Sessions behind this one, of those that are compared as neighbours.
    behind: int


class _Notes(msgspec.Struct, frozen=True, array_like=True):
    """The facts read from one session, valid until something is added to it."""

    last: _Last
    turns: int
    # The turns, when they are few.
    texts: tuple[str, ...]
    # The statements that bind later work, with their seqs.
    stated: tuple[tuple[int, Statement], ...]
    chosen: _Chosen | None = None


class _NotesFile(msgspec.Struct, frozen=True, array_like=True):
    """Notes on the sessions within one grant."""

    version: int
    # The seq of the newest erasure.
    erased: int
    sessions: dict[str, _Notes]


class _CountsFile(msgspec.Struct, frozen=True, array_like=True):
    """The counts of words in the sessions within one grant."""

    version: int
    erased: int
    # CountedTerms by session. Few of them are read, so they are decoded when they are needed.
    sessions: dict[str, tuple[_Last, msgspec.Raw]]
    # All of them together.
    sums: SummedTerms


_File = TypeVar("_File", _NotesFile, _CountsFile)


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

    With an index, notes on the sessions are kept beside it, so that only new events are read.
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


def note_sessions(log: EventLog, index: SearchIndex, grant: Grant = EVERYTHING) -> None:
    """Make the notes on all sessions within a grant, so that no request has to.

    Notes on everything serve any other grant that has none of its own.
    """
    _, newest = _split(log.sessions(grant), MOST_EVENTS)
    _SessionReader(log, grant, newest, index)


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
        self._index = index
        self._erased = log.newest_erasure()
        stored = self._stored_notes({info.session_id for info in sessions})
        chains = log.column("chain", [info.last_seq for info in sessions])
        self._notes: dict[str, _Notes] = {}
        # The counts of sessions that were read now.
        self._counted: dict[str, CountedTerms] = {}
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
            check_work()
            texts = _counted_texts(turns[info.session_id])
            self._notes[info.session_id] = _note(last, turns[info.session_id], texts)
            self._counted[info.session_id] = counted_terms(texts)
        # Sessions in which the user said something.
        self._spoken = [info for info in sessions if self._notes[info.session_id].turns]
        if self._choose_topics() or changed:
            self._store("earlier", _NotesFile(NOTES_VERSION, self._erased, self._notes))

    def topics(self) -> list[Topic]:
        """The topics of the sessions; sessions without user messages have none."""
        topics = []
        for info in self._spoken:
            notes = self._notes[info.session_id]
            assert notes.chosen is not None
            topics.append(_topic(info, notes.turns, notes.chosen.title, notes.chosen.terms))
        return topics

    def _choose_topics(self) -> bool:
        """Choose the topics that are new or outdated; whether there are any."""
        total = sum(self._notes[info.session_id].turns for info in self._spoken)
        behind = [min(NEIGHBOURS, count) for count in range(len(self._spoken))][::-1]
        numbers = []
        # The topics that may stay, with the turns by which the others have grown or shrunk since.
        older = []
        for number, info in enumerate(self._spoken):
            chosen = self._notes[info.session_id].chosen
            if chosen is None or chosen.behind != behind[number]:
                numbers.append(number)
                continue
            drift = abs(total - chosen.among)
            if drift > GROWTH * chosen.among:
                numbers.append(number)
            elif drift:
                older.append((-drift, number))
        if not numbers:
            return False
        most = min(RENEWED, len(self._spoken) // 8)
        numbers += [number for _, number in sorted(older)[:most]]
        table = self._table(numbers)
        for number in numbers:
            check_work()
            info = self._spoken[number]
            notes = self._notes[info.session_id]
            terms = table.terms(number)[:SESSION_TERMS]
            says_little = notes.turns <= FEW_TURNS or len(terms) < 2
            name = title(self._texts(info), terms) if says_little else ""
            chosen = _Chosen(name, terms, total, behind[number])
            self._notes[info.session_id] = replace(notes, chosen=chosen)
        return True

    def _table(self, numbers: Sequence[int]) -> TermTable:
        """A table with the counts of these sessions and of their neighbours."""
        file = self._stored("counts", _CountsFile)
        counts = _Counts(file or self._stored("counts", _CountsFile, EVERYTHING))
        missing = []
        for info in self._spoken:
            if not counts.has(info, self._notes[info.session_id].last):
                missing.append(info)
        uncounted = [info for info in missing if info.session_id not in self._counted]
        turns = self._turns(uncounted)
        for info in uncounted:
            texts = _counted_texts(turns[info.session_id])
            self._counted[info.session_id] = counted_terms(texts)
        if counts.update(self._spoken, self._notes, self._counted):
            self._store("counts", counts.file(self._erased))
        *closed, newest = self._spoken
        sessions: dict[int, CountedTerms] = {}
        for number in numbers:
            for near in range(max(0, number - NEIGHBOURS), number + NEIGHBOURS + 1):
                if near < len(closed) and near not in sessions:
                    sessions[near] = counts.of(closed[near])
        sums = counts.sums
        # The newest session may still grow, and is not counted among the closed ones.
        sums.remove(counts.of(newest))
        table = TermTable.over(sums, sessions, len(closed))
        table.add(self._texts(newest))
        return table

    def _stored_notes(self, sessions: Set[str]) -> dict[str, _Notes]:
        """The notes on sessions, those within this grant or else those on everything.

        An entry is only used if it names the last seq and the number of events that are within
        reach, so it was made from the same events.
        """
        file = self._stored("earlier", _NotesFile)
        if file is not None:
            return file.sessions
        file = self._stored("earlier", _NotesFile, EVERYTHING)
        if file is None:
            return {}
        if sessions == file.sessions.keys():
            return file.sessions
        # Topics that were chosen among other sessions must not tell anything about those.
        return {name: replace(notes, chosen=None) for name, notes in file.sessions.items()}

    def _stored(self, kind: str, layout: type[_File], grant: Grant | None = None) -> _File | None:
        """A file of notes; None if there is none that is valid."""
        name = _file_name(kind, self._grant if grant is None else grant)
        data = None if self._index is None else self._index.notes(name)
        if data is None:
            return None
        try:
            file = msgspec.msgpack.decode(data, type=layout)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # It is damaged, or of another version.
            return None
        is_valid = (file.version, file.erased) == (NOTES_VERSION, self._erased)
        return file if is_valid else None

    def _store(self, kind: str, file: _NotesFile | _CountsFile) -> None:
        if self._index is not None:
            log, erased = self._log, self._erased
            data = msgspec.msgpack.encode(file)
            name = _file_name(kind, self._grant)
            self._index.keep_notes(name, data, lambda: log.newest_erasure() == erased)

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


def _file_name(kind: str, grant: Grant) -> str:
    return f"{kind}-{hashlib.sha256(repr(grant).encode()).hexdigest()[:16]}"


class _Counts:
    """The counts of all sessions: those that are stored, and those of sessions that changed."""

    def __init__(self, stored: _CountsFile | None) -> None:
        self._sessions = stored.sessions if stored is not None else {}
        self.sums = stored.sums if stored is not None else SummedTerms()

    def has(self, info: SessionInfo, last: _Last) -> bool:
        counts = self._sessions.get(info.session_id)
        return counts is not None and counts[0] == last

    def of(self, info: SessionInfo) -> CountedTerms:
        return _decoded(self._sessions[info.session_id][1])

    def update(
        self,
        sessions: Sequence[SessionInfo],
        notes: Mapping[str, _Notes],
        counted: Mapping[str, CountedTerms],
    ) -> bool:
        """Have the counts of these sessions and of no others; whether that changed anything."""
        outdated = set(self._sessions)
        new = []
        for info in sessions:
            if self.has(info, notes[info.session_id].last):
                outdated.discard(info.session_id)
            else:
                new.append(info.session_id)
        for session_id in outdated:
            self.sums.remove(_decoded(self._sessions.pop(session_id)[1]))
        for session_id in new:
            data = msgspec.Raw(msgspec.msgpack.encode(counted[session_id]))
            self._sessions[session_id] = (notes[session_id].last, data)
            self.sums.add(counted[session_id])
        return bool(outdated or new)

    def file(self, erased: int) -> _CountsFile:
        return _CountsFile(NOTES_VERSION, erased, self._sessions, self.sums)


def _decoded(data: msgspec.Raw) -> CountedTerms:
    return msgspec.msgpack.decode(data, type=CountedTerms)


def _note(last: _Last, turns: Sequence[Event], texts: tuple[str, ...]) -> _Notes:
    stated = [(turn.seq, statement) for turn in turns for statement in statements(turn.content)]
    few = texts if len(turns) <= FEW_TURNS else ()
    return _Notes(last, len(turns), few, tuple(stated))


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
