"""Host work on behalf of a cell: it ends with the cell, and at a deadline.

A cell can start work on the host that outlives its own interest in the answer: a scan of the
complete log, a body of gigabytes, a query. Threads cannot be stopped from outside, so long work
asks `check` now and then, wherever it is: between pages of the log, pieces of a body, turns of an
extract. A thread that works for no cell (the command line, an import) has no `Work`, and `check`
does nothing there.

The thread carries its `Work` in a context variable, so that no function between the border and a
loop must pass it on.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

from scroll_context.errors import WorkStopped

_POLL_SECONDS = 0.05


class Work:
    """One call of a cell, for the threads that answer the call."""

    def __init__(self, deadline: float) -> None:
        # As `time.monotonic()` counts.
        self.deadline = deadline
        self.until_sent = contextlib.ExitStack()
        """Closed when the answer has been sent, or will never be sent."""
        self._is_stopped = False

    @property
    def is_over(self) -> bool:
        return self._is_stopped or time.monotonic() >= self.deadline

    def stop(self) -> None:
        """Let the work end at its next `check`. Any thread may call this."""
        self._is_stopped = True

    def check(self) -> None:
        if self.is_over:
            raise WorkStopped(
                "the cell has ended or its time is up, so the host stopped the work for this call"
            )

    @contextlib.contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """Inside this context, the thread is part of the work."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Work | None] = ContextVar("scroll_work", default=None)


def current() -> Work | None:
    """The work that this thread is part of."""
    return _current.get()


def check() -> None:
    """Raise WorkStopped if the cell that this thread works for no longer needs an answer."""
    work = _current.get()
    if work is not None:
        work.check()


def acquire(lock: "threading.Lock | threading.Semaphore") -> None:
    """Take a lock as soon as it is free, unless the work that this thread is part of ends first."""
    work = _current.get()
    if work is None:
        lock.acquire()
        return
    while not lock.acquire(timeout=_POLL_SECONDS):
        work.check()


class Places:
    """A number of places for calls that run at once.

    A call keeps its place until its answer has been sent.
    """

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._lock = threading.Lock()
        self.taken = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        acquire(self._free)
        with self._lock:
            self.taken += 1
        try:
            yield
        finally:
            with self._lock:
                self.taken -= 1
            self._free.release()
