"""Checking whether a store is intact, and building a new log from a damaged one.

`verify` checks the chain of every row, and every payload against its digest. It reads everything,
so it is a command and never part of opening. `salvage` builds a new log in which every event keeps
its address and its hash; the damaged files stay beside it under another name. What could not be
read, and what reads but no longer matches its hash, is declared in the new log by an event of kind
`salvage`: `verify` reports it as known, and no gap passes for history.
"""

import bisect
import contextlib
import datetime as dt
import itertools
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scroll_context.errors import PayloadDamaged, PayloadMissing, StoreDamaged, StoreLocked
from scroll_context.events import ABOUT_THE_LOG, STORE_SESSION, Draft, Event, Kind, Progress
from scroll_context.files import sync_folder
from scroll_context.log import schema
from scroll_context.log.chain import GENESIS, breaks, expected
from scroll_context.log.columns import TableRow
from scroll_context.log.log import EventLog
from scroll_context.log.pages import PageFile, Place
from scroll_context.log.payloads import PayloadStore, is_digest
from scroll_context.log.rows import event_from_row, is_blank, is_unreadable, prepare
from scroll_context.log.schema import utc_now
from scroll_context.log.writer import INSERT

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
    # Payload digests with their faults; "" for an intact payload.
    checked: dict[str, str] = {}
    faults: list[_Fault] = []
    erased: list[int] = []
    # Events about the log itself: declared damage, erasures.
    records: list[Event] = []
    seq, chain, events = 0, GENESIS, 0
    while page := log.rows(seq, sys.maxsize):
        for at, before in breaks(page, seq, chain):
            if at > before + 1:
                faults.append(_gap(before + 1, at - 1, "missing from the log"))
            else:
                faults.append(_Fault(at, "altered: the row does not match its hash"))
        for row in page:
            if row.leaf is None and row.payload is None and row.kind not in _SPECIAL:
                continue
            if is_unreadable(row):
                faults.append(_Fault(row.seq, UNREADABLE_ROW))
            elif row.leaf is not None:
                erased.append(row.seq)
                if not is_blank(row):
                    faults.append(_Fault(row.seq, NOT_BLANK))
            if row.payload is not None or row.kind in _SPECIAL:
                for digest in log.payloads.named_by(row.kind, row.content, row.payload):
                    if digest not in checked:
                        checked[digest] = _payload_fault(log, digest)
                    if checked[digest]:
                        faults.append(_Fault(row.seq, checked[digest]))
                if row.kind in ABOUT_THE_LOG:
                    records.append(event_from_row(row))
        seq, chain = page[-1].seq, page[-1].chain
        events += len(page)
        if progress:
            progress(seq, total)
    issued = log.query("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'event'")[0][0]
    if issued > seq:
        faults.append(_gap(seq + 1, issued, "missing from the end of the log"))
    bad, declared = _split_declared(faults, erased, records)
    # Damage can give the chain value any type.
    head = chain.hex() if isinstance(chain, bytes) else ""
    return Verdict(events, len(checked), head, tuple(bad), tuple(declared))


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
    for event in records:
        if event.session_id == STORE_SESSION:
            erasure_spans += spans_in(event.metadata.get("spans"))
        if event.kind == Kind.SALVAGE:
            damage_spans += _declared_by(event.metadata)
    erasures = Spans(erasure_spans)
    damage = Spans(damage_spans)
    unexplained = [
        _Fault(seq, "altered: no erasure names this erased event")
        for seq in erased
        if seq not in erasures
    ]
    legible: list[_Fault] = []
    for event in records:
        legible += _legible(event, erased)
    bad: list[tuple[int, str]] = []
    declared: list[tuple[int, str]] = []
    for fault in sorted([*faults, *unexplained, *legible]):
        is_declared = (
            fault.what == UNREADABLE_ROW
            or fault in legible
            or damage.covers(fault.seq, fault.last or fault.seq)
        )
        (declared if is_declared else bad).append((fault.seq, fault.what))
    return bad, declared


def _legible(record: Event, erased: list[int]) -> Iterator[_Fault]:
    """The fault of an erasure that names events which are not erased.

    A local copy may be behind, or the record is forged. Anybody who may erase can record such an
    event, so it does not make the log bad.
    """
    if record.kind != Kind.ERASURE or record.session_id != STORE_SESSION:
        return
    spans = spans_in(record.metadata.get("spans"))
    earlier = Spans((max(1, low), min(high, record.seq - 1)) for low, high in spans)
    count, first = 0, 0
    for low, high in earlier.merged:
        at, end = bisect.bisect_left(erased, low), bisect.bisect_right(erased, high)
        count += high - low + 1 - (end - at)
        if count and not first:
            # The first seq of the span that is not among the erased ones.
            pairs = enumerate(erased[at:end], low)
            first = next((seq for seq, erased_seq in pairs if seq != erased_seq), low + end - at)
    if count:
        events = "1 event" if count == 1 else f"{count:,} events"
        verb = "is" if count == 1 else "are"
        what = f"{events} that the erasure at seq {record.seq} names {verb} still legible here"
        yield _Fault(first, what)


def spans_in(value: object) -> Iterator[tuple[int, int]]:
    """The spans of seqs in metadata, which may have any shape."""
    for span in value if isinstance(value, list) else ():
        match span:
            case [first, last] if type(first) is int and type(last) is int:
                yield first, last


def _declared_by(metadata: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """The rows that a salvage has declared altered or lost."""
    altered = metadata.get("altered")
    for seq in altered if isinstance(altered, list) else ():
        yield from spans_in([[seq, seq]])
    yield from spans_in(metadata.get("lost"))


class Spans:
    """A set of seqs, as spans. Looking one up takes a few steps, however many spans there are."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self.merged: list[list[int]] = []
        for low, high in sorted(spans):
            if high < low:
                continue
            if self.merged and low <= self.merged[-1][1] + 1:
                self.merged[-1][1] = max(high, self.merged[-1][1])
            else:
                self.merged.append([low, high])

    def __contains__(self, seq: int) -> bool:
        return self.covers(seq, seq)

    def covers(self, first: int, last: int) -> bool:
        at = bisect.bisect_right(self.merged, [first, sys.maxsize]) - 1
        return at >= 0 and last <= self.merged[at][1]


def _payload_fault(log: EventLog, digest: str) -> str:
    try:
        log.payloads.check(digest)
    except (PayloadMissing, PayloadDamaged) as error:
        return str(error)
    return ""


# salvage ------------------------------------------------------------------------------------------


class SalvageReport(msgspec.Struct, frozen=True):
    """The recovered events. Seqs between `lost` bounds, both included, could not be read."""

    recovered: int
    lost: tuple[tuple[int, int], ...]
    altered: tuple[int, ...]
    kept_as: Path


def salvage(folder: Path, progress: Progress | None = None) -> SalvageReport:
    """Replace a damaged log by a new one with every legible event.

    No other process may have the store open.
    """
    path = schema.locate(folder)
    with _alone(path):
        with contextlib.closing(PageFile(path)) as source:
            rescue = _Rescue(source, folder, progress)
            places, issued = rescue.survey()
            if not places:
                raise StoreDamaged(
                    f"nothing in {path} reads as an event; it was left as it is. Restore a backup."
                )
            stage = folder / "salvage.new"
            schema.private_folder(stage)
            (stage / schema.LOG_NAME).unlink(missing_ok=True)
            schema.create(stage, lambda database: rescue.copy(database, places, issued))
        damaged = _swap(path, stage)
    recovered = len(places) - rescue.illegible
    return SalvageReport(recovered, rescue.lost, tuple(rescue.altered), damaged)


class _Rescue:
    """A running salvage: where rows lie, and their faults."""

    def __init__(self, source: PageFile, folder: Path, progress: Progress | None) -> None:
        self.source = source
        self.payloads = PayloadStore(folder / "payloads")
        self.progress = progress
        self.lost: tuple[tuple[int, int], ...] = ()
        self.altered: list[int] = []
        self.illegible = 0
        # The chores of an erasure that was cut short.
        self.chores: list[str] = []

    def survey(self) -> tuple[dict[int, list[Place]], int]:
        """Where each seq can be read, and the newest seq that was ever assigned."""
        places: dict[int, list[Place]] = {}
        issued, total = 0, self.source.count
        for number in range(1, total + 1):
            for place, seq in self.source.cells(number):
                places.setdefault(seq, []).append(place)
            for name, value in self.source.pairs(number):
                if name == "event" and isinstance(value, int):
                    issued = max(issued, value)
                elif value == "" and (name == "clean" or is_digest(name.removeprefix("payload "))):
                    self.chores.append(name)
            if self.progress and number % 256 == 0:
                self.progress(number, 2 * total)
        return places, max([issued, *places])

    def copy(
        self, database: sqlite3.Connection, places: dict[int, list[Place]], issued: int
    ) -> None:
        previous, chain, done = 0, GENESIS, 0
        lost: list[tuple[int, int]] = []
        database.execute("BEGIN IMMEDIATE")
        for seq in sorted(places):
            row, is_intact = self._legible(places[seq], chain if seq == previous + 1 else None)
            if row is None or not _insert(database, row):
                self.illegible += 1
                continue
            if not is_intact:
                self.altered.append(seq)
            if seq != previous + 1:
                lost.append((previous + 1, seq - 1))
            previous, chain = seq, row.chain
            done += 1
            if self.progress and done % 1000 == 0:
                self.progress(len(places) + done, 2 * len(places))
        if issued > previous:
            lost.append((previous + 1, issued))
        self.lost = tuple(lost)
        self._declare(database, issued + 1, chain)
        database.executemany(
            "INSERT OR IGNORE INTO chore VALUES (?, '')", [(name,) for name in self.chores]
        )
        database.execute("COMMIT")

    def _legible(self, places: list[Place], chain: bytes | None) -> tuple[TableRow | None, bool]:
        """The copy of a row that its hash confirms, else any copy that decodes.

        Also returns whether the hash confirms it.
        """
        fallback: TableRow | None = None
        # With "replace", a bad bit does not cost a complete text.
        for place, errors in itertools.product(places, ("strict", "replace")):
            try:
                row = self.source.row(place, errors)
            except (IndexError, ValueError):
                continue
            if errors == "strict" and (chain is None or expected(chain, row) == row.chain):
                return row, True
            fallback = row
        return fallback, False

    def _declare(self, database: sqlite3.Connection, seq: int, chain: bytes) -> None:
        missing = sum(last - first + 1 for first, last in self.lost)
        draft = Draft(
            kind=Kind.SALVAGE,
            content=(
                f"this log was salvaged: {missing} events could not be read, "
                f"{len(self.altered)} are altered"
            ),
            metadata={"lost": self.lost, "altered": self.altered},
        )
        database.execute(INSERT, prepare(draft, utc_now(), self.payloads).at(seq, chain))


def _insert(database: sqlite3.Connection, row: TableRow) -> bool:
    """Insert a row if the table accepts it. Returns whether it did.

    Damage can turn a text into a number, or a source key into that of another event.
    """
    try:
        database.execute(INSERT, row)
    except sqlite3.IntegrityError:
        return False
    return True


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes out during the salvage, as far as SQLite can still lock the file."""
    with schema.Translated(path):
        database = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        with contextlib.suppress(sqlite3.DatabaseError):
            try:
                database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    raise StoreLocked(
                        f"{path} is in use; nothing was changed. Stop its other users first."
                    ) from error
        yield
    finally:
        database.close()


def _swap(path: Path, stage: Path) -> Path:
    """Put the new log in place. Returns the new name of the damaged one.

    The old files get their second name first, so that they exist at every moment.
    """
    damaged = path.with_name(f"{path.name}.damaged-{dt.datetime.now():%Y%m%d-%H%M%S-%f}")
    for suffix in ("", "-wal"):
        old = path.with_name(path.name + suffix)
        if old.exists():
            os.link(old, damaged.with_name(damaged.name + suffix))
    # A stale WAL must never meet the new file.
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(stage / schema.LOG_NAME, path)
    stage.rmdir()
    sync_folder(path.parent)
    return damaged
