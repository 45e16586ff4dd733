"""Locks among processes, each on an open file or folder, with and without `fcntl`.

A lock ends when its handle is closed or its process ends, however it ends. Where the system has
`fcntl`, the lock is that of the system. Where it has none, it is the exclusive lock of a small
SQLite database that stands for the file, in the user's own cache folder: SQLite knows the locks of
every system that it runs on. Such a lock is not tied to the handle, so `release` must be called
before the handle is closed; with `fcntl` that does nothing.
"""

import os
from typing import TYPE_CHECKING

from scroll_context.folders import cache_folder

if TYPE_CHECKING:
    import sqlite3

try:
    import fcntl

    HAS_FCNTL = True
except ImportError:
    HAS_FCNTL = False

# The databases that hold our locks, by process and handle. A forked child has none of them.
_databases: "dict[tuple[int, int], sqlite3.Connection]" = {}


def try_lock(handle: int) -> bool:
    """Take the exclusive lock of an open file or folder; False if another handle has the lock."""
    if not HAS_FCNTL:
        return try_database_lock(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_database_lock(handle: int) -> bool:
    """The same without `fcntl`."""
    # Kernel workers import this module, and start faster without.
    import sqlite3

    status = os.fstat(handle)
    folder = os.path.join(cache_folder(), "locks")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    file = os.path.join(folder, f"{status.st_dev}-{status.st_ino}")
    database = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        database.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        database.close()
        return False
    _databases[os.getpid(), handle] = database
    return True


def release(handle: int) -> None:
    """Give a lock back, just before its handle is closed or just after."""
    database = _databases.pop((os.getpid(), handle), None)
    if database is not None:
        database.close()
