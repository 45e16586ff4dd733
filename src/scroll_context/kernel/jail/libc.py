"""The thin edge to the kernel: direct system calls by ctypes, with errno turned into OSError.

Nothing here decides anything. The C library is loaded when it is first needed, so that importing the package
on another platform does no harm.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from scroll_context.kernel.jail.syscalls import number

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47


@functools.cache
def libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(name: str, *arguments: int | bytes | None) -> int:
    """Call the kernel directly. Bytes are passed as a pointer to a copy, None as a null pointer."""
    converted: list[Any] = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a or 0) for a in arguments]
    return _checked(libc().syscall(ctypes.c_long(number(name)), *converted), name)


def prctl(option: int, *arguments: int) -> int:
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(libc().prctl(ctypes.c_int(option), *padded), f"prctl({option})")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    result = libc().mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _checked(result, f"mount {target}")
