"""What a process inherits and must not keep: descriptors, environment, capabilities, an orphan's life."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterable

from scroll_context.kernel.jail.libc import (
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
