"""What a store has already of an import: its sessions, and messages that a host has recorded.

A gateway records the conversation of an assistant while the assistant writes its own transcript of
it. Both are one session, under the assistant's own name for it. `HostRecord` compares the messages
of a transcript with the record: replies by the id that the provider gave them, tool calls and
results by the id of the call, all other texts by a hash of their words. An import adds only the
messages that are missing.

The same words may be said several times, so each recorded text answers for as many messages as it
has occurrences. How many were matched is for the caller to keep between two runs over one file: it
belongs to the position in that file.

Different files and sessions often have the same name. So an import adds to a session of the store
only if this file began it, that is, if everything that was imported into it is in the file.
Otherwise the file's session gets a name of its own (`chat-2`), unless the caller asks to join.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from scroll_context.contents import media_of
from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import IMPORTED, Draft, Event, Kind, text_id
from scroll_context.log.foreign import Piece
from scroll_context.log.keys import ERASED_KEY
from scroll_context.log.log import EventLog
from scroll_context.origin import REPLY_ID, Origin

Matched = dict[str, dict[str, int]]
"""By session, how often each text has been matched."""

_MESSAGES = [Kind.CONVERSATION, Kind.TOOL_RESULT, Kind.NOTICE]
_TEXT_IN_SHAPE = re.compile(r'"(?:text|content|thinking)"\s*:\s*("(?:[^"\\\x00]|\\.)*+")')


class HostRecord:
    """The events of hosts in the sessions that an import adds to."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._sessions: dict[str, _RecordedMessages] = {}

    def missing(self, pieces: list[Piece], matched: Matched) -> list[Piece]:
        """The events that no host has recorded in their session. Updates `matched`.

        Call it while the sessions are leased, so that no host adds to them meanwhile.
        """
        return [piece for piece in pieces if not self._is_recorded(piece, matched)]

    def _is_recorded(self, piece: Piece, matched: Matched) -> bool:
        session_id = piece.draft.session_id
        if session_id not in self._sessions:
            self._sessions[session_id] = _RecordedMessages(self._log, session_id)
        recorded = self._sessions[session_id]
        if recorded.is_empty:
            return False
        identity = _identity(piece)
        counts = matched.setdefault(session_id, {})
        count = counts.get(identity, 0)
        has_text_left = count < recorded.texts[identity]
        if has_text_left:
            # A text that is known by its id answers for no other message.
            counts[identity] = count + 1
        return has_text_left or recorded.has_ids_of(piece.draft)


class _RecordedMessages:
    """The messages of hosts in one session, and in those that it continues as a fork."""

    def __init__(self, log: EventLog, session_id: str) -> None:
        self.texts: Counter[str] = Counter()
        self._replies: set[str] = set()
        self._calls: set[str] = set()
        self._results: set[str] = set()
        self._log = log
        until: int | None = None
        while session_id:
            session_id, until = self._add_session(session_id, until)

    @property
    def is_empty(self) -> bool:
        return not (self.texts or self._calls or self._results)

    def has_ids_of(self, draft: Draft) -> bool:
        """Whether the reply, the call or the result is known by its id."""
        if draft.kind == Kind.TOOL_RESULT:
            return draft.tool_call_id in self._results
        if draft.kind == Kind.TOOL_CALL and draft.tool_call_id in self._calls:
            return True
        return draft.metadata.get(REPLY_ID) in self._replies

    def _add_session(self, session_id: str, until: int | None) -> tuple[str, int | None]:
        """Add the messages of a session; the session that it continues, and up to where."""
        parent: tuple[str, int | None] = ("", None)
        kinds = [*_MESSAGES, Kind.FORK]
        for event in self._log.iterate(session_id=session_id, until=until, kind=kinds):
            if event.is_foreign or event.is_erased:
                continue
            if event.kind == Kind.FORK:
                parent = _parent(event)
            else:
                self._add(event)
        return parent

    def _add(self, event: Event) -> None:
        if event.kind == Kind.TOOL_RESULT:
            self._results.add(event.tool_call_id)
        for call in _listed(event, "tool_calls"):
            self._calls.add(str(call.get("id", "")))
        host_id = event.metadata.get(Origin.HOST)
        if event.role == "assistant" and host_id:
            self._replies.add(str(host_id))
        self.texts.update(set(self._texts(event)))

    def _texts(self, event: Event) -> Iterator[str]:
        """The identities of an event's text, of the blocks that it consists of, and of media."""
        if event.content:
            yield text_id(self._log.text_or_preview(event))
        for block in _listed(event, "thinking"):
            yield text_id(str(block.get("text", "")))
        for text in _TEXT_IN_SHAPE.findall(self._shape(event)):
            yield text_id(json.loads(text, strict=False))
        for item in media_of(event):
            yield item.digest

    def _shape(self, event: Event) -> str:
        """The bytes of a message without its long text; "" if they are not known."""
        shape = event.metadata.get("wire")
        seq = event.metadata.get("wire_seq")
        if isinstance(shape, str):
            return shape
        if not isinstance(seq, int):
            return ""
        try:
            return self._log.text(self._log.get(seq))
        except (PayloadMissing, PayloadDamaged):
            return ""


def _listed(event: Event, name: str) -> list[dict[str, Any]]:
    """The objects in a list of the metadata."""
    values = event.metadata.get(name)
    return values if isinstance(values, list) else []


def _parent(fork: Event) -> tuple[str, int | None]:
    session_id = fork.metadata.get("session_id")
    at = fork.metadata.get("at_seq")
    if isinstance(session_id, str) and isinstance(at, int) and at < fork.seq:
        return session_id, at
    return "", None


def _identity(piece: Piece) -> str:
    if piece.attachment is not None:
        return hashlib.sha256(piece.attachment.body).hexdigest()
    return text_id(piece.draft.content)


# sessions -----------------------------------------------------------------------------------------

_KEYS = (
    "SELECT source_key FROM event "
    "WHERE session_id = ? AND ifnull(source_key, '') NOT LIKE ? ORDER BY seq"
)


def is_open_to(log: EventLog, session_id: str, layout: str, *, is_capture: bool) -> bool:
    """Whether messages of an assistant's layout may be added to a session.

    They may if the session is new, or if the assistant began it. The user's own history may also
    be added to a session that a gateway recorded for the assistant: both are one conversation.
    """
    first = log.query(f"{_KEYS} LIMIT 1", [session_id, f"{ERASED_KEY}%"])
    if not first or (first[0][0] or "").startswith(f"{IMPORTED}{layout}:"):
        return True
    event = next(log.iterate(session_id=session_id))
    return is_capture and not event.is_foreign and event.agent_id == layout


def is_begun_by(log: EventLog, session_id: str, keys: set[str]) -> bool:
    """Whether messages with these keys may go to a session.

    They may if the session is new, or if everything that was imported there is among them.
    """
    rows = log.query(_KEYS, [session_id, f"{ERASED_KEY}%"])
    if not rows:
        return True
    first, *others = [_key_of_message(key or "") for (key,) in rows]
    return first in keys and all(key in keys for key in others if key.startswith(IMPORTED))


def _key_of_message(source_key: str) -> str:
    """The key of the message that an event is a piece of, without the number of a renamed
    session.
    """
    message_key, _, _piece = source_key.rpartition(":")
    return message_key.partition("~")[0]


def numbered(session_id: str, number: int | None) -> str:
    """The name of a session whose own name is taken."""
    return f"{session_id}-{number}" if number else session_id


def first_number(is_free: Callable[[str], bool], session_id: str) -> int | None:
    """The number with which a session name is free; None if it is free without one."""
    if is_free(session_id):
        return None
    return next(number for number in itertools.count(2) if is_free(numbered(session_id, number)))
