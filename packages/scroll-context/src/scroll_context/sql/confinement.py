"""The limits that the operating system sets to the worker of guarded SQL.

Where the system has landlock, the worker can read the folder of the log, write a scratch folder of
its own, and reach no other file: it can never write the store. The rest of the kernel's jail is not
entered, because that jail must never hold a database, and because a query's limits on file size and
processor time are moved from inside, which the jail's filter of system calls refuses.
"""

import math
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scroll_context.jail.linux import (
    available_abi,
    forbid_new_privileges,
    lower_limit,
    restrict_paths,
)
from scroll_context.sql.messages import SqlSettings

_READABLE = ("/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom")


def confine(settings: SqlSettings) -> None:
    """Let this process write its scratch folder only, where the system has landlock.

    As root it keeps its capabilities: a store may belong to another user.
    """
    abi = available_abi() if sys.platform == "linux" else 0
    if abi:
        forbid_new_privileges()
        system = (path for path in _READABLE if os.access(path, os.R_OK))
        restrict_paths((settings.folder, *system), settings.scratch, abi)


def limit_process(memory_bytes: int) -> None:
    """No core files, few descriptors, a bounded address space. SIGALRM and SIGXCPU kill it."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        # Not every system has these limits.
        with suppress(ValueError, OSError):
            lower_limit(kind, most)
    # Ctrl-C is for the host.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Without the signal, SQLite reports a write error.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _soft(kind: int, most: float) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (hard if math.isinf(most) else int(most), hard))


@contextmanager
def bounded(seconds: float, file_bytes: float) -> Iterator[None]:
    """End this process a second after its time is up, and limit the size of its files."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _soft(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds + 1))
    _soft(resource.RLIMIT_FSIZE, file_bytes)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _soft(resource.RLIMIT_FSIZE, math.inf)
