"""The supervisor: the process between the host and the jailed one, which watches and mirrors it.

`split` forks. The child continues into the jail; the parent stays outside as the supervisor,
without capabilities, with no descriptor but its own few, and never runs model code. It answers the
kernel each time the jailed process wants a thread (RLIMIT_NPROC does nothing for uid 0, and counts
all of a user's processes for others). It kills a process whose memory outgrows the limit by tricks,
whose first thread has ended so that nothing can be seen of it, or that continues after its
processor time is used up. Where no tmpfs bounds the scratch folder, it stops growth past the limit
by moving RLIMIT_FSIZE. It dies with its parent, the jailed process dies with it, and it ends as the
jailed process ended."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from scroll_context.jail.linux import (
    close_inherited,
    cpu_budget,
    cpu_used,
    die_with_parent,
    drop_capabilities,
    set_soft_limit_of,
)
from scroll_context.jail.scratch import space_used
from scroll_context.jail.spec import JailSpec

_LOOK_SECONDS = 0.1
_MEMORY_SLACK = 64 << 20
# Seconds past the budget in which SIGXCPU may stop a cell.
_CPU_GRACE = max(2.0, float(os.cpu_count() or 1))
# The size of struct seccomp_notif, which begins with the id of the request.
_NOTIFICATION_BYTES = 80
# struct seccomp_notif_resp: id, value, error, flags.
_ANSWER = struct.Struct("=QqiI")
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_START_SECONDS = 0.01
_OVERFLOW = 2
_LOCKS = 5_000
_STATUS_OF_A_BROKEN_SUPERVISOR = 70


class Link(NamedTuple):
    """The jailed process's end: its number on the host, and the socket to the supervisor."""

    pid: int
    control: socket.socket

    def hand_over(self, listener: int) -> None:
        """Give the supervisor the descriptor on which the kernel announces threads.

        Returns when the supervisor watches it.
        """
        socket.send_fds(self.control, [b"listener"], [listener])
        os.close(listener)
        if not self.control.recv(1):
            raise OSError("the supervisor has ended")
        self.control.close()


def split(spec: JailSpec, watch_scratch: bool, report_pid: Callable[[int], None]) -> Link:
    """Fork. Returns in the child only; the parent becomes the supervisor and never returns."""
    # The supervisor needs pidfd_open, which a container may refuse.
    os.close(os.pidfd_open(os.getpid()))
    outer, inner = socket.socketpair()
    child = os.fork()
    if child:
        inner.close()
        _guard(child, outer, spec, watch_scratch, report_pid)
    outer.close()
    die_with_parent()
    message = inner.recv(32)
    if not message:
        # The supervisor has died already. If it dies later, `hand_over` fails.
        os._exit(_STATUS_OF_A_BROKEN_SUPERVISOR)
    return Link(int(message), inner)


def _guard(
    child: int,
    control: socket.socket,
    spec: JailSpec,
    watch_scratch: bool,
    report_pid: Callable[[int], None],
) -> NoReturn:
    status = None
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        report_pid(child)
        # The child continues meanwhile, and waits for the rest in `hand_over`.
        control.sendall(str(child).encode())
        close_inherited({control.fileno()})
        drop_capabilities()
        die_with_parent()
        _, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if descriptors:
            control.sendall(b"w")
            _Watch(child, spec, watch_scratch).run(descriptors[0])
        _, status = os.waitpid(child, 0)
    finally:
        if status is None:
            os.kill(child, signal.SIGKILL)
            os._exit(_STATUS_OF_A_BROKEN_SUPERVISOR)
    _mirror(status)


def _mirror(status: int) -> NoReturn:
    """End as the jailed process ended: by the same signal, or with the same code."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


class _Watch:
    """The duties of the supervisor towards one child.

    The child is not reaped yet, so its number cannot be reused.
    """

    def __init__(self, child: int, spec: JailSpec, watch_scratch: bool) -> None:
        self._child = child
        self._limits = spec.limits
        self._scratch = spec.scratch if watch_scratch else None
        self._scratch_full = False
        self._cpu_seen = -1.0

    def run(self, listener: int) -> None:
        """Answer and look until the child has ended."""
        ended = os.pidfd_open(self._child)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(listener, select.POLLIN)
        next_look = 0.0
        while True:
            ready = {fd for fd, event in poll.poll(_LOOK_SECONDS * 1000) if event & select.POLLIN}
            if ended in ready:
                return
            try:
                if listener in ready:
                    self._answer(listener)
                if time.monotonic() >= next_look:
                    self._look()
                    next_look = time.monotonic() + _LOOK_SECONDS
            except OSError:
                # The child may have ended meanwhile; anything else is a fault.
                if not select.select([ended], [], [], 0)[0]:
                    raise

    def _answer(self, listener: int) -> None:
        """Let one `clone` continue, or make it fail as it does when a system is out of threads."""
        request = bytearray(_NOTIFICATION_BYTES)
        threads = self._threads()
        granted = threads < self._limits.threads
        try:
            fcntl.ioctl(listener, _RECEIVE, request, True)
            (identity,) = struct.unpack_from("=Q", request)
            error, flags = (0, _CONTINUE) if granted else (-errno.EAGAIN, 0)
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(identity, 0, error, flags))
        except FileNotFoundError:
            # A signal took the thread out of the call meanwhile.
            return
        if granted:
            # The next thread is counted when this one is there.
            deadline = time.monotonic() + _START_SECONDS
            while self._threads() <= threads and time.monotonic() < deadline:
                time.sleep(0)

    def _look(self) -> None:
        """Check what the child may have used or grown, if it has run at all since the last time."""
        used = cpu_used(self._child)
        if used == self._cpu_seen:
            return
        self._cpu_seen = used
        if used > cpu_budget(self._child) + _CPU_GRACE:
            # SIGXCPU has been sent meanwhile and did not stop it.
            os.kill(self._child, signal.SIGKILL)
        memory = self._memory()
        if memory is None or memory > self._limits.memory_bytes + _MEMORY_SLACK:
            os.kill(self._child, signal.SIGKILL)
        if self._locks() > _LOCKS:
            os.kill(self._child, signal.SIGKILL)
        if self._scratch is not None:
            self._bound(self._scratch)

    def _threads(self) -> int:
        return os.stat(f"/proc/{self._child}/task").st_nlink - 2

    def _memory(self) -> int | None:
        """Memory that belongs to neither a file nor another process, swapped out or not.

        None when there is no figure: the first thread has ended, and others continue unseen.
        """
        with open(f"/proc/{self._child}/status", "rb") as status:
            held = [
                int(line.split()[1]) << 10
                for line in status
                if line.startswith((b"RssAnon:", b"VmSwap:"))
            ]
        return sum(held) if held else None

    def _locks(self) -> int:
        """Locks on parts of files: each is memory of the system that no limit counts."""
        with contextlib.suppress(FileNotFoundError), open("/proc/locks", "rb") as locks:
            return locks.read().count(b" %d " % self._child)
        return 0

    def _bound(self, scratch: str) -> None:
        """Forbid files to grow once the folder is full, and kill a child that overflows it."""
        used = self._scratch_used(scratch)
        if used >= _OVERFLOW * self._limits.scratch_bytes:
            os.kill(self._child, signal.SIGKILL)
        full = used >= self._limits.scratch_bytes
        if full != self._scratch_full:
            size = 0 if full else self._limits.scratch_bytes
            set_soft_limit_of(self._child, resource.RLIMIT_FSIZE, size)
            self._scratch_full = full

    def _scratch_used(self, scratch: str) -> int:
        """What the folder holds, and what was removed from it but is still open. A folder that
        cannot be listed, or lies too deep, could hide any number of files: it counts as an
        overflow."""
        try:
            return space_used(scratch) + self._removed(scratch)
        except OSError:
            return _OVERFLOW * self._limits.scratch_bytes

    def _removed(self, scratch: str) -> int:
        """Files without a name that are open or mapped.

        A map is counted as far as it reaches, holes included.
        """
        # Bytes by inode.
        held: dict[int, int] = {}
        folder = f"/proc/{self._child}/fd"
        for descriptor in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(f"{folder}/{descriptor}")
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 0:
                    held[info.st_ino] = info.st_blocks * 512
        mark = os.fsencode(scratch)
        with open(f"/proc/{self._child}/maps", "rb") as maps:
            for line in maps:
                if line.endswith(b" (deleted)\n") and mark in line:
                    inode, reach = _mapped(line)
                    held[inode] = max(held.get(inode, 0), reach)
        return sum(held.values())


def _mapped(line: bytes) -> tuple[int, int]:
    """The inode of a file in a line of /proc/PID/maps, and how far into it the map reaches."""
    span, _, offset, _, inode = line.split(maxsplit=5)[:5]
    begin, _, end = span.partition(b"-")
    return int(inode), int(offset, 16) + int(end, 16) - int(begin, 16)
