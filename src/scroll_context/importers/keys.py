"""Source keys: how a second import of a message is recognised as the same message.

A message is the same one when these are equal: its session; the whole JSON of the message (whatever the order of
its keys and its spacing); how many equal messages stand before it in that session of the file; and the first message of
that session that is not a system prompt. So

* the same file adds nothing, under another name too, when its messages name their session;
* a file that has grown, at its end or in the middle, adds the new messages and no others;
* equal messages in one file ("ok", "ok") are all kept;
* equal messages in two different conversations are both kept, even if somebody gives both the same session name.

No key depends on a line number or on a position in a list.
"""

import collections
import hashlib
import json
from typing import Any

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def fingerprint(message: Any) -> bytes:
    """The hash of a message, the same for any order of its keys."""
    return hashlib.sha256(_encode(message).encode()).digest()


def is_prompt(message: dict[str, Any]) -> bool:
    """Whether a message is a system prompt, which many conversations share."""
    return message.get("role") in ("system", "developer")


class SourceKeys:
    """Gives out the keys of one file. Ask once for each message, in order."""

    def __init__(self) -> None:
        self._openings: dict[str, bytes] = {}
        self._seen: collections.Counter[bytes] = collections.Counter()

    def key(self, session_id: str, message: dict[str, Any]) -> str:
        """The key of a message; the events that it becomes add a number of their own."""
        content = fingerprint(message)
        opening = self._openings.get(session_id, b"")
        if not opening and not is_prompt(message):
            opening = self._openings[session_id] = content
        identity = hashlib.sha256(opening + content + session_id.encode()).digest()[:16]
        self._seen[identity] += 1
        return f"import:{identity.hex()}:{self._seen[identity]}"
