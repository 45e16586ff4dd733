"""Limits by the kernel's own counters, and the CPU budget that the host renews for each cell.

RLIMIT_DATA gives a clean MemoryError and keeps the namespace. Code that wants to can get around it (write to
memory, then make it read-only: it no longer counts), so RLIMIT_AS bounds the whole address space and the
sentinel watches the resident size. RLIMIT_CPU counts over the life of a process, hence the budget: the hard
limit stays open, because lowering it could not be undone without privileges, and the host moves the soft one.
"""

from __future__ import annotations

import math
import resource
import time

from scroll_context.kernel.jail.spec import Limits

_MAPPED_PER_THREAD = 72 << 20  # a stack of 8 MiB and an allocator arena of 64 MiB, reserved, hardly used
_MAPPED_LIBRARIES = 1 << 30
_STACK = 8 << 20


def apply(limits: Limits) -> None:
    """Set every limit of this process. It cannot raise one again: the filter refuses `setrlimit`."""
    mapped = 2 * limits.memory_bytes + limits.threads * _MAPPED_PER_THREAD + _MAPPED_LIBRARIES
    for which, value in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_AS, mapped),
        (resource.RLIMIT_STACK, _STACK),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _lower(which, value)
    apply_portable(limits)


def apply_portable(limits: Limits) -> None:
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


def cpu_used(pid: int) -> float:
    """CPU seconds of another process, all threads together, by the clock that clock_getcpuclockid names."""
    return time.clock_gettime((~pid << 3) | 2)


def _lower(which: int, value: int) -> None:
    value = _at_most(value, resource.getrlimit(which)[1])
    resource.setrlimit(which, (value, value))


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
