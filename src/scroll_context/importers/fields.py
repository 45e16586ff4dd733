"""Single fields of a message, checked: texts, whole numbers, times, base64 bodies.

Each function returns a value that the log will accept or raises BadInput with the reason; so a file that parses
is a file that can be appended.
"""

import base64
import binascii
import datetime as dt
import hashlib
import json
import re
from typing import Any

from scroll_context.errors import BadInput

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;.*)?", re.ASCII)
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.ASCII)
_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_EPOCH_TEXT = re.compile(r"\d{9,19}(?:\.\d+)?", re.ASCII)


def text(message: dict[str, Any], field: str) -> str:
    """A short text; numbers are taken as text, since ids are often numbers."""
    value = message.get(field)
    if value is None:
        return ""
    if value.__class__ is str and value.isascii():  # nearly always, and this is called a dozen times for each message
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

    Times with a zone become UTC, so that they can be compared as text. A time without one stays as it is, since its
    zone is not known.
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
    while value >= 1e11:  # milliseconds, microseconds or nanoseconds: seconds reach this in the year 5138
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
    """The fields of a line that are worth keeping, under plain names, without those that say nothing."""
    return {name: value[field] for name, field in names.items() if value.get(field) not in (None, "", False)}


def json_text(value: Any) -> str:
    """A value that is no text, as text."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
