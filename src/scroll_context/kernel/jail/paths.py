"""Paths of the jail: what CPython needs to read, and the folder that a cell may write to.

`default_read_only` names the standard library, the shared libraries and the few files and devices that the
interpreter opens while it works, for system, pyenv and container installations and for virtual environments.
`site_packages` names the folders of installed packages, `package_paths` where single ones lie.

The scratch folder is filled by hostile code: what counts and removes it follows no symbolic link, does not recurse
and trusts no mode, because folders may be nested thousands deep and closed to their owner. A living host holds a lock
on its folder, which ends with its process however that ends; so a folder that can be locked has no owner any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import site
import stat
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scroll_context.kernel.jail.spec import refuse

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_SYSTEM = (
    "/lib64",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/dev/null",
    "/dev/urandom",
)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NAME_BYTES = 4096  # what a name costs at most, however small its file
_PREFIX = "scroll-kernel-"
_YOUNG = 60.0  # seconds in which a folder may not have been locked yet


@functools.cache
def default_read_only() -> tuple[str, ...]:
    """What the interpreter needs at run time, and no installed package."""
    import sysconfig  # only here and below: workers import this module too, and start faster without it

    libraries = {sysconfig.get_path(name, vars=_base()) for name in ("stdlib", "platstdlib")}
    if os.path.isdir(f"{sys.base_prefix}/conda-meta"):  # its shared libraries lie beside those of its packages
        libraries.add(f"{sys.base_prefix}/lib")
    return _existing(libraries | set(_SYSTEM) | _shared_libraries())


def site_packages() -> tuple[str, ...]:
    """The folders of installed packages that this interpreter sees."""
    import sysconfig

    known = {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if site.ENABLE_USER_SITE:
        known.add(site.getusersitepackages())
    return _existing({path for path in known if path in sys.path})


def package_paths(packages: Iterable[str]) -> tuple[str, ...]:
    """Where these packages lie: names are looked up as this interpreter would, without importing them.

    Raises KernelUnavailable for one that is not there.
    """
    import importlib.util  # only here: workers import this module too, and start faster without it

    found: list[str] = []
    for package in packages:
        paths = [os.path.abspath(package)] if "/" in package else []
        if not paths and package.partition(".")[0].isidentifier():
            spec = importlib.util.find_spec(package.partition(".")[0])
            if spec is not None:
                paths = [*(spec.submodule_search_locations or ())] or [spec.origin or ""]
        if not paths or not all(os.path.exists(path) for path in paths):
            raise refuse(
                "packages", f"{package!r} is neither importable here nor a path", "Install it, or name its path."
            )
        for path in paths:
            found += [real for real in (path, f"{path}.libs") if os.path.exists(real)]  # wheels keep libraries there
    return tuple(dict.fromkeys(found))


def make_importable(packages: Iterable[str]) -> None:
    """Let this process import each of these paths by its own name. The folder around it need not be readable."""
    import importlib.util

    modules: dict[str, str] = {}
    for path in packages:
        if os.path.isfile(path):
            modules[os.path.basename(path).partition(".")[0]] = path
        elif os.path.isfile(f"{path}/__init__.py"):
            modules[os.path.basename(path)] = f"{path}/__init__.py"
        elif not path.endswith(".libs"):
            sys.path.append(path)

    class PackageFinder:
        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleSpec | None:
            file = modules.get(name)
            within = [os.path.dirname(file)] if file and file.endswith("/__init__.py") else None
            return (
                importlib.util.spec_from_file_location(name, file, submodule_search_locations=within) if file else None
            )

    sys.meta_path.append(PackageFinder)


def lies_in(path: str, trees: Iterable[str]) -> bool:
    """Whether a path is one of these trees or lies inside one; all are absolute and without symbolic links."""
    return any(path == tree or path.startswith(tree.rstrip("/") + "/") for tree in trees)


def _base() -> dict[str, str]:
    """Path variables of the interpreter that a virtual environment was made from."""
    return {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}


def _shared_libraries() -> set[str]:
    """The system's library folders, found by where this process has its C library from, and libpython."""
    try:
        with open("/proc/self/maps") as maps:
            files = {line[line.index("/") :].rstrip("\n") for line in maps if "/" in line}
    except OSError:
        return set()
    needed: set[str] = set()
    for file in files:
        folder, _, name = file.rpartition("/")
        if name.startswith("libpython"):
            needed.add(file)
        elif name.startswith(("libc.", "libc-", "ld-")):
            folder = folder.removeprefix("/usr")
            needed |= {folder, f"/usr{folder}"}
    return needed


def _existing(paths: set[str]) -> tuple[str, ...]:
    return tuple(sorted(path for path in paths if os.path.exists(path)))


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


class ScratchFolder:
    """A fresh folder, locked while this object is open."""

    def __init__(self) -> None:
        import tempfile  # only here: workers import this module too, and start faster without it

        _sweep(tempfile.gettempdir())
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what cannot be removed now, a later kernel tries again
            remove_scratch(self.path)
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
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_scratch(path)
            finally:
                os.close(handle)
