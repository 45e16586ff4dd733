"""Writing rows to the SQLite file of a log.

`EventLog` gathers what threads append at one moment and hands it over in one batch. The writer
gives each new row its address and its place in the chain, in one transaction, and has it on disk
when it returns. It takes SQLite's write lock up front, and only the taking of the lock is ever
retried.
"""

import logging
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scroll_context.errors import StoreDamaged, StoreFull, StoreLocked
from scroll_context.log import schema
from scroll_context.log.backend import Written
from scroll_context.log.chain import GENESIS
from scroll_context.log.columns import ALL_COLUMNS, TableRow
from scroll_context.log.keys import key_file, keyed_hash, make_key, read_key
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.readers import marked_pages
from scroll_context.log.rows import PreparedRow

REPLICA = "replica.json"
"""A file that marks a folder as the local copy of a shared store. Only the server is appended to.
"""
ERASED_KEY = "erased:"
"""The prefix of an erased event's source key."""
INSERT = (
    f"INSERT INTO event ({', '.join(ALL_COLUMNS)}) VALUES ({', '.join('?' * len(ALL_COLUMNS))})"
)
# A device with ROOMY times the bytes that must stay free is checked again after ROOMY_FOR seconds.
ROOMY = 100
ROOMY_FOR = 1.0

_logger = logging.getLogger("scroll_context.store")


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a store may get.

    An append beyond the limits is refused before it is written; everything else continues to work.
    """

    # Log and payloads together; None for no limit.
    max_bytes: int | None = None
    # Bytes that stay free on the device.
    min_free: int = 8 << 20


class FileWriter:
    """Writes to the SQLite file of a log."""

    def __init__(
        self, path: Path, payloads: PayloadStore, lock_timeout: float, limits: StoreLimits
    ) -> None:
        self.path = path
        self.connection: sqlite3.Connection | None = None
        self.payloads = payloads
        self._lock_timeout = lock_timeout
        self._limits = limits
        # Until then, the free space of the device need not be checked again.
        self._roomy_until = 0.0

    def write(self, rows: Sequence[tuple[PreparedRow, int | None]]) -> list[Written]:
        if self.connection is None:
            self.connection = schema.connect(self.path, writable=True)
            # `_take_lock` waits, with jitter.
            self.connection.execute("PRAGMA busy_timeout = 0")
        self._check_room()
        database = self.connection
        if database.in_transaction:
            # A second Ctrl-C came during the rollback after the first.
            database.execute("ROLLBACK")
        try:
            self._take_lock(database)
            written = self._insert(database, [row for row, _ in rows])
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        return written

    def _check_room(self) -> None:
        """Refuse an append beyond the limits of the store, or onto a device that is nearly full."""
        now = time.monotonic()
        if now > self._roomy_until:
            device = shutil.disk_usage(self.path.parent)
            free = device.free
            # Some file systems report no blocks at all.
            if free < self._limits.min_free and device.total:
                raise self._full(f"only {free:,} bytes are free on the device of {self.path}")
            is_roomy = free > ROOMY * self._limits.min_free
            self._roomy_until = now + ROOMY_FOR if is_roomy else 0.0
        most = self._limits.max_bytes
        if most is not None:
            wal = self.path.with_name(self.path.name + "-wal")
            used = schema.size_of(self.path) + schema.size_of(wal) + self.payloads.bytes_used()
            if used >= most:
                raise self._full(f"{self.path.parent} holds {used:,} bytes and may hold {most:,}")

    def _full(self, what: str) -> StoreFull:
        return StoreFull(
            f"{what}: this append was refused, all earlier ones are safe. "
            f"{schema.command('stats', self.path)} shows where the bytes are, and "
            f"{schema.command('retention --older-than 365d', self.path)} erases old events."
        )

    def _take_lock(self, database: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self._lock_timeout
        while True:
            try:
                database.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            if time.monotonic() > deadline:
                raise StoreLocked(
                    f"another process has held the write lock of {self.path} for "
                    f"{self._lock_timeout:g} s; nothing was written. Try again when it is done."
                )
            time.sleep(random.uniform(0.0002, 0.003))

    def _insert(self, database: sqlite3.Connection, rows: list[PreparedRow]) -> list[Written]:
        recorded = _recorded_sources(database, rows)
        seq, chain = head_of(database, self.path)
        written: list[Written] = []
        new: list[TableRow] = []
        for prepared in rows:
            source_key = prepared.columns.source_key
            existing = recorded.get(source_key) if source_key else None
            if existing is not None:
                written.append(Written(existing, b"", False))
                continue
            row = prepared.at(seq + 1, chain)
            seq, chain = row.seq, row.chain
            new.append(row)
            written.append(Written(seq, chain, True))
            if source_key:
                recorded[source_key] = seq
        database.executemany(INSERT, new)
        return written

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


def is_replica(folder: Path) -> bool:
    """Whether a folder is the local copy of a shared store."""
    # Each opening of a store asks, and a Path would cost four times as much.
    return os.path.exists(f"{folder}/{REPLICA}")  # noqa: PTH110


def head_of(database: sqlite3.Connection, path: Path) -> tuple[int, bytes]:
    """The newest address ever given out, and the chain value at it."""
    head = database.execute(
        "SELECT s.seq, e.chain FROM sqlite_sequence s "
        "LEFT JOIN event e ON e.seq = s.seq WHERE s.name = 'event'"
    ).fetchone()
    if head is None:
        return 0, GENESIS
    seq, chain = head
    if chain is None:
        raise StoreDamaged(
            f"the newest event of {path} (seq {seq}) is missing, so nothing can be chained to it. "
            f"Nothing was written. Run {schema.command('verify', path)}, then "
            f"{schema.command('repair', path)}."
        )
    return int(seq), bytes(chain)


def erased_key(source_key: str | None) -> str | None:
    """The source key of an erased event: a hash, by which a second import recognises the event."""
    return source_key and ERASED_KEY + keyed_hash(make_key(), source_key)


def _recorded_sources(database: sqlite3.Connection, rows: list[PreparedRow]) -> dict[str, int]:
    """The seqs of those source keys that are in the log."""
    keys = [row.columns.source_key for row in rows if row.columns.source_key]
    recorded: dict[str, int] = {}
    for part, marks in marked_pages(keys):
        sql = f"SELECT source_key, seq FROM event WHERE source_key IN ({marks})"
        recorded.update(database.execute(sql, part).fetchall())
    if len(recorded) < len(keys):
        missing = [key for key in keys if key not in recorded]
        recorded.update(_erased_sources(database, missing))
    return recorded


def _erased_sources(database: sqlite3.Connection, keys: list[str]) -> dict[str, int]:
    """Those of the keys whose events were erased, with the seqs of these events."""
    # SQLite finds this range in the index of source keys.
    erased = "source_key >= ? AND source_key < ?"
    bounds = [ERASED_KEY, ERASED_KEY + "g"]
    if not database.execute(f"SELECT 1 FROM event WHERE {erased} LIMIT 1", bounds).fetchone():
        return {}
    key = read_key()
    if key is None:
        _logger.warning(
            "no key in %s: events that were erased are not recognised when imported", key_file()
        )
        return {}
    by_hash = {ERASED_KEY + keyed_hash(key, source_key): source_key for source_key in keys}
    rows = database.execute(f"SELECT source_key, seq FROM event WHERE {erased}", bounds)
    return {by_hash[hashed]: seq for hashed, seq in rows if hashed in by_hash}
