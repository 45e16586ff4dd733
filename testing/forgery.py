"""Cells that write frames of their own to the host."""

from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.results import CellResult

FORGE = """
import os, stat, time
def _sockets():
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                yield fd
        except OSError:
            pass
wire = next(_sockets())
def send(data):
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(wire, view):]
        except BlockingIOError:
            time.sleep(0.001)
"""


def forged(kernel: Kernel, data: bytes, then: str = "", timeout: float = 60.0) -> CellResult:
    kernel.execute(FORGE)
    return kernel.execute(f"send({bytes(data)!r})\n{then}", timeout=timeout)


def is_whole(kernel: Kernel) -> bool:
    """Whether the kernel, or its replacement, works."""
    return any(kernel.execute("print('whole')").stdout.endswith("whole\n") for _ in range(2))
