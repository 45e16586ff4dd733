"""Whether a store is whole: the chain of every row, and every payload against its digest.

Reads everything, so it is a command and never part of opening. Damage that a salvage has already declared in the
log is reported as known and does not fail the check.
"""

import msgspec

from scroll_context.errors import KeyDestroyed, PayloadDamaged, PayloadMissing
from scroll_context.events import Kind, Progress
from scroll_context.store.chain import GENESIS, expected
from scroll_context.store.log import PAGE, EventLog
from scroll_context.store.rows import is_blank, whole
from scroll_context.store.schema import ALL_COLUMNS

DESTROYED = "its payload cannot be read: the key of its session was destroyed on purpose"


class Verdict(msgspec.Struct, frozen=True):
    """What verify found. `head` identifies the whole history: keep it elsewhere to detect a rewritten log."""

    events: int
    payloads: int
    head: str
    bad: tuple[tuple[int, str], ...]  # (seq, what is wrong), in order; a gap once, by its first seq
    known: tuple[tuple[int, str], ...]  # the same, declared by a salvage, or by who destroyed or lost a key

    @property
    def ok(self) -> bool:
        return not self.bad


def verify(log: EventLog, progress: Progress | None = None) -> Verdict:
    """Walk the chain and the payloads; `bad[0]` is the first bad seq."""
    total = log.applied_seq()
    checked: dict[str, str] = {}  # payload digest -> what is wrong with it
    faults = _Faults(_declared(log))
    erasures = [tuple(span) for event in log.iterate(kind=Kind.ERASURE) for span in event.metadata.get("spans", ())]
    lost = max((event.seq for event in log.iterate(kind=Kind.ENCRYPTION) if event.metadata.get("lost")), default=0)
    seq, chain, events = 0, GENESIS, 0
    while page := log.query(f"SELECT * FROM event WHERE seq > ? ORDER BY seq LIMIT {PAGE}", [seq]):
        for row in page if len(page[0]) == len(ALL_COLUMNS) else map(whole, page):
            if row[0] > seq + 1:
                faults.add_gap(seq + 1, row[0] - 1)
            elif expected(chain, row) != row[21]:
                faults.add(row[0], "altered: the row does not match its hash")
            if row[23] is not None and not (is_blank(row) and any(lo <= row[0] <= hi for lo, hi in erasures)):
                faults.add(row[0], "altered: the row of an erased event holds more than it may, or no erasure names it")
            if row[8] is not None or row[4] == "snapshot":
                for digest in log.payloads.named_by(row[4], row[7], row[8]):
                    if digest not in checked:
                        checked[digest] = _payload_fault(log, digest)
                    if checked[digest]:
                        faults.add(row[0], checked[digest], is_known=checked[digest] == DESTROYED or row[0] < lost)
            seq, chain = row[0], row[21] if isinstance(row[21], bytes) else b""  # damage can make it anything
        events += len(page)
        if progress:
            progress(seq, total)
    issued = log.query("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'event'")[0][0]
    if issued > seq:
        faults.add_gap(seq + 1, issued, "missing from the end of the log")
    return Verdict(events, len(checked), chain.hex(), tuple(faults.bad), tuple(faults.known))


class _Faults:
    """What is wrong, told apart by whether a salvage has declared it. Spans are first and last seq, never lists of
    seqs: a flipped bit in an address makes a gap of billions.
    """

    def __init__(self, declared: list[tuple[int, int]]) -> None:
        self.bad: list[tuple[int, str]] = []
        self.known: list[tuple[int, str]] = []
        self._declared = declared

    def add(self, seq: int, what: str, last: int | None = None, is_known: bool = False) -> None:
        is_known = is_known or any(lo <= seq and (last or seq) <= hi for lo, hi in self._declared)
        (self.known if is_known else self.bad).append((seq, what))

    def add_gap(self, first: int, last: int, what: str = "missing from the log") -> None:
        self.add(first, what if first == last else f"{what}, with all up to seq {last}", last)


def _payload_fault(log: EventLog, digest: str) -> str:
    try:
        log.payloads.check(digest)
    except KeyDestroyed:
        return DESTROYED
    except (PayloadMissing, PayloadDamaged) as error:
        return str(error)
    return ""


def _declared(log: EventLog) -> list[tuple[int, int]]:
    declared: list[tuple[int, int]] = []
    for event in log.iterate(kind=Kind.SALVAGE):
        declared += [(seq, seq) for seq in event.metadata.get("altered", ())]
        declared += [(lo, hi) for lo, hi in event.metadata.get("lost", ())]
    return declared
