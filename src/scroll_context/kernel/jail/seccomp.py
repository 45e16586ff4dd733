"""The allow-list of system calls, as classic BPF programs.

Two filters. The first hands every `clone` to the supervisor, which counts threads (`install_thread_watch`). The
second, installed last, is the allow-list (`install`): a call that it does not name fails with EPERM, a call
newer than the table with ENOSYS so that the C library falls back, and a call in another instruction set
(32-bit, x32) ends the process. What is allowed only for some arguments is checked here, in `_rules`.
A filter sees registers, never memory: so nothing is decided by what a pointer points to.
"""

from __future__ import annotations

import ctypes
import errno
import signal
import socket
import struct
from typing import NamedTuple

from scroll_context.kernel.jail.syscalls import AUDIT_ARCH, PLAIN, machine, numbers, syscall


class Instruction(NamedTuple):
    code: int
    jump_true: int
    jump_false: int
    constant: int


Program = list[Instruction]

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _ERRNO, _NOTIFY, _PERMIT = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_ARCH_OFFSET, _NUMBER_OFFSET, _ARGUMENTS_OFFSET = 4, 0, 16
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8

ALLOW = Instruction(_RETURN, 0, 0, _PERMIT)
DENY = Instruction(_RETURN, 0, 0, _ERRNO | errno.EPERM)
ABSENT = Instruction(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
UNSUPPORTED = Instruction(_RETURN, 0, 0, _ERRNO | errno.EOPNOTSUPP)
KILL = Instruction(_RETURN, 0, 0, _KILL_PROCESS)

# What glibc asks for when it starts a thread; musl adds the obsolete CLONE_DETACHED. Nothing else is a thread
# here: not one with a table of descriptors of its own, and not a process.
_THREAD_FLAGS = (0x3D0F00, 0x7D0F00)
_O_TRUNC, _O_ACCESS_MODE, _O_RDONLY = 0o1000, 0o3, 0
_SET_ID_BITS = 0o6000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN, _MAP_HUGETLB = 0x1, 0x20, 0x100, 0x40000
_CLOSE_RANGE_UNSHARE = 2
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41
_IOCTLS = (
    0x5401,  # TCGETS, for isatty
    0x5413,  # TIOCGWINSZ
    0x541B,  # FIONREAD
    0x5421,  # FIONBIO
    0x5450,  # FIONCLEX
    0x5451,  # FIOCLEX
)
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)  # dup, flags, locks with an owner; never F_SETOWN or F_SETSIG
_SOCKET_OPTIONS = (3, 4, 7, 8, 30, 38, 39)  # type, error, buffers, accepting, protocol, domain; never the peer
_RENAME_FLAGS = (0, 1, 2)  # not RENAME_WHITEOUT, which leaves a device behind
_CLOCKS_OF_OTHERS = 0xFFFFFFF0  # a negative number names a process, a thread or a descriptor
_X32_BIT = 0x40000000


def _low(argument: int) -> Instruction:
    return Instruction(_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument)


def _high(argument: int) -> Instruction:
    return Instruction(_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument + 4)


def _if_equal(value: int, verdict: Instruction) -> Program:
    return [Instruction(_EQUAL, 0, 1, value), verdict]


def _if_any_bit(bits: int, verdict: Instruction) -> Program:
    return [Instruction(_ANY_BIT, 0, 1, bits), verdict]


def _only(argument: int, values: tuple[int, ...]) -> Program:
    """Allow when the low half of the argument, an int for the kernel, is one of the values."""
    tests = [step for value in values for step in _if_equal(value, ALLOW)]
    return [_low(argument), *tests, DENY]


def _unless_bits(argument: int, bits: int) -> Program:
    return [_low(argument), *_if_any_bit(bits, DENY), ALLOW]


def _unless_among(argument: int, values: tuple[int, ...], verdict: Instruction) -> Program:
    """Go on when the argument is one of the values, else end with the verdict."""
    tests = [Instruction(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_low(argument), *tests, verdict]


def _null(argument: int) -> Program:
    """Allow a null pointer only: both halves are zero."""
    return [
        _low(argument),
        Instruction(_EQUAL, 0, 2, 0),
        _high(argument),
        Instruction(_EQUAL, 1, 0, 0),
        DENY,
        ALLOW,
    ]


def _open_rule(flags: int) -> Program:
    """Refuse to truncate a file opened without write access, which landlock before ABI 3 does not see, and the
    undocumented access mode 3, for which landlock asks no right at all. The mode of a new file, which is the
    next argument, must not make a program that runs as its owner."""
    masked = Instruction(_AND, 0, 0, _O_TRUNC | _O_ACCESS_MODE)
    return [
        _low(flags),
        masked,
        *_if_equal(_O_TRUNC | _O_RDONLY, DENY),
        Instruction(_AND, 0, 0, _O_ACCESS_MODE),
        *_if_equal(_O_ACCESS_MODE, DENY),
        *_unless_bits(flags + 1, _SET_ID_BITS),
    ]


def _mmap_rule() -> Program:
    """Refuse the mappings that RLIMIT_DATA does not count: shared anonymous ones and growing stacks."""
    shared = _MAP_ANONYMOUS | _MAP_SHARED
    return [
        _low(3),
        *_if_any_bit(_MAP_GROWSDOWN | _MAP_HUGETLB, DENY),
        Instruction(_AND, 0, 0, shared),
        *_if_equal(shared, DENY),
        ALLOW,
    ]


def _rules(pid: int) -> dict[str, Program]:
    """What each checked call may do. `pid` is this process as it sees itself."""
    own = (0, pid)
    kept_handlers = (signal.SIGINT, signal.SIGXCPU)  # they may be read; the worker has set them for good
    return {
        "open": _open_rule(1),
        "openat": _open_rule(2),
        "creat": _unless_bits(1, _SET_ID_BITS),
        "mmap": _mmap_rule(),
        "fcntl": _only(1, _FCNTLS),
        "ioctl": _only(1, _IOCTLS),
        "rt_sigaction": [*_unless_among(0, kept_handlers, ALLOW), *_null(1)],
        "fallocate": [UNSUPPORTED],  # reserves a disk faster than the supervisor looks; the C library writes instead
        "sendto": [_low(3), *_if_any_bit(socket.MSG_OOB, DENY), *_null(4)],
        "recvfrom": _unless_bits(3, socket.MSG_OOB),
        "getsockopt": [*_unless_among(1, (socket.SOL_SOCKET,), DENY), *_only(2, _SOCKET_OPTIONS)],
        "clone": _only(0, _THREAD_FLAGS),
        "clone3": [ABSENT],
        "close_range": _unless_bits(2, _CLOSE_RANGE_UNSHARE),
        "kill": _only(0, (pid,)),
        "tgkill": _only(0, (pid,)),
        "prctl": _only(0, (_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA)),
        "prlimit64": [*_unless_among(0, own, DENY), *_null(2)],
        "sched_getaffinity": _only(0, own),
        "socketpair": _only(0, (socket.AF_UNIX,)),
        "renameat2": _only(4, _RENAME_FLAGS),
        "clock_gettime": _unless_bits(0, _CLOCKS_OF_OTHERS),
        "clock_getres": _unless_bits(0, _CLOCKS_OF_OTHERS),
        "clock_nanosleep": _unless_bits(0, _CLOCKS_OF_OTHERS),
    }


def allow_list(arch: str, pid: int) -> Program:
    """The whole filter. Calls with rules come first: the kernel caches the verdict of the others."""
    table = numbers(arch)
    program = [
        Instruction(_LOAD, 0, 0, _ARCH_OFFSET),
        Instruction(_EQUAL, 1, 0, AUDIT_ARCH[arch]),
        KILL,
        Instruction(_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if arch == "x86_64":
        program += [Instruction(_AT_LEAST, 0, 1, _X32_BIT), KILL]
    for name, rule in _rules(pid).items():
        if name in table:
            program += [Instruction(_EQUAL, 0, len(rule), table[name]), *rule]
    for name in PLAIN:
        if name in table:
            program += _if_equal(table[name], ALLOW)
    return [*program, Instruction(_AT_LEAST, 0, 1, max(table.values()) + 1), ABSENT, DENY]


def thread_watch(arch: str) -> Program:
    """Hand each `clone` to the listener and leave the rest to the allow-list."""
    return [
        Instruction(_LOAD, 0, 0, _NUMBER_OFFSET),
        *_if_equal(numbers(arch)["clone"], Instruction(_RETURN, 0, 0, _NOTIFY)),
        ALLOW,
    ]


def install_thread_watch() -> int:
    """The descriptor on which the kernel announces each new thread and waits for the answer."""
    return _install(thread_watch(machine()), _NEW_LISTENER)


def install(pid: int) -> None:
    """From here on, for good, this process can make the allowed calls only."""
    _install(allow_list(machine(), pid), 0)


def _install(program: Program, flags: int) -> int:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    return syscall("seccomp", _SET_MODE_FILTER, flags, header)
