"""Whether a store is whole: the chain of every row, and every payload against its digest.

Reads everything, so it is a command and never part of opening. Damage that a salvage has already declared in the
log is reported as known and does not fail the check.
"""

from collections.abc import Callable

import msgspec

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import Kind
from scroll_context.store import schema
from scroll_context.store.chain import GENESIS, link
from scroll_context.store.log import PAGE, EventLog

_COLUMNS = ", ".join(schema.COLUMNS)

Progress = Callable[[int, int], None]
"""Told (done, total) now and then during long work."""


class Verdict(msgspec.Struct, frozen=True):
    """What verify found. `head` identifies the whole history: keep it elsewhere to detect a rewritten log."""

    events: int
    payloads: int
    head: str
    bad: tuple[tuple[int, str], ...]  # (seq, what is wrong), in order
    known: tuple[tuple[int, str], ...]  # the same, declared by an earlier salvage

    @property
    def ok(self) -> bool:
        return not self.bad


def verify(log: EventLog, progress: Progress | None = None) -> Verdict:
    """Walk the chain and the payloads; `bad[0]` is the first bad seq."""
    total = log.last_seq()
    declared = _declared(log)
    checked: dict[str, str] = {}  # payload digest -> what is wrong with it
    found: list[tuple[int, str]] = []
    seq, chain, events = 0, GENESIS, 0
    while page := log.query(f"SELECT {_COLUMNS} FROM event WHERE seq > ? ORDER BY seq LIMIT {PAGE}", [seq]):
        for row in page:
            gap = row[0] - seq - 1
            if gap:
                found += [(missing, "missing from the log") for missing in range(seq + 1, row[0])]
            elif link(chain, row[:-1]) != row[-1]:
                found.append((row[0], "altered: the row does not match its hash"))
            if row[8] is not None:
                if row[8] not in checked:
                    checked[row[8]] = _payload_fault(log, row[8])
                if checked[row[8]]:
                    found.append((row[0], checked[row[8]]))
            seq, chain = row[0], row[-1]
        events += len(page)
        if progress:
            progress(seq, total)
    issued = log.query("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'event'")[0][0]
    found += [(missing, "missing from the end of the log") for missing in range(seq + 1, issued + 1)]
    return Verdict(
        events,
        len(checked),
        chain.hex(),
        tuple(fault for fault in found if fault[0] not in declared),
        tuple(fault for fault in found if fault[0] in declared),
    )


def _payload_fault(log: EventLog, digest: str) -> str:
    try:
        for _ in log.payloads.chunks(digest):
            pass
    except (PayloadMissing, PayloadDamaged) as error:
        return str(error)
    return ""


def _declared(log: EventLog) -> set[int]:
    declared: set[int] = set()
    for event in log.iterate(kind=Kind.SALVAGE):
        declared.update(event.metadata.get("altered", ()))
        for lo, hi in event.metadata.get("lost", ()):
            declared.update(range(lo, hi + 1))
    return declared
