"""The parent of jailed workers: one process per host with the imports done, which forks a worker on request.

It is executed afresh with an empty environment, has one thread, keeps no descriptor but the control socket, and
never runs model code: what comes out of it differs from a fresh interpreter only in that workers of one zygote
share their hash seed and the layout of their address space. Where that matters, a kernel asks for a zygote of its
own. It ends with the host, and the workers end with it.
"""

import gc
import os
import signal
import socket
import sys
from typing import NoReturn

import msgspec

from scroll_context.kernel import worker
from scroll_context.kernel.jail import ALLOW_UNSANDBOXED, close_inherited
from scroll_context.kernel.jail.inheritance import die_with_parent
from scroll_context.kernel.jail.libc import PR_SET_PDEATHSIG, prctl
from scroll_context.kernel.process import FORKED, PREFIX, SpawnRequest


def main(control_fd: int, host_pid: int) -> None:
    """Serve until the host goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what has ended
    _end_with(host_pid)
    control = socket.socket(fileno=control_fd)
    gc.freeze()  # keeps the collector from copying the pages that workers share
    while True:
        request, fd = _receive(control)
        if os.fork() == 0:
            control.close()
            _become_worker(request, fd)
        os.close(fd)
        control.sendall(FORKED)


def _end_with(host_pid: int) -> None:
    """End when the host does. The kernel sends the signal when the *thread* that started us ends, so look twice."""
    if sys.platform == "linux":
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0) if os.getppid() != host_pid else None)
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != host_pid:
        os._exit(0)


def _receive(control: socket.socket) -> tuple[SpawnRequest, int]:
    data, fds, _, _ = socket.recv_fds(control, 65_536, 1)
    while data and len(data) < PREFIX.size + PREFIX.unpack_from(data)[0]:
        data += control.recv(65_536)
    if not data:
        os._exit(0)
    return msgspec.msgpack.decode(data[PREFIX.size :], type=SpawnRequest), fds[0]


def _become_worker(request: SpawnRequest, fd: int) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        close_inherited({fd})
        if sys.platform == "linux":
            die_with_parent()
        if request.allow_unsandboxed:
            os.environ[ALLOW_UNSANDBOXED] = "1"
        worker.serve(socket.socket(fileno=fd), request.spec)
    finally:
        os._exit(1)
