"""Who owns the processes: starts zygotes and asks them for workers. Nothing here speaks the protocol.

One zygote serves all kernels of this process; a kernel that must share neither hash seed nor address layout with
others brings its own. A zygote that was lost is replaced.
"""

import atexit
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from scroll_context.errors import KernelUnavailable
from scroll_context.kernel.jail import ALLOW_UNSANDBOXED, JailSpec
from scroll_context.kernel.process import FORKED, PREFIX, SpawnRequest

_FORK_SECONDS = 10.0
_PROGRAM = """
import sys
sys.path += sys.argv[3:]
sys.modules["typing_extensions"] = None  # msgspec can do without it, and starts a good deal faster
import msgspec
del sys.modules["typing_extensions"]
from scroll_context.kernel.zygote import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""


class Zygote:
    """A process that forks workers. Thread-safe. Raises KernelUnavailable when there cannot be one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # The interpreter takes nothing from the environment or the working directory, and does not spend time on
        # finding site-packages: it is told where this process finds its modules, after its own library.
        folders = [path for path in sys.path if Path(path).is_absolute()]
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

    def spawn(self, spec: JailSpec) -> socket.socket:
        """Fork a worker; returns the host's end of its socket. OSError when the zygote is no more."""
        allowed = os.environ.get(ALLOW_UNSANDBOXED) == "1"
        body = msgspec.msgpack.encode(SpawnRequest(spec, allowed))
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._control, [PREFIX.pack(len(body)) + body], [theirs.fileno()])
                if self._control.recv(1) != FORKED:
                    raise ConnectionResetError("the zygote has ended")
        except OSError:
            ours.close()
            raise
        return ours

    def close(self) -> None:
        """End the zygote, and with it every worker that it forked."""
        self._control.close()
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()


_shared: Zygote | None = None
_shared_lock = threading.Lock()


def spawn_shared(spec: JailSpec) -> socket.socket:
    """A worker of the zygote that all kernels of this process share; it is started again if it was lost."""
    global _shared
    for last in (False, True):
        with _shared_lock:
            if _shared is None or _shared.owner != os.getpid():
                _shared = Zygote()
                atexit.register(_shared.close)
            zygote = _shared
        try:
            return zygote.spawn(spec)
        except OSError as error:
            with _shared_lock:
                if _shared is zygote:
                    _shared = None
            zygote.close()
            if last:
                raise _unavailable(error) from error
    raise AssertionError("unreachable")


def spawn_from(zygote: Zygote, spec: JailSpec) -> socket.socket:
    """A worker of a zygote that was started for it."""
    try:
        return zygote.spawn(spec)
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> KernelUnavailable:
    return KernelUnavailable(
        f"the process that starts kernels does not work ({error}). No model code has run."
        " Check that this Python can start itself: python -I -c 'import scroll_context.kernel.zygote'."
    )
