"""The lease of a session: at most one journal writes a session at a time, among all processes of
this machine.

A lease is a POSIX record lock on a small file in the store's `leases` folder (without `fcntl`, the
lock of files.py). The system frees it when its process ends, however it ends, and a forked child
does not have it. Threads of one process are kept apart by a table in this module, since record
locks belong to the whole process. The file names its holder for others to read; a file without a
lock means nothing. Readers of a store need no lease.
"""

import hashlib
import logging
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

import msgspec

from scroll_context.errors import SessionBusy, SessionFenced, StoreFull, StoreReadOnly, StoreUnsafe
from scroll_context.files import HAS_FCNTL, release, try_database_lock
from scroll_context.log.ownership import open_file

if HAS_FCNTL:
    import fcntl

AGAIN_SECONDS = 0.02
"""The pause between two attempts to take a lease."""

_logger = logging.getLogger("scroll_context.store")


class Holder(msgspec.Struct, frozen=True):
    """The holder of a lease."""

    session_id: str
    process: int
    host: str
    # ISO-8601, UTC.
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"


_table_lock = threading.Lock()
# By process, since a forked child inherits this table but no lock.
_held: dict[tuple[int, str], Holder] = {}


class AnyLease(Protocol):
    """A lease of a session, on this machine or on the server of a shared store."""

    holder: Holder
    # The number that the server checks with every append; None on this machine.
    epoch: int | None

    def check(self) -> None:
        """Raise SessionFenced when this process may no longer write the session."""

    def release(self) -> None:
        """Let others have it."""


class Lease:
    """A lease that this process has. Give it back with `release`."""

    def __init__(self, path: Path, handle: int, holder: Holder) -> None:
        self._path = path
        self._handle = handle
        self.holder = holder
        self.epoch: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process took it; a forked child only has the object."""
        return self.holder.process == os.getpid()

    def check(self) -> None:
        """Refuse a forked child."""
        if not self.is_ours:
            raise SessionFenced(
                f"this process was forked from the one that has session {self.holder.session_id!r} "
                "open, and may not record in it. Nothing was written; open the session in one "
                "process only."
            )

    def release(self) -> None:
        """Let others have it. Doing it twice, or in a forked child, does nothing."""
        with _table_lock:
            if not self.is_ours or _held.pop((os.getpid(), str(self._path)), None) is None:
                return
            try:
                # While it is locked: a process that had opened it finds that it was removed, and
                # looks again.
                self._path.unlink(missing_ok=True)
            except OSError as error:
                # The soak met a file system that had become read-only. A file without a lock means
                # nothing, so the next opener takes it over.
                _logger.info("the lease file %s stays: %s", self._path, error.strerror)
            finally:
                release(self._handle)
                os.close(self._handle)


def take(folder: Path, session_id: str, since: str, wait: float = 0.0) -> Lease:
    """Take the lease of a session, waiting up to `wait` seconds.

    Raises SessionBusy, which names the holder.
    """
    path = _file(folder, session_id)
    holder = Holder(session_id, os.getpid(), socket.gethostname(), since)
    deadline = time.monotonic() + wait
    while True:
        lease = _try(path, holder)
        if isinstance(lease, Lease):
            return lease
        if time.monotonic() >= deadline:
            raise busy(session_id, lease, wait)
        time.sleep(AGAIN_SECONDS)


def holder_of(folder: Path, session_id: str) -> Holder | None:
    """Who has a session open now; None when it is free.

    Looking takes no lock and changes nothing.
    """
    path = _file(folder, session_id)
    with _table_lock:
        own = _held.get((os.getpid(), str(path)))
        if own is not None:
            # The file is not opened, since closing it would free our own lock.
            return own
        try:
            handle = open_file(path, os.O_RDONLY)
        except (OSError, StoreUnsafe):
            return None
        try:
            if _locked_by(handle) is None:
                return None
            return _written(handle, Holder(session_id, 0, "", ""))
        finally:
            os.close(handle)


def _locked_by(handle: int) -> int | None:
    """The other process that has a record lock on an open file; None for no lock.

    It is 0 for a process in another container, and without `fcntl`. The layouts are those of
    `struct flock`.
    """
    if not HAS_FCNTL:
        is_free = try_database_lock(handle)
        release(handle)
        return None if is_free else 0
    layout, kind, process = ("qqihh", 3, 2) if sys.platform == "darwin" else ("hhqqi4x", 0, 4)
    fields = [0] * 5
    fields[kind] = fcntl.F_WRLCK
    lock = struct.unpack(layout, fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack(layout, *fields)))
    return int(lock[process]) if lock[kind] != fcntl.F_UNLCK else None


def _file(folder: Path, session_id: str) -> Path:
    return folder.absolute() / f"{hashlib.sha256(session_id.encode()).hexdigest()[:32]}.json"


def busy(session_id: str, holder: Holder, waited: float) -> SessionBusy:
    """The error for opening a session that another process has open."""
    after = f" after {waited:g} s of waiting" if waited else ""
    return SessionBusy(
        f"session {session_id!r} is open elsewhere{after}: {holder}. Close it there, wait for it "
        "with wait=seconds, or fork it; reading needs no lease.",
        holder=holder,
    )


def _try(path: Path, holder: Holder) -> Lease | Holder:
    """The lease, or its present holder."""
    with _table_lock:
        other = _held.get((os.getpid(), str(path)))
        if other is not None:
            return other
        while True:
            handle = _open(path)
            try:
                _lock(handle)
                if os.fstat(handle).st_nlink:
                    os.truncate(handle, 0)
                    os.write(handle, msgspec.json.encode(holder))
                    _held[(os.getpid(), str(path))] = holder
                    return Lease(path, handle, holder)
            except BlockingIOError:
                present = _written(handle, holder)
                os.close(handle)
                return present
            except OSError as error:
                os.close(handle)
                raise StoreFull(
                    f"the lease of session {holder.session_id!r} cannot be written in "
                    f"{path.parent}: {error.strerror}. Nothing was changed; free some space and "
                    "open the session again."
                ) from error
            # Its last holder removed the file between our open and our lock, so the lock is on a
            # file that nobody else can find: the session is free, under a new file.
            release(handle)
            os.close(handle)


def _lock(handle: int) -> None:
    """Take the lock of an open file. Raises BlockingIOError if another process has it."""
    if HAS_FCNTL:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif not try_database_lock(handle):
        raise BlockingIOError("another process has the lock")


def _open(path: Path) -> int:
    """The lease file, open for writing; it is made if it is not there."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StoreReadOnly(
            f"{path.parent} refuses writes, so no session can be opened: {error.strerror}. Nothing "
            "was changed."
        ) from error


def _written(handle: int, asking: Holder) -> Holder:
    """The holder that the file names.

    Just after the file was locked it may still be empty; then the system names the process.
    """
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        return msgspec.json.decode(os.read(handle, 4096), type=Holder)
    except msgspec.DecodeError:
        return Holder(asking.session_id, _locked_by(handle) or 0, asking.host, asking.since)
