"""What the operating system offers for files, where systems differ.

Linux and macOS can open a folder, reach a file through the handle of its folder, and refuse a link
in its place. Windows can do none of that, has no users in the status of a file, and translates line
ends unless a file is opened as binary. A flag that a system lacks is 0 here.
"""

import os

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
