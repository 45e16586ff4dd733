"""Reading a file that a transcript or an export names: below its own folder, and through no link.

The folder may have arrived with a repository, and importing/sources.py of the core says what a
link in it could do.
"""

import os
import stat
from pathlib import Path

from scroll_context import files
from scroll_context.importing.sources import is_plain_file, is_plain_folder

_FOLDER = files.READ_FOLDER | files.NOFOLLOW
_FILE = files.READ_FILE | files.NOFOLLOW


def read_plain(folder: Path, names: list[str], most: int) -> bytes | None:
    """The bytes of a file below a folder, reached without following a link.

    None when there is no such file, or when it holds more than `most` bytes.
    """
    if any(name in ("", ".", "..") for name in names):
        return None
    if not files.HAS_FOLDER_HANDLES:
        return _read_by_path(folder, names, most)
    handles: list[int] = []
    try:
        handles.append(os.open(folder, files.READ_FOLDER))
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
