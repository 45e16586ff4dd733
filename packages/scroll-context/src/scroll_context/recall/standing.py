"""Standing instructions, decisions and preferences of the user, grouped by subject."""

import re
from typing import Any

import msgspec

from scroll_context.recall.arguments import text_of
from scroll_context.recall.reader import Answer, ReadOnce, Row, event_row
from scroll_context.text.stance import Standing, Statement, by_subject, statements
from scroll_context.text.words import STOP_WORDS, clip, stem, words
from scroll_context.work import check as check_work

# Statements that are listed whatever the topic.
FEW_STANDING = 12
_CONDITION = re.compile(
    r"\b(?:when|whenever|if|each time|every time)\b|\A(?:for|in|on|with)\b", re.IGNORECASE
)


class _Message(msgspec.Struct, frozen=True):
    """A message of the user that states something, and its statements."""

    seq: int
    statements: tuple[Statement, ...]


class StandingMethods(ReadOnce):
    """`ms.standing`."""

    def _restart(self) -> None:
        super()._restart()
        self._messages: list[_Message] = []

    def standing(self, topic: Any = "") -> Answer:
        """The user's instructions, decisions and preferences, newest last; about a topic, if given.

        Statements about a common subject stand together. One that a later one repeats or
        contradicts names that as `replaced_by`.
        """
        text_of(topic, "topic")
        statements_by_seq: list[tuple[int, Statement]] = []
        for message in self._read():
            for statement in message.statements:
                statements_by_seq.append((message.seq, statement))
        groups = by_subject(statements_by_seq)
        notes = []
        if not groups:
            notes.append("no standing instruction or preference was found")
        total = sum(map(len, groups))
        if topic and total > FEW_STANDING:
            topic_stems = _stems(topic)
            groups = [group for group in groups if _is_about(group, topic_stems)]
            count = sum(map(len, groups))
            notes.append(
                f"{count} of {total} are about {clip(topic, 60)!r} or always hold; "
                "ms.standing() lists all"
            )
        rows = self._rows(groups)
        conflicts = sum("replaced_by" in row for row in rows)
        if conflicts:
            verb = "was" if conflicts == 1 else "were"
            notes.append(
                f"{conflicts} {verb} restated or changed later (`replaced_by` has the newer seq); "
                "the newest holds"
            )
        return Answer(rows, "; ".join(notes))

    def _rows(self, groups: list[list[Standing]]) -> list[Row]:
        listed: list[Standing] = []
        for group in groups:
            listed += group
        seqs = [standing.seq for standing in listed]
        events = {event.seq: event for event in self._reader.log.get_many(seqs, self._reader.grant)}
        rows = []
        for standing in listed:
            if standing.seq not in events:
                continue
            statement = standing.statement
            row = event_row(events[standing.seq], stance=statement.stance, match=statement.text)
            if standing.replaced_by is not None:
                row["replaced_by"] = standing.replaced_by
            rows.append(row)
        return rows

    def _read(self) -> list[_Message]:
        """The messages that state something, as far as the log goes now."""
        with self._reading() as upto:
            if upto > self._upto:
                for event in self._reader.messages_from_user(self._upto, upto):
                    check_work()
                    in_message = tuple(statements(event.content))
                    if in_message:
                        self._messages.append(_Message(event.seq, in_message))
                    self._upto = event.seq
                self._upto = upto
            return [message for message in self._messages if message.seq <= upto]


def _is_about(group: list[Standing], topic_stems: frozenset[str]) -> bool:
    """Whether a statement of a group bears on a topic, or is an instruction that always holds."""
    for standing in group:
        statement = standing.statement
        if topic_stems & _stems(statement.text):
            return True
        if statement.stance == "instruction" and not _CONDITION.search(statement.text):
            return True
    return False


def _stems(text: str) -> frozenset[str]:
    """The words that carry a subject; a hyphenated word counts complete and by its parts."""
    parts: list[str] = []
    for word in words(text):
        parts += [word, *word.split("-")] if "-" in word else [word]
    return frozenset(stem(word) for word in parts if word not in STOP_WORDS)
