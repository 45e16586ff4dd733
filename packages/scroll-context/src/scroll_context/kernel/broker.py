"""The host's end of the wire to a worker: its messages, and the calls that cells make.

`Connection` trusts nothing that it reads: a frame that is too large, does not decode, or does not
fit its schema ends the kernel with KernelDied. Neither reading nor sending blocks longer than it is
told to: a worker that does not read, or that stops in the middle of a frame, costs a deadline and
no more.

`Broker` runs the calls in threads of the host, each with a deadline of its own. Threads of a cell
may call at once, so calls run at once. A call whose time is up is refused to the cell whether or
not the host's function has returned; its result is dropped when it comes. What is open at a time is
bounded in number and in bytes: above that, `has_room` is false and the caller stops reading from
the worker.
"""

import contextlib
import queue
import select
import socket
import threading
import time
from collections import deque
from typing import Any

import msgspec

from scroll_context.errors import KernelDied
from scroll_context.kernel.frames import (
    MAX_FRAME,
    FrameReader,
    FrameTooLarge,
    encode_frame,
    send_bytes,
)
from scroll_context.kernel.process import Process
from scroll_context.kernel.protocol import CallRefusal, CallReply, CallRequest, ToHost, WireMessage
from scroll_context.kernel.results import UNKNOWN_SEQ, CapabilityCall, CapabilityResult, Dispatch
from scroll_context.kernel.values import MAX_ITEMS, count_items, explain, portable, revive
from scroll_context.work import Work

# the connection -----------------------------------------------------------------------------------

STALL_SECONDS = 10.0
"""How long a worker may leave the socket full before it counts as dead."""
_NOT_READ = "the kernel process does not read what is sent to it"


class Connection:
    """One worker's socket. Any thread may send; one at a time receives.

    `messages` are the types that the worker may send, in frames of at most `limit` bytes.
    """

    def __init__(self, sock: socket.socket, messages: Any = ToHost, limit: int = MAX_FRAME) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader = FrameReader(sock, limit)
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)

    def receive(self, timeout: float) -> Any:
        """The next message, or None when none is complete yet: ask again. Raises KernelDied."""
        try:
            frame = self._reader.take()
            if frame is None and self._poll.poll(timeout * 1000):
                self._reader.receive()
                frame = self._reader.take()
            return None if frame is None else self._decoder.decode(frame)
        except (EOFError, OSError) as error:
            raise _lost(error) from error
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            # The process speaks another language than its worker: model code has taken over the
            # socket.
            raise KernelDied(
                f"the kernel process sent a malformed message ({type(error).__name__})"
            ) from error

    def send(self, message: msgspec.Struct) -> None:
        """Send whole.

        Raises KernelDied when the worker does not take it, ValueError when it cannot be encoded.
        """
        frame = encode_frame(message)
        if not self._sending.acquire(timeout=STALL_SECONDS):
            raise KernelDied(_NOT_READ)
        try:
            send_bytes(self._sock, frame, STALL_SECONDS)
        except TimeoutError:
            raise KernelDied(_NOT_READ) from None
        except OSError as error:
            raise _lost(error) from error
        finally:
            self._sending.release()

    def try_send(self, message: WireMessage) -> bool:
        """Send a small message if that can be done at once; False when it cannot.

        Raises KernelDied.
        """
        frame = encode_frame(message)
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._sock.send(frame) != len(frame):
                raise KernelDied(_NOT_READ)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _lost(error) from error
        finally:
            self._sending.release()
        return True

    def close(self) -> None:
        """Wake the threads that send or receive, and free the descriptor when no thread sends any
        more.
        """
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._sending:
            self._sock.close()


def _lost(error: EOFError | OSError) -> KernelDied:
    # Which of the two it is depends on whether the process had read all messages.
    if isinstance(error, EOFError | ConnectionError):
        return KernelDied("the kernel process ended")
    return KernelDied(f"the connection to the kernel process broke: {error}")


# capability calls ---------------------------------------------------------------------------------

MAX_OPEN = 64
MOST_SEQS = 100_000
"""How many events that a cell read are remembered. An erasure searches for them."""
_MAX_REFUSALS = 1000
# The time for all calls together that still run when the worker is closed.
_LAST_SECONDS = 0.5
# Arguments of this many bytes cannot do any harm.
_SMALL = 1_024
_arguments = msgspec.msgpack.Decoder(tuple[tuple[Any, ...], dict[str, Any]], ext_hook=revive)


class _OpenCall(msgspec.Struct, frozen=True):
    deadline: float
    # The bytes of its arguments.
    size: int
    work: Work
    # The line of the cell, as the worker reports it.
    line: int


class Broker:
    """The open calls of one worker.

    `submit` and `expire` belong to the thread that reads its messages.
    """

    def __init__(
        self, dispatch: Dispatch, connection: Connection, process: Process, seconds: float
    ) -> None:
        self._dispatch = dispatch
        self._connection = connection
        self._process = process
        self.seconds = seconds
        self._queue: queue.SimpleQueue[tuple[int, CapabilityCall] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Calls that threads work on or will work on. A call whose time is up keeps its thread busy.
        self._unfinished = 0
        self._lock = threading.Lock()
        # By the id that the worker gave to the call.
        self._open: dict[int, _OpenCall] = {}
        self._bytes = 0
        self._refusals: deque[CallRefusal] = deque()
        # At most MOST_SEQS.
        self._seqs: set[int] = set()
        # The events by line of the cell.
        self._lines: dict[int, set[int]] = {}
        self._lines_room = MOST_SEQS

    @property
    def is_busy(self) -> bool:
        return bool(self._open or self._refusals)

    @property
    def has_room(self) -> bool:
        return len(self._open) < MAX_OPEN and self._bytes < MAX_FRAME

    def submit(self, message: CallRequest, cell: int, until: float) -> None:
        """Start a call of a request that ends at `until`.

        A message that no honest worker sends is KernelDied.
        """
        size = len(memoryview(message.arguments))
        try:
            if size > _SMALL and count_items(memoryview(message.arguments)) > MAX_ITEMS:
                raise KernelDied(
                    f"the kernel process sent a call with more than {MAX_ITEMS:,} values"
                )
        except ValueError as error:
            raise KernelDied(f"the kernel process sent a malformed call: {error}") from error
        try:
            args, kwargs = _arguments.decode(message.arguments)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            # Not its text: that may repeat words of the model.
            raise KernelDied(
                f"the kernel process sent a malformed call ({type(error).__name__})"
            ) from error
        deadline = time.monotonic() + self.seconds
        work = Work(min(deadline, until))
        with self._lock:
            if message.id in self._open:
                raise KernelDied(
                    f"the kernel process used the id {message.id} of a call for another one"
                )
            self._open[message.id] = _OpenCall(deadline, size, work, message.line)
            self._bytes += size
            self._unfinished += 1
        if len(self._threads) < min(self._unfinished, MAX_OPEN):
            thread = threading.Thread(
                target=self._work, name=f"scroll-call-{len(self._threads) + 1}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        # Last, because the thread that takes it needs the interpreter lock, which the caller lets
        # go of soon.
        self._queue.put(
            (message.id, CapabilityCall(message.capability, args, kwargs, cell, deadline, work))
        )

    def refuse(self, message: CallRequest, reason: str) -> None:
        """Answer a call without running it."""
        if len(self._refusals) >= _MAX_REFUSALS:
            raise KernelDied("the kernel process keeps calling and does not read the answers")
        self._refusals.append(CallRefusal(message.id, "RuntimeError", reason))

    def expire(self) -> None:
        """Refuse the calls whose time is up.

        Never waits: what cannot be sent now is sent the next time.
        """
        now = time.monotonic()
        for ident in [ident for ident, call in list(self._open.items()) if call.deadline <= now]:
            if self._finish(ident, ()):
                text = f"no answer within {self.seconds:g} s; the call may still be running"
                self._refusals.append(CallRefusal(ident, "TimeoutError", text))
        while self._refusals and self._connection.try_send(self._refusals[0]):
            self._refusals.popleft()

    def stop_work(self) -> None:
        """Let the work for the open calls end soon: their request is over, or is being stopped."""
        with self._lock:
            for call in self._open.values():
                call.work.stop()

    def take_seqs(self) -> tuple[int, ...]:
        """The events handed out since this was last asked; UNKNOWN_SEQ stands for any more."""
        with self._lock:
            seqs, self._seqs = self._seqs, set()
        return tuple(sorted(seqs))

    def take_lines(self) -> dict[int, frozenset[int]]:
        """The events handed out since this was last asked, by the line of the cell."""
        with self._lock:
            lines, self._lines, self._lines_room = self._lines, {}, MOST_SEQS
        return {line: frozenset(seqs) for line, seqs in lines.items()}

    def close(self) -> None:
        """Let the threads end. A call about to return may still record its result; a long one is
        left behind.

        One that no thread has taken up yet does not begin any more.
        """
        self.stop_work()
        with self._lock:
            self._open.clear()
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        for ident, call in iter(self._queue.get, None):
            try:
                with call.work.until_sent:
                    self._run(ident, call)
            # A call without an answer would hold its cell forever, so any error, such as too
            # little memory, ends the process. The thread that reads from the process sees the end.
            except BaseException:  # noqa: BLE001
                self._process.kill()
            finally:
                with self._lock:
                    self._unfinished -= 1

    def _run(self, ident: int, call: CapabilityCall) -> None:
        if ident not in self._open:
            # Its time was up before a thread was free.
            return
        answer: CallReply | CallRefusal
        seqs: tuple[int, ...] = ()
        try:
            value = self._dispatch(call)
            if isinstance(value, CapabilityResult):
                seqs = (*value.seqs, UNKNOWN_SEQ) if value.unknown else value.seqs
                value = value.value
            answer = CallReply(ident, portable(value))
        except BaseException as error:  # noqa: BLE001 - the border to tools
            text = str(error).encode("utf-8", "backslashreplace").decode()[:60_000]
            answer, seqs = CallRefusal(ident, type(error).__name__, text), ()
        if self._finish(ident, seqs):
            self._send(answer)

    def _send(self, answer: CallReply | CallRefusal) -> None:
        """Send an answer, or why it cannot be sent."""
        kind = "ValueError"
        try:
            self._connection.send(answer)
            return
        except FrameTooLarge as error:
            text = f"the result is too large: {error}; ask for a part"
        except UnicodeEncodeError as error:
            text = f"the result cannot be sent: {explain(error)}"
        except MemoryError:
            kind = "MemoryError"
            text = "the host has no memory for the result; ask for a part"
        self._connection.send(CallRefusal(answer.id, kind, text))

    def _finish(self, ident: int, seqs: tuple[int, ...]) -> bool:
        """Close a call; False when it was closed already."""
        with self._lock:
            call = self._open.pop(ident, None)
            if call is None:
                return False
            call.work.stop()
            self._bytes -= call.size
            fresh = set(seqs) - self._seqs
            room = MOST_SEQS - len(self._seqs)
            if len(fresh) > room:
                # The cell read events that are not named here.
                fresh = {UNKNOWN_SEQ, *sorted(fresh)[:room]}
            self._seqs |= fresh
            if seqs and self._lines_room > 0:
                self._lines.setdefault(call.line, set()).update(seqs[: self._lines_room])
                self._lines_room -= len(seqs)
        return True
