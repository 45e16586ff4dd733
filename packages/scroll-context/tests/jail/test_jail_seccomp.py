"""The filter of system calls, run by a small interpreter of its programs: both architectures, on
any machine.
"""

from __future__ import annotations

import errno
import signal
import socket

import pytest

from scroll_context.jail.syscalls import (
    AUDIT_ARCH,
    PLAIN,
    Program,
    _table,
    allow_list,
    numbers,
    thread_watch,
)

ARCHITECTURES = ["x86_64", "aarch64"]
PID = 4242
_HIGH = 1 << 40  # a pointer whose low half is zero
_ALLOW, _KILL, _NOTIFY = 0x7FFF0000, 0x80000000, 0x7FC00000
_EPERM, _ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def verdict(program: Program, audit_arch: int, number: int, *arguments: int) -> int:
    """What the kernel would return, by the rules of classic BPF."""
    padded = [argument & (1 << 64) - 1 for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    words = {0: number, 4: audit_arch}
    for index, value in enumerate(padded):
        words[16 + 8 * index], words[20 + 8 * index] = value & 0xFFFFFFFF, value >> 32
    accumulator = position = 0
    while True:
        code, jump_true, jump_false, constant = program[position]
        position += 1
        if code == 0x20:
            accumulator = words[constant]
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x06:
            return constant
        else:
            taken = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: accumulator & constant != 0,
            }[code]
            position += jump_true if taken else jump_false


def ask(arch: str, call: str | int, *arguments: int) -> int:
    number = numbers(arch)[call] if isinstance(call, str) else call
    return verdict(allow_list(arch, PID), AUDIT_ARCH[arch], number, *arguments)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_jump_lands_inside_the_program(arch: str) -> None:
    for program in (allow_list(arch, PID), thread_watch(arch)):
        assert len(program) <= 4096
        for position, instruction in enumerate(program):
            furthest = max(instruction.jump_true, instruction.jump_false)
            assert furthest <= 255
            assert position + 1 + furthest < len(program) or instruction.code == 0x06


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_plain_calls_are_allowed_and_all_others_are_not(arch: str) -> None:
    table = numbers(arch)
    plain = {table[name] for name in PLAIN if name in table}
    checked = {table[name] for name in table if name not in PLAIN}
    newest = max(table.values())
    program = allow_list(arch, PID)
    for number in range(1000):
        if number in checked:
            continue
        expected = _ALLOW if number in plain else _EPERM if number <= newest else _ENOSYS
        assert verdict(program, AUDIT_ARCH[arch], number) == expected, number


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "call",
    [
        "capset",
        "execve",
        "landlock_restrict_self",
        "memfd_create",
        "mount_setattr",
        "pivot_root",
        "ptrace",
        "seccomp",
        "setrlimit",
        "socket",
        "unshare",
    ],
)
def test_what_built_the_jail_is_refused_inside(arch: str, call: str) -> None:
    assert ask(arch, call) == _EPERM


# Written out here, and not taken from the jail's own table: a call that is added there by mistake
# must be noticed.
REFUSED = _table(
    # other processes
    """
    tkill=200/130 rt_sigqueueinfo=129/138 rt_tgsigqueueinfo=297/240 pidfd_open=434/434 pidfd_send_signal=424/424
    pidfd_getfd=438/438 process_vm_readv=310/270 process_vm_writev=311/271 process_madvise=440/440 kcmp=312/272
    setpgid=109/154 setsid=112/157 setpriority=141/140 sched_setscheduler=144/119 sched_setparam=142/118
    sched_setattr=314/274 sched_setaffinity=203/122 ioprio_set=251/30 migrate_pages=256/238 move_pages=279/239
    fork=57/- vfork=58/- execveat=322/281
    """,
    # files: links, devices, modes and owners, handles, and truncation, which old versions of
    # landlock do not see
    """
    link=86/- linkat=265/37 symlink=88/- symlinkat=266/36 mknod=133/- mknodat=259/33 truncate=76/45 openat2=437/437
    chmod=90/- fchmod=91/52 fchmodat=268/53 chown=92/- fchown=93/55 lchown=94/- fchownat=260/54 utimensat=280/88
    setxattr=188/5 lsetxattr=189/6 fsetxattr=190/7 name_to_handle_at=303/264 open_by_handle_at=304/265
    inotify_init1=294/26 inotify_add_watch=254/27 fanotify_init=300/262
    """,
    # the network
    """
    connect=42/203 bind=49/200 listen=50/201 accept=43/202 accept4=288/242 sendmsg=46/211 recvmsg=47/212
    sendmmsg=307/269 recvmmsg=299/243 setsockopt=54/208
    """,
    # mounts and namespaces
    """
    mount=165/40 umount2=166/39 chroot=161/51 setns=308/268 open_tree=428/428 move_mount=429/429 fsopen=430/430
    fsconfig=431/431 fsmount=432/432 fspick=433/433
    """,
    # the system itself
    """
    bpf=321/280 perf_event_open=298/241 io_uring_setup=425/425 io_uring_enter=426/426 io_uring_register=427/427
    userfaultfd=323/282 keyctl=250/219 add_key=248/217 request_key=249/218 init_module=175/105 finit_module=313/273
    kexec_load=246/104 reboot=169/142 syslog=103/116 sethostname=170/161 settimeofday=164/170 clock_settime=227/112
    personality=135/92
    """,
    # other users
    """
    setuid=105/146 setgid=106/144 setreuid=113/145 setregid=114/143 setresuid=117/147 setresgid=119/149
    setgroups=116/159
    """,
    # memory and signals that no limit counts
    """
    mlock=149/228 mlock2=325/284 mlockall=151/230 shmget=29/194 shmat=30/196 semget=64/190 semop=65/193 msgget=68/186
    msgsnd=69/189 mq_open=240/180 timer_create=222/107
    """,
)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_calls_that_reach_beyond_the_process_are_refused_by_number(arch: str) -> None:
    column = ARCHITECTURES.index(arch)
    refused = {name: row[column] for name, row in REFUSED.items() if row[column] is not None}
    verdicts = {name: ask(arch, number) for name, number in refused.items() if number is not None}
    assert {name for name, answer in verdicts.items() if answer not in (_EPERM, _ENOSYS)} == set()


def test_another_instruction_set_ends_the_process() -> None:
    program = allow_list("x86_64", PID)
    read = numbers("x86_64")["read"]
    assert verdict(program, 0x40000003, read) == _KILL  # i386
    assert verdict(program, AUDIT_ARCH["aarch64"], read) == _KILL
    assert verdict(program, AUDIT_ARCH["x86_64"], read | 0x40000000) == _KILL  # x32
    assert verdict(allow_list("aarch64", PID), AUDIT_ARCH["x86_64"], read) == _KILL


_THREAD = 0x3D0F00
_SHARED_ANONYMOUS, _PRIVATE_ANONYMOUS, _PRIVATE_FILE, _SHARED_FILE = 0x21, 0x22, 0x02, 0x01
_CASES = [
    ("clone", (_THREAD,), True),
    ("clone", (_THREAD | 0x400000,), True),
    ("clone", (signal.SIGCHLD,), False),
    ("clone", (_THREAD | 0x10000000,), False),
    ("clone", (_THREAD & ~0x400,), False),
    ("clone", (0x10000,), False),
    ("kill", (PID, signal.SIGTERM), True),
    ("kill", (PID + 1, 0), False),
    ("kill", (0, 0), False),
    ("kill", (-1, 0), False),
    ("kill", (-PID, 0), False),
    ("tgkill", (PID, 7, 9), True),
    ("tgkill", (PID + 1, 7, 9), False),
    ("sendto", (3, 0, 0, 0, 0, 0), True),
    ("sendto", (3, 0, 0, 0, 64, 16), False),
    ("sendto", (3, 0, 0, 0, _HIGH, 16), False),
    ("prlimit64", (0, 7, 0, 64), True),
    ("prlimit64", (PID, 7, 0, 64), True),
    ("prlimit64", (PID + 1, 7, 0, 64), False),
    ("prlimit64", (0, 7, 64, 0), False),
    ("prlimit64", (0, 7, _HIGH, 0), False),
    ("rt_sigaction", (signal.SIGUSR1, 64, 0, 8), True),
    ("rt_sigaction", (signal.SIGINT, 0, 64, 8), True),
    ("rt_sigaction", (signal.SIGINT, 64, 0, 8), False),
    ("rt_sigaction", (signal.SIGINT, _HIGH, 0, 8), False),
    ("rt_sigaction", (signal.SIGXCPU, 64, 0, 8), False),
    ("mmap", (0, 4096, 3, _PRIVATE_ANONYMOUS), True),
    ("mmap", (0, 4096, 5, _PRIVATE_FILE), True),
    ("mmap", (0, 4096, 1, _SHARED_FILE), True),
    ("mmap", (0, 4096, 3, _PRIVATE_ANONYMOUS | 0x20000), True),  # MAP_STACK, for threads
    ("mmap", (0, 4096, 3, _SHARED_ANONYMOUS), False),
    ("mmap", (0, 4096, 3, 0x23), False),  # MAP_SHARED_VALIDATE
    ("mmap", (0, 4096, 3, _PRIVATE_ANONYMOUS | 0x100), False),  # MAP_GROWSDOWN
    ("mmap", (0, 4096, 3, _PRIVATE_ANONYMOUS | 0x40000), False),  # MAP_HUGETLB
    ("openat", (-100, 64, 0), True),
    ("openat", (-100, 64, 0o1 | 0o100 | 0o1000, 0o666), True),
    ("openat", (-100, 64, 0o2 | 0o1000), True),
    ("openat", (-100, 64, 0o1000), False),
    ("openat", (-100, 64, 0o3), False),
    ("openat", (-100, 64, 0o3 | 0o1000), False),
    ("openat", (-100, 64, 0o101, 0o4755), False),
    ("openat", (-100, 64, 0o101, 0o2755), False),
    ("fcntl", (3, 2, 1), True),
    ("fcntl", (3, 1030, 0), True),
    ("fcntl", (3, 6, 64), True),  # F_SETLK
    ("fcntl", (3, 37, 64), False),  # F_OFD_SETLK: a lock that has no owner
    ("fcntl", (3, 8, 1), False),  # F_SETOWN
    ("fcntl", (3, 10, 9), False),  # F_SETSIG
    ("fcntl", (3, 15, 64), False),  # F_SETOWN_EX
    ("fcntl", (3, 1024, 0), False),  # F_SETLEASE
    ("fcntl", (3, 1031, 1 << 20), False),  # F_SETPIPE_SZ
    ("ioctl", (3, 0x5421), True),
    ("ioctl", (3, 0x5412), False),  # TIOCSTI
    ("ioctl", (3, 0x8901), False),  # FIOSETOWN
    ("prctl", (15, 64), True),
    ("prctl", (1, 0), False),  # PR_SET_PDEATHSIG
    ("prctl", (4, 0), False),  # PR_SET_DUMPABLE
    ("socketpair", (socket.AF_UNIX, 1, 0, 64), True),
    ("socketpair", (socket.AF_INET, 1, 0, 64), False),
    ("getsockopt", (3, 1, 4, 64, 64), True),
    ("getsockopt", (3, 1, 17, 64, 64), False),  # SO_PEERCRED
    ("getsockopt", (3, 1, 77, 64, 64), False),  # SO_PEERPIDFD
    ("getsockopt", (3, 0, 4, 64, 64), False),
    ("close_range", (3, 9, 0), True),
    ("close_range", (3, 9, 2), False),
    ("renameat2", (-100, 64, -100, 64, 0), True),
    ("renameat2", (-100, 64, -100, 64, 1), True),
    ("renameat2", (-100, 64, -100, 64, 4), False),  # RENAME_WHITEOUT
    ("clock_gettime", (1, 64), True),
    ("clock_gettime", (11, 64), True),
    ("clock_gettime", ((~PID << 3) | 2, 64), False),
    ("clock_gettime", ((~3 << 3) | 3, 64), False),  # of a descriptor
    ("clock_getres", ((~PID << 3) | 2, 64), False),
    ("clock_nanosleep", (1, 0, 64, 0), True),
    ("clock_nanosleep", ((~PID << 3) | 6, 0, 64, 0), False),  # of a thread
    ("sched_getaffinity", (0, 8, 64), True),
    ("sched_getaffinity", (PID + 1, 8, 64), False),
]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("call", "arguments", "allowed"), _CASES)
def test_arguments_decide(arch: str, call: str, arguments: tuple[int, ...], allowed: bool) -> None:
    assert ask(arch, call, *arguments) == (_ALLOW if allowed else _EPERM)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_clone3_is_absent_so_that_the_c_library_uses_clone(arch: str) -> None:
    assert ask(arch, "clone3", 64, 88) == _ENOSYS


def test_the_older_calls_of_x86_have_the_same_rules() -> None:
    assert ask("x86_64", "open", 64, 0o1000) == _EPERM
    assert ask("x86_64", "open", 64, 0o101, 0o4755) == _EPERM
    assert ask("x86_64", "open", 64, 0o101, 0o644) == _ALLOW
    assert ask("x86_64", "creat", 64, 0o6755) == _EPERM
    assert ask("x86_64", "creat", 64, 0o644) == _ALLOW


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_only_new_threads_are_announced(arch: str) -> None:
    table = numbers(arch)
    announced = {
        name for name, number in table.items() if verdict(thread_watch(arch), 0, number) == _NOTIFY
    }
    assert announced == {"clone"}
