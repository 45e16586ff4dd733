"""A stretch of history in short: sessions (outline), turns, and an extract (gist)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Event
from scroll_context.log.filters import SearchFilters
from scroll_context.log.log import SessionInfo
from scroll_context.origin import Origin
from scroll_context.recall.arguments import bounds, moment, text_of, texts, whole_number
from scroll_context.recall.mentions import subject_of
from scroll_context.recall.reader import Reader, between
from scroll_context.recall.rows import Answer, Row, event_row
from scroll_context.text.dates import misdated
from scroll_context.text.gist import READ as GIST_READ
from scroll_context.text.gist import gist
from scroll_context.text.similar import content_stems
from scroll_context.text.terms import TermTable, distinctive, title
from scroll_context.text.words import clip
from scroll_context.work import check as check_work

# Rows of one turns().
MOST_TURNS = 2_000
# Characters of one turns().
MOST_CHARS = 4_000_000
# Characters of one gist().
MOST_GIST = 30_000
# Turns that one gist() reads, spread evenly if there are more.
MOST_READ = 20_000
# Characters of a turn that a gist for a query shows: the more turns, the more evidence is there.
TURN_CHARS = 110
# Turns that a title is made from, characters of each that are read, characters of a title.
TITLE_TURNS, TITLE_FROM, TITLE_CHARS = 6, 2_000, 60
# Events that describe a session without a user.
UNSPOKEN_EVENTS = 40

FOREIGN_WORDS = (
    "The user of this store said nothing there: these are words of others, from an imported file."
)


class Topics(msgspec.Struct, frozen=True):
    """The subject of a session."""

    turns: int
    terms: tuple[str, ...]
    title: str


class OverviewMethods:
    """The methods of `ms` that show a stretch in short."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._topics = SessionTopics()
        # The newest erasure that the topics know of.
        self._erasure = 0

    # outline --------------------------------------------------------------------------------------

    def outline(
        self, created_from: Any = None, created_to: Any = None, query: Any = None
    ) -> Answer:
        """One row per session: number, id, dates, seqs, turns, distinctive terms, title; hits of a
        query.
        """
        sessions = self._reader.sessions()
        try:
            first = None if created_from is None else moment(created_from, upper=False)
            last = None if created_to is None else moment(created_to, upper=True)
        except BadInput as error:
            raise BadInput(f"{error}. For a subject write ms.outline(query=...)") from error
        suspect = misdated([info.first_at for _, info in sessions])
        notes = []
        hits: Counter[str] = Counter()
        if query is not None:
            subject = subject_of(self._reader, query)
            sessions_of = self._reader.log.column("session_id", list(subject.seqs))
            hits.update(sessions_of.values())
            notes.append(subject.note)
        topics_by_session = self._known_topics()
        rows: list[Row] = []
        for at, (number, info) in enumerate(sessions):
            if (first and info.last_at < first) or (last and info.first_at[: len(last)] > last):
                continue
            if query is not None and not hits[info.session_id]:
                continue
            topics = topics_by_session.get(info.session_id)
            if topics is None and info.session_id != self._reader.scope.session_id:
                topics = self._unspoken(info)
            if topics is None:
                continue
            row = _session_row(number, info, topics)
            if info.session_id in self._topics.imported:
                row["imported"] = self._topics.imported[info.session_id]
            if query is not None:
                row["hits"] = hits[info.session_id]
            if at in suspect:
                row["misdated"] = suspect[at]
                notes.append(f"session {number} is {suspect[at]}")
            rows.append(row)
        notes.insert(0, "1 session" if len(rows) == 1 else f"{len(rows):,} sessions")
        seqs: list[int] = []
        for row in rows:
            seqs += row["seqs"]
        # Titles and terms are made of all turns of a session, which are too many to be named.
        return Answer(rows, "; ".join(notes), tuple(seqs), is_unknown=bool(rows))

    def _known_topics(self) -> dict[str, Topics]:
        """The subject of each session; nothing of erased events stays in memory."""
        erasure = self._reader.log.newest_erasure()
        if erasure != self._erasure:
            self._topics, self._erasure = SessionTopics(), erasure

        def turns(after: int, until: int) -> Iterator[Event]:
            return self._reader.turns(between(after, until))

        return self._topics.read(turns, self._reader.last_before_running())

    def _unspoken(self, info: SessionInfo) -> Topics | None:
        """The subject of a session without a user; None when there is nothing to show."""
        events = self._reader.log.iterate(grant=self._reader.grant, session_id=info.session_id)
        lines = []
        for _, event in zip(range(UNSPOKEN_EVENTS), events, strict=False):
            if event.is_searchable:
                lines.append(event.headline or event.content)
        if not lines:
            return None
        [terms] = distinctive([lines])
        return Topics(0, terms, title(lines, terms, TITLE_CHARS))

    # turns ----------------------------------------------------------------------------------------

    def turns(
        self, *place: Any, session_id: Any = None, role: Any = None, chars: Any = None
    ) -> Answer:
        """The turns of a session (by id, or by its number in the outline), or from one seq to
        another; with `chars`, only the beginning of each turn.
        """
        roles = None if role is None else texts(role, "role")
        most = None if chars is None else whole_number(chars, "chars", 1)
        if session_id is not None:
            place = (session_id,)
        if len(place) == 2:
            filters = SearchFilters.of(seq_range=bounds(place), role=roles)
        elif len(place) == 1:
            filters = SearchFilters.of(session_id=self._reader.session_id(place[0]), role=roles)
        else:
            raise BadInput(
                "ms.turns takes the id or the number of a session, or a first and a last seq"
            )
        rows: list[Row] = []
        room = MOST_CHARS
        for event in self._reader.spoken(filters):
            text = self._reader.text(event)
            if most is not None and len(text) > most:
                text = text[:most] + "…"
            room -= len(text)
            if len(rows) >= MOST_TURNS or room < 0:
                note = (
                    f"only the first {len(rows):,} turns are here: continue with "
                    f"ms.turns({event.seq}, …)"
                )
                return Answer(rows, note, truncated=True)
            rows.append(event_row(event, text))
        return Answer(rows, "" if rows else "nothing was said there within reach")

    # gist -----------------------------------------------------------------------------------------

    def gist(
        self,
        session_id: Any = None,
        seq_range: Any = None,
        query: Any = None,
        chars: Any = 6_000,
        role: Any = "user",
        created_from: Any = None,
        created_to: Any = None,
    ) -> Answer:
        """An extract that covers a stretch evenly: its most telling sentences, in order.

        Each row is the event of a sentence; the sentence is its `match`.
        """
        room = whole_number(chars, "chars", 200, MOST_GIST)
        selected = self._reader.filters(
            "ms.gist",
            {
                "session_id": session_id,
                "role": role,
                "seq_range": seq_range,
                "created_from": created_from,
                "created_to": created_to,
            },
        )
        if query is None:
            turns, remark = self._spread_turns(selected)
            extracts = gist(((turn.seq, turn.text) for turn in turns), room)
        else:
            turns, remark = self._best_turns(query, room // TURN_CHARS, selected)
            texts_of = ((turn.seq, turn.text) for turn in turns)
            extracts = gist(texts_of, room, content_stems(query), TURN_CHARS)
        seqs = [extract.seq for extract in extracts]
        events = {event.seq: event for event in self._reader.log.get_many(seqs, self._reader.grant)}
        rows = []
        for extract in extracts:
            if extract.seq in events:
                row = event_row(events[extract.seq], match=extract.text)
                if extract.repeats:
                    row["repeated"] = extract.repeats
                rows.append(row)
        sessions = len({turn.session_id for turn in turns})
        note = (
            f"{_count(len(rows), 'sentence')} of {_count(len(turns), 'turn')} in "
            f"{_count(sessions, 'session')}"
        )
        if query is not None:
            label = repr(clip(query, 60))
            note += f", the best for {label}; ms.timeline and ms.grep find every mention."
        return Answer(rows, f"{note} {remark}".rstrip())

    def _spread_turns(self, filters: SearchFilters) -> tuple[list["_Turn"], str]:
        """The turns to extract from, spread evenly, and a remark about whose words they are."""
        turns = self._spread_evenly(self._reader.spoken(filters))
        if turns or filters.role != ("user",):
            return turns, ""
        anybody = msgspec.structs.replace(filters, role=None)
        turns = self._spread_evenly(self._reader.turns(anybody))
        return turns, FOREIGN_WORDS if turns else ""

    def _spread_evenly(self, events: Iterator[Event]) -> list["_Turn"]:
        """A bounded number of turns: every one, or every second, fourth, eighth."""
        turns: list[_Turn] = []
        step = 1
        for number, event in enumerate(events):
            if number % step:
                continue
            turns.append(self._turn(event))
            if len(turns) > MOST_READ:
                turns = turns[::2]
                step *= 2
        return turns

    def _best_turns(
        self, query: Any, count: int, filters: SearchFilters
    ) -> tuple[list["_Turn"], str]:
        """The turns that search ranks best for a query, in order of seq, and the note of search."""
        hits = self._reader.store.index.search(
            text_of(query, "a query"),
            k=max(1, count),
            grant=self._reader.grant,
            exclude=self._reader.running_seqs(),
            filters=filters,
        )
        events = sorted((hit.event for hit in hits if hit.event.content), key=lambda e: e.seq)
        return [self._turn(event) for event in events], hits.note

    def _turn(self, event: Event) -> "_Turn":
        return _Turn(event.seq, event.session_id, self._reader.text(event)[:GIST_READ])


class _Turn(msgspec.Struct, frozen=True):
    """As much of a turn as an extract reads."""

    seq: int
    session_id: str
    text: str


def _session_row(number: int, info: SessionInfo, topics: Topics) -> Row:
    return {
        "n": number,
        "session_id": info.session_id,
        "from": info.first_at[:10],
        "to": info.last_at[:10],
        "seqs": [info.first_seq, info.last_seq],
        "turns": topics.turns,
        "terms": list(topics.terms),
        "title": topics.title,
    }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


ReadTurns = Callable[[int, int], Iterator[Event]]
"""The turns behind a seq and up to another."""


class SessionTopics:
    """The subject of each session, as far as it was read; new turns are counted on demand."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._upto = 0
        self._table = TermTable()
        self._numbers: dict[str, int] = {}
        self._counts: Counter[str] = Counter()
        # The turns that a title is made from.
        self._first: dict[str, list[str]] = {}
        self._terms: dict[str, tuple[str, ...]] = {}
        # The files of sessions in which somebody else may speak.
        self.imported: dict[str, str] = {}

    def read(self, turns: ReadTurns, upto: int) -> dict[str, Topics]:
        """The topics of each session in which a user spoke."""
        with self._lock:
            if upto < self._upto:
                self._forget()
            new = self._new(turns, self._upto, upto)
            newest = next(reversed(self._numbers), None)
            if any(session in self._numbers and session != newest for session in new):
                # An older session has new turns, and the table only extends its last entry.
                self._forget()
                new = self._new(turns, 0, upto)
            try:
                self._add(new)
            except BaseException:
                # Sessions that were counted already would be counted again.
                self._forget()
                raise
            self._upto = upto
            for session, number in self._numbers.items():
                if session not in self._terms:
                    check_work()
                    self._terms[session] = self._table.terms(number)
            topics = {}
            for session, terms in self._terms.items():
                check_work()
                name = title(self._first[session], terms, TITLE_CHARS)
                topics[session] = Topics(self._counts[session], terms, name)
            return topics

    def _add(self, new: Mapping[str, list[str]]) -> None:
        for session, lines in new.items():
            check_work()
            if session in self._numbers:
                self._table.extend(lines)
                self._terms.pop(session, None)
            else:
                self._numbers[session] = self._table.add(lines)
                # A new session changes what sets the others apart.
                self._terms.clear()
            self._counts[session] += len(lines)
            first = self._first.setdefault(session, [])
            first += [line[:TITLE_FROM] for line in lines[: TITLE_TURNS - len(first)]]

    def _new(self, turns: ReadTurns, after: int, until: int) -> dict[str, list[str]]:
        """The texts of turns that were not read yet, by session."""
        lines: dict[str, list[str]] = {}
        for event in turns(after, until):
            lines.setdefault(event.session_id, []).append(event.content)
            if not event.is_from_user:
                self.imported[event.session_id] = str(event.metadata.get(Origin.IMPORTED, ""))
        return lines
