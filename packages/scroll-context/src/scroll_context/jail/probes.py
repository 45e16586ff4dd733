"""Probes: from inside the finished jail, try what must not work, and the few acts that must.

The layers are believed by their effect only. A forbidden act that succeeds, or fails for another
reason than a refusal, ends the start of the kernel before any model code runs. Targets are chosen
before the jail closes, so that "not found" inside means hidden and not absent.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from scroll_context.jail.spec import JailSpec, Tier, lies_in, refuse
from scroll_context.jail.syscalls import syscall

_REMEDY = (
    "The system accepted the jail but does not apply it: run `scroll doctor`, "
    "and do not use this tier here."
)
_BY_FILTER = (errno.EPERM,)
_BY_PATH = (errno.EACCES, errno.EROFS, errno.ENOENT)
_NEWUSER, _TRACE_ME = 0x10000000, 0
_SECRETS = ("/etc/passwd", "/etc/hosts", "/proc/self/environ", "/proc/version")


class Probe(NamedTuple):
    """A forbidden act, the guarantee that it would break, and how its refusal looks."""

    guarantee: str
    name: str
    attempt: Callable[[], object]
    refusals: tuple[int, ...]


class Targets(NamedTuple):
    """Paths that exist before the jail closes: some to be hidden, one that stays readable but not
    writable.
    """

    hidden: tuple[str, ...]
    folders: tuple[str, ...]
    library: str | None


def choose_targets(spec: JailSpec) -> Targets:
    """Find them while the process can still see the host."""
    declared = [os.path.realpath(path) for path in (*spec.read_only, spec.scratch)]

    def outside(path: str) -> bool:
        return not lies_in(os.path.realpath(path), declared)

    hidden = tuple(path for path in _SECRETS if os.path.exists(path) and outside(path))
    if not hidden:
        raise refuse(
            "read outside",
            "every file that could prove it is declared readable",
            "Declare fewer paths.",
        )
    folders = {"/tmp", os.path.dirname(declared[-1])}
    library = None if outside(os.__file__) else os.__file__
    return Targets(hidden, tuple(sorted(filter(outside, folders))), library)


def run_probes(spec: JailSpec, tier: Tier, targets: Targets) -> tuple[str, ...]:
    """Try everything; the names of what was tried, or the refusal of the jail."""
    _must_work(spec, targets)
    probes = [*_file_probes(tier, targets), *_system_probes()]
    for probe in probes:
        try:
            probe.attempt()
        except OSError as error:
            if error.errno not in probe.refusals:
                raise refuse(
                    probe.guarantee, f"to {probe.name} failed unexpectedly ({error})", _REMEDY
                ) from error
        else:
            raise refuse(probe.guarantee, f"to {probe.name} was possible inside the jail", _REMEDY)
    return tuple(probe.name for probe in probes)


def _must_work(spec: JailSpec, targets: Targets) -> None:
    # no name that an earlier kernel may have left there
    path = f"{spec.scratch}/.probe-{os.urandom(8).hex()}"
    try:
        with open(path, "x+b") as file:
            file.write(b"probe")
            file.seek(0)
            if file.read() != b"probe":
                raise OSError("it does not return what was written")
        os.unlink(path)
        if targets.library is not None:
            with open(targets.library, "rb") as file:
                file.read(1)
    except OSError as error:
        raise refuse(
            "scratch",
            f"the declared paths do not work: {error}",
            "Give a scratch folder of your own.",
        ) from error
    thread = threading.Thread(target=lambda: None)
    try:
        thread.start()
    except RuntimeError as error:
        raise refuse(
            "threads", f"not even one can be started: {error}", "Raise the limit of threads."
        ) from error
    thread.join()


def _file_probes(tier: Tier, targets: Targets) -> list[Probe]:
    probes = [
        Probe("read outside", f"read {path}", partial(os.open, path, os.O_RDONLY), _BY_PATH)
        for path in targets.hidden
    ]
    for folder in targets.folders:
        file = f"{folder}/.probe-{os.getpid()}"
        attempt = partial(os.open, file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        probes.append(Probe("write outside", f"create a file in {folder}", attempt, _BY_PATH))
    if targets.library is not None:
        attempt = partial(os.open, targets.library, os.O_WRONLY | os.O_APPEND)
        probes.append(Probe("write outside", f"write to {targets.library}", attempt, _BY_PATH))
    if tier == "full":
        path = targets.hidden[0]
        probes.append(Probe("metadata", f"stat {path}", partial(os.stat, path), (errno.ENOENT,)))
    return probes


def _system_probes() -> list[Probe]:
    acts: list[tuple[str, str, Callable[[], object]]] = [
        ("network", "open an internet socket", partial(socket.socket, socket.AF_INET)),
        ("network", "open a unix socket", partial(socket.socket, socket.AF_UNIX)),
        ("processes", "fork", _fork),
        ("processes", "execute a program", partial(syscall, "execve", b"/nonexistent", None, None)),
        ("signals", "signal the parent", partial(os.kill, os.getppid(), 0)),
        ("signals", "signal everyone", partial(os.kill, -1, 0)),
        ("signals", "be traced", partial(syscall, "ptrace", _TRACE_ME, 0, 0, 0)),
        ("privileges", "make a user namespace", partial(syscall, "unshare", _NEWUSER)),
        ("system calls", "make an anonymous file", partial(syscall, "memfd_create", b"probe", 0)),
        ("memory", "share anonymous memory", partial(mmap.mmap, -1, mmap.PAGESIZE)),
        ("open files", "set a limit", _set_limit),
        (
            "interrupt",
            "replace the interrupt handler",
            partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
        ),
    ]
    return [Probe(guarantee, name, attempt, _BY_FILTER) for guarantee, name, attempt in acts]


def _fork() -> None:
    if syscall("clone", signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def _set_limit() -> None:
    same = struct.pack("=QQ", *resource.getrlimit(resource.RLIMIT_NOFILE))
    syscall("prlimit64", 0, resource.RLIMIT_NOFILE, same, None)
