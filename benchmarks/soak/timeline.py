"""When which fault happened, and so which of them explains an error that a worker reported.

A fault explains its errors from its beginning until everyone was at work again, and a little
longer, since a report may be on its way. An error outside of that, or one that no fault of the time
can cause, is a violation.
"""

import math
from collections.abc import Iterable

import msgspec
from faults import Fault
from notes import NEWS, Report

# In seconds, counted from when everyone was at work again.
GRACE = 45.0


class Struck(msgspec.Struct, frozen=True):
    """One fault that happened."""

    fault: Fault
    begun: float
    ended: float


class Timeline:
    """The faults of a soak in order, and the moments when everyone was known to work."""

    def __init__(self) -> None:
        self.struck: list[Struck] = []
        self.recovered: list[float] = []

    def times(self, fault: Fault) -> int:
        return sum(strike.fault is fault for strike in self.struck)

    def cause(self, report: Report) -> Fault | None:
        """The newest fault that may have caused what a worker reported."""
        for strike in reversed(self.struck):
            over = (
                next((moment for moment in self.recovered if moment >= strike.ended), math.inf)
                + GRACE
            )
            if report.what in strike.fault.causes and strike.begun <= report.at <= over:
                return strike.fault
        return None

    def unexplained(self, reports: Iterable[Report]) -> list[str]:
        """What was reported without a fault to cause it."""
        return [
            f"{report.worker} reported “{report.what}” with no fault to cause it: {report.detail}"
            for report in reports
            if report.what not in NEWS and self.cause(report) is None
        ]
