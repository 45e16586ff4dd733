"""File access by landlock: everything is refused except what is declared.

Landlock binds opening, creating, removing and truncating to paths, for a process without privileges and for
good. ABI 1 (Linux 5.13) is enough for the jail, because the allow-list of system calls already covers what
came later: truncation (ABI 3), TCP (4), device ioctls (5), signals and abstract sockets (6). Where the kernel
has them they are asked for too, as a second lock on the same door. Landlock does not govern metadata: `stat`,
`readlink` and `chdir` on a known path still work, which is what the mount namespace of tier `full` is for.
"""

from __future__ import annotations

import os
import struct

from scroll_context.kernel.jail.libc import syscall

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


def restrict(read_only: tuple[str, ...], scratch: str, abi: int) -> None:
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
