"""Files, folders and locks, where operating systems differ.

Linux and macOS can open a folder, reach a file through the handle of its folder, and refuse a link
in its place. Windows can do none of that, has no users in the status of a file, and translates line
ends unless a file is opened as binary. A flag that a system lacks is 0 here.

`complete_file` gives a file its name only when it is complete, so that no reader meets half of one.
The folders of a user for the files of programs are those that the XDG specification names.

Locks among processes are each on an open file or folder. A lock ends when its handle is closed or
its process ends, however it ends. Where the system has `fcntl`, the lock is that of the system.
Where it has none, it is the exclusive lock of a small SQLite database that stands for the file, in
the user's own cache folder: SQLite knows the locks of every system that it runs on. Such a lock is
not tied to the handle, so `release` must be called before the handle is closed; with `fcntl` that
does nothing.

Hooks and kernel workers import this module, so it imports next to nothing.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path


# what systems offer -------------------------------------------------------------------------------

DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
# A named pipe in the place of a file must not block the one who opens it.
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
PRIVATE: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
BINARY: int = getattr(os, "O_BINARY", 0)

READ_FILE = os.O_RDONLY | NONBLOCK | PRIVATE | BINARY
READ_FOLDER = os.O_RDONLY | DIRECTORY | PRIVATE

HAS_FOLDER_HANDLES = bool(DIRECTORY) and os.open in os.supports_dir_fd
HAS_OWNERS = hasattr(os, "geteuid")


def user_id() -> int:
    """The user of this process, as the status of a file names users."""
    return os.geteuid() if HAS_OWNERS else 0


def set_mode(handle: int, mode: int) -> None:
    """Set the permissions of an open file, where the system has any."""
    if hasattr(os, "fchmod"):
        os.fchmod(handle, mode)


# complete files -----------------------------------------------------------------------------------


@contextlib.contextmanager
def complete_file(
    target: "Path",
    *,
    replace: bool = False,
    mode: int = 0o600,
    prefix: str = ".",
    durable: bool = True,
) -> Iterator[IO[bytes]]:
    """A new file beside `target` that gets its name at the end, and is removed after a failure.

    Without `replace`, FileExistsError is raised if a file has the name by then; that file stays.
    `prefix` begins the name of the unfinished file. With `durable`, the file survives a power cut
    once the context has ended.
    """
    # Not every program that imports this module writes files.
    import tempfile

    handle, stage = tempfile.mkstemp(dir=target.parent, prefix=f"{prefix}{target.name}.")
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            set_mode(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        if replace:
            os.replace(stage, target)
        else:
            os.link(stage, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(stage)
    if durable:
        sync_folder(target.parent)


def sync_folder(folder: "Path") -> None:
    """Make a rename or link in `folder` durable, where the system can."""
    if not HAS_FOLDER_HANDLES:
        return
    handle = os.open(folder, READ_FOLDER)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# folders of the user ------------------------------------------------------------------------------


def user_folder(variable: str, default: str) -> str:
    """The folder `scroll` below the one that a variable names, or below the default in the home
    folder.

    The specification says to ignore a relative path. It would mean a folder of whatever repository
    the command is called in.
    """
    folder = os.environ.get(variable, "")
    base = folder if os.path.isabs(folder) else os.path.join(os.path.expanduser("~"), default)
    return os.path.join(base, "scroll")


def config_folder() -> str:
    return user_folder("XDG_CONFIG_HOME", ".config")


def data_folder() -> str:
    return user_folder("XDG_DATA_HOME", ".local/share")


def state_folder() -> str:
    return user_folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> str:
    return user_folder("XDG_CACHE_HOME", ".cache")


# locks --------------------------------------------------------------------------------------------

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
