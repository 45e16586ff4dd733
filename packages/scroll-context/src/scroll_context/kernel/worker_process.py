"""One worker, as the host drives it: one request at a time, each with a deadline.

`WorkerProcess` sends a request and reads whatever the worker says until the answer is there:
printed text is collected, calls go to the broker, and an answer that was not asked for ends the
worker. When time is up or the user interrupts, it sends SIGINT, again and again for a grace period,
then SIGKILL. The host's clock decides, never the worker's.
"""

import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from scroll_context.errors import KernelDied, KernelUnavailable
from scroll_context.jail.spec import Enforcement, JailSpec, guarantees
from scroll_context.kernel.broker import Broker, Connection
from scroll_context.kernel.process import receive_process
from scroll_context.kernel.protocol import (
    CallRequest,
    Failed,
    Prepare,
    Prepared,
    Printed,
    Ready,
    WireMessage,
)
from scroll_context.kernel.results import Dispatch

M = TypeVar("M", bound=WireMessage)

START_SECONDS = 30.0
GRACE_SECONDS = 2.0
_REPEAT_SECONDS = 0.1
_SLICE_SECONDS = 0.1
_LOOK_AGAIN_SECONDS = 1.0
_CORES = os.cpu_count() or 1
# The part of its processor time that a cell may be short of.
_BUDGET_ERROR = 0.01
# Room for marks and other text that the worker does not count.
_PRINTED_SLACK = 1 << 20


class _Request(msgspec.Struct):
    """The request that a worker works on."""

    # The cell that it runs; 0 for any other request.
    cell: int = 0
    deadline: float = 0.0
    answers_calls: bool = False
    # Gets the messages that come before the answer.
    take: Callable[[Any], None] | None = None


class WorkerProcess:
    """A live worker. Not thread-safe, except `interrupt`."""

    def __init__(
        self,
        sock: socket.socket,
        spec: JailSpec,
        dispatch: Dispatch,
        call_seconds: float,
        printed_limit: int,
    ) -> None:
        process = receive_process(sock, START_SECONDS)
        if process is None:
            sock.close()
            raise KernelUnavailable(
                "the process that should have become the kernel ended. No model code has run."
            )
        self.process = process
        self.connection = Connection(sock)
        self.broker = Broker(dispatch, self.connection, process, call_seconds)
        self._cpu_seconds = spec.limits.cpu_seconds
        self.memory_bytes = spec.limits.memory_bytes
        # Why the last request was asked to stop: `timeout`, `interrupted`, or nothing.
        self.stopped_for = ""
        self._request: _Request | None = None
        self._prepared = self._is_watched = False
        self._cell_deadline = 0.0
        self._idle_watch = _IdleWatch(self._stop_idle_threads)
        self._budget_at = -math.inf
        self._printed = bytearray()
        self._printed_limit = printed_limit + _PRINTED_SLACK
        try:
            ready = self.ask(None, Ready, START_SECONDS)
            _check(ready.enforcement, spec)
        except KernelDied as error:
            self.close()
            raise KernelUnavailable(
                f"{error} while it was starting. No model code has run."
            ) from error
        except BaseException:
            self.close()
            raise
        self.enforcement: Enforcement = ready.enforcement
        self.python: str = ready.python

    def prepare(self, setup: Prepare, seconds: float) -> None:
        """Bind names and run preludes.

        The last moment at which a worker can fail to become a kernel.
        """
        try:
            self.ask(setup, Prepared, seconds)
        except KernelDied as error:
            raise KernelUnavailable(
                f"{error} while it was being prepared. No model code has run."
            ) from error
        self._prepared = True
        self._is_watched = self.enforcement.tier in ("full", "kernel-only")

    def interrupt(self) -> bool:
        """Ask the running request to stop; False when there is none. Any thread."""
        if self._request is None:
            return False
        self.stopped_for = self.stopped_for or "interrupted"
        self.process.signal(signal.SIGINT)
        return True

    def take_printed(self) -> bytes:
        """The output since the last call of this. Output that threads print between cells belongs
        to the next cell.
        """
        printed, self._printed = bytes(self._printed), bytearray()
        return printed

    def begin_cell(self, cell: int, seconds: float) -> None:
        """From here on `interrupt` is meant for this cell. Ask for it next."""
        self._cell_deadline = time.monotonic() + seconds
        self._begin(cell)

    def _begin(self, cell: int = 0) -> _Request:
        self.stopped_for = ""
        self._request = _Request(cell)
        if self._prepared:
            self._idle_watch.pause()
            now = time.monotonic()
            # The time that can have been used since may not be worth the system calls.
            if (now - self._budget_at) * _CORES >= _BUDGET_ERROR * self._cpu_seconds:
                self._set_cpu_budget(self._cpu_seconds)
                self._budget_at = now
        return self._request

    def _end(self) -> None:
        """The request is over. Threads that a cell has left running have until its deadline."""
        self._request = None
        if self.broker.is_busy:
            self.broker.stop_work()
        if self._is_watched:
            self._idle_watch.resume(self._cell_deadline)

    def _stop_idle_threads(self) -> None:
        """Ask threads to stop. A thread that continues uses up the rest of the budget and is
        killed.
        """
        # The process may have ended.
        with contextlib.suppress(OSError):
            # Each thread is a folder, and two more links belong to the parent folder.
            if os.stat(f"/proc/{self.enforcement.pid}/task").st_nlink > 3:
                self.process.signal(signal.SIGINT)
                self._set_cpu_budget(0.0)
                self._budget_at = -math.inf

    def _set_cpu_budget(self, seconds: float) -> None:
        # Hosts on systems without a jail import this module too.
        from scroll_context.jail.linux import set_cpu_budget

        if self._is_watched and not self.process.has_ended():
            with contextlib.suppress(ProcessLookupError):
                set_cpu_budget(self.enforcement.pid, seconds)

    def ask(
        self,
        request: WireMessage | None,
        answer_type: type[M],
        seconds: float,
        take: Callable[[Any], None] | None = None,
        answers_calls: bool = False,
    ) -> M:
        """Send a request and wait for its answer. Other messages of the request go to `take`.

        Capability calls are refused unless `answers_calls`: code that runs while a snapshot is
        restored gets no answer. Raises KernelDied.
        """
        # `begin_cell` may have begun it.
        running = self._request or self._begin()
        running.answers_calls = answers_calls
        running.take = take
        try:
            if request is not None:
                self.connection.send(request)
            running.deadline = time.monotonic() + seconds
            return self._wait(running, answer_type)
        finally:
            self._end()

    def _wait(self, request: _Request, answer_type: type[M]) -> M:
        deadline = request.deadline
        kill_at = next_signal = 0.0
        while True:
            now = time.monotonic()
            if now >= deadline and not self.stopped_for:
                self.stopped_for = "timeout"
            if self.stopped_for:
                if not kill_at:
                    kill_at = now + GRACE_SECONDS
                    self.broker.stop_work()
                if now >= kill_at:
                    self.process.kill()
                    raise KernelDied(
                        f"it did not stop within {GRACE_SECONDS:g} s of being interrupted, and was "
                        "killed"
                    )
                if now >= next_signal:
                    self.process.signal(signal.SIGINT)
                    next_signal = now + _REPEAT_SECONDS
            if self.broker.is_busy:
                self.broker.expire()
            if not (self.broker.has_room or self.stopped_for):
                # Let calls finish before more are accepted.
                time.sleep(0.001)
                continue
            remaining = max(0.0, deadline - now) or _SLICE_SECONDS
            message = self.connection.receive(min(_SLICE_SECONDS, remaining))
            if isinstance(message, answer_type):
                return message
            if message is not None:
                self._handle(request, message)

    def _handle(self, request: _Request, message: Any) -> None:
        if isinstance(message, Printed):
            self._printed += message.data
            if len(self._printed) > self._printed_limit:
                raise KernelDied("the kernel process printed on past its limit")
        elif isinstance(message, CallRequest):
            if self.stopped_for:
                self.broker.refuse(message, "the cell is being interrupted")
            elif not request.answers_calls:
                self.broker.refuse(
                    message,
                    "no capability is answered while the kernel is being prepared or restored",
                )
            else:
                cell = 0 if message.is_late else request.cell
                self.broker.submit(message, cell, request.deadline)
        elif isinstance(message, Failed) and not self._prepared:
            raise KernelUnavailable(message.text)
        elif request.take is not None:
            request.take(message)
        else:
            raise KernelDied(
                "the kernel process sent a message that it was not asked for: "
                f"{type(message).__name__}"
            )

    def close(self) -> None:
        """End the process and everything that waits for it."""
        self._idle_watch.close()
        self.process.end()
        self.connection.close()
        self.broker.close()


class _IdleWatch:
    """Calls a function when a deadline passes while no request runs.

    Its thread starts with the first deadline. It is woken only for a deadline that is earlier than
    the one it waits for, so that a cell costs it nothing.
    """

    def __init__(self, at_deadline: Callable[[], None]) -> None:
        self._at_deadline = at_deadline
        self._changed = threading.Condition()
        # It is infinite while a request runs.
        self._deadline = math.inf
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    def resume(self, deadline: float) -> None:
        with self._changed:
            self._deadline = deadline
            if deadline >= self._wakes_at or self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="scroll-idle-watch", daemon=True
                )
                self._thread.start()
            self._wakes_at = deadline
            self._changed.notify()

    def pause(self) -> None:
        """From here on the function is not called."""
        with self._changed:
            self._deadline = math.inf

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._deadline <= now:
                    self._deadline = math.inf
                    self._at_deadline()
                    self._wakes_at = math.inf
                elif self._wakes_at <= now:
                    # A request runs, or a later one has moved the deadline.
                    self._wakes_at = min(self._deadline, now + _LOOK_AGAIN_SECONDS)
                self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))


def _check(enforcement: Enforcement, spec: JailSpec) -> None:
    """Compare what holds with what was asked for; a worker that promises less never runs a cell."""
    missing: list[str] = []
    if enforcement.tier != spec.tier:
        missing.append(f"tier {spec.tier} (it reports {enforcement.tier})")
    if enforcement.tier in ("full", "kernel-only"):
        held = {row.name for row in enforcement.guarantees if row.enforced}
        promised = guarantees(enforcement.tier, enforcement.landlock_abi)
        missing += [row.name for row in promised if row.enforced and row.name not in held]
    if missing:
        raise KernelUnavailable(
            f"the jail does not hold what it must: {', '.join(missing)}. No model code has run. "
            "Run `scroll doctor`."
        )
