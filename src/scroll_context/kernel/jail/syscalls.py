"""Direct system calls: their numbers for x86_64 and aarch64, and the edge to the C library.

The tables have one row a call: (x86_64, aarch64), None where the architecture has no such call. A test checks them
against the kernel's headers. An architecture that is not in the tables has no filter, and without a filter there is no
jail. Nothing here decides anything else. The C library is loaded when it is first needed, so that importing the
package on another platform does no harm.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

from scroll_context.kernel.jail.spec import refuse

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

# Allowed whatever the arguments: each acts on the caller's own memory, descriptors, threads and clocks, or on
# a path, and paths are the business of landlock and of the mount namespace.
PLAIN: dict[str, tuple[int | None, int | None]] = {
    # files by descriptor
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "fadvise64": (221, 223),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "fstatfs": (138, 44),
    "copy_file_range": (326, 285),
    # files by path
    "stat": (4, None),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "umask": (95, 166),
    # waiting
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "shutdown": (48, 210),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    # memory
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "msync": (26, 227),
    "madvise": (28, 233),
    # threads and signals of its own
    "exit": (60, 93),
    "exit_group": (231, 94),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "rseq": (334, 293),
    "getcpu": (309, 168),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "pause": (34, None),
    "alarm": (37, None),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    # clocks and facts about itself
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getpgrp": (111, None),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getgroups": (115, 158),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "uname": (63, 160),
}

# Allowed for some arguments only: see the rules in `seccomp`.
CHECKED: dict[str, tuple[int | None, int | None]] = {
    "open": (2, None),
    "openat": (257, 56),
    "creat": (85, None),
    "mmap": (9, 222),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "rt_sigaction": (13, 134),
    "fallocate": (285, 47),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "getsockopt": (55, 209),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "sched_getaffinity": (204, 123),
    "socketpair": (53, 199),
    "renameat2": (316, 276),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
}

# Used to build the jail and to test it from inside, refused to model code.
BUILDING: dict[str, tuple[int | None, int | None]] = {
    "capget": (125, 90),
    "capset": (126, 91),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "seccomp": (317, 277),
    "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "execve": (59, 221),
    "memfd_create": (319, 279),
    "ptrace": (101, 117),
    "setrlimit": (160, 164),
    "socket": (41, 198),
}


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
    rows = {**PLAIN, **CHECKED, **BUILDING}
    return {name: row[column] for name, row in rows.items() if row[column] is not None}  # type: ignore[misc]


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
