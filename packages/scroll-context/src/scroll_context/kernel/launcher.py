"""The fork server, which starts every worker of this process. It does not know what a worker does.

One fork server serves all kernels and all guarded SQL of this process; a kernel that must share
neither hash seed nor address layout with others brings its own. The server is executed with an
empty environment, has one thread, keeps no descriptor but the control socket, and never runs model
code. A request names the module whose `serve` the new process runs; the server imports a module
once, when it is first named. The server ends with the host, and the workers end with it. A server
that was lost is replaced.
"""

import atexit
import gc
import importlib
import os
import signal
import socket
import struct
import sys
import threading
from typing import NoReturn, Protocol

import msgspec

from scroll_context.errors import KernelUnavailable
from scroll_context.jail.linux import close_inherited, die_with_parent
from scroll_context.jail.syscalls import PR_SET_PDEATHSIG, prctl

PREFIX = struct.Struct(">I")
FORKED = b"k"
_FORK_SECONDS = 10.0


class SpawnRequest(msgspec.Struct, frozen=True):
    """A new worker: the module that it runs, and its settings, which that module decodes.

    The worker's socket comes along as a descriptor.
    """

    module: str
    settings: bytes


class WorkerModule(Protocol):
    """A module that a worker runs: `serve` returns when the host has gone away."""

    def serve(self, sock: socket.socket, settings: bytes) -> None: ...


_PROGRAM = """
import sys
sys.path += sys.argv[3:]
sys.modules["typing_extensions"] = None  # msgspec can do without it, and starts a good deal faster
import msgspec
del sys.modules["typing_extensions"]
from scroll_context.kernel.launcher import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""


class ForkServer:
    """A process that forks workers.

    Thread-safe. Raises KernelUnavailable when there cannot be one.
    """

    def __init__(self) -> None:
        # Imported here, because the fork server imports this module too and starts faster without.
        import subprocess

        ours, theirs = socket.socketpair()
        # The interpreter takes nothing from the environment or the working directory, and does not
        # spend time on finding site-packages: it is told where this process finds its modules,
        # after its own library.
        folders = [path for path in sys.path if path.startswith("/")]
        command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM]
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid()), *folders],
                pass_fds=(theirs.fileno(),),
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise _unavailable(error) from error
        finally:
            theirs.close()
        ours.settimeout(_FORK_SECONDS)
        self._control = ours
        self._lock = threading.Lock()
        self.owner = os.getpid()

    def spawn(self, module: str, settings: msgspec.Struct) -> socket.socket:
        """Fork a worker that runs a module; returns the host's end of its socket."""
        body = msgspec.msgpack.encode(SpawnRequest(module, msgspec.msgpack.encode(settings)))
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._control, [PREFIX.pack(len(body)) + body], [theirs.fileno()])
                if self._control.recv(1) != FORKED:
                    raise ConnectionResetError("the fork server has ended")
        except OSError as error:
            ours.close()
            raise _unavailable(error) from error
        return ours

    def close(self) -> None:
        """End the fork server, and with it every worker that it forked."""
        self._control.close()
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()


_shared: ForkServer | None = None
_shared_lock = threading.Lock()


def spawn_shared(module: str, settings: msgspec.Struct) -> socket.socket:
    """Fork a worker from the server that this process shares. A lost server is replaced."""
    global _shared
    for last in (False, True):
        with _shared_lock:
            if _shared is None or _shared.owner != os.getpid():
                _shared = ForkServer()
                atexit.register(_shared.close)
            server = _shared
        try:
            return server.spawn(module, settings)
        except KernelUnavailable:
            with _shared_lock:
                if _shared is server:
                    _shared = None
            server.close()
            if last:
                raise
    raise AssertionError("unreachable")


def _unavailable(error: OSError) -> KernelUnavailable:
    return KernelUnavailable(
        f"the process that starts workers does not work ({error}). No model code has run."
        " Check that this Python can start itself:"
        " python -I -c 'import scroll_context.kernel.launcher'."
    )


def main(control_fd: int, host_pid: int) -> None:
    """The fork server's own process: fork a worker for each request, until the host goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The system reaps workers that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _end_with(host_pid)
    control = socket.socket(fileno=control_fd)
    modules: dict[str, WorkerModule] = {}
    while True:
        request, fd = _receive(control)
        if request.module not in modules:
            modules[request.module] = importlib.import_module(request.module)
            # This keeps the collector from copying the pages that workers share.
            gc.freeze()
        if os.fork() == 0:
            control.close()
            _become_worker(modules[request.module], request, fd)
        os.close(fd)
        control.sendall(FORKED)


def _end_with(host_pid: int) -> None:
    """End when the host does.

    The kernel sends the signal when the *thread* that started us ends, so look twice.
    """
    if sys.platform == "linux":
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0) if os.getppid() != host_pid else None)
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != host_pid:
        os._exit(0)


def _receive(control: socket.socket) -> tuple[SpawnRequest, int]:
    data, fds, _, _ = socket.recv_fds(control, PREFIX.size, 1)
    (size,) = PREFIX.unpack(_completed(control, data, PREFIX.size))
    body = _completed(control, b"", size)
    return msgspec.msgpack.decode(body, type=SpawnRequest), fds[0]


def _completed(control: socket.socket, data: bytes, size: int) -> bytes:
    """The data with as many bytes after it as make up the size."""
    while len(data) < size:
        piece = control.recv(size - len(data))
        if not piece:
            # The host has ended, perhaps in the middle of a request.
            os._exit(0)
        data += piece
    return data


def _become_worker(module: WorkerModule, request: SpawnRequest, fd: int) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        close_inherited({fd})
        if sys.platform == "linux":
            die_with_parent()
        module.serve(socket.socket(fileno=fd), request.settings)
    finally:
        os._exit(1)
