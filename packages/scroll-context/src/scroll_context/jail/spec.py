"""The permissions of a kernel: the values of the jail, and the paths that it declares.

A `JailSpec` goes in and an `Enforcement` comes out. Both are plain data that crosses the wire
between host, fork server and worker, so that the host can compare what it required with what the
child says. The invariant: an `Enforcement` is made only after the probes ran, and a guarantee that
its tier promises and that does not hold is an error before it is a value. What a tier does not
promise is listed as not enforced, with the reason and the remedy.

`default_read_only` names the standard library, the shared libraries and the few files and devices
that the interpreter opens while it works, for system, pyenv and container installations and for
virtual environments. `site_packages` names the folders of installed packages, `package_paths` where
single ones lie.
"""

from __future__ import annotations

import functools
import os
import site
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from scroll_context.errors import KernelUnavailable

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

Tier = Literal["full", "kernel-only", "seatbelt", "none"]
RequiredTier = Literal["auto", "full", "kernel-only", "seatbelt", "none"]

ALLOW_UNSANDBOXED = "SCROLL_ALLOW_UNSANDBOXED"


class JailLimits(msgspec.Struct, frozen=True):
    """The resources of one kernel.

    `cpu_seconds` is per cell: the host renews it with `set_cpu_budget`.
    """

    memory_bytes: int = 2 << 30
    cpu_seconds: int = 120
    threads: int = 64
    open_files: int = 256
    scratch_bytes: int = 256 << 20


class JailSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The files that the jailed process may reach: `read_only` paths, one `scratch` folder, and
    nothing else.

    `scratch` is an absolute path. In tier `full` a private tmpfs appears there, and the host's
    folder of that name is neither needed nor visible; in the other tiers it is a folder of the host
    that must exist. `packages` are modules that cells can import besides those of the readable
    paths: names that the host can import, or absolute paths of a package, a module file, or a
    folder of modules. A kernel makes them readable.
    """

    tier: RequiredTier = "auto"
    read_only: tuple[str, ...]
    scratch: str
    limits: JailLimits = JailLimits()
    packages: tuple[str, ...] = ()


class Guarantee(msgspec.Struct, frozen=True):
    """One promise: whether it holds, by which mechanism, and what to do when it does not."""

    name: str
    enforced: bool
    mechanism: str
    remedy: str = ""


class Enforcement(msgspec.Struct, frozen=True):
    """The guarantees that hold in this process. `pid` is its number as the host sees it."""

    tier: Tier
    pid: int
    guarantees: tuple[Guarantee, ...]
    probes: tuple[str, ...] = ()
    landlock_abi: int = 0


def refuse(guarantee: str, what: str, remedy: str) -> KernelUnavailable:
    """The error of every path that fails closed."""
    return KernelUnavailable(
        f"jail: '{guarantee}' cannot be guaranteed: {what}. No model code has run. {remedy}"
    )


UNTESTED: frozenset[Tier] = frozenset({"seatbelt"})
"""Tiers that are never chosen by themselves: their profile was tested as text only."""

_USE_FULL = "Use tier 'full': allow unprivileged user namespaces."
_USE_A_JAIL = "Use Linux 5.13 or newer with landlock, tier 'full' or 'kernel-only'."
_HIDDEN = "mount namespace: no other path has a name"

# The mechanism of each guarantee in the tiers full, kernel-only and seatbelt; nothing where it is
# not promised.
_MECHANISMS = {
    "read outside": (f"{_HIDDEN}; {{landlock}}", "{landlock}", "sandbox profile"),
    "write outside": (
        f"{_HIDDEN}; read-only mounts; {{landlock}}",
        "{landlock}; seccomp",
        "sandbox profile",
    ),
    "metadata": ("mount namespace; no /proc", "", ""),
    "network": ("seccomp; empty network namespace", "seccomp", "sandbox profile"),
    "processes": (
        "seccomp: threads only, no exec",
        "seccomp: threads only, no exec",
        "sandbox profile",
    ),
    "signals": (
        "seccomp: itself only; process namespace",
        "seccomp: itself only",
        "sandbox profile",
    ),
    "inheritance": (
        *["descriptors closed, environment wiped"] * 2,
        "descriptors closed, environment replaced",
    ),
    "privileges": (
        "no_new_privs, no capabilities; user namespace",
        "no_new_privs, no capabilities",
        "",
    ),
    "system calls": (*["seccomp allow-list with argument checks"] * 2, ""),
    "memory": (*["RLIMIT_DATA and RLIMIT_AS; the supervisor kills on tricks"] * 2, ""),
    "cpu": (*["RLIMIT_CPU, renewed by the host for each cell"] * 2, ""),
    "threads": (*["seccomp notification, counted by the supervisor"] * 2, ""),
    "open files": ("RLIMIT_NOFILE", "RLIMIT_NOFILE", "RLIMIT_NOFILE"),
    "scratch size": (
        "tmpfs of fixed size",
        "RLIMIT_FSIZE for each file; the supervisor checks the total every 0.1 s and stops growth",
        "",
    ),
    "interrupt": (*["seccomp keeps the SIGINT and SIGXCPU handlers"] * 2, ""),
    "lifetime": ("PDEATHSIG; process namespace", "PDEATHSIG", ""),
}
NAMES = tuple(_MECHANISMS)


def guarantees(tier: Tier, abi: int = 0) -> tuple[Guarantee, ...]:
    """The rows of a tier; `abi` is the version of landlock."""
    rows: list[Guarantee] = []
    for name, (full, kernel_only, seatbelt) in _MECHANISMS.items():
        by_tier = {"full": full, "kernel-only": kernel_only, "seatbelt": seatbelt, "none": ""}
        mechanism = by_tier[tier].format(landlock=f"landlock ABI {abi}")
        if mechanism:
            remedy = ""
            if tier == "kernel-only" and name == "scratch size":
                remedy = f"A burst can overshoot between two looks. {_USE_FULL}"
            if tier in UNTESTED:
                mechanism, remedy = f"{mechanism} (untested)", _USE_A_JAIL
            rows.append(Guarantee(name, True, mechanism, remedy))
        elif tier == "kernel-only":
            mechanism = "none: landlock does not govern stat and readlink"
            rows.append(Guarantee(name, False, mechanism, _USE_FULL))
        else:
            rows.append(Guarantee(name, False, "none", _USE_A_JAIL))
    return tuple(rows)


# paths --------------------------------------------------------------------------------------------

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
    """The paths that the interpreter needs at run time, and no installed package."""
    # Imported here and below, because workers import this module too and start faster without.
    import sysconfig

    # The folders of the interpreter that a virtual environment was made from.
    base = {
        "base": sys.base_prefix,
        "platbase": sys.base_exec_prefix,
        "installed_base": sys.base_prefix,
    }
    libraries = {sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")}
    if os.path.isdir(f"{sys.base_prefix}/conda-meta"):
        # The shared libraries of conda's Python lie beside those of its packages.
        libraries.add(f"{sys.base_prefix}/lib")
    return _existing(libraries | set(_SYSTEM) | _shared_libraries())


def site_packages() -> tuple[str, ...]:
    """The folders of installed packages that this interpreter sees."""
    import sysconfig

    folders = set(site.getsitepackages())
    folders |= {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    return _existing({path for path in folders if path in sys.path})


def package_paths(packages: Iterable[str]) -> tuple[str, ...]:
    """The paths of these packages. Names are looked up without importing the packages.

    Raises KernelUnavailable for a package that is not there.
    """
    import importlib.util

    locations: list[str] = []
    for package in packages:
        paths = [os.path.abspath(package)] if "/" in package else []
        if not paths and package.partition(".")[0].isidentifier():
            spec = importlib.util.find_spec(package.partition(".")[0])
            if spec is not None:
                paths = [*(spec.submodule_search_locations or ())] or [spec.origin or ""]
        if not paths or not all(os.path.exists(path) for path in paths):
            raise refuse(
                "packages",
                f"{package!r} is neither importable here nor a path",
                "Install it, or name its path.",
            )
        for path in paths:
            # Wheels have their shared libraries beside the package.
            locations += [place for place in (path, f"{path}.libs") if os.path.exists(place)]
    return tuple(dict.fromkeys(locations))


def make_importable(packages: Iterable[str]) -> None:
    """Let this process import each of these paths by its own name.

    The folder around it need not be readable.
    """
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
            if not file:
                return None
            within = [os.path.dirname(file)] if file.endswith("/__init__.py") else None
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=within
            )

    sys.meta_path.append(PackageFinder)


def lies_in(path: str, trees: Iterable[str]) -> bool:
    """Whether a path is one of these trees or lies inside one.

    All are absolute and without symbolic links.
    """
    return any(path == tree or path.startswith(tree.rstrip("/") + "/") for tree in trees)


def _shared_libraries() -> set[str]:
    """The system's library folders, where this process has its C library from, and libpython."""
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
