"""Run a program under a gateway: its signals, its end and its exit status."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from types import FrameType

from scroll_gateway.assistants import Run

_NAMES = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
# Windows has only the first.
FORWARDED = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
_IGNORED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name))


def status_of(run: Run) -> int:
    """Start the program on this terminal and wait for it. Returns its exit status, as a shell
    would report it."""
    with subprocess.Popen(run.command, env=run.environment) as process, _forwarding(process):
        status = process.wait()
    return 128 - status if status < 0 else status


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Give signals to the program.

    The terminal sends Ctrl-C and Ctrl-\\ to both processes; what they mean is for the program to
    decide.
    """

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    for number in _IGNORED:
        before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
