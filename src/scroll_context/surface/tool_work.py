"""Where tools run: a daemon thread for each call of a plain function, one event loop for all coroutines.

Both give a Future, so the caller waits, with a deadline, in one way. A thread cannot be stopped: when its caller
gives up it runs on by itself, which is why it is a daemon. A coroutine is cancelled through its Future. Coroutines
of one process share a loop, because clients with connection pools are bound to the loop they were made on.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any


def in_thread(work: Callable[[], Any], name: str) -> Future[Any]:
    """Run `work` in a thread of its own."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - the tool is foreign code
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=f"scroll-tool-{name}", daemon=True).start()
    return future


def in_loop(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run a coroutine on the loop that all tools of this process share. It must not block."""
    return _shared_loop().submit(work)


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        with asyncio.Runner() as runner:  # cancels what is left when it ends
            self._stopping = asyncio.Event()
            self._loop = runner.get_loop()
            self._ready.set()
            runner.run(self._stop_requested())

    async def _stop_requested(self) -> None:
        await self._stopping.wait()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End the loop; whatever still runs on it is cancelled."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()


_starting = threading.Lock()
_shared: dict[int, LoopThread] = {}  # by process id: a forked child does not have its parent's threads


def _shared_loop() -> LoopThread:
    with _starting:
        return _shared.get(os.getpid()) or _shared.setdefault(os.getpid(), LoopThread("scroll-tools"))
