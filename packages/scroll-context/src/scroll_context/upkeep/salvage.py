"""Building a new log from a damaged one.

Every legible event keeps its address and its hash, and the damaged files stay beside the new log
under another name. What could not be read, and what reads but no longer matches its hash, is
declared in the new log by an event of kind `salvage`: `verify` reports it as known, and no gap
passes for history.
"""

import contextlib
import datetime as dt
import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from scroll_context.errors import StoreDamaged, StoreLocked
from scroll_context.events import Draft, Kind, Progress
from scroll_context.files import sync_folder
from scroll_context.log import schema
from scroll_context.log.chain import GENESIS, expected
from scroll_context.log.file_backend import INSERT
from scroll_context.log.pages import PageFile, Place, is_event, pair
from scroll_context.log.payloads import PayloadStore, is_digest
from scroll_context.log.rows import TableRow, prepare
from scroll_context.log.schema import utc_now


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
            for place, rowid, record in self.source.cells(number):
                if is_event(record):
                    places.setdefault(rowid, []).append(place)
                    continue
                match pair(record):
                    case "event", int(value):
                        issued = max(issued, value)
                    case name, "" if name == "clean" or is_digest(name.removeprefix("payload ")):
                        self.chores.append(name)
            if self.progress and number % 256 == 0:
                self.progress(number, 2 * total)
        return places, max([issued, *places])

    def copy(
        self, database: sqlite3.Connection, places: dict[int, list[Place]], issued: int
    ) -> None:
        previous = 0
        chain = GENESIS
        done = 0
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
