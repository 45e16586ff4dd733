"""Checking whether a store is intact.

`verify` checks the chain of every row, and every payload against its digest. It reads everything,
so it is a command and never part of opening. Damage that a salvage declared (salvage.py) is
reported as known.
"""

import bisect
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import (
    ABOUT_THE_LOG,
    STORE_SESSION,
    Event,
    Kind,
    Progress,
    merged_spans,
    unpacked_seqs,
)
from scroll_context.log.chain import GENESIS, breaks
from scroll_context.log.log import EventLog
from scroll_context.log.rows import TableRow, event_from_row, is_blank, is_unreadable

_SPECIAL = ABOUT_THE_LOG | {Kind.SNAPSHOT}

UNREADABLE_ROW = "unreadable: a member of the shared store appended a row that is not an event"
NOT_BLANK = "altered: the row of an erased event holds more than it may"


class Verdict(msgspec.Struct, frozen=True):
    """The result of verify.

    `head` identifies the complete history. Store it elsewhere to detect a rewritten log later.
    """

    events: int
    payloads: int
    head: str
    # Seqs with their faults, in order. A gap is one entry, with its first seq.
    bad: tuple[tuple[int, str], ...]
    # Faults that a salvage declared, and unreadable rows of a shared store.
    known: tuple[tuple[int, str], ...]

    @property
    def ok(self) -> bool:
        return not self.bad


def verify(log: EventLog, progress: Progress | None = None) -> Verdict:
    """Walk the chain and the payloads, in one pass; `bad[0]` is the first bad seq."""
    total = log.applied_seq()
    rows = _Rows(log)
    faults: list[_Fault] = []
    seq = 0
    chain = GENESIS
    events = 0
    while page := log.rows(seq, sys.maxsize):
        for at, before in breaks(page, seq, chain):
            if at > before + 1:
                faults.append(_gap(before + 1, at - 1, "missing from the log"))
            else:
                faults.append(_Fault(at, "altered: the row does not match its hash"))
        for row in page:
            is_plain = row.leaf is None and row.payload is None and row.kind not in _SPECIAL
            if not is_plain:
                faults += rows.check(row)
        seq, chain = page[-1].seq, page[-1].chain
        events += len(page)
        if progress:
            progress(seq, total)
    [(issued,)] = log.query("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'event'")
    if issued > seq:
        faults.append(_gap(seq + 1, issued, "missing from the end of the log"))
    bad, declared = _split_declared(faults, rows.erased, rows.about_the_log)
    # Damage can give the chain value any type.
    head = chain.hex() if isinstance(chain, bytes) else ""
    return Verdict(events, len(rows.payload_faults), head, tuple(bad), tuple(declared))


class _Rows:
    """The rows that need more than a look at their hash: erased ones, those with payloads, and
    events about the log itself.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        # By digest; "" for an intact payload.
        self.payload_faults: dict[str, str] = {}
        self.erased: list[int] = []
        # Declared damage, and erasures.
        self.about_the_log: list[Event] = []

    def check(self, row: TableRow) -> Iterator["_Fault"]:
        if is_unreadable(row):
            yield _Fault(row.seq, UNREADABLE_ROW)
        elif row.leaf is not None:
            self.erased.append(row.seq)
            if not is_blank(row):
                yield _Fault(row.seq, NOT_BLANK)
        if row.payload is None and row.kind not in _SPECIAL:
            return
        for digest in self._log.payloads.named_by(row.kind, row.content, row.payload):
            if digest not in self.payload_faults:
                self.payload_faults[digest] = _payload_fault(self._log, digest)
            if self.payload_faults[digest]:
                yield _Fault(row.seq, self.payload_faults[digest])
        if row.kind in ABOUT_THE_LOG:
            self.about_the_log.append(event_from_row(row))


class _Fault(NamedTuple):
    """A fault at a seq, or of a gap that begins there.

    A gap is one fault, since a flipped bit in an address makes a gap of billions.
    """

    seq: int
    what: str
    last: int = 0


def _gap(first: int, last: int, what: str) -> _Fault:
    return _Fault(first, what if first == last else f"{what}, with all up to seq {last}", last)


def _split_declared(
    faults: list[_Fault], erased: list[int], records: list[Event]
) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """The faults that were not declared, and those that were.

    An erased row that no erasure names is altered.
    """
    erasure_spans: list[tuple[int, int]] = []
    damage_spans: list[tuple[int, int]] = []
    legible: list[_Fault] = []
    for event in records:
        if event.session_id == STORE_SESSION:
            erasure_spans += unpacked_seqs(event.metadata.get("spans"))
        if event.kind == Kind.SALVAGE:
            damage_spans += unpacked_seqs(event.metadata.get("altered"))
            damage_spans += unpacked_seqs(event.metadata.get("lost"))
        legible += _legible(event, erased)
    erasures = _Spans(erasure_spans)
    damage = _Spans(damage_spans)
    unexplained = [
        _Fault(seq, "altered: no erasure names this erased event")
        for seq in erased
        if not erasures.covers(seq, seq)
    ]
    bad: list[tuple[int, str]] = []
    declared: list[tuple[int, str]] = []
    for fault in sorted([*faults, *unexplained, *legible]):
        is_damage = damage.covers(fault.seq, fault.last or fault.seq)
        is_declared = is_damage or fault.what == UNREADABLE_ROW or fault in legible
        (declared if is_declared else bad).append((fault.seq, fault.what))
    return bad, declared


def _legible(record: Event, erased: list[int]) -> Iterator[_Fault]:
    """The fault of an erasure that names events which are not erased.

    A local copy may be behind, or the record is forged. Anybody who may erase can record such an
    event, so it does not make the log bad.
    """
    if record.kind != Kind.ERASURE or record.session_id != STORE_SESSION:
        return
    count = 0
    first = 0
    for low, high in spans_before(record.seq, record.metadata.get("spans")):
        at = bisect.bisect_left(erased, low)
        end = bisect.bisect_right(erased, high)
        size = high - low + 1
        count += size - (end - at)
        if count and not first:
            # The first seq of the span that is not among the erased ones.
            pairs = enumerate(erased[at:end], low)
            first = next((seq for seq, erased_seq in pairs if seq != erased_seq), low + end - at)
    if count:
        events = "1 event" if count == 1 else f"{count:,} events"
        verb = "is" if count == 1 else "are"
        what = f"{events} that the erasure at seq {record.seq} names {verb} still legible here"
        yield _Fault(first, what)


def spans_before(seq: int, spans: object) -> list[tuple[int, int]]:
    """The spans in the record of an erasure at a seq, which may have any shape.

    An erasure covers only events before it, whatever the spans say.
    """
    earlier = []
    for first, last in unpacked_seqs(spans):
        earlier.append((max(1, first), min(last, seq - 1)))
    return merged_spans(earlier)


class _Spans:
    """A set of seqs, as spans. Looking one up takes a few steps, however many spans there are."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._merged = merged_spans(spans)

    def covers(self, first: int, last: int) -> bool:
        at = bisect.bisect_right(self._merged, (first, sys.maxsize)) - 1
        return at >= 0 and last <= self._merged[at][1]


def _payload_fault(log: EventLog, digest: str) -> str:
    try:
        log.payloads.check(digest)
    except (PayloadMissing, PayloadDamaged) as error:
        return str(error)
    return ""
