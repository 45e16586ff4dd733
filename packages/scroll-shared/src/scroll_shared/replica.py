"""The copy of a shared log on this host: a SQLite file like that of a local store, with the same
seqs and the same chain.

Rows arrive in the order of their seqs, from the follower or from this host's own appends, and each
must continue the chain; a row that does not is never written. Any process of the host may apply
rows: SQLite's write lock orders them. The file can be created again from the server, so a commit
here need not survive a loss of power, but it must leave an intact file.

Rows that this process has appended, and that the file lacks because other hosts' rows before them
have not arrived, are kept in memory. Queries see them beside the rows of the file: an event can be
read as soon as its append has returned.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import StoreDamaged
from scroll_context.events import STORE_SESSION, Kind
from scroll_context.files import complete_file
from scroll_context.log import schema
from scroll_context.log.chain import breaks
from scroll_context.log.erasing import PURGE
from scroll_context.log.file_backend import INSERT, REPLICA, head_of
from scroll_context.log.rows import ALL_COLUMNS, TableRow
from scroll_shared.address import Address
from scroll_shared.received import as_unreadable

# A copy has this file if its history is not the server's.
_QUARANTINE = "quarantine.json"


class StoreFacts(msgspec.Struct, frozen=True):
    """The store that a folder is a copy of.

    The address has no password. Reports about this copy need the secret.
    """

    uid: str
    store_id: int
    payloads: str
    address: str
    secret: str

    @property
    def replica(self) -> str:
        """The name of this copy on the server."""
        return str(uuid.UUID(bytes=hashlib.sha256(self.secret.encode()).digest()[:16]))


def read_facts(folder: Path) -> StoreFacts | None:
    """The store that a folder is a copy of; None when it is not a copy yet."""
    try:
        return msgspec.json.decode((folder / REPLICA).read_bytes(), type=StoreFacts)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreDamaged(
            f"{folder / REPLICA} cannot be read ({error}). "
            "Move the folder away; the next opening creates a new copy."
        ) from error


def make_replica(
    folder: Path, facts: StoreFacts, fill: Callable[[], object] = lambda: None
) -> StoreFacts:
    """Make a folder the copy of a store, unless it is one. A copy of another store is refused.

    `fill` may put a log there that others have made. Otherwise it starts empty, and the follower
    reads all rows.
    """
    present = read_facts(folder)
    if present is None and not schema.is_vacant(folder):
        # Another process may have made it a copy meanwhile.
        present = read_facts(folder)
        if present is None:
            raise StoreDamaged(
                f"{folder} contains something other than a copy of {facts.address}; "
                "name another folder with replica="
            )
    if present is None:
        schema.private_folder(folder)
        _write(folder / REPLICA, msgspec.json.encode(facts))
        present = read_facts(folder) or facts
    if present.uid != facts.uid:
        raise StoreDamaged(
            f"{folder} is a copy of another store ({present.uid}) than the one that "
            f"{facts.address} names now ({facts.uid}). Nothing was changed. Move the folder away, "
            "or name another with replica=."
        )
    if not (folder / schema.LOG_NAME).exists():
        fill()
    if not (folder / schema.LOG_NAME).exists():
        schema.create(folder)
    return present


class Replica:
    """The log file of a copy, for writing. Share one instance between threads."""

    def __init__(self, folder: Path, address: Address) -> None:
        self.path = schema.locate(folder)
        self.folder = folder
        self.on_applied: Callable[[], None] = lambda: None
        # The server has everything up to this seq on disk.
        self.durable = 0
        self._quarantine = str(folder / _QUARANTINE)
        self._address = address
        self._own: dict[int, TableRow] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._database = schema.connect(self.path, writable=True)
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._overlay: sqlite3.Connection | None = None
        self._overlay_lock = threading.Lock()

    def head(self) -> tuple[int, bytes]:
        """The newest row of the file: its seq and its chain value."""
        with self._lock, schema.Translated(self.path):
            return head_of(self._database, self.path)

    def apply(self, rows: Sequence[TableRow]) -> None:
        """Append rows after the newest one.

        Rows that the file has are skipped; a broken chain writes nothing.
        """
        with self._lock, schema.Translated(self.path):
            database = self._database
            database.execute("BEGIN IMMEDIATE")
            try:
                seq, chain = head_of(database, self.path)
                new = [row for row in rows if row.seq > seq]
                for at, before in breaks(new, seq, chain):
                    raise self.quarantined(
                        f"seq {at} from the server does not continue seq {before} here"
                    )
                seq = new[-1].seq if new else seq
                insert_rows(database, new, self.path)
                database.executemany(
                    "INSERT OR REPLACE INTO chore VALUES (?, '')",
                    [
                        (f"{PURGE}{row.seq}",)
                        for row in new
                        if row.kind == Kind.ERASURE and row.session_id == STORE_SESSION
                    ],
                )
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        self.forget_own(seq)

    def add_own(self, rows: Sequence[TableRow]) -> bool:
        """Add rows that this process has appended. Returns whether the file has them too."""
        self._own.update((row.seq, row) for row in rows)
        if not rows:
            return True
        self.durable = max(self.durable, rows[-1].seq)
        if self.head()[0] + 1 != rows[0].seq:
            return False
        self.apply(rows)
        return True

    def forget_own(self, applied: int) -> None:
        """Drop the rows in memory that the file has by now."""
        for seq in [seq for seq in list(self._own) if seq <= applied]:
            self._own.pop(seq, None)
        with self._changed:
            self._changed.notify_all()
        self.on_applied()

    @property
    def has_own(self) -> bool:
        """Whether there are rows that the file may lack."""
        return bool(self._own)

    def newest_own(self) -> int:
        return max(list(self._own), default=0)

    def wait_for(self, seq: int, timeout: float) -> bool:
        """Wait until the file has everything up to `seq`; another process may be the one that
        applies it.
        """
        deadline = time.monotonic() + timeout
        newest, _ = self.head()
        while newest < seq:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait(min(left, 0.02))
            newest, _ = self.head()
        self.forget_own(newest)
        return True

    def query(self, sql: str, values: Any) -> list[tuple[Any, ...]]:
        """Run a SELECT on the file and the rows in memory together."""
        with self._overlay_lock, schema.Translated(self.path):
            if self._overlay is None:
                self._overlay = schema.connect(self.path, writable=False)
                columns = ", ".join(ALL_COLUMNS).replace("seq,", "seq INTEGER PRIMARY KEY,", 1)
                self._overlay.execute(f"CREATE TEMP TABLE own ({columns})")
                self._overlay.execute(
                    "CREATE TEMP VIEW event AS "
                    "SELECT * FROM main.event UNION ALL SELECT * FROM temp.own"
                )
            database = self._overlay
            # The rows in memory are copied before the transaction begins: those that are forgotten
            # in between are in the file.
            own = sorted(self._own.copy().items())
            database.execute("BEGIN")
            try:
                newest = "SELECT ifnull(max(seq), 0) FROM main.event"
                (applied,) = database.execute(newest).fetchone()
                database.execute("DELETE FROM temp.own")
                lacking = [row for seq, row in own if seq > applied]
                database.executemany(INSERT.replace("INTO event", "INTO temp.own"), lacking)
                return database.execute(sql, values).fetchall()
            finally:
                database.execute("ROLLBACK")

    # another history ------------------------------------------------------------------------------

    def quarantined(self, why: str) -> StoreDamaged:
        """Record that this copy and the server have different histories. Returns the error."""
        with contextlib.suppress(OSError):
            _write(Path(self._quarantine), json.dumps({"why": why, "at": time.time()}).encode())
        return StoreDamaged(
            f"the history on the server of {self._address} is not the one in the copy of this host "
            f"({why}). The server may have been restored from an older backup. Nothing was "
            "written, on either side. The copy can be read as a store of its own, "
            f"`--store {self.folder}`. Then move it away: the next opening creates a new copy."
        )

    def check(self) -> None:
        """Refuse a copy whose history is not the server's."""
        if not os.path.exists(self._quarantine):  # noqa: PTH110 - each append and each look asks
            return
        try:
            why = json.loads(Path(self._quarantine).read_bytes())["why"]
        except (OSError, ValueError, KeyError):
            why = "as an earlier process noted"
        raise self.quarantined(str(why))

    def close(self) -> None:
        with self._lock:
            self._database.close()
        with self._overlay_lock:
            if self._overlay is not None:
                self._overlay.close()


def _write(path: Path, content: bytes) -> None:
    """Write a small file; the first of several writers wins."""
    with (
        contextlib.suppress(FileExistsError),
        complete_file(path, prefix=schema.UNFINISHED) as file,
    ):
        file.write(content)


def insert_rows(database: sqlite3.Connection, rows: Sequence[TableRow], path: Path) -> None:
    """Insert rows. A row that the table refuses, such as a second one with the same source key,
    becomes a placeholder.
    """
    try:
        database.executemany(INSERT, rows)
    except sqlite3.IntegrityError:
        inserted, _ = head_of(database, path)
        for row in rows:
            if row.seq <= inserted:
                continue
            try:
                database.execute(INSERT, row)
            except sqlite3.IntegrityError:
                database.execute(INSERT, as_unreadable(row))


def transposed(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Rows turned into columns, as a statement with arrays takes them."""
    return [list(column) for column in zip(*rows, strict=True)]
