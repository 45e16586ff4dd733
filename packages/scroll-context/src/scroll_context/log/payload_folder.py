"""Where the bytes of payloads lie: the protocol of such a place, and the folder that is built in.

A file is written under a temporary name, synced, renamed, and its folder synced. Other users of the
machine cannot lead a write or a read elsewhere: files are opened through handles of their folders.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

from scroll_context.errors import StoreUnsafe
from scroll_context.files import HAS_FOLDER_HANDLES, release, set_mode, sync_folder, try_lock
from scroll_context.log.ownership import OpenFolder, is_made_by_us, open_folder
from scroll_context.log.schema import private_folder

_SUBFOLDER = re.compile(r"[0-9a-f]{2}")
# The folder of files that are being written, and the shape of their names.
_UNFINISHED = "tmp"
_TEMPORARY = re.compile(r"[0-9a-f]{16}\.part")


class PayloadPlace(Protocol):
    """Where the bytes of payloads lie: immutable objects by name.

    What the bytes mean is the payload store's business.
    A name is the 64 hex digits of a payload, and perhaps more behind them. Methods raise OSError
    when the place fails.
    """

    def write(self, pieces: Iterable[bytes], name: Callable[[], str | None]) -> int:
        """Store the pieces as one durable object. Returns its size.

        `name` is called after the last piece; if it returns None, the pieces are discarded. An
        object of the same name is replaced.
        """
        ...

    def open(self, name: str, start: int = 0) -> IO[bytes]:
        """The bytes from `start` on; FileNotFoundError when there are none of that name."""
        ...

    def size(self, name: str) -> int:
        """How many bytes an object has; FileNotFoundError when it is not there."""
        ...

    def names(self, digest: str = "") -> Iterator[str]:
        """Every stored name, in order, or those that begin with a payload's digest."""
        ...

    def remove(self, name: str) -> None:
        """Delete an object, if it is still there."""
        ...

    def sync(self, name: str) -> None:
        """Make sure that an object which another process wrote survives a crash."""
        ...

    def sweep(self) -> None:
        """Remove what killed writers left behind."""
        ...


class PayloadFolder:
    """A folder of files, in subfolders by the first two digits of their names.

    Any number of processes may use it.
    Each subfolder is opened without following links, and files are named relative to its handle.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Subfolders whose own entry is synced.
        self._durable: set[str] = set()

    def path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def open(self, name: str, start: int = 0) -> IO[bytes]:
        with self._subfolder(name[:2]) as folder:
            handle = folder.open_file(name, os.O_RDONLY)
        if start:
            os.lseek(handle, start, os.SEEK_SET)
        return open(handle, "rb")

    def size(self, name: str) -> int:
        with self._subfolder(name[:2]) as folder:
            return folder.size(name)

    def names(self, digest: str = "") -> Iterator[str]:
        for subfolder in [digest[:2]] if digest else self._subfolders():
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                self._subfolder(subfolder) as folder,
            ):
                with folder.entries() as entries:
                    names = [entry.name for entry in entries]
                yield from sorted(name for name in names if name.startswith(digest))

    def _subfolders(self) -> list[str]:
        try:
            return sorted(filter(_SUBFOLDER.fullmatch, os.listdir(self.folder)))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._subfolder(name[:2]) as folder:
            folder.remove(name)

    def sync(self, name: str) -> None:
        with self._subfolder(name[:2]) as folder:
            folder.sync()

    def sweep(self) -> None:
        """Remove temporary files of ours that no living writer holds locked."""
        try:
            names = list(filter(_TEMPORARY.fullmatch, os.listdir(f"{self.folder}/{_UNFINISHED}")))
        except FileNotFoundError:
            return
        if not names:
            return
        with self._subfolder(_UNFINISHED) as folder:
            for name in names:
                # It may be removed already, or not be ours to remove.
                with contextlib.suppress(OSError, StoreUnsafe):
                    _remove_unlocked(name, folder)

    def write(self, pieces: Iterable[bytes], name: Callable[[], str | None]) -> int:
        private_folder(self.folder)
        private_folder(self.folder / _UNFINISHED)
        with self._subfolder(_UNFINISHED) as unfinished:
            handle, temporary = _new_temporary(unfinished)
            try:
                # The file stays locked against sweep() until it is closed.
                with open(handle, "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                    size = file.tell()
                    final = name()
                    if final is None:
                        unfinished.remove(temporary)
                        return size
                    self._make_durable(final[:2])
                    if not HAS_FOLDER_HANDLES:
                        # Windows renames no open file.
                        file.close()
                    with self._subfolder(final[:2]) as folder:
                        unfinished.move(temporary, folder, final)
                self.sync(final)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    unfinished.remove(temporary)
                raise
            finally:
                release(handle)
        return size

    def _subfolder(self, name: str) -> OpenFolder:
        return open_folder(f"{self.folder}/{name}")

    def _make_durable(self, subfolder: str) -> None:
        """Create a subfolder, or make sure that one from another process survives a crash."""
        if subfolder not in self._durable:
            private_folder(self.folder / subfolder)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)
            self._durable.add(subfolder)


def _new_temporary(folder: OpenFolder) -> tuple[int, str]:
    """A new file, locked.

    A sweep may hold or remove it in the moment before it is locked; then another is made.
    """
    while True:
        name = f"{secrets.token_hex(8)}.part"
        handle = folder.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        set_mode(handle, 0o600)
        if try_lock(handle) and os.fstat(handle).st_nlink:
            return handle, name
        release(handle)
        os.close(handle)


def _remove_unlocked(name: str, folder: OpenFolder) -> None:
    handle = folder.open_file(name, os.O_RDONLY)
    try:
        if is_made_by_us(os.fstat(handle)) and try_lock(handle):
            folder.remove(name)
    finally:
        release(handle)
        os.close(handle)
