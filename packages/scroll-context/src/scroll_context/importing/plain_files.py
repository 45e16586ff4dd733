"""Files that an import finds by itself: beside a transcript, or below the folder of an export.

The user names one path, and it may be a link. Everything else comes from whoever made the folder,
which may have arrived with a repository. A link in it can lead to a private file, or to a device
that never ends; a named pipe never answers. So only plain files count here, and they are reached
without following a link.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from scroll_context import system

_FOLDER = system.READ_FOLDER | system.NOFOLLOW
_FILE = system.READ_FILE | system.NOFOLLOW


def is_plain_file(path: Path) -> bool:
    """Whether the last part of a path is a file, and neither a link nor a device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_plain_folder(path: Path) -> bool:
    """Whether the last part of a path is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def plain_files_below(folder: Path, *names: str) -> Iterator[Path]:
    """The files below a folder of a folder, in no order. A link on the way ends the search."""
    for name in names:
        folder = folder / name
        if not is_plain_folder(folder):
            return
    for parent, _, files in os.walk(folder, followlinks=False):
        for file in files:
            path = Path(parent, file)
            if is_plain_file(path):
                yield path


def read_plain(folder: Path, names: list[str], most: int) -> bytes | None:
    """The bytes of a file below a folder, reached without following a link.

    None when there is no such file, or when it holds more than `most` bytes.
    """
    if any(name in ("", ".", "..") for name in names):
        return None
    if not system.HAS_FOLDER_HANDLES:
        return _read_by_path(folder, names, most)
    handles: list[int] = []
    try:
        handles.append(os.open(folder, system.READ_FOLDER))
        for name in names[:-1]:
            handles.append(os.open(name, _FOLDER, dir_fd=handles[-1]))
        handles.append(os.open(names[-1], _FILE, dir_fd=handles[-1]))
        status = os.fstat(handles[-1])
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        with open(handles.pop(), "rb") as file:
            return file.read(most)
    except (OSError, ValueError):
        # A name with a NUL is a ValueError.
        return None
    finally:
        for handle in handles:
            os.close(handle)


def _read_by_path(folder: Path, names: list[str], most: int) -> bytes | None:
    """The same where folders have no handles: each part of the path is checked by its name."""
    try:
        for name in names[:-1]:
            folder = folder / name
            if not is_plain_folder(folder):
                return None
        path = folder / names[-1]
        if not is_plain_file(path) or path.stat().st_size > most:
            return None
        with path.open("rb") as file:
            return file.read(most)
    except (OSError, ValueError):
        return None
