"""One event loop in a daemon thread for the asynchronous client libraries; all else in Scroll is synchronous.

There is one loop for the process, so that replies awaited by several threads run at the same time and share
connections. `run_streaming` is the border: the coroutine runs over there, while the calling thread waits
here, hands on what the coroutine emits, and stays open to Ctrl-C and to `cancel`. However the wait ends,
the coroutine is told to end and is given a few seconds to do so before `run_streaming` returns.
"""

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.05  # how soon a set `cancel` is noticed
CLOSING_SECONDS = 5.0  # how long a cancelled coroutine may take to close its connection
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process id: a forked child cannot use its parent's loop


class Cancelled(Exception):
    """The caller's `cancel` was set."""


def run_streaming(
    work: Callable[[Callable[[str], None]], Coroutine[Any, Any, T]],
    *,
    on_text: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> T:
    """Run `work(emit)` on the loop and pass what it emits to `on_text` in this thread; return its result."""
    pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None says that the task is done
    started: list[asyncio.Task[T]] = []
    loop = _loop()

    def start() -> None:
        task = loop.create_task(work(pieces.put))
        task.add_done_callback(lambda _: pieces.put(None))
        started.append(task)

    loop.call_soon_threadsafe(start)
    try:
        while True:
            if cancel is not None and cancel.is_set():
                raise Cancelled
            try:
                piece = pieces.get(timeout=None if cancel is None else POLL_SECONDS)
            except queue.Empty:
                continue
            if piece is None:
                return started[0].result()
            if on_text is not None:
                on_text(piece)
    except BaseException:
        loop.call_soon_threadsafe(lambda: started[0].cancel())
        _wait_until_done(started, pieces)
        raise


def _wait_until_done(started: list[asyncio.Task[T]], pieces: queue.SimpleQueue[str | None]) -> None:
    try:
        while not (started and started[0].done()):
            if pieces.get(timeout=CLOSING_SECONDS) is None:
                return
    except queue.Empty:
        return


def _loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, started at the first use."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="scroll-models", daemon=True).start()
            _loops[os.getpid()] = loop
        return loop
