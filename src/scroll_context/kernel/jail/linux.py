"""The jail on Linux: the order of its steps, the namespaces and landlock.

    targets for the probes, environment        while the host is still visible
    die with the parent, no new privileges, no core dumps
    namespaces (tier full)
    split: the parent stays behind as the supervisor; each closes what it inherited
    a root of its own (tier full), limits, capabilities, landlock
    seccomp: threads to the supervisor, then the allow-list
    probes

Each step narrows what the next could undo; the filter of system calls comes last. Any step that fails raises
KernelUnavailable with the guarantee that it stands for; nothing is skipped.

Namespaces: an empty network, private process numbers, and a root that holds only what is declared. `unshare` runs in
the process that becomes the supervisor; its next child is process 1 of the new process namespace and calls
`build_root` there. The new root is a small tmpfs. It is pivoted to first, and the declared paths are bound read-only
from the old root, which is then detached: what was not declared has no name any more, and not even `stat` can ask for
it. `/proc` and `/sys` are not mounted: CPython, numpy and pandas do without.

Landlock binds opening, creating, removing and truncating to paths, for a process without privileges and for good. ABI
1 (Linux 5.13) is enough, because the allow-list of system calls already covers what came later: truncation (ABI 3),
TCP (4), device ioctls (5), signals and abstract sockets (6). Where the kernel has them they are asked for too. Landlock
does not govern metadata: `stat`, `readlink` and `chdir` on a known path still work in tier `kernel-only`.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

from scroll_context.kernel.jail import probes, process, seccomp, supervisor
from scroll_context.kernel.jail.paths import lies_in
from scroll_context.kernel.jail.spec import Enforcement, JailSpec, Tier, linux_guarantees, refuse
from scroll_context.kernel.jail.syscalls import libc, machine, mount, syscall

_NAMESPACES = (
    "Allow unprivileged user namespaces (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0; "
    "in Docker: --security-opt seccomp=unconfined, or a profile that allows unshare and mount), "
    "or ask for tier 'kernel-only'."
)
_LANDLOCK = "Use Linux 5.13 or newer with landlock in the list of security modules (boot option lsm=landlock,...)."
_SECCOMP = "Use a kernel with CONFIG_SECCOMP_FILTER, outside a container that already listens to system calls."
_PLAIN = "Start the kernel from a process of its own, with a scratch folder that it may write to."


def enter(spec: JailSpec, tier: Tier, keep: Set[int], report_pid: Callable[[int], None] | None) -> Enforcement:
    """Close the jail around this process; returns in a child of the caller's process, inside."""
    full = tier == "full"
    machine()
    with _step("inheritance", _PLAIN):
        _check(spec, full)
    abi = available_abi()
    if abi < 1:
        raise refuse("read outside", "this kernel has no landlock, or it is switched off", _LANDLOCK)
    targets = probes.choose_targets(spec)
    with _step("inheritance", _PLAIN):
        process.clean_environment(_environment(spec))
        process.die_with_parent()
        process.forbid_new_privileges()
        process.forbid_core_dumps()
    if full:
        with _step("metadata", _NAMESPACES):
            unshare()
    with _step("lifetime", _PLAIN):
        link = supervisor.split(spec, watch_scratch=not full, report_pid=report_pid)
    with _step("inheritance", _PLAIN):
        process.close_inherited({*keep, link.control.fileno()})
    if full:
        with _step("metadata", _NAMESPACES):
            build_root(spec)
    with _step("scratch", _PLAIN):
        os.chdir(spec.scratch)
    with _step("memory", _PLAIN):
        process.apply(spec.limits)
    with _step("privileges", _PLAIN):
        process.drop_capabilities()
    with _step("read outside", _LANDLOCK):
        restrict_paths(spec.read_only, spec.scratch, abi)
    with _step("threads", _SECCOMP):
        link.hand_over(seccomp.install_thread_watch())
    with _step("system calls", _SECCOMP):
        seccomp.install(os.getpid())
    refused = probes.run_probes(spec, tier, targets)
    return Enforcement(tier, link.pid, linux_guarantees(tier, abi), refused, abi)


@contextmanager
def _step(guarantee: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refuse(guarantee, str(error), remedy) from error


def _check(spec: JailSpec, full: bool) -> None:
    """Refuse a request that cannot be honoured exactly."""
    if len(os.listdir("/proc/self/task")) != 1:
        raise refuse("system calls", "this process has threads that would stay outside the jail", _PLAIN)
    scratch = os.path.realpath(spec.scratch)
    for path in (*spec.read_only, spec.scratch):
        if not path.startswith("/"):
            raise refuse("read outside", f"{path!r} is not an absolute path", "Declare absolute paths.")
    for path in spec.read_only:
        real = os.path.realpath(path)
        if not os.path.exists(real):
            raise refuse("read outside", f"{path} does not exist or cannot be reached", "Declare paths that exist.")
        if lies_in(scratch, [real]) or lies_in(real, [scratch]):
            raise refuse("write outside", f"{path} and the scratch folder overlap", "Keep them apart.")
    if not full and not os.path.isdir(scratch):
        raise refuse("scratch", f"{scratch} is not a folder", "Create it, empty, for this kernel alone.")


def _environment(spec: JailSpec) -> dict[str, str]:
    """What libraries look for: a home, and how many threads they may start by themselves."""
    workers = str(max(1, min(os.cpu_count() or 1, spec.limits.threads // 4)))
    pools = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
    home = {"HOME": spec.scratch, "TMPDIR": spec.scratch, "LANG": "C.UTF-8"}
    return home | dict.fromkeys(pools, workers)


_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _NOEXEC, _REMOUNT, _RDONLY = 2, 4, 8, 0x20, 1
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_OLD = "/.old"
_HOST_NAME = b"scroll"
_PAGE = 4096


def unshare() -> None:
    """Leave the host's users, network, IPC, host name and control groups; the next child leaves its pids too."""
    user, group = os.getuid(), os.getgid()
    syscall("unshare", _NEWUSER | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS | _NEWCGROUP)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if libc().sethostname(_HOST_NAME, len(_HOST_NAME)) != 0:
        raise OSError("the host name cannot be set")


def build_root(spec: JailSpec) -> None:
    """Replace the file tree by the declared paths and a scratch tmpfs of limited size."""
    syscall("unshare", _NEWNS)
    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    trees, links = _resolve(spec.read_only)
    base = next(p for p in ("/tmp", "/run", "/var", "/usr") if os.path.isdir(p))
    mount("scroll-root", base, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m,nr_inodes=4k")
    os.mkdir(base + _OLD)
    syscall("pivot_root", os.fsencode(base), os.fsencode(base + _OLD))
    os.chdir("/")
    for tree in trees:
        _bind_read_only(tree)
    for link, target in links.items():
        if not os.path.lexists(link):
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(target, link)
    size = spec.limits.scratch_bytes
    os.makedirs(spec.scratch, exist_ok=True)
    options = f"mode=700,size={size},nr_inodes={max(size // _PAGE, 64)}"
    mount("scroll-scratch", spec.scratch, "tmpfs", _NOSUID | _NODEV | _NOEXEC, options)
    if libc().umount2(_OLD.encode(), _MNT_DETACH) != 0:
        raise OSError("the old root cannot be detached")
    os.rmdir(_OLD)
    mount("none", "/", None, _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def _bind_read_only(tree: str) -> None:
    source, device = _OLD + tree, tree.startswith("/dev/")
    if os.path.isdir(source):
        os.makedirs(tree, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(tree), exist_ok=True)
        os.mknod(tree)
    mount(source, tree, None, _BIND | _RECURSIVE)
    flags = _ATTR_RDONLY | _ATTR_NOSUID | (0 if device else _ATTR_NODEV)
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    syscall("mount_setattr", _AT_FDCWD, os.fsencode(tree), _AT_RECURSIVE, attributes, len(attributes))


def _resolve(paths: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The real trees behind the declared paths, outermost first, and the symbolic links that lead to them."""
    links: dict[str, str] = {}
    real = sorted({_follow(path, links) for path in paths})
    outer: list[str] = []
    for tree in real:
        if not lies_in(tree, outer):
            outer.append(tree)
    return outer, links


def _follow(path: str, links: dict[str, str]) -> str:
    """Resolve a path step by step, noting every symbolic link on the way."""
    rest, done = deque(path.split("/")), ""  # `done` is real, and empty for the root
    while rest:
        part = rest.popleft()
        if part in ("", "."):
            continue
        here = done.rpartition("/")[0] if part == ".." else f"{done}/{part}"
        if not os.path.islink(here):
            done = here
            continue
        links[here] = target = os.readlink(here)
        if target.startswith("/"):
            done = ""
        rest.extendleft(reversed(target.split("/")))
    return done or "/"


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


def restrict_paths(read_only: tuple[str, ...], scratch: str, abi: int) -> None:
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
