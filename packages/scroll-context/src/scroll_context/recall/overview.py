"""A stretch of history in short: sessions (outline), messages (turns), and an extract (gist).

The outline names the topic of each session: distinctive terms and a title, made from what people
said in it. Terms set a session apart from all others, so a new session changes the terms of every
one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Event
from scroll_context.log.filters import SearchFilters
from scroll_context.log.log import SessionInfo
from scroll_context.log.times import misdated
from scroll_context.origin import Origin
from scroll_context.recall.arguments import moment, text_of, whole_number
from scroll_context.recall.mentions import subject_of
from scroll_context.recall.reader import Answer, Reader, ReadOnce, Row, event_row
from scroll_context.text.gist import READ as GIST_READ
from scroll_context.text.gist import gist
from scroll_context.text.similar import content_stems
from scroll_context.text.terms import TermTable, distinctive, title
from scroll_context.text.words import clip
from scroll_context.work import check as check_work

# topics of sessions -------------------------------------------------------------------------------

# Messages that a title is made from, characters of each that are read, characters of a title.
TITLE_MESSAGES, TITLE_FROM, TITLE_CHARS = 6, 2_000, 60
# Events that describe a session in which nobody spoke.
UNSPOKEN_EVENTS = 40


class SessionTopic(msgspec.Struct, frozen=True):
    """The topic of a session."""

    # Messages of people in it.
    messages: int
    terms: tuple[str, ...]
    title: str
    # The file that an imported session was read from.
    imported: str | None = None


class SessionTopics(ReadOnce):
    """The topics of all sessions within the grant of a reader, as far as they were read."""

    def _restart(self) -> None:
        super()._restart()
        self._table = TermTable()
        # The numbers of the sessions in the table.
        self._numbers: dict[str, int] = {}
        self._messages: Counter[str] = Counter()
        # The texts that a title is made from.
        self._openings: dict[str, list[str]] = {}
        self._terms: dict[str, tuple[str, ...]] = {}
        self._imported: dict[str, str] = {}

    def read(self) -> dict[str, SessionTopic]:
        """The topic of each session in which a person spoke, by session id."""
        with self._reading() as upto:
            if upto < self._upto:
                self._restart()
            self._read_on(upto)
            return self._topics()

    def of_unspoken(self, info: SessionInfo) -> SessionTopic | None:
        """The topic of a session in which nobody spoke; None when there is nothing to show."""
        events = self._reader.log.iterate(grant=self._reader.grant, session_id=info.session_id)
        lines = []
        for _, event in zip(range(UNSPOKEN_EVENTS), events, strict=False):
            if event.is_searchable:
                lines.append(event.headline or event.content)
        if not lines:
            return None
        [terms] = distinctive([lines])
        return SessionTopic(0, terms, title(lines, terms, TITLE_CHARS))

    def _read_on(self, upto: int) -> None:
        """Count the messages behind those that were read already."""
        texts = self._texts(self._upto, upto)
        newest = next(reversed(self._numbers), None)
        if any(session in self._numbers and session != newest for session in texts):
            # An older session has new messages, and the table only extends its last entry.
            self._restart()
            texts = self._texts(0, upto)
        try:
            self._add(texts)
        except BaseException:
            # Sessions that were counted already would be counted again.
            self._restart()
            raise
        self._upto = upto

    def _texts(self, after: int, until: int) -> dict[str, list[str]]:
        """People's messages after a seq and up to another, by session."""
        texts: dict[str, list[str]] = {}
        for event in self._reader.messages_from_people(after, until):
            texts.setdefault(event.session_id, []).append(event.content)
            if not event.is_from_user:
                self._imported[event.session_id] = str(event.metadata.get(Origin.IMPORTED, ""))
        return texts

    def _add(self, texts_by_session: Mapping[str, list[str]]) -> None:
        for session, texts in texts_by_session.items():
            check_work()
            if session in self._numbers:
                self._table.extend(texts)
                self._terms.pop(session, None)
            else:
                self._numbers[session] = self._table.add(texts)
                # A new session changes what sets the others apart.
                self._terms.clear()
            self._messages[session] += len(texts)
            opening = self._openings.setdefault(session, [])
            for text in texts[: TITLE_MESSAGES - len(opening)]:
                opening.append(text[:TITLE_FROM])

    def _topics(self) -> dict[str, SessionTopic]:
        for session, number in self._numbers.items():
            if session not in self._terms:
                check_work()
                self._terms[session] = self._table.terms(number)
        topics = {}
        for session, terms in self._terms.items():
            check_work()
            topics[session] = SessionTopic(
                messages=self._messages[session],
                terms=terms,
                title=title(self._openings[session], terms, TITLE_CHARS),
                imported=self._imported.get(session),
            )
        return topics


# outline, turns and gist --------------------------------------------------------------------------

# Rows of one turns().
MOST_MESSAGES = 2_000
# Characters of one turns().
MOST_CHARS = 4_000_000
# Characters of one gist().
MOST_GIST = 30_000
# Messages that one gist() reads, spread evenly if there are more.
MOST_READ = 20_000
# Characters of a message that a gist for a query shows: the more messages, the more evidence is
# there.
MESSAGE_CHARS = 110

FOREIGN_WORDS = (
    "The user of this store said nothing there: these are words of others, from an imported file."
)


class OverviewMethods:
    """The methods of `ms` that show a stretch in short."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._topics = SessionTopics(reader)

    # outline --------------------------------------------------------------------------------------

    def outline(
        self, created_from: Any = None, created_to: Any = None, query: Any = None
    ) -> Answer:
        """One row per session: number, id, dates, seqs, turns, distinctive terms, title; hits of a
        query.
        """
        sessions = self._reader.sessions()
        dates = _dates(created_from, created_to)
        suspect = misdated([info.first_at for _, info in sessions])
        notes = []
        hits: Counter[str] = Counter()
        if query is not None:
            subject = subject_of(self._reader, query)
            sessions_of = self._reader.log.column("session_id", list(subject.seqs))
            hits.update(sessions_of.values())
            notes.append(subject.note)
        topics = self._topics.read()
        rows: list[Row] = []
        for at, (number, info) in enumerate(sessions):
            if not dates.overlap(info):
                continue
            if query is not None and not hits[info.session_id]:
                continue
            topic = topics.get(info.session_id)
            if topic is None and info.session_id != self._reader.scope.session_id:
                topic = self._topics.of_unspoken(info)
            if topic is None:
                continue
            row = _session_row(number, info, topic)
            if query is not None:
                row["hits"] = hits[info.session_id]
            if at in suspect:
                row["misdated"] = suspect[at]
                notes.append(f"session {number} is {suspect[at]}")
            rows.append(row)
        notes.insert(0, _count(len(rows), "session"))
        seqs: list[int] = []
        for row in rows:
            seqs += row["seqs"]
        # Titles and terms are made of all messages of a session, which are too many to be named.
        return Answer(rows, "; ".join(notes), tuple(seqs), is_unknown=bool(rows))

    # turns ----------------------------------------------------------------------------------------

    def turns(
        self, *place: Any, session_id: Any = None, role: Any = None, chars: Any = None
    ) -> Answer:
        """The messages of a session (by id, or by its number in the outline), or from one seq to
        another, or both; with `chars`, only the beginning of each message.
        """
        session, seq_range = _stretch(place, session_id)
        filters = self._reader.filters(
            "ms.turns", {"session_id": session, "seq_range": seq_range, "role": role}
        )
        most = None if chars is None else whole_number(chars, "chars", 1)
        rows: list[Row] = []
        room = MOST_CHARS
        for event in self._reader.messages(filters):
            text = self._reader.text(event)
            if most is not None and len(text) > most:
                text = text[:most] + "…"
            room -= len(text)
            if len(rows) >= MOST_MESSAGES or room < 0:
                rest = self._rest(event.seq, filters)
                note = f"only the first {len(rows):,} turns are here: continue with {rest}"
                return Answer(rows, note, truncated=True)
            rows.append(event_row(event, text))
        return Answer(rows, "" if rows else "nothing was said there within reach")

    def _rest(self, seq: int, filters: SearchFilters) -> str:
        """The call of `ms.turns` that continues at a seq, in the same session and with the same
        roles.
        """
        last = filters.seq_range[1] if filters.seq_range else self._reader.log.last_seq()
        arguments = [str(seq), str(last)]
        if filters.session_id:
            arguments.append(f"session_id={filters.session_id[0]!r}")
        if filters.role:
            arguments.append(f"role={list(filters.role)!r}")
        return f"ms.turns({', '.join(arguments)})"

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
            messages, remark = self._spread_messages(selected)
        else:
            messages, remark = self._best_messages(query, room // MESSAGE_CHARS, selected)
        texts = [(message.seq, message.text) for message in messages]
        if query is None:
            extracts = gist(texts, room)
        else:
            extracts = gist(texts, room, content_stems(query), MESSAGE_CHARS)
        seqs = [extract.seq for extract in extracts]
        events = {event.seq: event for event in self._reader.log.get_many(seqs, self._reader.grant)}
        rows = []
        for extract in extracts:
            if extract.seq not in events:
                continue
            row = event_row(events[extract.seq], match=extract.text)
            if extract.repeats:
                row["repeated"] = extract.repeats
            rows.append(row)
        sessions = len({message.session_id for message in messages})
        note = (
            f"{_count(len(rows), 'sentence')} of {_count(len(messages), 'turn')} in "
            f"{_count(sessions, 'session')}"
        )
        if query is not None:
            label = repr(clip(query, 60))
            note += f", the best for {label}; ms.timeline and ms.grep find every mention."
        return Answer(rows, f"{note} {remark}".rstrip())

    def _spread_messages(self, filters: SearchFilters) -> tuple[list["_Message"], str]:
        """The messages to extract from, spread evenly, and a remark about whose words they are."""
        messages = self._spread_evenly(self._reader.messages(filters))
        if messages or filters.role != ("user",):
            return messages, ""
        of_anybody = self._reader.messages(msgspec.structs.replace(filters, role=None))
        of_people = (event for event in of_anybody if event.is_from_person)
        messages = self._spread_evenly(of_people)
        return messages, FOREIGN_WORDS if messages else ""

    def _spread_evenly(self, events: Iterator[Event]) -> list["_Message"]:
        """A bounded number of messages: every one, or every second, fourth, eighth."""
        messages: list[_Message] = []
        step = 1
        for number, event in enumerate(events):
            if number % step:
                continue
            messages.append(self._message(event))
            if len(messages) > MOST_READ:
                messages = messages[::2]
                step *= 2
        return messages

    def _best_messages(
        self, query: Any, count: int, filters: SearchFilters
    ) -> tuple[list["_Message"], str]:
        """The messages that search ranks best for a query, in order of seq, and the note of that
        search.
        """
        hits = self._reader.store.index.search(
            text_of(query, "a query"),
            k=max(1, count),
            grant=self._reader.grant,
            exclude=self._reader.running_seqs(),
            filters=filters,
        )
        messages = [self._message(hit.event) for hit in hits if hit.event.content]
        messages.sort(key=lambda message: message.seq)
        return messages, hits.note

    def _message(self, event: Event) -> "_Message":
        return _Message(event.seq, event.session_id, self._reader.text(event)[:GIST_READ])


class _Message(msgspec.Struct, frozen=True):
    """As much of a message as an extract reads."""

    seq: int
    session_id: str
    text: str


class _Dates(msgspec.Struct, frozen=True):
    """The first and the last moment of a stretch of time; None for an open end."""

    first: str | None
    last: str | None

    def overlap(self, info: SessionInfo) -> bool:
        if self.first is not None and info.last_at < self.first:
            return False
        return self.last is None or info.first_at[: len(self.last)] <= self.last


def _dates(created_from: Any, created_to: Any) -> _Dates:
    try:
        return _Dates(
            None if created_from is None else moment(created_from, upper=False),
            None if created_to is None else moment(created_to, upper=True),
        )
    except BadInput as error:
        raise BadInput(f"{error}. For a subject write ms.outline(query=...)") from error


def _stretch(place: Sequence[Any], session_id: Any) -> tuple[Any, Sequence[Any] | None]:
    """The session and the range of seqs that the arguments of `ms.turns` mean."""
    if len(place) == 2:
        return session_id, place
    if len(place) == 1 and session_id is None:
        return place[0], None
    if not place and session_id is not None:
        return session_id, None
    raise BadInput("ms.turns takes the id or the number of a session, or a first and a last seq")


def _session_row(number: int, info: SessionInfo, topic: SessionTopic) -> Row:
    row: Row = {
        "n": number,
        "session_id": info.session_id,
        "from": info.first_at[:10],
        "to": info.last_at[:10],
        "seqs": [info.first_seq, info.last_seq],
        "turns": topic.messages,
        "terms": list(topic.terms),
        "title": topic.title,
    }
    if topic.imported is not None:
        row["imported"] = topic.imported
    return row


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
