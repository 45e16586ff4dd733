"""A process between the evaluation and a server that it started: however the evaluation ends, the
server ends too.

Run as a script: `python loca_supervisor.py COMMAND…`. It starts the command and waits for one of
two things: the command ends, or standard input closes, which happens when the starter closes it and
also when the starter is killed. Then it ends the command and everything that the command ever
started, processes in sessions of their own included: on Linux orphans become its children.
Elsewhere it ends the process group only. Standard library only, since it runs alone.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

GRACE = 5.0  # seconds between asking the command to end and ending it
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36


def descendants(pid: int) -> set[int]:
    """Every process below this one that is not a zombie; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(below)
        waiting += below
    return found


def guard(command: list[str]) -> int:
    """Run the command until it ends or standard input closes; its exit status."""
    linux = sys.platform == "linux"
    libc = ctypes.CDLL(None)
    if linux:
        libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: linux and libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    threading.Thread(target=_watch_input, args=(over,), daemon=True).start()
    while process.poll() is None and not over.wait(0.1):
        pass
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    if linux:
        _end_descendants()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        process.kill()
    return process.wait()


def _watch_input(over: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    over.set()


def _end_descendants() -> None:
    """Kill until nothing is left: what is killed may just have started something."""
    until = time.monotonic() + GRACE  # a process that hangs in a system call cannot be killed
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
