"""Times: how the log writes them, how a filter names one, and which dates cannot be right.

The log compares times as text, so all of them are UTC: `recorded` converts a time with another zone
before it is stored. `bound` reads a filter in the same way for every caller (`ms`, MCP, the command
line, the inspector). A time without a zone is UTC, and the beginning of a time (`2024`, `2024-07`,
`2024-07-31`, `2024-07-31T10`) stands for everything that begins so.

Imported histories have wrong dates now and then. Sessions stand in the order in which they
happened, so `misdated` finds a date that breaks it.
"""

import datetime as dt
import re
from bisect import bisect_right
from collections.abc import Sequence

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


# dates that contradict their neighbours -----------------------------------------------------------

# Share of the dates. If more of them break the order, it is not an order of time.
MOST_SUSPECT = 0.2


def misdated(dates: Sequence[str]) -> dict[int, str]:
    """The positions whose ISO date contradicts its neighbours, each with a sentence that says how.

    The largest set of dates that run forward is assumed to be right. If many dates would be
    suspect, none is: several histories were probably concatenated.
    """
    days = [date[:10] for date in dates]
    right = _running_forward(days)
    suspect = [at for at in range(len(days)) if at not in right and days[at]]
    if len(suspect) > MOST_SUSPECT * len(days):
        return {}
    reasons = {}
    for at in suspect:
        before = max((other for other in right if other < at), default=None)
        after = min((other for other in right if other > at), default=None)
        if before is not None and days[at] < days[before]:
            reasons[at] = (
                f"dated {days[at]}, but what comes before it is dated {days[before]}: "
                "it may be misdated"
            )
        elif after is not None:
            reasons[at] = (
                f"dated {days[at]}, but what comes after it is dated {days[after]}: "
                "it may be misdated"
            )
    return reasons


def _running_forward(days: Sequence[str]) -> set[int]:
    """The positions of a longest subsequence that never runs backwards, without those that have
    no date.
    """
    # The least day at which a subsequence of each length can end.
    ends: list[str] = []
    at_end: list[int] = []
    before: dict[int, int | None] = {}
    for at, day in enumerate(days):
        if not day:
            continue
        length = bisect_right(ends, day)
        before[at] = at_end[length - 1] if length else None
        ends[length:] = [day, *ends[length + 1 :]]
        at_end[length:] = [at, *at_end[length + 1 :]]
    chain: set[int] = set()
    last = at_end[-1] if at_end else None
    while last is not None:
        chain.add(last)
        last = before[last]
    return chain
