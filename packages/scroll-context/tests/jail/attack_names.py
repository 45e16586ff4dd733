"""The names that an attack may use: modules, the C library, and system calls by name on either
architecture.
"""

from __future__ import annotations

import _thread
import ctypes
import fcntl
import mmap
import os
import platform
import posix
import resource
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from types import SimpleNamespace

_NUMBERS = {  # x86_64, aarch64
    "truncate": (76, 45),
    "linkat": (265, 37),
    "fallocate": (285, 47),
    "renameat2": (316, 276),
    "openat2": (437, 437),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execveat": (322, 281),
    "unshare": (272, 97),
    "setns": (308, 268),
    "setpgid": (109, 154),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "get_robust_list": (274, 100),
    "move_pages": (279, 239),
    "personality": (135, 92),
    "ioprio_set": (251, 30),
    "mlock": (149, 228),
    "mprotect": (10, 226),
    "timer_create": (222, 107),
    "io_uring_setup": (425, 425),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "userfaultfd": (323, 282),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "vmsplice": (278, 75),
    "seccomp": (317, 277),
    "bpf": (321, 280),
    "sethostname": (170, 161),
    "syslog": (103, 116),
    "capset": (126, 91),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "close_range": (436, 436),
    "exit": (60, 93),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
}
NR = {name: row[platform.machine() == "aarch64"] for name, row in _NUMBERS.items()}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(name: str, *arguments: int | bytes | None) -> int:
    converted = [
        ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a or 0) for a in arguments
    ]
    result = libc.syscall(ctypes.c_long(NR[name]), *converted)
    return result if result >= 0 else raise_errno()


def raise_errno() -> int:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def environment_address(name: str) -> int:
    """Where the C library holds the value of a variable."""
    libc.getenv.restype = ctypes.c_void_p
    return int(libc.getenv(name.encode()) or 0)


def prelude(targets: SimpleNamespace) -> dict[str, object]:
    return {
        "T": targets,
        "NR": NR,
        "call": call,
        "libc": libc,
        "raise_errno": raise_errno,
        **{module.__name__: module for module in _MODULES},
    }


_MODULES = (
    _thread,
    ctypes,
    fcntl,
    mmap,
    os,
    posix,
    resource,
    signal,
    socket,
    stat,
    struct,
    subprocess,
    threading,
    time,
)
