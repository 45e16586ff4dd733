"""Which paths CPython itself needs, computed from the running interpreter.

`default_read_only` names the standard library, the shared libraries and the few files and devices that the
interpreter opens while it works, for system, pyenv and container installations and for virtual environments.
Installed packages are declared only when the user asks for them, by `site_packages`. (Packages installed into
the base interpreter, not into a virtual environment, lie inside the folder of the standard library.)
"""

from __future__ import annotations

import functools
import os
import site
import sys
from collections.abc import Iterable

_SYSTEM = (
    "/lib64",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/dev/null",
    "/dev/urandom",
)


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
