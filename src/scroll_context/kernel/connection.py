"""The host's end of the wire: who speaks the protocol. It trusts nothing that comes out of the socket.

A frame that is too large, does not decode, or does not fit its schema ends the connection with KernelDied. Reading
and sending never block longer than they are told to: a worker that does not read, or that stops in the middle of
a frame, costs a deadline and no more.
"""

import contextlib
import select
import socket
import threading
from typing import Any

import msgspec

from scroll_context.errors import KernelDied
from scroll_context.kernel.messages import Message, ToHost
from scroll_context.kernel.wire import FrameReader, decoder_for, encode_frame

STALL_SECONDS = 10.0
"""How long a worker may leave the socket full before it counts as dead."""


class Connection:
    """One worker's socket. Any thread may send; one at a time receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader = FrameReader(sock)
        self._decoder = decoder_for(ToHost)
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
            # The process speaks another language than its worker: model code has taken over the socket.
            raise KernelDied(f"the kernel process sent a malformed message: {error}") from error

    def send(self, message: Message) -> None:
        """Send whole. Raises KernelDied when the worker does not take it, ValueError when it cannot be encoded."""
        view = memoryview(encode_frame(message))
        if not self._sending.acquire(timeout=STALL_SECONDS):
            raise KernelDied("the kernel process does not read what is sent to it")
        try:
            while view:
                try:
                    view = view[self._sock.send(view) :]
                except BlockingIOError:
                    self._wait_for_room()
        except OSError as error:
            raise _lost(error) from error
        finally:
            self._sending.release()

    def try_send(self, message: Message) -> bool:
        """Send a small message if that can be done at once; False when it cannot. Raises KernelDied."""
        frame = encode_frame(message)
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._sock.send(frame) != len(frame):
                raise KernelDied("the kernel process does not read what is sent to it")
        except BlockingIOError:
            return False
        except OSError as error:
            raise _lost(error) from error
        finally:
            self._sending.release()
        return True

    def _wait_for_room(self) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLOUT)
        if not poll.poll(STALL_SECONDS * 1000):
            raise KernelDied("the kernel process does not read what is sent to it")

    def close(self) -> None:
        """Wake whoever sends or receives, and free the descriptor once nobody sends any more."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._sending:
            self._sock.close()


def _lost(error: EOFError | OSError) -> KernelDied:
    if isinstance(error, EOFError | ConnectionError):  # which of them depends on whether it had read all it was sent
        return KernelDied("the kernel process ended")
    return KernelDied(f"the connection to the kernel process broke: {error}")
