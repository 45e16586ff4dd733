"""The built-in backend of a log: one SQLite file in a folder (`LogBackend`, backend.py).

`FileWriter` writes: it gives each row of a batch its address and its place in the chain, in one
transaction, and has it on disk when it returns. It takes SQLite's write lock up front, and only the
taking of the lock is ever retried. `Readers` reads, with as many connections as there were ever
queries at once. `FileBackend` has both.

Every process of this machine writes the file itself, so whatever was appended can be read at once,
and the questions about freshness have simple answers. A folder that is the local copy of a shared
store can be read with this backend too; only its own backend writes to it.
"""

import logging
import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import StoreDamaged, StoreFull, StoreLocked, StoreReadOnly
from scroll_context.log import lease, schema
from scroll_context.log.backend import ErasureRecord, LogWatcher, Written
from scroll_context.log.chain import GENESIS
from scroll_context.log.erasing import add_chores, blank_rows, erasure_draft, rewriting
from scroll_context.log.keys import ERASED_KEY, key_file, keyed_hash, read_key
from scroll_context.log.lease import Holder, Lease
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import ALL_COLUMNS, PreparedRow, TableRow, prepare
from scroll_context.log.schema import Values, marked_pages, utc_now
from scroll_context.work import current as current_work

# writing ------------------------------------------------------------------------------------------

REPLICA = "replica.json"
"""A file that marks a folder as the local copy of a shared store. Only the server is appended to.
"""
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


# reading ------------------------------------------------------------------------------------------

# How many steps SQLite's virtual machine takes, some 0.3 ms, between two checks whether a query
# is still wanted.
_STEPS = 20_000


class Readers:
    """Runs queries on one file from any number of threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_closed = False
        self._all: list[_Reader] = []
        # The last one has the freshest cache. Opening one now finds out whether the file is a log.
        self._idle: list[_Reader] = [self._new_reader()]

    def query(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._new_reader()
        try:
            return reader.query(sql, values)
        finally:
            self._idle.append(reader)

    def close(self) -> None:
        """Close every connection; running queries are finished first."""
        with self._lock:
            self._is_closed = True
            readers, self._all = self._all, []
        for reader in readers:
            reader.close()

    def __len__(self) -> int:
        return len(self._all)

    def _new_reader(self) -> "_Reader":
        reader = _Reader(self._path)
        with self._lock:
            if self._is_closed:
                reader.close()
                raise schema.closed(self._path, "read")
            self._all.append(reader)
        return reader


class _Reader:
    """A connection to read with.

    Closing waits for a running query: to close under it crashes the process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = schema.connect(path, writable=False)
        self._in_use = threading.Lock()

    def query(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        with self._in_use, schema.Translated(self._path):
            if self._connection is None:
                raise schema.closed(self._path, "read")
            work = current_work()
            if work is None:
                return self._rows(self._connection, sql, values)
            self._connection.set_progress_handler(lambda: work.is_over, _STEPS)
            try:
                return self._rows(self._connection, sql, values)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    work.check()
                raise
            finally:
                self._connection.set_progress_handler(None, 0)

    def _rows(
        self, connection: sqlite3.Connection, sql: str, values: Values
    ) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if not schema.tolerates(connection, error):
                raise
            return connection.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._in_use:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


# the backend --------------------------------------------------------------------------------------

LEASES = "leases"
"""The folder of a store that holds them."""


class FileBackend:
    """The log in a folder of this machine."""

    linger = 0.0

    def __init__(
        self,
        folder: Path,
        *,
        create: bool = False,
        lock_timeout: float = 30.0,
        limits: StoreLimits | None = None,
    ) -> None:
        if create and schema.is_vacant(folder):
            schema.create(folder)
        self.path = schema.locate(folder)
        self.payloads = PayloadStore(folder / "payloads")
        self.lock_timeout = lock_timeout
        self.owns_file = not is_replica(folder)
        self.writer = FileWriter(self.path, self.payloads, lock_timeout, limits or StoreLimits())
        self.readers = Readers(self.path)
        self._watchers: list[LogWatcher] = []

    # writing

    def check_writable(self) -> None:
        if not self.owns_file:
            raise StoreReadOnly(
                f"{self.path.parent} is the local copy of a shared store; nothing was changed. "
                "Open the store by its postgresql:// address."
            )

    def write(self, rows: Sequence[tuple[PreparedRow, int | None]]) -> list[Written]:
        return self.writer.write(rows)

    def resolve_unanswered(self) -> None:
        """SQLite always answers: a transaction that was interrupted is rolled back by the next
        one, and what was committed can be read.
        """

    # reading

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self.readers.query(sql, values)

    # freshness

    def last_seq(self) -> int:
        return int(self.query("SELECT ifnull(max(seq), 0) FROM event")[0][0])

    def applied_seq(self) -> int:
        return self.last_seq()

    def awaited_seq(self, patience: float) -> int:  # noqa: ARG002 - there is nothing to wait for
        return self.last_seq()

    def wait_for_own(self, patience: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True

    def unread(self, seq: int) -> int:  # noqa: ARG002 - readers wait for every event
        return 0

    def refresh(self) -> None:
        """The file is the log: every process appends to it directly."""

    def watch(self, watcher: LogWatcher) -> None:
        self._watchers.append(watcher)

    # leases

    def take_lease(self, session_id: str, wait: float = 0.0) -> Lease:
        return lease.take(self.path.parent / LEASES, session_id, utc_now(), wait)

    def holder(self, session_id: str) -> Holder | None:
        return lease.holder_of(self.path.parent / LEASES, session_id)

    # erasing

    def erase(
        self, seqs: list[int], payloads: list[str], facts: Mapping[str, Any]
    ) -> ErasureRecord:
        with rewriting(self.path, self.lock_timeout) as database:
            last, head = head_of(database, self.path)
            blank_rows(database, seqs)
            if seqs:
                add_chores(database, payloads)
            record = prepare(erasure_draft(seqs, facts), utc_now(), self.payloads)
            database.execute(INSERT, record.at(last + 1, head))
        for watcher in self._watchers:
            watcher.rows_appended()
        return ErasureRecord(last + 1, "")

    def close(self) -> None:
        self.readers.close()
        self.writer.close()
