"""The session of the store that the messages of a file go to.

Different files and sessions often have the same name. So an import adds to a session of the store
only if this file began it, that is, if everything that was imported into it is in the file.
Otherwise the file's session gets a name of its own (`chat-2`), unless the caller asks to join.
"""

import itertools
from collections.abc import Callable

from scroll_context.events import IMPORTED
from scroll_context.log.keys import ERASED_KEY
from scroll_context.log.log import EventLog

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
