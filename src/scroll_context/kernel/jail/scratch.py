"""A folder that hostile code has filled: how much it holds, and how to get rid of it.

Neither follows a symbolic link, recurses, or trusts a mode: folders may be nested thousands deep, longer than any
path may be, and closed to their owner.
"""

from __future__ import annotations

import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NAME_BYTES = 4096  # what a name costs at most, however small its file


def space_used(folder: str) -> int:
    """Blocks of all files, and something for each name; OSError where a part of it cannot be seen."""
    used, pending = 0, [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    used += _NAME_BYTES + info.st_blocks * 512
                    if stat.S_ISDIR(info.st_mode):
                        pending.append(entry.path)
        except FileNotFoundError:  # removed while we looked
            continue
    return used


def remove_scratch(folder: str) -> None:
    """Remove the folder and all that is in it, once nobody writes to it any more.

    Each folder inside is moved up to the top before it is emptied, so that no path grows.
    """
    top = os.open(folder, _FOLDER)
    try:
        pending = _empty(top, top)
        while pending:
            name = pending.pop()
            inner = os.open(name, _FOLDER, dir_fd=top)
            try:
                pending += _empty(inner, top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _empty(folder: int, top: int) -> list[str]:
    """Remove the files of one folder and move its folders to the top; the names that they have there."""
    moved: list[str] = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            moved.append(os.urandom(16).hex())
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=folder)
    return moved
