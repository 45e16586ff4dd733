"""Whether a store is whole: the chain of every row, and every payload against its digest.

Reads everything, so it is a command and never part of opening. Damage that a salvage has already declared in the
log is reported as known and does not fail the check.
"""

import bisect
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from scroll_context.errors import KeyDestroyed, PayloadDamaged, PayloadMissing
from scroll_context.events import STORE_SESSION, Event, Kind, Progress
from scroll_context.store.chain import GENESIS, breaks
from scroll_context.store.log import PAGE, EventLog
from scroll_context.store.rows import event_from_row, is_blank, whole
from scroll_context.store.schema import ALL_COLUMNS

_RECORDS = frozenset({Kind.SALVAGE, Kind.ERASURE, Kind.ENCRYPTION})
_SPECIAL = _RECORDS | {Kind.SNAPSHOT}

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
    """Walk the chain and the payloads, in one pass; `bad[0]` is the first bad seq."""
    total = log.applied_seq()
    checked: dict[str, str] = {}  # payload digest -> what is wrong with it
    faults: list[_Fault] = []
    erased: list[int] = []
    records: list[Event] = []  # what the log says about itself: declared damage, erasures, lost keys
    seq, chain, events = 0, GENESIS, 0
    while page := log.query(f"SELECT * FROM event WHERE seq > ? ORDER BY seq LIMIT {PAGE}", [seq]):
        if len(page[0]) < len(ALL_COLUMNS):
            page = list(map(whole, page))
        for at, before in breaks(page, seq, chain):
            if at > before + 1:
                faults.append(_gap(before + 1, at - 1, "missing from the log"))
            else:
                faults.append(_Fault(at, "altered: the row does not match its hash"))
        for row in page:
            if row[23] is not None:
                erased.append(row[0])
                if not is_blank(row):
                    faults.append(_Fault(row[0], "altered: the row of an erased event holds more than it may"))
            if row[8] is not None or row[4] in _SPECIAL:
                for digest in log.payloads.named_by(row[4], row[7], row[8]):
                    if digest not in checked:
                        checked[digest] = _payload_fault(log, digest)
                    if checked[digest]:
                        faults.append(_Fault(row[0], checked[digest], is_payload=True))
                if row[4] in _RECORDS:
                    records.append(event_from_row(row))
        seq, chain = page[-1][0], page[-1][21]
        events += len(page)
        if progress:
            progress(seq, total)
    issued = log.query("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'event'")[0][0]
    if issued > seq:
        faults.append(_gap(seq + 1, issued, "missing from the end of the log"))
    bad, known = _told_apart(faults, erased, records)
    head = chain.hex() if isinstance(chain, bytes) else ""  # damage can make it anything
    return Verdict(events, len(checked), head, tuple(bad), tuple(known))


class _Fault(NamedTuple):
    """What is wrong from a seq on. A gap is one fault: a flipped bit in an address makes a gap of billions."""

    seq: int
    what: str
    last: int = 0
    is_payload: bool = False


def _gap(first: int, last: int, what: str) -> _Fault:
    return _Fault(first, what if first == last else f"{what}, with all up to seq {last}", last)


def _told_apart(
    faults: list[_Fault], erased: list[int], records: list[Event]
) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Which faults were not declared, and which are known. An erased row that no erasure names is altered."""
    about = [event.metadata for event in records if event.session_id == STORE_SESSION]
    named = _Spans(span for facts in about for span in facts.get("spans", ()))
    lost = max((event.seq for event in records if event.metadata.get("lost") is True), default=0)
    declared = _Spans(
        span
        for event in records
        if event.kind == Kind.SALVAGE
        for span in (*((seq, seq) for seq in event.metadata.get("altered", ())), *event.metadata.get("lost", ()))
    )
    undeclared = (_Fault(seq, "altered: no erasure names this erased event") for seq in erased if seq not in named)
    bad: list[tuple[int, str]] = []
    known: list[tuple[int, str]] = []
    for fault in sorted([*faults, *undeclared]):
        is_expected = fault.is_payload and (fault.what == DESTROYED or fault.seq < lost)
        is_known = is_expected or declared.covers(fault.seq, fault.last or fault.seq)
        (known if is_known else bad).append((fault.seq, fault.what))
    return bad, known


class _Spans:
    """Which seqs lie in any of the spans; found in a few steps, however many there are."""

    def __init__(self, spans: Iterable[Sequence[int]]) -> None:
        self._merged: list[list[int]] = []
        for low, high in sorted((int(low), int(high)) for low, high in spans):
            if self._merged and low <= self._merged[-1][1] + 1:
                self._merged[-1][1] = max(high, self._merged[-1][1])
            else:
                self._merged.append([low, high])

    def __contains__(self, seq: int) -> bool:
        return self.covers(seq, seq)

    def covers(self, first: int, last: int) -> bool:
        at = bisect.bisect_right(self._merged, [first, sys.maxsize]) - 1
        return at >= 0 and last <= self._merged[at][1]


def _payload_fault(log: EventLog, digest: str) -> str:
    try:
        log.payloads.check(digest)
    except KeyDestroyed:
        return DESTROYED
    except (PayloadMissing, PayloadDamaged) as error:
        return str(error)
    return ""
