"""The values that pass between format readers and the import, and checked access to fields.

A reader gives a message of a file as `RawMessage`: the message in the common shape, its line, and
its source key if the source has ids. The import makes an `Imported` of it, the events that the
message stands for. An unreadable message is a `Fault`. A function for a field returns a value that
the log accepts, or raises BadInput with the reason; so every file that parses can be appended.
"""

import base64
import binascii
import datetime as dt
import hashlib
import json
import re
from collections import Counter
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.log.foreign import Piece

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

THINKING = "thinking"
META = "meta"
COMPACTION = "compaction"
"""Kinds of messages outside the conversation: a model's reasoning, messages from a program to a
model, and a summary that replaced the past."""


LISTED = 20
"""How many faults of a file a report lists; the others are only counted."""

MALFORMED = (
    BadInput,
    RecursionError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""Errors that a format reader raises for a value of another shape than the format has.

Fields are checked where they are read. A file that somebody crafted can still have a number where
there are only texts, or lack a column. That is a fault of the message, and must not end the import
of the others.
"""


class Labels(msgspec.Struct, frozen=True):
    """Where messages belong that do not say so themselves.

    An empty session is named after the file.
    """

    session_id: str = ""
    agent_id: str = ""
    task_id: str = ""
    kind: str = "conversation"
    created_at: str = ""
    # The names of the user among the speakers of a chat.
    me: tuple[str, ...] = ()


class Fault(msgspec.Struct, frozen=True):
    """Why a line, or one message in it, cannot be imported."""

    line: int
    reason: str
    # How far into the file, in bytes, for progress.
    offset: int = 0
    # Whether a line break ends the line.
    is_whole: bool = True


class Imported(msgspec.Struct, frozen=True):
    """One message, as the events it stands for, in order."""

    line: int
    # As the file names it.
    session_id: str
    # The source key, without the number of the piece.
    key: str
    pieces: tuple[Piece, ...]
    offset: int = 0
    # The name of the message's shape; "" for the common one.
    shape: str = ""
    # Whether it is the last message of its line.
    is_last: bool = True


class RawMessage(msgspec.Struct, frozen=True):
    """A message as its file has it, not checked yet. The value may have any shape."""

    line: int
    value: Any
    labels: Labels
    # Such as "message 3", when one line holds several.
    where: str = ""
    # Fields of the conversation, which are recorded with its first message.
    shared: dict[str, Any] = {}
    offset: int = 0
    # A source key made of ids from the source; "" if the message itself has to make the key.
    key: str = ""
    # Whether it is the last message of its line.
    is_last: bool = True
    # The name of the shape that it had before it was put into the common one.
    shape: str = ""
    # The lines of the messages in it, where they are known; None unless it is a complete file.
    message_lines: tuple[int, ...] | None = None

    def fault(self, error: Exception) -> Fault:
        if isinstance(error, BadInput):
            reason = str(error)
        elif isinstance(error, RecursionError):
            reason = "nested too deeply"
        else:
            reason = f"not of the shape that its format has ({type(error).__name__}: {error})"
        return Fault(self.line, f"{self.where}: {reason}" if self.where else reason, self.offset)


def fingerprint(message: Any) -> bytes:
    """The hash of a message, the same for any order of its keys."""
    return hashlib.sha256(_encode(message).encode()).digest()


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of importing one file."""

    file: str
    # The kind of the file, in words.
    format: str = ""
    messages: int = 0
    # Events that are new in the store.
    added: int = 0
    # Events that were recorded before.
    known: int = 0
    # Messages that could not be read, and the first of them with the reason.
    bad: int = 0
    faults: tuple[Fault, ...] = ()
    # The first speakers of a chat in which no name is known to be the user's.
    speakers: tuple[str, ...] = ()
    # Sessions whose names were taken, and their names in the store.
    renamed: dict[str, str] = {}
    # Secrets that were replaced, by kind.
    redacted: dict[str, int] = {}
    # Tasks that the file names and that its events did not get.
    tasks: tuple[str, ...] = ()
    # Files of an archive that have no messages.
    skipped: tuple[str, ...] = ()
    # Payloads that an export names and does not contain.
    missing: tuple[str, ...] = ()
    # Why a capture left the rest to the next one.
    left: str = ""
    # Why nothing of the file was imported; the command line reports files one by one.
    error: str = ""

    def plus(self, other: "ImportReport") -> "ImportReport":
        """The numbers and faults of both, as a report of this file."""
        numbers = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("messages", "added", "known", "bad")
        }
        faults = (*self.faults, *other.faults)[:LISTED]
        redacted = dict(Counter(self.redacted) + Counter(other.redacted))
        return msgspec.structs.replace(self, **numbers, faults=faults, redacted=redacted)


# fields -------------------------------------------------------------------------------------------

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;.*)?", re.ASCII)
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.ASCII)
_EPOCH_TEXT = re.compile(r"\d{9,19}(?:\.\d+)?", re.ASCII)


def text(message: dict[str, Any], field: str) -> str:
    """A short text; numbers are taken as text, since ids are often numbers."""
    value = message.get(field)
    if value is None:
        return ""
    # This is nearly always so, and each message has a dozen such fields.
    if value.__class__ is str and value.isascii():
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadInput(f"{field} must be text, not {kind_of(value)}")
    return _storable(value, field)


def _storable(value: str, field: str) -> str:
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadInput(f"{field} has half of a surrogate pair and cannot be stored: {value[:40]!a}")
    return value


def number(message: dict[str, Any], field: str) -> int | None:
    """A whole number of at most 64 bits, also when it comes as text."""
    value = message.get(field)
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not -(1 << 63) <= value < 1 << 63:
        raise BadInput(f"{field} must be a whole number, not {kind_of(value)}")
    return value


def time(message: dict[str, Any]) -> str:
    """`created_at` or `timestamp` as ISO-8601; empty when the message has neither.

    Times with a zone become UTC, so that they can be compared as text. A time without one stays as
    it is, since its zone is not known.
    """
    for field in ("created_at", "timestamp"):
        value = message.get(field)
        if value is None or value == "":
            continue
        try:
            return _iso(value)
        except (ValueError, OverflowError, OSError):
            raise BadInput(
                f"{field} {str(value)[:40]!r} is not a time; write ISO-8601 (2026-03-01T09:30:00Z) "
                "or seconds since 1970"
            ) from None
    return ""


def _iso(value: Any) -> str:
    if isinstance(value, str):
        value = value.strip()
        if not _EPOCH_TEXT.fullmatch(value):
            moment = dt.datetime.fromisoformat(value)
            if len(value) == len("2026-03-01") and moment.tzinfo is None:
                return moment.date().isoformat()
            if moment.tzinfo is not None:
                moment = moment.astimezone(dt.UTC)
            return moment.isoformat()
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"not a time: {value!r}")
    if not 0 <= value < 1e20:
        raise ValueError("before 1970, or beyond nanoseconds")
    # Milliseconds, microseconds or nanoseconds. Seconds reach this number in the year 5138.
    while value >= 1e11:
        value /= 1000
    return dt.datetime.fromtimestamp(value, dt.UTC).isoformat()


def data_url(url: str) -> tuple[str, bytes] | None:
    """Media type and body of a `data:` URL in base64; None for any other address."""
    match = _DATA_URL.match(url)
    if match is None or ";base64" not in match[2].lower():
        return None
    return media_type(match[1] or "text/plain"), body(url[match.end() :])


def body(encoded: Any) -> bytes:
    """The bytes of a base64 text; line breaks in it are allowed."""
    if not isinstance(encoded, str):
        raise BadInput(f"base64 data must be text, not {kind_of(encoded)}")
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(f"base64 data is damaged: {error}") from None


def media_type(value: Any) -> str:
    if not isinstance(value, str) or not _MEDIA_TYPE.fullmatch(value):
        raise BadInput(f"media type {str(value)[:40]!r} is not of the form type/subtype")
    return value


def kind_of(value: Any) -> str:
    """What a value is, in words, and how it begins."""
    names = {
        dict: "an object",
        list: "a list",
        bool: "true or false",
        float: "a fraction",
        str: "text",
        int: "a number",
    }
    return f"{names.get(type(value), type(value).__name__)}: {str(value)[:40]!r}"


def json_text(value: Any) -> str:
    """A value that is not text, as text."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
