"""The scratch folder: the one that a cell may write to, in tiers without a tmpfs of its own.

It is filled by hostile code: what counts and removes it follows no symbolic link, does not recurse
and trusts no mode, because folders may be nested thousands deep and closed to their owner. A living
host holds a lock on its folder, which ends with its process however that ends; so a folder that can
be locked has no owner any more.
"""

import contextlib
import os
import stat
import time

from scroll_context.files import NOFOLLOW, READ_FOLDER, release, try_lock

_FOLDER = READ_FOLDER | NOFOLLOW
# A name costs at most this many bytes, however small its file.
_NAME_BYTES = 4096
_PREFIX = "scroll-kernel-"
# A folder may be unlocked for this many seconds after its creation.
_YOUNG = 60.0


def space_used(folder: str) -> int:
    """The bytes of all files and names in a folder; OSError if a part of it cannot be seen."""
    used, pending = 0, [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    used += _NAME_BYTES + info.st_blocks * 512
                    if stat.S_ISDIR(info.st_mode):
                        pending.append(entry.path)
        except FileNotFoundError:
            # It was removed meanwhile.
            continue
    return used


def remove_scratch(folder: str) -> None:
    """Remove the folder and all that is in it, once no process writes to it any more.

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
    """Remove the files of one folder and move its folders to the top. Returns their new names."""
    moved: list[str] = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            moved.append(os.urandom(16).hex())
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=folder)
    return moved


class ScratchFolder:
    """A new scratch folder, locked while this object is open.

    It is in `parent`, or in the system's temporary folder.
    """

    def __init__(self, parent: str = "") -> None:
        # Imported here, because workers import this module too and start faster without.
        import tempfile

        parent = parent or tempfile.gettempdir()
        _sweep(parent)
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self._lock = os.open(self.path, READ_FOLDER)
        try_lock(self._lock)

    def close(self) -> None:
        # If the folder cannot be removed now, a later kernel tries again.
        with contextlib.suppress(OSError):
            remove_scratch(self.path)
        release(self._lock)
        os.close(self._lock)


def _sweep(folder: str) -> None:
    """Remove what this user's dead hosts left; it must never keep a kernel from starting."""
    horizon = time.time() - _YOUNG
    for name in os.listdir(folder):
        if not name.startswith(_PREFIX):
            continue
        path = f"{folder}/{name}"
        with contextlib.suppress(OSError):
            facts = os.lstat(path)
            if facts.st_uid != os.getuid() or facts.st_mtime > horizon:
                continue
            handle = os.open(path, _FOLDER)
            try:
                if try_lock(handle):
                    remove_scratch(path)
            finally:
                release(handle)
                os.close(handle)
