"""Waiting for threads, with a limit."""

import threading
import time
from collections.abc import Callable


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
