"""What passes between the readers of formats and the import, and the fields of a record, checked.

A reader gives a message of a file as `Found`: the message in the common shape, its line, and, where
the source has ids, its source key. The import makes an `Imported` of it, the events that the
message stands for. What cannot be read is a `Fault`. A function for a field returns a value that
the log will accept, or raises BadInput with the reason; so a file that parses is a file that can be
appended.
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

THINKING, META, COMPACTION, BRANCH, DOCUMENT = (
    "thinking",
    "meta",
    "compaction",
    "branch",
    "document",
)
"""Kinds of messages that are no part of the conversation: a model's reasoning, what a program told
a model, a summary that replaced the past, turns that were taken back, and pieces of a text that is
no conversation."""


LISTED = 20  # faults of a file that are kept for the reader; the others are counted

State = dict[str, Any]
"""What the reader of a transcript must know of earlier lines, as JSON; {} at the beginning of a
file.
"""


MALFORMED = (
    BadInput,
    RecursionError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What a reader of a format raises for a value of another shape than the format has.

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
    me: tuple[str, ...] = ()  # the names of the user among the speakers of a chat


class Fault(msgspec.Struct, frozen=True):
    """Why a line, or one message in it, cannot be imported."""

    line: int
    reason: str
    offset: int = 0  # how far into the file, in bytes, for progress
    is_whole: bool = True  # whether a line break ends the line


class Imported(msgspec.Struct, frozen=True):
    """One message, as the events it stands for, in order."""

    line: int
    session_id: str  # as the file names it
    key: str  # the source key, without the number of the piece
    pieces: tuple[Piece, ...]
    offset: int = 0
    shape: str = ""  # whose shape the message had, where that was not the common one
    is_last: bool = True  # of the messages in its line


class Found(msgspec.Struct, frozen=True):
    """A value in the place of a message, not checked yet."""

    line: int
    value: Any
    labels: Labels
    where: str = ""  # "message 3", when one line holds several
    shared: dict[str, Any] = {}  # what the conversation says of itself; kept with its first message
    offset: int = 0
    key: str = ""  # made of ids that the source gave out; empty: to be made of the message itself
    is_last: bool = True  # of the messages in its line

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
    """What became of one file."""

    file: str
    format: str = ""  # what kind of file it is, as a reader calls it
    messages: int = 0
    added: int = 0  # events that are new in the store
    known: int = 0  # events that were there already
    bad: int = 0  # messages that could not be read
    faults: tuple[Fault, ...] = ()  # the first of them, with the reason
    speakers: tuple[
        str, ...
    ] = ()  # of a chat of which nobody said who the user is; the first of them
    renamed: dict[str, str] = {}  # sessions whose names were taken, and their names in the store
    redacted: dict[str, int] = {}  # secrets in it that were replaced, by kind
    tasks: tuple[str, ...] = ()  # tasks that it names and that its events did not get
    skipped: tuple[str, ...] = ()  # files of an archive in which there are no messages
    missing: tuple[str, ...] = ()  # payloads that an export names and does not hold
    left: str = ""  # why a capture left the rest to the next one
    error: str = ""  # why nothing of it was imported; the command line reports files one by one

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
_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_EPOCH_TEXT = re.compile(r"\d{9,19}(?:\.\d+)?", re.ASCII)


def text(message: dict[str, Any], field: str) -> str:
    """A short text; numbers are taken as text, since ids are often numbers."""
    value = message.get(field)
    if value is None:
        return ""
    if (
        value.__class__ is str and value.isascii()
    ):  # nearly always, and this is called a dozen times for each message
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadInput(f"{field} must be text, not {_kind_of(value)}")
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
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise BadInput(f"{field} must be a whole number, not {_kind_of(value)}")
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
            return (moment if moment.tzinfo is None else moment.astimezone(dt.UTC)).isoformat()
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"not a time: {value!r}")
    if not 0 <= value < 1e20:
        raise ValueError("before 1970, or beyond nanoseconds")
    while (
        value >= 1e11
    ):  # milliseconds, microseconds or nanoseconds: seconds reach this in the year 5138
        value /= 1000
    return dt.datetime.fromtimestamp(value, dt.UTC).isoformat()


def objects(message: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """The objects of a list; other values in it are left out."""
    value = message.get(field)
    if value is not None and not isinstance(value, list):
        raise BadInput(f"{field} must be a list, not {_kind_of(value)}")
    return [one for one in value or () if isinstance(one, dict)]


def data_url(url: str) -> tuple[str, bytes] | None:
    """Media type and body of a `data:` URL in base64; None for any other address."""
    match = _DATA_URL.match(url)
    if match is None or ";base64" not in match[2].lower():
        return None
    return media_type(match[1] or "text/plain"), body(url[match.end() :])


def body(encoded: Any) -> bytes:
    """The bytes of a base64 text; line breaks in it are allowed."""
    if not isinstance(encoded, str):
        raise BadInput(f"base64 data must be text, not {_kind_of(encoded)}")
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(f"base64 data is damaged: {error}") from None


def media_type(value: Any) -> str:
    if not isinstance(value, str) or not _MEDIA_TYPE.fullmatch(value):
        raise BadInput(f"media type {str(value)[:40]!r} is not of the form type/subtype")
    return value


def _kind_of(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        bool: "true or false",
        float: "a fraction",
        str: "text",
        int: "a number",
    }
    return f"{names.get(type(value), type(value).__name__)}: {str(value)[:40]!r}"


def identifier(name: str) -> str:
    """An id that can be part of a source key. One of another shape is replaced by its hash."""
    if not name or _ID.fullmatch(name):
        return name
    return hashlib.sha256(_storable(name, "id").encode()).hexdigest()[:32]


def kept(value: dict[str, Any], **names: str) -> dict[str, Any]:
    """The fields of a line that are worth keeping, under plain names, without those that say
    nothing.
    """
    return {
        name: value[field]
        for name, field in names.items()
        if value.get(field) not in (None, "", False)
    }


def json_text(value: Any) -> str:
    """A value that is no text, as text."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
