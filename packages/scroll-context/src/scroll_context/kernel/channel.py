"""The worker's end of the wire, and how a running cell is stopped from inside its own process.

There is no reading thread. A thread that waits also reads: the first one takes the socket, hands
what arrives for others to them, and passes the turn on when it has its own. So an empty round trip
costs no thread switch, and thirty threads of a cell can wait for thirty capabilities at once.
Messages are sent completely, under a lock. An answer that no thread waits for any more is dropped.

SIGINT and SIGXCPU may come at any moment, but an exception is raised only in code that is not the
worker's own: a frame of a module registered with `protect` is never interrupted, so messages on the
wire stay intact and nothing is caught half done. The two exceptions to that are `window`, through
which the worker does its own waiting, and `checkpoint`, which raises what was held back. Between
cells signals end the threads that a cell left running.

A cell may swallow what is raised (a bare `except:` in a loop). From the third signal on, an
exception is raised at every line that is not the worker's, inside `except` and `finally` bodies
too, until the cell has unwound. What never returns to the interpreter (`sum(range(10**12))`) cannot
be stopped this way: the host ends the process.

As in all modules of the worker, what is needed from others is imported by name: a cell that sets
`threading.Lock` to None breaks its own threads only.
"""

# The module `signal` wraps `_signal` in enumerations, which are slow.
import _signal  # type: ignore[import-not-found]
import builtins
import ctypes
import itertools
import socket
from collections import deque
from collections.abc import Callable
from os import _exit
from select import POLLIN, poll
from sys import _current_frames, _getframe
from threading import Lock, get_ident, get_native_id
from threading import enumerate as list_threads
from types import FrameType, ModuleType
from typing import Any, TypeVar

import msgspec

from scroll_context.kernel.frames import FrameReader, FrameTooLarge, encode_frame, send_bytes
from scroll_context.kernel.protocol import (
    CallRefusal,
    CallReply,
    CallRequest,
    ToWorker,
    WireMessage,
)
from scroll_context.kernel.values import MAX_ITEMS, count_items, explain, portable, revive_in_jail

T = TypeVar("T")


# interrupts ---------------------------------------------------------------------------------------

PATIENCE = 2
"""How many signals a cell may swallow before it is stopped at every line."""

_SIGNALS = (_signal.SIGINT, _signal.SIGXCPU)

_api = ctypes.pythonapi
_api.PyEval_SetTrace.argtypes = [ctypes.c_void_p, ctypes.py_object]
_api.PyEval_SetTrace.restype = None
_api.PyThreadState_SetAsyncExc.argtypes = [ctypes.c_ulong, ctypes.py_object]
_raise_if_truth_fails = ctypes.cast(_api.PyObject_IsTrue, ctypes.c_void_p)


class CpuLimitExceeded(BaseException):
    """The cell used up its processor time.

    Not an Exception, so that `except Exception` does not hide it.
    """


def window(wait: Callable[..., T], *arguments: Any) -> T:
    """`wait(*arguments)`, the one place of the worker where a signal may raise."""
    return wait(*arguments)


class Interrupts:
    """The signal state of the one thread that runs cells."""

    def __init__(self) -> None:
        self._ours: set[int] = set()
        self._armed = False
        self._strikes = 0
        self._held: BaseException | None = None
        self._main = get_ident()
        # It is always the same object, so that another handler can be recognised.
        self._handler = self._on_signal

    def protect(self, *modules: ModuleType) -> None:
        """Never raise in functions of these modules."""
        self._ours.update(id(vars(module)) for module in modules)

    def install(self) -> None:
        """Handle SIGINT and SIGXCPU. Called again before each cell: a cell may change this."""
        for number in _SIGNALS:
            if _signal.getsignal(number) is not self._handler:
                _signal.signal(number, self._handler)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _SIGNALS)

    def arm(self) -> None:
        """From now on a signal raises. Called by the worker just before it runs a cell."""
        self._strikes, self._held = 0, None
        self._armed = True

    def disarm(self) -> None:
        """From now on signals raise nothing.

        Called by the worker when a cell has returned to it.
        """
        self._armed = False
        if self._strikes > PATIENCE:
            _api.PyEval_SetTrace(None, self)

    def checkpoint(self) -> None:
        """Raise what arrived while the worker's own code ran on behalf of the cell."""
        held = self._held
        if held is not None and self._armed and get_ident() == self._main:
            self._held = None
            raise held

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._armed:
            # The time of the cell that left these threads running is over.
            self._stop_threads()
            return
        self._strikes += 1
        exception: BaseException
        if number == _signal.SIGXCPU:
            exception = CpuLimitExceeded("the cell used up its processor time")
        else:
            exception = KeyboardInterrupt("the cell was interrupted")
            self._stop_threads()
        if self._strikes > PATIENCE:
            _api.PyEval_SetTrace(_raise_if_truth_fails, self)
        if (
            frame is not None
            and id(frame.f_globals) in self._ours
            and frame.f_code is not window.__code__
        ):
            self._held = exception
            return
        self._held = None
        raise exception

    def _stop_threads(self) -> None:
        """End the other threads of the cell, except a thread that is inside the worker's code."""
        for ident, frame in _current_frames().items():
            if ident != self._main and id(frame.f_globals) not in self._ours:
                _api.PyThreadState_SetAsyncExc(ident, SystemExit)

    def __bool__(self) -> bool:
        """The truth value that stops a cell at every line.

        A trace function written in Python is removed by the interpreter once it raises; one written
        in C is not. `PyObject_IsTrue` has the form of one: the interpreter calls it with this
        object at each line, it calls this method, and what is raised here is raised there.
        """
        frame = _getframe(1)
        if not self._armed or id(frame.f_globals) in self._ours:
            # The interpreter continues.
            return False
        raise KeyboardInterrupt(
            "the cell was interrupted and continued; it was stopped at the next line"
        )


# the wire -----------------------------------------------------------------------------------------

# The key under which the host's requests wait; calls count from 1.
_REQUESTS = 0
_ANSWERS = (CallReply, CallRefusal)
_SMALL = 16_384


class CapabilityError(Exception):
    """A capability of the host failed; the text is the host's."""


class _Waiter:
    """A thread that waits for one key. `bell` is locked; releasing it wakes the thread."""

    __slots__ = ("arrived", "bell", "message")

    def __init__(self) -> None:
        self.bell = Lock()
        self.bell.acquire()
        self.arrived = False
        self.message: Any = None


class Channel:
    """One connection to the host, shared by all threads of the worker."""

    def __init__(self, sock: socket.socket, interrupts: Interrupts) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._interrupts = interrupts
        self._reader = FrameReader(sock)
        self._decoder = msgspec.msgpack.Decoder(ToWorker, ext_hook=revive_in_jail)
        self._lock = Lock()
        self._sending = Lock()
        self._waiters: dict[int, _Waiter] = {}
        self._requests: deque[Any] = deque()
        self._reading = False
        self._ids = itertools.count(1)
        self._earlier_threads: frozenset[int] = frozenset()
        self._arrivals = poll()
        self._arrivals.register(sock.fileno(), POLLIN)

    def send(self, message: WireMessage) -> None:
        self._send_frame(encode_frame(message))

    def next_request(self) -> Any:
        """The next message of the host that is not an answer. For the main thread only."""
        waiter = self._register(_REQUESTS)
        try:
            return self._wait(waiter)
        finally:
            self._forget(_REQUESTS)

    def begin_cell(self) -> None:
        """Calls of the threads that run now are calls of earlier cells from here on."""
        # Native ids, because the interpreter gives the ident of an ended thread to the next one.
        threads = {thread.native_id or 0 for thread in list_threads()}
        self._earlier_threads = frozenset(threads - {get_native_id()})

    def call(self, capability: str, /, *args: Any, **kwargs: Any) -> Any:
        """Ask the host to run a capability, and wait for what it returns."""
        self._interrupts.checkpoint()
        ident = next(self._ids)
        waiter = self._register(ident)
        try:
            self._send_frame(self._encode_call(ident, capability, args, kwargs))
            answer = self._wait(waiter)
        finally:
            self._forget(ident)
        self._interrupts.checkpoint()
        if isinstance(answer, CallReply):
            return answer.value
        raise _as_exception(answer)

    def _encode_call(self, ident: int, capability: str, args: Any, kwargs: Any) -> bytearray:
        try:
            arguments = msgspec.msgpack.encode(portable([args, kwargs]))
            is_late = get_native_id() in self._earlier_threads
            frame = encode_frame(
                CallRequest(ident, capability, msgspec.Raw(arguments), is_late, _line())
            )
        except (TypeError, ValueError) as error:
            reason = explain(error) if isinstance(error, UnicodeEncodeError) else error
            if isinstance(error, FrameTooLarge):
                reason = ValueError(f"{error}; send it in parts")
            raise type(reason)(f"{capability}: {reason}") from None
        if len(arguments) > _SMALL and count_items(arguments) > MAX_ITEMS:
            raise ValueError(
                f"{capability}: the arguments hold more than {MAX_ITEMS:,} values; send them in "
                "parts"
            )
        return frame

    def _send_frame(self, frame: bytearray) -> None:
        with self._sending:
            send_bytes(self._sock, frame)

    def _register(self, key: int) -> _Waiter:
        waiter = _Waiter()
        with self._lock:
            self._waiters[key] = waiter
            if key == _REQUESTS and self._requests:
                waiter.message, waiter.arrived = self._requests.popleft(), True
        return waiter

    def _forget(self, key: int) -> None:
        with self._lock:
            self._waiters.pop(key, None)
            self._pass_turn()

    def _pass_turn(self) -> None:
        """Wake one waiter, which will read; called with the lock held when the socket is free."""
        if not self._reading:
            for waiter in self._waiters.values():
                if not waiter.arrived and waiter.bell.locked():
                    waiter.bell.release()
                    return

    def _wait(self, waiter: _Waiter) -> Any:
        while True:
            with self._lock:
                if waiter.arrived:
                    return waiter.message
                leads = not self._reading
                self._reading = True
            if leads:
                self._lead(waiter)
            else:
                window(waiter.bell.acquire)

    def _lead(self, waiter: _Waiter) -> None:
        """Read until this waiter's own message is there, handing out what is for others."""
        try:
            while not waiter.arrived:
                frame = self._reader.take()
                if frame is None:
                    window(self._arrivals.poll)
                    self._receive()
                else:
                    self._deliver(self._decoder.decode(frame))
        finally:
            with self._lock:
                self._reading = False

    def _receive(self) -> None:
        try:
            self._reader.receive()
        except BlockingIOError:
            return
        except (EOFError, OSError):
            # The host has ended, so there is no reason to continue.
            _exit(0)

    def _deliver(self, message: Any) -> None:
        key = message.id if isinstance(message, _ANSWERS) else _REQUESTS
        with self._lock:
            waiter = self._waiters.get(key)
            if waiter is not None and not waiter.arrived:
                waiter.message, waiter.arrived = message, True
                if waiter.bell.locked():
                    waiter.bell.release()
            elif key == _REQUESTS:
                self._requests.append(message)


def _line() -> int:
    """The line of the running cell that a call comes from, by way of functions too."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith("<cell "):
            return frame.f_lineno
        frame = frame.f_back
    return 0


def _as_exception(refusal: CallRefusal) -> Exception:
    """The host's refusal as the built-in exception that it names, or as a CapabilityError."""
    kind = getattr(builtins, refusal.kind, None)
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, UnicodeError)
    ):
        return kind(refusal.text)
    return CapabilityError(f"{refusal.kind}: {refusal.text}" if refusal.kind else refusal.text)
