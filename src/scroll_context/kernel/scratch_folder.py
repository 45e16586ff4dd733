"""The host's folder for the scratch files of one kernel, and the removal of those that dead hosts left behind.

A living owner holds a lock on its folder, which ends with its process however that ends. So a folder that can be
locked has no owner any more, in whatever process namespace the owner was; one that is a minute young may just not
have been locked yet.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

from scroll_context.kernel.jail import remove_scratch

_PREFIX = "scroll-kernel-"
_YOUNG = 60.0  # seconds


class ScratchFolder:
    """A fresh folder, locked while this object is open."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what cannot be removed now, a later kernel tries again
            remove_scratch(self.path)
        os.close(self._lock)


def _sweep(folder: Path) -> None:
    """Remove what this user's dead hosts left; it must never keep a kernel from starting."""
    horizon = time.time() - _YOUNG
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if facts.st_uid != os.getuid() or facts.st_mtime > horizon:
                continue
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_scratch(str(path))
            finally:
                os.close(handle)
