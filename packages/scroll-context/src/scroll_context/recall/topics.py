"""The topic of each session: distinctive terms and a title, made from what people said in it.

Messages are read once. Terms set a session apart from all others, so a new session changes the
terms of every one.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from scroll_context.log.log import SessionInfo
from scroll_context.origin import Origin
from scroll_context.recall.read_once import ReadOnce
from scroll_context.text.terms import TermTable, distinctive, title
from scroll_context.work import check as check_work

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
