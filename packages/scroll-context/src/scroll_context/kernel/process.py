"""One child process as the host sees it: a number and a pidfd to signal, await and end it.

The parent of a worker reports it with a pidfd that was opened before anyone could reap it, so a
signal never reaches another process that got the same number.
"""

import os
import select
import signal
import socket
import threading
import time

_REPORT_BYTES = 16


class Process:
    """A worker, or the process that is about to become one."""

    def __init__(self, pid: int, pidfd: int | None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        # A pidfd that was closed may belong to another process by now.
        self._signalling = threading.Lock()

    def signal(self, number: int) -> None:
        """Send a signal, from any thread; without effect on a process that has ended."""
        with self._signalling:
            if self.pid == 0:
                return
            try:
                if self._pidfd is not None:
                    signal.pidfd_send_signal(self._pidfd, number)
                else:
                    os.kill(self.pid, number)
            except (ProcessLookupError, PermissionError):
                return

    def has_ended(self, within: float = 0.0) -> bool:
        """Whether it has ended, or ends within that many seconds."""
        if self._pidfd is not None:
            # Unlike `select`, a poll takes a descriptor above 1023. Each thread has its own.
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(within * 1000))
        deadline = time.monotonic() + within
        while True:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, wait until it has ended, and close its descriptor."""
        if self.pid == 0:
            return
        self.kill()
        self.has_ended(within=5.0)
        with self._signalling:
            if self._pidfd is not None:
                os.close(self._pidfd)
            self._pidfd, self.pid = None, 0


def receive_process(sock: socket.socket, within: float) -> Process | None:
    """The worker's process, as its parent reported it; None when there was no report in time."""
    sock.settimeout(within)
    try:
        data, fds, _, _ = socket.recv_fds(sock, _REPORT_BYTES, 1)
    except OSError:
        return None
    if not data:
        return None
    return Process(int(data), fds[0] if fds else None)


def report_process(sock: socket.socket, pid: int) -> None:
    """Send the other end a worker's number, and a pidfd where the system has those.

    Runs in its parent.
    """
    message = str(pid).ljust(_REPORT_BYTES).encode()
    if hasattr(os, "pidfd_open"):
        pidfd = os.pidfd_open(pid)
        socket.send_fds(sock, [message], [pidfd])
        os.close(pidfd)
    else:
        sock.sendall(message)
