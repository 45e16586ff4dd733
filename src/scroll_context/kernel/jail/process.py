"""What the jail does to its own process by direct system calls: what it must not keep, and what it may use.

Descriptors, environment, capabilities and an orphan's life are inherited and must go. Limits are the kernel's own
counters: RLIMIT_DATA gives a clean MemoryError and keeps the namespace. Code that wants to can get around it (write to
memory, then make it read-only: it no longer counts), so RLIMIT_AS bounds the whole address space and the supervisor
watches the resident size. RLIMIT_CPU counts over the life of a process, so there is a budget: the hard limit stays
open, because lowering it could not be undone without privileges, and the host moves the soft one.
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
from collections.abc import Iterable

from scroll_context.kernel.jail.spec import JailLimits
from scroll_context.kernel.jail.syscalls import (
    PR_CAP_AMBIENT,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    libc,
    prctl,
    syscall,
)

_LAST_DESCRIPTOR = 0xFFFFFFFF
_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3, this process
_NO_CAPABILITIES = bytes(24)


def close_inherited(keep: Iterable[int]) -> None:
    """Close every descriptor but those; point the standard three at /dev/null unless they are kept.

    `enter` does this itself. A launcher may do it earlier.
    """
    kept = sorted(set(keep))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        if standard not in kept:
            os.dup2(null, standard)
    low = 3
    for fd in kept:
        if fd >= low:
            os.closerange(low, fd)
            low = fd + 1
    if sys.platform == "linux":
        syscall("close_range", low, _LAST_DESCRIPTOR, 0)  # also what lies above a limit that was lowered since
    else:
        os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def clean_environment(variables: dict[str, str]) -> None:
    """Replace the environment, and wipe the text of the old one out of this process's memory."""
    strings = _environment_strings() if sys.platform == "linux" else []
    os.environ.clear()  # and posix.environ with it: the two share one dictionary
    for address, length in strings:
        ctypes.memset(address, 0, length)
    os.environ.update(variables)


def _environment_strings() -> list[tuple[int, int]]:
    """Where the C library keeps each variable: the block that the kernel wrote at exec, and later additions."""
    pointers = ctypes.POINTER(ctypes.c_void_p).in_dll(libc(), "environ")
    found: list[tuple[int, int]] = []
    while pointers and (address := pointers[len(found)]):
        found.append((address, len(ctypes.string_at(address))))
    return found


def die_with_parent() -> None:
    """SIGKILL when the parent ends. The kernel forgets this when privileges change: set it after they did."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forbid_new_privileges() -> None:
    """No set-user-id program can help from here on; landlock and seccomp require it of ordinary users."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability, and the right to regain one, and make sure of it."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # past the last one; or no right to shrink the bounding set, which then is of no use
            break
    prctl(PR_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    syscall("capset", _CAPABILITY_HEADER, _NO_CAPABILITIES)
    held = ctypes.create_string_buffer(len(_NO_CAPABILITIES))
    syscall("capget", _CAPABILITY_HEADER, ctypes.addressof(held))
    if held.raw != _NO_CAPABILITIES:
        raise OSError("capabilities are left after dropping them")


_MAPPED_PER_THREAD = 72 << 20  # a stack of 8 MiB and an allocator arena of 64 MiB, reserved, hardly used
_MAPPED_LIBRARIES = 1 << 30
_STACK = 8 << 20
# The system raises the soft RLIMIT_CPU by a second with each signal. So the budget is also noted in a limit that has no
# effect here, because it is for real-time scheduling, which the filter refuses.
_CPU_BUDGET = 15  # RLIMIT_RTTIME


def apply(limits: JailLimits) -> None:
    """Set every limit of this process. It cannot raise one again: the filter refuses `setrlimit`."""
    mapped = 2 * limits.memory_bytes + limits.threads * _MAPPED_PER_THREAD + _MAPPED_LIBRARIES
    for which, value in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_AS, mapped),
        (resource.RLIMIT_STACK, _STACK),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_SIGPENDING, 0),  # counted for all processes of the user together
    ):
        _lower(which, value)
    hard = resource.getrlimit(_CPU_BUDGET)[1]
    resource.setrlimit(_CPU_BUDGET, (_at_most(limits.cpu_seconds, hard), hard))
    apply_portable(limits)


def apply_portable(limits: JailLimits) -> None:
    """The limits that every POSIX system has. File size and CPU keep an open hard limit: others move them."""
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (_at_most(limits.scratch_bytes, hard), hard))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (_at_most(limits.cpu_seconds, hard), hard))


def forbid_core_dumps() -> None:
    """A limit of 1 byte also stops the dump to a program of the host, which a limit of 0 does not."""
    _lower(resource.RLIMIT_CORE, 1)


def set_cpu_budget(pid: int, seconds_from_now: float) -> None:
    """Let a jailed process use this much more CPU time, all threads together, then send it SIGXCPU each second.

    The host calls it before each cell, with the number of the process in its own namespace. It needs no
    privilege: both run as the same user.
    """
    _, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
    soft = max(1, math.ceil(cpu_used(pid) + seconds_from_now))
    resource.prlimit(pid, resource.RLIMIT_CPU, (_at_most(soft, hard), hard))
    if sys.platform == "linux":
        _, hard = resource.prlimit(pid, _CPU_BUDGET)
        resource.prlimit(pid, _CPU_BUDGET, (_at_most(soft, hard), hard))


def cpu_budget(pid: int) -> int:
    """The CPU time at which a jailed process must have stopped, in seconds of its life."""
    return resource.prlimit(pid, _CPU_BUDGET)[0]


def cpu_used(pid: int) -> float:
    """CPU seconds of another process, all threads together, by the clock that clock_getcpuclockid names."""
    return time.clock_gettime((~pid << 3) | 2)


def _lower(which: int, value: int) -> None:
    value = _at_most(value, resource.getrlimit(which)[1])
    resource.setrlimit(which, (value, value))


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
