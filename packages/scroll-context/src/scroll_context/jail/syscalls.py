"""The allow-list of system calls, as classic BPF programs, and the edge to the C library.

Two filters. The first hands every `clone` to the supervisor, which counts threads
(`install_thread_watch`). The second, installed last, is the allow-list (`install`): a call that it
does not name fails with EPERM, a call newer than the table with ENOSYS so that the C library falls
back, and a call in another instruction set (32-bit, x32) ends the process. What is allowed only for
some arguments is checked in `_rules`. A filter sees registers, never memory: so nothing is decided
by what a pointer points to.

The tables have the numbers of each call on x86_64 and aarch64. A test checks them against the
kernel's headers. An architecture that is not in the tables has no filter, and without a filter
there is no jail. The C library is loaded when it is first needed, so that importing the package on
another platform does no harm.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import re
import signal
import socket
import struct
import sys
from typing import Any, NamedTuple

from scroll_context.jail.spec import refuse

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

Numbers = dict[str, tuple[int | None, int | None]]


def _table(*groups: str) -> Numbers:
    """Rows of the form `name=x86_64/aarch64`, with `-` where an architecture has no such call."""
    table: Numbers = {}
    for row in " ".join(groups).split():
        name, x86, arm = re.split("[=/]", row)
        table[name] = (_number_or_none(x86), _number_or_none(arm))
    return table


def _number_or_none(text: str) -> int | None:
    return None if text == "-" else int(text)


# Allowed whatever the arguments: each acts on the caller's own memory, descriptors, threads and
# clocks, or on a path, and paths are the business of landlock and of the mount namespace.
PLAIN = _table(
    # files by descriptor
    """
    read=0/63 write=1/64 close=3/57 fstat=5/80 lseek=8/62 pread64=17/67 pwrite64=18/68
    readv=19/65 writev=20/66 preadv=295/69 pwritev=296/70 dup=32/23 dup2=33/- dup3=292/24
    fsync=74/82 fdatasync=75/83 ftruncate=77/46 fadvise64=221/223 getdents=78/-
    getdents64=217/61 fstatfs=138/44 copy_file_range=326/285
    """,
    # files by path
    """
    stat=4/- lstat=6/- newfstatat=262/79 statx=332/291 access=21/- faccessat=269/48
    faccessat2=439/439 readlink=89/- readlinkat=267/78 getcwd=79/17 chdir=80/49 fchdir=81/50
    mkdir=83/- mkdirat=258/34 rmdir=84/-
    unlink=87/- unlinkat=263/35 rename=82/- renameat=264/38 umask=95/166
    """,
    # waiting
    """
    poll=7/- ppoll=271/73 select=23/- pselect6=270/72 epoll_create1=291/20 epoll_ctl=233/21
    epoll_wait=232/- epoll_pwait=281/22 eventfd2=290/19 pipe=22/- pipe2=293/59 shutdown=48/210
    getsockname=51/204
    getpeername=52/205
    """,
    # memory
    """
    mprotect=10/226 munmap=11/215 brk=12/214 mremap=25/216 msync=26/227 madvise=28/233
    """,
    # threads and signals of its own
    """
    exit=60/93 exit_group=231/94 futex=202/98 sched_yield=24/124 set_robust_list=273/99
    set_tid_address=218/96 rseq=334/293 getcpu=309/168 rt_sigprocmask=14/135
    rt_sigreturn=15/139 rt_sigpending=127/136
    rt_sigtimedwait=128/137 rt_sigsuspend=130/133 sigaltstack=131/132 restart_syscall=219/128
    pause=34/- alarm=37/- getitimer=36/102 setitimer=38/103
    """,
    # clocks and facts about itself
    """
    nanosleep=35/101 gettimeofday=96/169 time=201/- times=100/153 getrandom=318/278 getpid=39/172
    getppid=110/173 gettid=186/178 getpgrp=111/- getuid=102/174 geteuid=107/175 getgid=104/176
    getegid=108/177 getgroups=115/158 getrlimit=97/163 getrusage=98/165 sysinfo=99/179 uname=63/160
    """,
)

# Allowed for some arguments only: see `_rules`.
CHECKED = _table(
    """
    open=2/- openat=257/56 creat=85/- mmap=9/222 fcntl=72/25 ioctl=16/29 rt_sigaction=13/134
    fallocate=285/47 sendto=44/206 recvfrom=45/207 getsockopt=55/209 clone=56/220 clone3=435/435
    close_range=436/436 kill=62/129 tgkill=234/131 prctl=157/167 prlimit64=302/261
    sched_getaffinity=204/123 socketpair=53/199 renameat2=316/276
    clock_nanosleep=230/115 clock_gettime=228/113 clock_getres=229/114
    """
)

# Used to build the jail and to test it from inside, refused to model code.
BUILDING = _table(
    """
    capget=125/90 capset=126/91 pivot_root=155/41 unshare=272/97 seccomp=317/277
    mount_setattr=442/442 landlock_create_ruleset=444/444 landlock_add_rule=445/445
    landlock_restrict_self=446/446 execve=59/221
    memfd_create=319/279 ptrace=101/117 setrlimit=160/164 socket=41/198
    """
)


@functools.cache
def machine() -> str:
    """The architecture of this process, or the refusal of one that the jail does not know."""
    name = os.uname().machine if sys.maxsize > 1 << 32 else "32-bit"
    if name not in AUDIT_ARCH:
        raise refuse(
            "system calls",
            f"there is no table of system calls for the architecture {name!r}",
            f"Run on {' or '.join(AUDIT_ARCH)}.",
        )
    return name


@functools.cache
def numbers(arch: str) -> dict[str, int]:
    """Every named call that `arch` has."""
    column = _COLUMN[arch]
    calls: dict[str, int] = {}
    for name, row in {**PLAIN, **CHECKED, **BUILDING}.items():
        call = row[column]
        if call is not None:
            calls[name] = call
    return calls


def number(name: str) -> int:
    return numbers(machine())[name]


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
    converted: list[Any] = [
        ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a or 0) for a in arguments
    ]
    return _checked(libc().syscall(ctypes.c_long(number(name)), *converted), name)


def prctl(option: int, *arguments: int) -> int:
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(libc().prctl(ctypes.c_int(option), *padded), f"prctl({option})")


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, options: str = ""
) -> None:
    result = libc().mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _checked(result, f"mount {target}")


# filters ------------------------------------------------------------------------------------------


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

# What glibc asks for when it starts a thread; musl adds the obsolete CLONE_DETACHED. Nothing else
# is a thread here: not one with a table of descriptors of its own, and not a process.
_THREAD_FLAGS = (0x3D0F00, 0x7D0F00)
_O_TRUNC, _O_ACCESS_MODE, _O_RDONLY = 0o1000, 0o3, 0
_SET_ID_BITS = 0o6000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN, _MAP_HUGETLB = 0x1, 0x20, 0x100, 0x40000
_CLOSE_RANGE_UNSHARE = 2
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41
# TCGETS (for isatty), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX and FIOCLEX.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Duplicates, flags and locks with an owner; never F_SETOWN or F_SETSIG.
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
# Type, error, buffers, accepting, protocol and domain; never the peer.
_SOCKET_OPTIONS = (3, 4, 7, 8, 30, 38, 39)
# RENAME_WHITEOUT is not among these: it leaves a device behind.
_RENAME_FLAGS = (0, 1, 2)
# A negative number names a process, a thread or a descriptor.
_CLOCKS_OF_OTHERS = 0xFFFFFFF0
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
    program = [_low(argument)]
    for value in values:
        program += _if_equal(value, ALLOW)
    return [*program, DENY]


def _unless_bits(argument: int, bits: int) -> Program:
    return [_low(argument), *_if_any_bit(bits, DENY), ALLOW]


def _unless_among(argument: int, values: tuple[int, ...], verdict: Instruction) -> Program:
    """Continue when the argument is one of the values, else end with the verdict."""
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
    """Refuse to truncate a file opened without write access, which landlock before ABI 3 does not
    see, and the undocumented access mode 3, for which landlock asks no right at all. The mode of a
    new file, which is the next argument, must not make a program that runs as its owner."""
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
    """Refuse the mappings that RLIMIT_DATA does not count: shared anonymous ones and growing
    stacks.
    """
    shared = _MAP_ANONYMOUS | _MAP_SHARED
    return [
        _low(3),
        *_if_any_bit(_MAP_GROWSDOWN | _MAP_HUGETLB, DENY),
        Instruction(_AND, 0, 0, shared),
        *_if_equal(shared, DENY),
        ALLOW,
    ]


def _rules(pid: int) -> dict[str, Program]:
    """The permissions of each checked call. `pid` is this process as it sees itself."""
    own = (0, pid)
    # The worker has set these handlers for good. They may only be read.
    fixed_handlers = (signal.SIGINT, signal.SIGXCPU)
    return {
        "open": _open_rule(1),
        "openat": _open_rule(2),
        "creat": _unless_bits(1, _SET_ID_BITS),
        "mmap": _mmap_rule(),
        "fcntl": _only(1, _FCNTLS),
        "ioctl": _only(1, _IOCTLS),
        "rt_sigaction": [*_unless_among(0, fixed_handlers, ALLOW), *_null(1)],
        # It reserves a disk faster than the supervisor looks. The C library writes instead.
        "fallocate": [UNSUPPORTED],
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
    """The complete filter.

    Calls with rules come first: the kernel caches the verdict of the others.
    """
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
