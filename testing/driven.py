"""Talking to a process that a test has started, without waiting for ever when it has nothing to
say.
"""

import os
import subprocess
from selectors import EVENT_READ, DefaultSelector

# In seconds: a loaded machine is slow to start Python.
PATIENCE = 60.0


def next_line(process: "subprocess.Popen[bytes]", seconds: float = PATIENCE) -> str:
    """The next line that a process writes, without its end; "" at the end of its output.

    Its output must be a pipe that is read here only. A process that says nothing in time is ended,
    and the test fails.
    """
    assert process.stdout is not None
    line = b""
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(seconds):
                process.kill()
                raise AssertionError(f"the process said nothing for {seconds:g} s after {line!r}")
            piece = os.read(process.stdout.fileno(), 1)
            if not piece:
                break
            line += piece
    return line.decode().rstrip("\n")
