"""Times: how the log writes them, and how a filter names one.

The log compares times as text, so all of them are UTC: `recorded` converts a time with another zone
before it is stored. `bound` reads a filter in the same way for every caller (`ms`, MCP, the command
line, the inspector). A time without a zone is UTC, and the beginning of a time (`2024`, `2024-07`,
`2024-07-31`, `2024-07-31T10`) stands for everything that begins so.
"""

import datetime as dt
import re

from scroll_context.errors import BadInput

_TIME = re.compile(
    r"(\d{4})(?:-?(\d\d)(?:-?(\d\d)(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d{1,9}))?)?)?"
    r"(Z|[+-]\d\d(?::?\d\d)?)?)?)?)?",
    re.ASCII,
)
# How much of an ISO time is written with a year, a month, and so on.
_LENGTHS = (4, 7, 10, 13, 16, 19)


def bound(value: str | dt.date, *, upper: bool) -> str:
    """The first or last moment that a filter means, as the beginning of a time in the log."""
    text = value.isoformat() if isinstance(value, dt.date) else value
    match = _TIME.fullmatch(text.strip()) if len(text) < 100 else None
    try:
        if match is not None:
            return _moment(match, upper)
    except (ValueError, OverflowError):
        # It is a day, an hour or a zone that does not exist.
        pass
    raise BadInput(
        f"{text[:80]!r} is not a date or time: write one such as 2024-07, 2024-07-31, "
        "2024-07-31T10:30 or 2024-07-31T10:30+02:00"
    )


def _moment(match: re.Match[str], upper: bool) -> str:
    *parts, fraction, zone = match.groups()
    year, month, day, hour, minute, second = parts
    unwritten = 59 if upper else 0
    moment = dt.datetime(
        int(year),
        int(month or 1),
        int(day or 1),
        int(hour or 0),
        int(minute or unwritten),
        int(second or unwritten),
    )
    if zone is None:
        count = sum(part is not None for part in parts)
        written = moment.isoformat()[: _LENGTHS[count - 1]]
        return f"{written}.{fraction[:6]}" if fraction else written
    microseconds = (fraction or "").ljust(6, "9" if upper else "0")[:6]
    moment = moment.replace(microsecond=int(microseconds), tzinfo=_zone(zone))
    utc = moment.astimezone(dt.UTC).replace(tzinfo=None)
    is_a_second = utc.microsecond == (999_999 if upper else 0)
    return utc.isoformat(timespec="seconds" if is_a_second else "microseconds")


def _zone(zone: str) -> dt.tzinfo:
    if zone == "Z":
        return dt.UTC
    digits = zone[1:].replace(":", "").ljust(4, "0")
    offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return dt.timezone(-offset if zone[0] == "-" else offset)


def recorded(created_at: str) -> str:
    """A time as the log keeps it: one with a zone becomes UTC, anything else stays as it is."""
    if created_at.endswith(("Z", "+00:00")):
        return created_at
    try:
        moment = dt.datetime.fromisoformat(created_at)
        return moment.astimezone(dt.UTC).isoformat() if moment.utcoffset() else created_at
    except (ValueError, OverflowError):
        return created_at
