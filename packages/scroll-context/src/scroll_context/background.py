"""Work in other threads: a thread for each call of a plain function, event loops for coroutines.

Scroll is synchronous; asynchronous libraries (providers, MCP) and asynchronous tools run on event
loops in daemon threads, and their callers wait for a Future, with a deadline of their own. There
are two loops, each started at its first use: coroutines of the application run on one, so that a
coroutine which blocks its loop cannot stop a model's reply or an MCP server. All users of a loop
share it, because clients with connection pools are bound to the loop that they were made on.
(anyio's blocking portal waits for its loop when a task is started, and joins its thread at the end:
a coroutine that blocks would hang its callers past their deadlines, and the process at exit.)

A thread cannot be stopped: it continues when its caller gives up, so all of them are daemons. A
coroutine is cancelled through its Future."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

T = TypeVar("T")

LoopName = Literal["tools", "libraries"]

_starting = threading.Lock()
# By process id, because a forked child does not have its parent's threads.
_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run `work` in a thread of its own."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        # The work is foreign code. Its error is raised where the future is awaited.
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=f"scroll-{name}", daemon=True).start()
    return future


def in_loop(work: Coroutine[Any, Any, T], loop: LoopName) -> Future[T]:
    """Run a coroutine on an event loop. It must not block."""
    return asyncio.run_coroutine_threadsafe(_contained(work), event_loop(loop))


def event_loop(name: LoopName) -> asyncio.AbstractEventLoop:
    """One of the loops of this process, started at its first use."""
    key = os.getpid(), name
    with _starting:
        if key not in _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(
                target=loop.run_forever, name=f"scroll-loop-{name}", daemon=True
            ).start()
            _loops[key] = loop
        return _loops[key]


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    """Keep a coroutine that raises SystemExit or KeyboardInterrupt from ending the loop of all."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


async def in_background(work: Callable[[], T], stop: Callable[[], None], name: str) -> T:
    """Run blocking work in a thread of its own, for an asyncio caller.

    When the task is cancelled, `stop` is called and the end of the work is awaited, so that no work
    continues unseen.
    """
    done = asyncio.wrap_future(in_thread(work, name))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([done])
        raise
