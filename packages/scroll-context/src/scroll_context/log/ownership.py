"""Whether the parts of a store are the user's own.

A store may have arrived with a repository or an archive, or lie where others can write. So a part
is used only if it is a plain file or folder and not a link, if it belongs to the user of this
process or to root, and if no other user can write to it. Folders are checked through a handle
that follows no link: the store and what lies directly in it when the store is opened, deeper parts
when they are. Whatever fails is refused with `StoreUnsafe`, which names the remedy; nothing is
changed.

Owners tell users apart, not contents: files of a cloned repository belong to the user who cloned
it. So clean-up code also checks names (`is_made_by_us`), and nothing that a file of a store says
is followed out of the store. docs/FORMAT.md describes the race that remains.
"""

import errno
import os
import stat
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator

from scroll_context import files
from scroll_context.errors import StoreUnsafe

Path = str | os.PathLike[str]

_FOLDER = files.READ_FOLDER | files.NOFOLLOW
# Where files have no owners, their permissions say nothing about other users.
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH if files.HAS_OWNERS else 0
# The bits of a mode that say what a thing is.
_TYPE = 0o170000
_PLAIN = (stat.S_IFREG, stat.S_IFDIR)
_FILE = files.READ_FILE | files.NOFOLLOW


def check_folder(folder: Path) -> os.stat_result:
    """Refuse a store if it, or anything directly in it, is not the user's own. Returns its status.

    Raises FileNotFoundError and NotADirectoryError where there is no folder.
    """
    with OpenFolder(folder) as opened:
        owners = (files.user_id(), 0)
        own = opened.status()
        if own.st_uid not in owners or own.st_mode & _WRITABLE:
            _refuse(own, folder, "")
        with opened.entries() as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                # Each opening of a store comes here, so the usual case makes no call.
                mode = status.st_mode
                if status.st_uid not in owners or mode & _WRITABLE or mode & _TYPE not in _PLAIN:
                    _refuse(status, folder, entry.name)
        return own


class OpenFolder:
    """A folder that is not a link, and the files directly in it.

    Files are reached through the handle of the folder, so that nobody can put another folder in its
    place meanwhile. Where the system has no such handles, they are reached by their paths.
    """

    def __init__(self, folder: Path) -> None:
        self.path = os.fspath(folder)
        self._handle: int | None = None
        if files.HAS_FOLDER_HANDLES:
            self._handle = _opened(folder, _FOLDER, None)
            return
        status = os.lstat(folder)
        if stat.S_ISLNK(status.st_mode):
            raise _is_link(self.path)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def status(self) -> os.stat_result:
        return os.lstat(self.path) if self._handle is None else os.fstat(self._handle)

    def entries(self) -> "contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]":
        return os.scandir(self.path if self._handle is None else self._handle)

    def set_mode(self, mode: int) -> None:
        if self._handle is not None:
            files.set_mode(self._handle, mode)

    def sync(self) -> None:
        """Make changes to the names in the folder durable, where the system can."""
        if self._handle is not None:
            os.fsync(self._handle)

    def open_file(self, name: str, flags: int) -> int:
        return open_file(self._place(name), flags, dir_fd=self._handle)

    def size(self, name: str) -> int:
        return os.stat(self._place(name), dir_fd=self._handle, follow_symlinks=False).st_size

    def remove(self, name: str) -> None:
        os.unlink(self._place(name), dir_fd=self._handle)

    def move(self, name: str, target: "OpenFolder", new_name: str) -> None:
        os.replace(
            self._place(name),
            target._place(new_name),
            src_dir_fd=self._handle,
            dst_dir_fd=target._handle,
        )

    def _place(self, name: str) -> str:
        return name if self._handle is not None else os.path.join(self.path, name)


def open_folder(folder: Path) -> OpenFolder:
    """A folder in a store: not a link, and the user's own. It may be open to others."""
    opened = OpenFolder(folder)
    try:
        _check_owner(opened.status(), opened.path)
    except BaseException:
        opened.close()
        raise
    return opened


def open_file(file: Path, flags: int, *, dir_fd: int | None = None) -> int:
    """A handle of a plain file in a store: not a link, and the user's own.

    With O_CREAT it is private.
    """
    handle = _opened(file, flags | _FILE, dir_fd)
    try:
        status = os.fstat(handle)
        _check_type(status, os.fspath(file))
        _check_owner(status, os.fspath(file))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _opened(path: Path, flags: int, dir_fd: int | None) -> int:
    try:
        return os.open(path, flags, 0o600, dir_fd=dir_fd)
    except OSError:
        if dir_fd is None and os.path.islink(path):
            raise _is_link(os.fspath(path)) from None
        raise


def is_own(status: os.stat_result) -> bool:
    """Whether a part belongs to the user of this process, or to root, who can change everything
    anyway.
    """
    return status.st_uid in (files.user_id(), 0)


def is_made_by_us(status: os.stat_result) -> bool:
    """Whether a file or folder may be removed that has a name which this program makes.

    A plain file with a second name is left alone: somebody keeps it elsewhere.
    """
    if status.st_uid != files.user_id():
        return False
    return stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)


def _refuse(status: os.stat_result, folder: Path, name: str) -> None:
    # Hooks import this module and must not wait for shlex.
    import shlex

    path = os.path.join(folder, name) if name else os.fspath(folder)
    _check_type(status, path)
    _check_owner(status, path)
    raise StoreUnsafe(
        f"other users of this machine can write to {path} (mode {stat.S_IMODE(status.st_mode):o}), "
        "so its content may not be yours. Nothing was changed. If you trust it: "
        f"`chmod -R go-w {shlex.quote(os.path.abspath(folder))}`"
    )


def _check_type(status: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _is_link(path)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise StoreUnsafe(
            f"{path} is neither a file nor a folder, so it is not part of a store. Nothing was "
            "changed. Remove it if you did not put it there, and try again."
        )


def _check_owner(status: os.stat_result, path: str) -> None:
    if not is_own(status):
        raise StoreUnsafe(
            f"{path} belongs to another user (uid {status.st_uid}), who could change it while it "
            "is used. Nothing was changed. Work as that user, or copy the store to a folder of "
            "your own and use the copy."
        )


def _is_link(path: str) -> StoreUnsafe:
    return StoreUnsafe(
        f"{path} is a link to {os.path.realpath(path)}, and a store is opened without following "
        "links. Nothing was changed. Use the folder that it points to if it is a store of yours; "
        "else remove the link."
    )
