"""The worker's end of the wire: who waits for which message, in one or in many threads.

There is no reading thread. A thread that waits also reads: the first one takes the socket, hands what arrives for
others to them, and passes the turn on when it has its own. So an empty round trip costs no thread switch, and thirty
threads of a cell can wait for thirty capabilities at once. Messages are sent whole, under a lock, and an
interrupt never cuts one in two (see `interrupts`). An answer that no thread waits for any more is dropped.

As in all modules of the worker, what is needed from others is imported by name: a cell that sets `threading.Lock`
to None breaks its own threads only.
"""

import builtins
import itertools
import socket
from collections import deque
from os import _exit
from select import POLLIN, POLLOUT, poll
from threading import Lock
from typing import Any

import msgspec

from scroll_context.kernel.codec import (
    MAX_ITEMS,
    FrameReader,
    FrameTooLarge,
    count_items,
    decoder_for,
    encode_frame,
    explain,
    portable,
    revive,
)
from scroll_context.kernel.interrupts import Interrupts, window
from scroll_context.kernel.protocol import CallRefusal, CallReply, CallRequest, ToWorker, WireMessage

_REQUESTS = 0  # the key under which the host's requests wait; calls count from 1
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
        self._decoder = decoder_for(ToWorker, ext_hook=revive)
        self._lock = Lock()
        self._sending = Lock()
        self._waiters: dict[int, _Waiter] = {}
        self._requests: deque[Any] = deque()
        self._reading = False
        self._ids = itertools.count(1)
        self._fd = sock.fileno()
        self._arrivals = poll()
        self._arrivals.register(self._fd, POLLIN)
        interrupts.protect(globals())

    def send(self, message: WireMessage) -> None:
        self._send_frame(encode_frame(message))

    def next_request(self) -> Any:
        """The next message of the host that is not an answer. For the main thread only."""
        waiter = self._register(_REQUESTS)
        try:
            return self._wait(waiter)
        finally:
            self._forget(_REQUESTS)

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
            frame = encode_frame(CallRequest(ident, capability, msgspec.Raw(arguments)))
        except (TypeError, ValueError) as error:
            reason = explain(error) if isinstance(error, UnicodeEncodeError) else error
            if isinstance(error, FrameTooLarge):
                reason = ValueError(f"{error}; send it in parts")
            raise type(reason)(f"{capability}: {reason}") from None
        if len(arguments) > _SMALL and count_items(arguments) > MAX_ITEMS:
            raise ValueError(f"{capability}: the arguments hold more than {MAX_ITEMS:,} values; send them in parts")
        return frame

    def _send_frame(self, frame: bytearray) -> None:
        view = memoryview(frame)
        with self._sending:
            while view:
                try:
                    view = view[self._sock.send(view) :]
                except BlockingIOError:
                    poller = poll()
                    poller.register(self._fd, POLLOUT)
                    poller.poll()

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
            _exit(0)  # the host is gone, and with it every reason to go on

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


def _as_exception(refusal: CallRefusal) -> Exception:
    """The host's refusal as the built-in exception that it names, or as a CapabilityError."""
    kind = getattr(builtins, refusal.kind, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError):
        return kind(refusal.text)
    return CapabilityError(f"{refusal.kind}: {refusal.text}" if refusal.kind else refusal.text)
