"""Runs the capability calls of one worker in threads of the host, each with a deadline of its own.

Threads of a cell may call at once, so calls run at once. A call whose time is up is refused to the cell whether or
not the host's function has returned; its result is dropped when it comes. What is open at a time is bounded in
number and in bytes: above that, `has_room` is false and the caller stops reading from the worker.
"""

import queue
import threading
import time
from collections import deque
from typing import Any

import msgspec

from scroll_context.errors import KernelDied
from scroll_context.kernel.connection import Connection
from scroll_context.kernel.messages import Call, Refusal, Reply
from scroll_context.kernel.process import Process
from scroll_context.kernel.results import CapabilityCall, CapabilityResult, Dispatch
from scroll_context.kernel.values import MAX_ITEMS, count_items, explain, portable, revive
from scroll_context.kernel.wire import MAX_FRAME, FrameTooLarge, decoder_for

MAX_OPEN = 64
_MAX_REFUSALS = 1000
_LAST_SECONDS = 0.5  # for all calls together that still run when the worker is closed
_SMALL = 1_024  # bytes of arguments that cannot do any harm
_arguments = decoder_for(tuple[tuple[Any, ...], dict[str, Any]], ext_hook=revive)


class Broker:
    """The open calls of one worker. `submit` and `expire` belong to the thread that reads its messages."""

    def __init__(self, dispatch: Dispatch, connection: Connection, process: Process, seconds: float) -> None:
        self._dispatch = dispatch
        self._connection = connection
        self._process = process
        self._seconds = seconds
        self._queue: queue.SimpleQueue[tuple[int, CapabilityCall] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._taken = 0  # calls that threads work on or will; one whose time is up keeps its thread busy
        self._lock = threading.Lock()
        self._open: dict[int, tuple[float, int]] = {}  # id -> deadline, bytes of its arguments
        self._bytes = 0
        self._refusals: deque[Refusal] = deque()
        self._seqs: set[int] = set()
        self._calls = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._open or self._refusals)

    @property
    def has_room(self) -> bool:
        return len(self._open) < MAX_OPEN and self._bytes < MAX_FRAME

    def submit(self, message: Call, cell: int) -> None:
        """Start a call. A message that no honest worker sends is KernelDied."""
        size = len(memoryview(message.arguments))
        try:
            if size > _SMALL and count_items(memoryview(message.arguments)) > MAX_ITEMS:
                raise KernelDied(f"the kernel process sent a call with more than {MAX_ITEMS:,} values")
            args, kwargs = _arguments.decode(message.arguments)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise KernelDied(f"the kernel process sent a malformed call: {error}") from error
        deadline = time.monotonic() + self._seconds
        with self._lock:
            if message.id in self._open:
                raise KernelDied(f"the kernel process used the id {message.id} of a call for another one")
            self._open[message.id] = deadline, size
            self._bytes += size
            self._calls += 1
            self._taken += 1
        if len(self._threads) < min(self._taken, MAX_OPEN):
            thread = threading.Thread(target=self._work, name=f"scroll-call-{len(self._threads) + 1}", daemon=True)
            thread.start()
            self._threads.append(thread)
        # Last, because the thread that takes it needs the interpreter lock, which the caller lets go of soon.
        self._queue.put((message.id, CapabilityCall(message.capability, args, kwargs, cell, deadline)))

    def refuse(self, message: Call, reason: str) -> None:
        """Answer a call without running it."""
        if len(self._refusals) >= _MAX_REFUSALS:
            raise KernelDied("the kernel process goes on calling and does not read the answers")
        self._refusals.append(Refusal(message.id, "RuntimeError", reason))

    def expire(self) -> None:
        """Refuse the calls whose time is up. Never waits: what cannot be sent now is sent the next time."""
        now = time.monotonic()
        for ident in [ident for ident, (deadline, _) in list(self._open.items()) if deadline <= now]:
            if self._finish(ident, ()):
                text = f"no answer within {self._seconds:g} s; what it started may still be running"
                self._refusals.append(Refusal(ident, "TimeoutError", text))
        while self._refusals and self._connection.try_send(self._refusals[0]):
            self._refusals.popleft()

    def take_seqs(self) -> tuple[tuple[int, ...], int]:
        """The events handed out, and the number of calls, since the last time this was asked."""
        if not (self._calls or self._seqs):
            return (), 0
        with self._lock:
            seqs, calls = tuple(sorted(self._seqs)), self._calls
            self._seqs, self._calls = set(), 0
        return seqs, calls

    def close(self) -> None:
        """Let the threads end. A call about to return may still record its result; a long one is left behind.

        One that no thread has taken up yet does not begin any more.
        """
        with self._lock:
            self._open.clear()
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            try:
                self._run(*task)
            except KernelDied:
                self._process.kill()  # whoever reads from it learns of it there
            with self._lock:
                self._taken -= 1

    def _run(self, ident: int, call: CapabilityCall) -> None:
        if ident not in self._open:  # its time was up before a thread was free
            return
        answer: Reply | Refusal
        seqs: tuple[int, ...] = ()
        try:
            value = self._dispatch(call)
            if isinstance(value, CapabilityResult):
                value, seqs = value.value, value.seqs
            answer = Reply(ident, portable(value))
        except BaseException as error:  # noqa: BLE001 - the border to tools
            answer, seqs = _refusal(ident, error), ()
        if not self._finish(ident, seqs):
            return
        try:
            self._connection.send(answer)
        except FrameTooLarge as error:
            self._connection.send(Refusal(ident, "ValueError", f"the result is too large: {error}; ask for a part"))
        except UnicodeEncodeError as error:
            self._connection.send(Refusal(ident, "ValueError", f"the result cannot be sent: {explain(error)}"))

    def _finish(self, ident: int, seqs: tuple[int, ...]) -> bool:
        """Close a call; False when somebody else did."""
        with self._lock:
            held = self._open.pop(ident, None)
            if held is None:
                return False
            self._bytes -= held[1]
            self._seqs.update(seqs)
        return True


def _refusal(ident: int, error: BaseException) -> Refusal:
    text = str(error).encode("utf-8", "backslashreplace").decode()[:60_000]
    return Refusal(ident, type(error).__name__, text)
