"""Namespaces: an empty network, private process numbers, and a root that holds only what is declared.

`unshare` runs in the process that becomes the sentinel; its next child is process 1 of the new process
namespace and calls `build_root` there. The new root is a small tmpfs. It is pivoted to first, and the declared
paths are bound read-only from the old root, which is then detached: what was not declared has no name any
more, and not even `stat` can ask for it. `/proc` and `/sys` are not mounted: CPython, numpy and pandas do without.
"""

from __future__ import annotations

import os
import struct
from collections import deque

from scroll_context.kernel.jail.libc import libc, mount, syscall
from scroll_context.kernel.jail.paths import lies_in
from scroll_context.kernel.jail.spec import JailSpec

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
