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
