"""A process that kills itself at a certain call of a function: a crash at any moment, the same
moment every time.
"""

import subprocess
import sys

_COUNT = """
import os, sys
at, calls = int(sys.argv[-1]), 0
def count(frame, event, arg):
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), 9)
sys.setprofile(count)
"""


def run_killed(
    prepare: str, work: str, *arguments: str, at: int
) -> "subprocess.CompletedProcess[str]":
    """Run both pieces of code with these arguments, and kill the process at the `at`-th call or
    return in `work`.

    If it comes to its end, it prints how many there were.
    """
    program = f"{prepare}\n{_COUNT}\n{work}\nsys.setprofile(None)\nprint(calls)"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments, str(at)], capture_output=True, text=True
    )
