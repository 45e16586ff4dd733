"""The inside of the log file: tables, guards, versions, and how a file is created, opened and
queried.

A log file is created complete, under a temporary name, and linked into place, so that no process
ever meets half of one. The guards live in the file: SQLite itself refuses UPDATE, DELETE and every
INSERT that is not a plain append, whoever asks (`INSERT OR REPLACE` included: a BEFORE INSERT
trigger runs before the conflict is resolved). Opening a current file writes nothing and takes no
lock. `docs/FORMAT.md` describes all of this for readers of the file.
"""

import contextlib
import datetime as dt
import logging
import os
import shlex
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from scroll_context.errors import (
    BadInput,
    NotAStore,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
    StoreTooOld,
    StoreUnsafe,
)
from scroll_context.files import set_mode, sync_folder
from scroll_context.log import ownership

# The letters "SCRL".
APPLICATION_ID = 0x5343524C
LOG_NAME = "log.db"
# How long SQLite waits for a lock of another connection.
BUSY_SECONDS = 10.0
UNFINISHED = ".creating-"
"""The prefix of files that are being created."""

_logger = logging.getLogger("scroll_context.store")

_CREATE = """
CREATE TABLE event (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id   TEXT NOT NULL,
    agent_id     TEXT NOT NULL,
    task_id      TEXT NOT NULL,
    kind         TEXT NOT NULL,
    role         TEXT NOT NULL,
    name         TEXT NOT NULL,
    content      TEXT NOT NULL,
    payload      TEXT,
    payload_size INTEGER,
    payload_type TEXT,
    tool_call_id TEXT NOT NULL,
    tool_state   TEXT NOT NULL,
    headline     TEXT NOT NULL,
    reply_to     INTEGER,
    step_index   INTEGER,
    msg_index    INTEGER,
    metadata     TEXT NOT NULL,
    created_at   TEXT NOT NULL,
    recorded_at  TEXT NOT NULL,
    source_key   TEXT,
    chain        BLOB NOT NULL,
    nonce        BLOB,
    leaf         BLOB
) STRICT;
CREATE TABLE chore (name TEXT PRIMARY KEY, detail TEXT NOT NULL) STRICT;
CREATE INDEX event_session ON event (session_id, seq);
CREATE INDEX event_task ON event (task_id, seq) WHERE task_id <> '';
CREATE UNIQUE INDEX event_source ON event (source_key) WHERE source_key IS NOT NULL;
CREATE TRIGGER event_no_update BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'the event log is append-only: UPDATE refused'); END;
CREATE TRIGGER event_no_delete BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'the event log is append-only: DELETE refused'); END;
CREATE TRIGGER event_append_only BEFORE INSERT ON event
WHEN NEW.seq <= (SELECT ifnull(max(seq), 0) FROM event)
  OR EXISTS (SELECT 1 FROM event WHERE source_key = NEW.source_key)
BEGIN SELECT RAISE(ABORT, 'the event log is append-only: this address or source key is taken'); END;
"""

FORMAT_VERSION = 2
"""The format of the file, which grows with every change to it and is never given out again.

A file of another format is refused: an older Scroll must not write into a newer file, and a newer
one has no code for older files.
"""


class Translated:
    """Turns SQLite's errors on `path` into ours, each with its remedy.

    It is a class, since every read and append enters it and generators are slower.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise _explain(error, self._path) from error
        if isinstance(error, UnicodeDecodeError):
            # SQLite quoted a damaged schema in its error.
            raise _damaged(error, self._path) from error


def _damaged(error: Exception, path: Path) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged ({error}). Nothing was changed. {command('repair', path)} recovers "
        "every legible event into a new log and keeps this file."
    )


def _explain(error: sqlite3.Error, path: Path) -> StoreError | BadInput:
    code = getattr(error, "sqlite_errorcode", None) or 0
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreLocked(
                f"{path} is locked by another process; nothing was written. Try again."
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(
                f"no room left for {path}: this append was not recorded, all earlier ones are "
                "safe. Free some space and repeat it."
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreReadOnly(
                f"{path} cannot be opened or written ({error}); nothing was changed. "
                "Check its permissions and those of its folder, or copy the store to a place of "
                "your own."
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(error, path)
        case sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_TOOBIG:
            return BadInput(f"{path} refused the event: {error}")
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                f"the device failed while Scroll used {path} ({error}); acknowledged events are "
                "safe. Check the disk (space, quota, mount) and try again."
            )
        case _:
            return StoreError(
                f"SQLite failed on {path}: {error}. {command('verify', path)} tells whether the "
                "file is damaged."
            )


def command(name: str, log: Path) -> str:
    """A command line for the store of this log, as an error prints it: it works from any folder."""
    return f"`scroll {name} --store {shlex.quote(str(log.absolute().parent))}`"


def tolerates(database: sqlite3.Connection, error: sqlite3.Error) -> bool:
    """Whether the error is text that is not UTF-8, which this connection tolerates from now on.

    A flipped bit can damage text so. The bad bytes are read as U+FFFD, so that the rest of the text
    stays readable; `verify` names the row.
    """
    if not str(error).startswith("Could not decode to UTF-8"):
        return False
    database.text_factory = lambda raw: raw.decode(errors="replace")
    return True


def create(folder: Path, fill: Callable[[sqlite3.Connection], None] | None = None) -> None:
    """Create `folder/log.db` atomically, with the rows that `fill` inserts.

    If another process creates it first, that file stays.
    """
    path = folder / LOG_NAME
    try:
        private_folder(folder)
        handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=folder)
        # SQLite gives its WAL files the mode of the log.
        set_mode(handle, 0o600)
    except OSError as error:
        raise StoreReadOnly(
            f"cannot create a store in {folder}: {error.strerror}. Nothing was changed."
        ) from error
    os.close(handle)
    try:
        with Translated(path):
            database = sqlite3.connect(name, isolation_level=None)
            try:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                database.executescript(_CREATE)
                if fill is not None:
                    fill(database)
            finally:
                # The last close checkpoints the WAL and removes it.
                database.close()
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
        sync_folder(folder)
    finally:
        Path(name).unlink(missing_ok=True)


def is_vacant(folder: Path) -> bool:
    """Whether a store may be created here: the folder is empty, or others are creating one now."""
    if folder.is_symlink():
        return False
    if not folder.exists():
        return True
    return folder.is_dir() and all(file.name.startswith(UNFINISHED) for file in folder.iterdir())


def locate(folder: Path) -> Path:
    """The log file of an existing store, or an error that says what the folder is instead.

    Everything that opens a store begins here, so this is where it is refused if it is not the
    user's own.
    """
    path = folder / LOG_NAME
    try:
        if ownership.check_folder(folder).st_mode & 0o077:
            _make_store_private(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # The code below, or SQLite, explains this.
        pass
    except StoreUnsafe:
        # A folder of other things may hold links; the error below says that it is not a store.
        if folder.is_symlink() or os.path.lexists(path):
            raise
    if os.path.isfile(path):
        return path
    if folder.exists() and not folder.is_dir():
        raise NotAStore(
            f"{folder} is a file, not a store. A store is a folder with {LOG_NAME} in it."
        )
    if any((folder / part).exists() for part in ("payloads", "index")):
        raise StoreDamaged(
            f"{folder} has payloads or an index but no {LOG_NAME}. Scroll will not put an empty "
            "log in its place: restore the file from a backup."
        )
    if folder.is_dir() and not is_vacant(folder):
        raise NotAStore(
            f"{folder} holds other files, but no store. A store needs a folder of its own: name a "
            f"new one, such as {str(folder / 'scroll')!r}."
        )
    raise NotAStore(
        f"there is no store in {folder}. Store({str(folder)!r}, create=True) creates one."
    )


def connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    """Open an existing log file, checked for identity and format, without taking a lock."""
    mode = "rw" if writable else "ro"
    with Translated(path):
        try:
            database = _checked(f"file:{quote(os.path.abspath(path))}?mode={mode}", path)
        except sqlite3.OperationalError as error:
            if writable or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN:
                raise
            database = _checked(frozen_uri(path), path)
        if writable:
            database.execute("PRAGMA synchronous = FULL")
    return database


def _checked(uri: str, path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
    )
    try:
        _check(database, path)
    except BaseException:
        database.close()
        raise
    return database


def begin(database: sqlite3.Connection, path: Path, patience: float) -> None:
    """Take the write lock, waiting up to `patience` seconds for it."""
    try:
        database.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
        database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        raise StoreLocked(
            f"another process has held the write lock of {path} for {patience:g} s; nothing was "
            "changed. Try again when it is done."
        ) from error


def closed(path: Path, purpose: str) -> StoreClosed:
    """The error for using a log that was closed."""
    return StoreClosed(f"{path} was closed; open the store again to {purpose}")


def frozen_uri(path: Path) -> str:
    """The URI to read a cleanly closed log on a read-only medium, where SQLite cannot create its
    WAL files.
    """
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > 0:
        raise StoreReadOnly(
            f"{path} was not closed cleanly and its folder cannot be written, so its newest events "
            "cannot be read. Copy the folder to a writable place and open it there."
        )
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def _check(database: sqlite3.Connection, path: Path) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if application != APPLICATION_ID:
        raise NotAStore(f"{path} is an SQLite database, but not a Scroll log. Nothing was changed.")
    if version > FORMAT_VERSION:
        raise StoreTooNew(
            f"{path} has format {version}; this version of Scroll reads format {FORMAT_VERSION}. "
            "Nothing was changed. Upgrade scroll-context, or export the store with the version "
            "that wrote it."
        )
    if version < FORMAT_VERSION:
        raise StoreTooOld(
            f"{path} has format {version}; this version of Scroll reads format {FORMAT_VERSION}. "
            "Nothing was changed. Export the store with the older version (`scroll export`) and "
            "import that file into a new store."
        )


def private_folder(folder: Path) -> Path:
    """Create a folder of a store that only its owner can enter, or close an existing one to others.

    The umask does not matter. A link in its place, or a folder of another user, is refused.
    """
    is_new = False
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        is_new = True
    with ownership.open_folder(folder) as opened:
        mode = 0o777 if is_new else stat.S_IMODE(opened.status().st_mode)
        if mode & 0o077:
            # The folder may belong to root, or be on a read-only medium.
            with contextlib.suppress(OSError):
                opened.set_mode(mode & 0o700)
    return folder


def _make_store_private(folder: Path) -> None:
    """Close a store that was copied or unpacked with a wider umask."""
    for part in ("", LOG_NAME, f"{LOG_NAME}-wal", f"{LOG_NAME}-shm", "payloads", "index"):
        make_private(folder / part)


def make_private(path: Path) -> bool:
    """Remove other users' permissions from a file or folder of a store, if it is ours.

    Returns whether others had any.
    """
    # It may be missing, belong to another user, or be on a read-only medium.
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)
            return True
    return False


def size_of(file: Path) -> int:
    """The bytes of a file; 0 for a folder, and for a file that is missing or was just removed."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except FileNotFoundError:
        return 0


def utc_now() -> str:
    """The time as the log writes it: ISO-8601, UTC, microseconds."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


# values of queries --------------------------------------------------------------------------------

# For ? and for :name; newer versions of sqlite3 refuse ?1.
Values = Sequence[Any] | Mapping[str, Any]

PAGE = 500
"""How many rows a query fetches or names at once."""

T = TypeVar("T")


def marked_pages(values: Sequence[T]) -> Iterator[tuple[Sequence[T], str]]:
    """The values in pages, each with as many question marks for a condition with IN."""
    for start in range(0, len(values), PAGE):
        page = values[start : start + PAGE]
        yield page, ", ".join("?" * len(page))
