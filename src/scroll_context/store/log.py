"""The Event Log: one append-only SQLite file, the ground truth of every session.

An append that returned is on disk (WAL, synchronous FULL). Appends come from any number of threads and processes:
threads of one process share a commit (the first to get the write lock writes what all have queued), processes take
SQLite's write lock up front, and only the taking of the lock is ever retried. Reads never hold a transaction open
across a yield. Nothing here updates or deletes, and the file itself refuses both (see schema.py). The events of an
open session come through its journal (journal.py). Imports and merges append here directly; erase, merge and salvage
also write rows themselves, each under the write lock or into a file of its own.
"""

import datetime as dt
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scroll_context.errors import ScrollError, StoreDamaged, StoreError, StoreFull, StoreLocked, UnknownSeq
from scroll_context.events import EVERYTHING, STORE_SESSION, Draft, Event, Grant, Kind
from scroll_context.store import schema, secret
from scroll_context.store.chain import GENESIS, link
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.rows import Row, event_from_row, prepare

Values = Sequence[Any] | Mapping[str, Any]  # for ? and for :name; ?1 is refused by newer versions of sqlite3

NEWEST_ERASURE = (
    f"SELECT ifnull(max(seq), 0) FROM event WHERE session_id = '{STORE_SESSION}' AND kind = '{Kind.ERASURE}'"
)
ERASED_KEY = "erased:"  # how the source key of an erased event begins

_logger = logging.getLogger("scroll_context.store")

PAGE = 500  # rows fetched per read transaction when iterating

INSERT = f"INSERT INTO event ({', '.join(schema.ALL_COLUMNS)}) VALUES ({', '.join('?' * len(schema.ALL_COLUMNS))})"
_APPEND = INSERT.replace(", leaf)", ")").replace(", ?)", ")")  # what is appended is not erased


class SessionInfo(msgspec.Struct, frozen=True):
    """One session at a glance."""

    session_id: str
    agent_id: str
    task_id: str
    events: int
    first_seq: int
    last_seq: int
    first_at: str
    last_at: str


class Written(NamedTuple):
    """Where a row stands in the log. A row whose source key was known is not new, and has no chain value here."""

    seq: int
    chain: bytes
    is_new: bool


class _Ticket:
    """One caller's rows, waiting to share a commit."""

    __slots__ = ("error", "rows", "turn", "written")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.written: list[Written] | None = None
        self.error: Exception | None = None
        self.turn = threading.Lock()  # released when the rows are written, or when it is up to this caller to write
        self.turn.acquire()

    def wake(self) -> None:
        """Let the caller go on; once more does no harm."""
        try:
            self.turn.release()
        except RuntimeError:  # it was released before
            return


class _Reader:
    """A connection to read with. Closing waits for a running query: to close under it crashes the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = schema.connect(path, writable=False)
        self._in_use = threading.Lock()

    def query(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        with self._in_use, schema.Translated(self._path):
            if self._connection is None:
                raise schema.closed(self._path, "read")
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if not schema.tolerates(self._connection, error):
                    raise
                return self._connection.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._in_use:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a store may get. What would go beyond is refused before it is written; everything else goes on."""

    max_bytes: int | None = None  # log and payloads together; None for as much as there is
    min_free: int = 8 << 20  # bytes that stay free on the device


class EventLog:
    """Append to and read one log file. Share one instance between threads."""

    def __init__(
        self,
        folder: Path,
        payloads: PayloadStore,
        *,
        create: bool = False,
        lock_timeout: float = 30.0,
        limits: StoreLimits | None = None,
    ) -> None:
        if create and schema.is_vacant(folder):
            schema.create(folder)
        self.path = schema.locate(folder)
        self.payloads = payloads
        self.lock_timeout = lock_timeout
        self.limits = limits or StoreLimits()
        self.on_append: Callable[[], None] | None = None  # told after each commit of this process
        self._closed = False
        self._readers: list[_Reader] = []  # as many as there ever were queries at once
        self._idle: list[_Reader] = []  # those that nobody uses; the last one has the freshest cache
        self._queue_lock = threading.Lock()  # guards the lists of readers, the queue and the leader
        self._write_lock = threading.Lock()  # held during a commit
        self._queue: list[_Ticket] = []
        self._leader: _Ticket | None = None  # whose caller writes, now or next
        self._was_shared = False  # whether the last commit was shared
        self._writer: sqlite3.Connection | None = None
        self._idle.append(self._new_reader())  # fail now, not at the first read, when the file is no log

    # appending ------------------------------------------------------------------------------------------

    def append(self, draft: Draft) -> int:
        """Record one event and return its address; durable when this returns."""
        return self.append_many((draft,))[0]

    def append_many(self, drafts: Iterable[Draft]) -> list[int]:
        """Record all or none, in order. A draft whose source key is already recorded yields the existing seq."""
        now = utc_now()
        return [row.seq for row in self.write([prepare(draft, now, self.payloads) for draft in drafts])]

    def write(self, rows: list[Row]) -> list[Written]:
        """Record checked rows, all or none, in order; durable when this returns."""
        if not rows:
            return []
        ticket = _Ticket(rows)
        try:
            self._join(ticket)
            if ticket is self._leader:
                self._commit_queue()
        finally:
            try:
                self._leave(ticket)
            except BaseException:  # Ctrl-C just there: others wait for the lead
                self._leave(ticket)
                raise
        if ticket.written is None:
            raise ticket.error or StoreError(
                f"the commit to {self.path} was interrupted, so this event may not be recorded. "
                "Look at the end of the log, and append it again if it is not there."
            )
        if self.on_append is not None:
            self.on_append()
        return ticket.written

    def _join(self, ticket: _Ticket) -> None:
        """Wait until the rows are written, or until it is up to this caller to write all that is queued."""
        with self._queue_lock:
            self._queue.append(ticket)
            if self._leader is None:
                self._leader = ticket
                return
        ticket.turn.acquire()  # also by one that is the leader by now: whoever left the lead to it released this

    def _leave(self, ticket: _Ticket) -> None:
        """Hand the lead to the next caller. Nobody waits for a caller that an interrupt has taken away.

        Doing it twice is the same as once, so that it can be done again when it was itself interrupted.
        """
        with self._queue_lock:
            if ticket in self._queue:
                self._queue.remove(ticket)
            if ticket is self._leader:
                self._leader = self._queue[0] if self._queue else None
            if self._leader is not None:
                self._leader.wake()

    def _commit_queue(self) -> None:
        """Write the rows of all who wait, and wake them. One that is woken without an answer was interrupted."""
        batch: list[_Ticket] = []
        if self._was_shared:
            time.sleep(0)  # those whom the last commit woke are on their way back: let them in
        try:
            with self._write_lock, schema.Translated(self.path):
                with self._queue_lock:
                    batch, self._queue = self._queue, []
                self._was_shared = len(batch) > 1
                written = self._write([row for ticket in batch for row in ticket.rows])
            at = 0
            for ticket in batch:
                ticket.written = written[at : at + len(ticket.rows)]
                at += len(ticket.rows)
        except (ScrollError, OSError) as error:
            for ticket in batch:
                ticket.error = error
        finally:
            for ticket in batch:
                ticket.wake()

    def _write(self, rows: list[Row]) -> list[Written]:
        if self._closed:
            raise schema.closed(self.path, "append")
        if self._writer is None:
            self._writer = schema.connect(self.path, writable=True)
            self._writer.execute("PRAGMA busy_timeout = 0")  # waiting is done in _take_lock, with jitter
        self._check_room()
        database = self._writer
        if database.in_transaction:  # a second Ctrl-C, during the rollback after the first
            database.execute("ROLLBACK")
        try:
            self._take_lock(database)
            written = self._insert(database, rows)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        return written

    def _check_room(self) -> None:
        """Refuse an append that would go beyond the limits of the store, or leave nothing on the device."""
        device = os.statvfs(self.path.parent)
        free = device.f_bavail * device.f_frsize
        if free < self.limits.min_free and device.f_blocks:  # some file systems do not say
            raise self._full(f"only {free:,} bytes are free on the device of {self.path}")
        if self.limits.max_bytes is not None:
            log = sum(_size(self.path.with_name(self.path.name + suffix)) for suffix in ("", "-wal"))
            used = log + self.payloads.bytes_used()
            if used >= self.limits.max_bytes:
                raise self._full(f"{self.path.parent} holds {used:,} bytes and may hold {self.limits.max_bytes:,}")

    def _full(self, what: str) -> StoreFull:
        return StoreFull(
            f"{what}: this append was refused, all earlier ones are safe. {schema.command('stats', self.path)} shows "
            "where the bytes are; docs/FORGETTING.md says what can go."
        )

    def _take_lock(self, database: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self.lock_timeout
        while True:
            try:
                database.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            if time.monotonic() > deadline:
                raise StoreLocked(
                    f"another process has held the write lock of {self.path} for {self.lock_timeout:g} s; "
                    "nothing was written. Try again when it is done."
                )
            time.sleep(random.uniform(0.0002, 0.003))

    def _insert(self, database: sqlite3.Connection, rows: list[Row]) -> list[Written]:
        known = _known_sources(database, rows)
        seq, chain = head_of(database, self.path)
        written: list[Written] = []
        new: list[tuple[Any, ...]] = []
        for row in rows:
            existing = known.get(row.source_key) if row.source_key else None
            if existing is not None:
                written.append(Written(existing, b"", False))
                continue
            seq += 1
            chain = link(chain, seq, row.leaf)
            new.append((seq, *row.before, chain, row.nonce))
            written.append(Written(seq, chain, True))
            if row.source_key:
                known[row.source_key] = seq
        database.executemany(_APPEND, new)
        return written

    # reading --------------------------------------------------------------------------------------------

    def get(self, seq: int, grant: Grant = EVERYTHING) -> Event:
        """The event at an address, if it exists and the grant reaches it."""
        found = self.get_many([seq], grant)
        if not found:
            newest = self.tail(1, grant=grant)
            end = f"; the newest has seq {newest[0].seq}" if newest else ""
            raise UnknownSeq(f"no event has seq {seq} within reach{end}")
        return found[0]

    def get_many(self, seqs: Sequence[int], grant: Grant = EVERYTHING) -> list[Event]:
        """The events at these addresses that exist and are in reach, in the order asked for."""
        found: dict[int, Event] = {}
        for at in range(0, len(seqs), PAGE):
            part = seqs[at : at + PAGE]
            marks = ", ".join("?" * len(part))
            found.update((e.seq, e) for e in self._select(f"seq IN ({marks})", part))
        return [event for seq in seqs if (event := found.get(seq)) is not None and grant.permits(event)]

    def sessions_of(self, seqs: Sequence[int]) -> dict[int, str]:
        """The session of each of these events."""
        found: dict[int, str] = {}
        for at in range(0, len(seqs), PAGE):
            part = seqs[at : at + PAGE]
            marks = ", ".join("?" * len(part))
            found.update(self.query(f"SELECT seq, session_id FROM event WHERE seq IN ({marks})", part))
        return found

    def find_source(self, source_key: str) -> Event | None:
        """The event that was recorded under a source key."""
        return next(iter(self._select("source_key = ?", [source_key])), None)

    def span(self, lo: int, hi: int, grant: Grant = EVERYTHING) -> list[Event]:
        """The events with lo <= seq <= hi."""
        return list(self.iterate(after=lo - 1, until=hi, grant=grant))

    def tail(self, count: int, **filters: Any) -> list[Event]:
        """The newest `count` events that match, oldest first. Filters as for iterate()."""
        where, values = conditions(**filters)
        return list(reversed(self._select(f"{where} ORDER BY seq DESC LIMIT ?", [*values, count])))

    def iterate(self, after: int = 0, until: int | None = None, **filters: Any) -> Iterator[Event]:
        """Events in order of seq, from behind `after` to `until`, fetched in pages.

        Filters: session_id, agent_id, task_id, kind, role (a text or several), created_from, created_to
        (ISO text, compared as text; a date as the upper end includes that day), grant.
        """
        where, values = conditions(**filters)
        until = self.last_seq() if until is None else until
        while True:
            page = self._select(f"seq > ? AND seq <= ? AND {where} ORDER BY seq LIMIT ?", [after, until, *values, PAGE])
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].seq

    def format(self) -> int:
        """The format version of the file. Everything of an older one can be read; the first append upgrades it."""
        return int(self.query("PRAGMA user_version")[0][0])

    def upgrade(self) -> int:
        """Bring the file to the newest format now; the version that it had."""
        before = self.format()
        schema.connect(self.path, writable=True).close()
        return before

    def newest_erasure(self) -> int:
        """The seq of the newest erasure; 0 when there was none. Who holds text of the log in memory asks for it."""
        return int(self.query(NEWEST_ERASURE)[0][0])

    def last_seq(self) -> int:
        """The newest address; 0 for an empty log."""
        return int(self.query("SELECT ifnull(max(seq), 0) FROM event")[0][0])

    def text(self, event: Event) -> str:
        """The whole text of an event: its content, or its payload when that holds the body as text."""
        if event.payload is None or not event.payload.is_text:
            return event.content
        return self.payloads.text(event.payload.digest)

    def sessions(self, grant: Grant = EVERYTHING) -> list[SessionInfo]:
        """Every session within reach, oldest first."""
        where, values = conditions(grant=grant)
        rows = self.query(
            f"""SELECT s.session_id, a.agent_id, a.task_id, s.n, s.lo, s.hi, a.created_at, b.created_at
            FROM (SELECT session_id, count(*) n, min(seq) lo, max(seq) hi FROM event WHERE {where}
                  GROUP BY session_id) s JOIN event a ON a.seq = s.lo JOIN event b ON b.seq = s.hi ORDER BY s.lo""",
            values,
        )
        return [SessionInfo(*row) for row in rows]

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Run one of Scroll's own SELECTs. Not for foreign SQL: see sql.py."""
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._new_reader()
        try:
            return reader.query(sql, values)
        finally:
            self._idle.append(reader)

    def close(self) -> None:
        """Close every connection; running appends and queries are finished first."""
        with self._write_lock:
            with self._queue_lock:
                self._closed = True
                readers, self._readers = self._readers, []
            for reader in readers:
                reader.close()
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def _select(self, condition: str, values: Sequence[Any]) -> list[Event]:
        return [event_from_row(row) for row in self.query(f"SELECT * FROM event WHERE {condition}", values)]

    def _new_reader(self) -> _Reader:
        reader = _Reader(self.path)
        with self._queue_lock:
            if self._closed:
                reader.close()
                raise schema.closed(self.path, "read")
            self._readers.append(reader)
        return reader


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def utc_now() -> str:
    """The time as the log writes it: ISO-8601, UTC, microseconds."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


def head_of(database: sqlite3.Connection, path: Path) -> tuple[int, bytes]:
    """The newest address ever given out, and the chain value at it."""
    row = database.execute(
        "SELECT s.seq, e.chain FROM sqlite_sequence s LEFT JOIN event e ON e.seq = s.seq WHERE s.name = 'event'"
    ).fetchone()
    if row is None:
        return 0, GENESIS
    if row[1] is None:
        raise StoreDamaged(
            f"the newest event of {path} (seq {row[0]}) is missing, so nothing can be chained to it. Nothing was "
            f"written. Run {schema.command('verify', path)}, then {schema.command('salvage', path)}."
        )
    return int(row[0]), bytes(row[1])


def erased_key(source_key: str | None) -> str | None:
    """What an erased event keeps of its source key: enough to recognise it when it is imported again."""
    return source_key and ERASED_KEY + secret.keyed_hash(secret.make_key(), source_key)


def _known_sources(database: sqlite3.Connection, rows: list[Row]) -> dict[str, int]:
    keys = [row.source_key for row in rows if row.source_key]
    known: dict[str, int] = {}
    for at in range(0, len(keys), PAGE):
        part = keys[at : at + PAGE]
        marks = ", ".join("?" * len(part))
        known.update(
            database.execute(f"SELECT source_key, seq FROM event WHERE source_key IN ({marks})", part).fetchall()
        )
    if len(known) < len(keys):
        known.update(_erased_sources(database, [key for key in keys if key not in known]))
    return known


def _erased_sources(database: sqlite3.Connection, keys: list[str]) -> dict[str, int]:
    """Those of the keys whose events were erased, with the addresses that these still have."""
    erased = "source_key >= ? AND source_key < ?"  # which SQLite finds in the index of source keys
    bounds = [ERASED_KEY, ERASED_KEY + "g"]
    if not database.execute(f"SELECT 1 FROM event WHERE {erased} LIMIT 1", bounds).fetchone():
        return {}
    if (key := secret.read_key()) is None:
        _logger.warning("no key in %s: events that were erased are not recognised when imported", secret.key_file())
        return {}
    hashed = {ERASED_KEY + secret.keyed_hash(key, one): one for one in keys}
    known = database.execute(f"SELECT source_key, seq FROM event WHERE {erased}", bounds)
    return {hashed[one]: seq for one, seq in known if one in hashed}


def conditions(
    *,
    session_id: str | Sequence[str] | None = None,
    agent_id: str | Sequence[str] | None = None,
    task_id: str | Sequence[str] | None = None,
    kind: str | Sequence[str] | None = None,
    role: str | Sequence[str] | None = None,
    created_from: str | None = None,
    created_to: str | None = None,
    grant: Grant = EVERYTHING,
) -> tuple[str, list[Any]]:
    terms: list[str] = ["1"]
    values: list[Any] = []
    for column, wanted in (
        ("session_id", session_id), ("agent_id", agent_id), ("task_id", task_id), ("kind", kind), ("role", role),
        ("session_id", grant.session_id), ("agent_id", grant.agent_id), ("task_id", grant.task_id),
    ):  # fmt: skip
        if wanted is not None:
            several = [wanted] if isinstance(wanted, str) else list(wanted)
            terms.append(f"{column} IN ({', '.join('?' * len(several))})")
            values += [str(value) for value in several]
            if column == "task_id" and "" not in several:
                terms.append("task_id <> ''")  # what lets SQLite use the partial index
    if created_from is not None:
        terms.append("created_at >= ?")
        values.append(created_from)
    if created_to is not None:
        terms.append("substr(created_at, 1, ?) <= ?")
        values += [len(created_to), created_to]
    return " AND ".join(terms), values
