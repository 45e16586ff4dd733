"""The jail's work on its own process: what it must not keep, what it may use, and which paths it
can see.

Descriptors, environment, capabilities and an orphan's life are inherited and must go. Limits are
the kernel's own counters: RLIMIT_DATA gives a clean MemoryError and keeps the namespace. Code that
wants to can get around it (write to memory, then make it read-only: it no longer counts), so
RLIMIT_AS bounds the complete address space and the supervisor watches the resident size. RLIMIT_CPU
counts over the life of a process, so there is a budget: the hard limit stays open, because lowering
it could not be undone without privileges, and the host moves the soft one.

Namespaces: an empty network, private process numbers, and a root that holds only what is declared.
`unshare` runs in the process that becomes the supervisor; its next child is process 1 of the new
process namespace and calls `build_root` there. The new root is a small tmpfs. It is pivoted to
first, and the declared paths are bound read-only from the old root, which is then detached: what
was not declared has no name any more, and not even `stat` can ask for it. `/proc` and `/sys` are
not mounted: CPython, numpy and pandas do without.

Landlock binds opening, creating, removing and truncating to paths, for a process without privileges
and for good. ABI 1 (Linux 5.13) is enough, because the allow-list of system calls already covers
what came later: truncation (ABI 3), TCP (4), device ioctls (5), signals and abstract sockets (6).
Where the kernel has them they are asked for too. Landlock does not govern metadata: `stat`,
`readlink` and `chdir` on a known path still work in tier `kernel-only`.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable

from scroll_context.jail.spec import JailLimits, JailSpec, lies_in
from scroll_context.jail.syscalls import (
    PR_CAP_AMBIENT,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    libc,
    mount,
    prctl,
    syscall,
)

_LAST_DESCRIPTOR = 0xFFFFFFFF
_CAP_AMBIENT_CLEAR_ALL = 4
# Version 3, and this process.
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)
_NO_CAPABILITIES = bytes(24)


def close_inherited(keep: Iterable[int]) -> None:
    """Close every descriptor but those; point the standard three at /dev/null unless they are kept.

    `enter` does this itself. A launcher may do it earlier.
    """
    descriptors = sorted(set(keep))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        if standard not in descriptors:
            os.dup2(null, standard)
    low = 3
    for fd in descriptors:
        if fd >= low:
            os.closerange(low, fd)
            low = fd + 1
    if sys.platform == "linux":
        # Descriptors above a limit that was lowered since are closed too.
        syscall("close_range", low, _LAST_DESCRIPTOR, 0)
    else:
        os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def clean_environment(variables: dict[str, str]) -> None:
    """Replace the environment, and wipe the text of the old one out of this process's memory."""
    strings = _environment_strings() if sys.platform == "linux" else []
    # This clears posix.environ too: the two share one dictionary.
    os.environ.clear()
    for address, length in strings:
        ctypes.memset(address, 0, length)
    os.environ.update(variables)


def home_in(scratch: str) -> dict[str, str]:
    """The variables that every process in the jail has."""
    return {"HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8"}


def _environment_strings() -> list[tuple[int, int]]:
    """The address and length of each variable in the C library's list."""
    pointers = ctypes.POINTER(ctypes.c_void_p).in_dll(libc(), "environ")
    strings: list[tuple[int, int]] = []
    while pointers:
        address = pointers[len(strings)]
        if not address:
            break
        strings.append((address, len(ctypes.string_at(address))))
    return strings


def die_with_parent() -> None:
    """SIGKILL when the parent ends.

    The kernel forgets this when privileges change: set it after they did.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forbid_new_privileges() -> None:
    """From here on, no set-user-id program gives more rights.

    Landlock and seccomp require this of ordinary users.
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability, and the right to regain one, and make sure of it."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            # It is past the last capability, or the process has no right to shrink the bounding
            # set, which then grants nothing.
            break
    prctl(PR_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    syscall("capset", _CAPABILITY_HEADER, _NO_CAPABILITIES)
    held = ctypes.create_string_buffer(len(_NO_CAPABILITIES))
    syscall("capget", _CAPABILITY_HEADER, ctypes.addressof(held))
    if held.raw != _NO_CAPABILITIES:
        raise OSError("capabilities are left after dropping them")


# limits -------------------------------------------------------------------------------------------

# A stack of 8 MiB and an allocator arena of 64 MiB, reserved and hardly used.
_MAPPED_PER_THREAD = 72 << 20
_MAPPED_LIBRARIES = 1 << 30
_STACK = 8 << 20
# The system raises the soft RLIMIT_CPU by a second with each signal. So the budget is also noted in
# RLIMIT_RTTIME, which has no effect here: it is for real-time scheduling, which the filter refuses.
_CPU_BUDGET = 15


def apply(limits: JailLimits) -> None:
    """Set every limit of this process.

    It cannot raise one again: the filter refuses `setrlimit`.
    """
    mapped = 2 * limits.memory_bytes + limits.threads * _MAPPED_PER_THREAD + _MAPPED_LIBRARIES
    for which, value in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_AS, mapped),
        (resource.RLIMIT_STACK, _STACK),
        (resource.RLIMIT_MEMLOCK, 0),
        # The system counts pending signals for all processes of the user together.
        (resource.RLIMIT_SIGPENDING, 0),
    ):
        lower_limit(which, value)
    _lower_soft(_CPU_BUDGET, limits.cpu_seconds)
    apply_portable(limits)


def apply_portable(limits: JailLimits) -> None:
    """The limits that every POSIX system has.

    File size and CPU keep an open hard limit: others move them.
    """
    lower_limit(resource.RLIMIT_NOFILE, limits.open_files)
    _lower_soft(resource.RLIMIT_FSIZE, limits.scratch_bytes)
    _lower_soft(resource.RLIMIT_CPU, limits.cpu_seconds)


def forbid_core_dumps() -> None:
    """Set a limit of 1 byte, which also stops dumps to a program of the host; 0 does not."""
    lower_limit(resource.RLIMIT_CORE, 1)


def set_cpu_budget(pid: int, seconds_from_now: float) -> None:
    """Let a jailed process use this much more CPU time, all threads together, then send it SIGXCPU
    each second.

    The host calls it before each cell, with the number of the process in its own namespace. It
    needs no privilege: both run as the same user.
    """
    budget = max(1, math.ceil(cpu_used(pid) + seconds_from_now))
    for which in (resource.RLIMIT_CPU, _CPU_BUDGET):
        set_soft_limit_of(pid, which, budget)


def cpu_budget(pid: int) -> int:
    """The CPU time at which a jailed process must have stopped, in seconds of its life."""
    return resource.prlimit(pid, _CPU_BUDGET)[0]


def cpu_used(pid: int) -> float:
    """CPU seconds of another process, all threads together, by the clock that clock_getcpuclockid
    names.
    """
    return time.clock_gettime((~pid << 3) | 2)


def set_soft_limit_of(pid: int, which: int, value: int) -> None:
    """Move the soft limit of another process, as far as its hard limit allows."""
    _, hard = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (_at_most(value, hard), hard))


def lower_limit(which: int, value: int) -> None:
    """Set both limits of this process, which cannot be undone."""
    _, hard = resource.getrlimit(which)
    value = _at_most(value, hard)
    resource.setrlimit(which, (value, value))


def _lower_soft(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (_at_most(value, hard), hard))


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


# namespaces ---------------------------------------------------------------------------------------

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _NOEXEC, _REMOUNT, _RDONLY = 2, 4, 8, 0x20, 1
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_OLD = "/.old"
_HOST_NAME = b"scroll"
_PAGE = 4096


def unshare() -> None:
    """Leave the host's users, network, IPC, host name and control groups; the next child leaves its
    pids too.
    """
    user, group = os.getuid(), os.getgid()
    syscall("unshare", _NEWUSER | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS | _NEWCGROUP)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if libc().sethostname(_HOST_NAME, len(_HOST_NAME)) != 0:
        raise OSError("the host name cannot be set")


def build_root(spec: JailSpec) -> None:
    """Replace the file tree by the declared paths and a scratch tmpfs of limited size."""
    syscall("unshare", _NEWNS)
    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    trees, links = _resolve(spec.read_only)
    base = next(p for p in ("/tmp", "/run", "/var", "/usr") if os.path.isdir(p))
    mount("scroll-root", base, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m,nr_inodes=4k")
    os.mkdir(base + _OLD)
    syscall("pivot_root", os.fsencode(base), os.fsencode(base + _OLD))
    os.chdir("/")
    for tree in trees:
        _bind_read_only(tree)
    for link, target in links.items():
        if not os.path.lexists(link):
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(target, link)
    size = spec.limits.scratch_bytes
    os.makedirs(spec.scratch, exist_ok=True)
    options = f"mode=700,size={size},nr_inodes={max(size // _PAGE, 64)}"
    mount("scroll-scratch", spec.scratch, "tmpfs", _NOSUID | _NODEV | _NOEXEC, options)
    if libc().umount2(_OLD.encode(), _MNT_DETACH) != 0:
        raise OSError("the old root cannot be detached")
    os.rmdir(_OLD)
    mount("none", "/", None, _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def _bind_read_only(tree: str) -> None:
    source, device = _OLD + tree, tree.startswith("/dev/")
    if os.path.isdir(source):
        os.makedirs(tree, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(tree), exist_ok=True)
        os.mknod(tree)
    mount(source, tree, None, _BIND | _RECURSIVE)
    flags = _ATTR_RDONLY | _ATTR_NOSUID | (0 if device else _ATTR_NODEV)
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    syscall(
        "mount_setattr", _AT_FDCWD, os.fsencode(tree), _AT_RECURSIVE, attributes, len(attributes)
    )


def _resolve(paths: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The real trees behind the declared paths, outermost first, and the symbolic links that lead
    to them.
    """
    links: dict[str, str] = {}
    real = sorted({_follow(path, links) for path in paths})
    outer: list[str] = []
    for tree in real:
        if not lies_in(tree, outer):
            outer.append(tree)
    return outer, links


def _follow(path: str, links: dict[str, str]) -> str:
    """Resolve a path step by step, noting every symbolic link on the way."""
    rest = deque(path.split("/"))
    # The part that is resolved; "" for the root.
    done = ""
    while rest:
        part = rest.popleft()
        if part in ("", "."):
            continue
        here = done.rpartition("/")[0] if part == ".." else f"{done}/{part}"
        if not os.path.islink(here):
            done = here
            continue
        links[here] = target = os.readlink(here)
        if target.startswith("/"):
            done = ""
        rest.extendleft(reversed(target.split("/")))
    return done or "/"


# landlock -----------------------------------------------------------------------------------------

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR, MAKE_REG, REFER, TRUNCATE, IOCTL_DEV = 1 << 7, 1 << 8, 1 << 13, 1 << 14, 1 << 15

_READ = READ_FILE | READ_DIR
_SCRATCH = _READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
_ON_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_WRITABLE_DEVICES = ("/dev/null",)

_NEWEST_KNOWN = 7
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
_VERSION_FLAG, _PATH_BENEATH = 1, 1


def available_abi() -> int:
    """The landlock version of this kernel; 0 where there is none or it is switched off."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict_paths(read_only: tuple[str, ...], scratch: str, abi: int) -> None:
    """Bind this process to the declared paths, by the rules of the given ABI."""
    abi = min(abi, _NEWEST_KNOWN)
    handled = (1 << 13) - 1
    for right, since in ((REFER, 2), (TRUNCATE, 3), (IOCTL_DEV, 5)):
        handled |= right if abi >= since else 0
    attributes = struct.pack("=Q", handled)
    if abi >= 4:
        attributes += struct.pack("=Q", _BIND_AND_CONNECT_TCP)
    if abi >= 6:
        attributes += struct.pack("=Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for path in read_only:
            _grant(ruleset, path, _READ | (WRITE_FILE if path in _WRITABLE_DEVICES else 0), handled)
        _grant(ruleset, scratch, _SCRATCH, handled)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _grant(ruleset: int, path: str, rights: int, handled: int) -> None:
    target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = rights & handled if os.path.isdir(path) else rights & handled & _ON_A_FILE
        syscall("landlock_add_rule", ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, target), 0)
    finally:
        os.close(target)
