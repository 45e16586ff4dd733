"""Dates that cannot be right: sessions stand in the order in which they happened, so one that
breaks it is suspect.
"""

from bisect import bisect_right
from collections.abc import Sequence

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
