"""The host's end of the wire: messages in and out.

`Connection` trusts nothing that it reads: a frame that is too large, does not decode, or does not
fit its schema ends the kernel with KernelDied. Neither reading nor sending blocks longer than it is
told to: a worker that does not read, or that stops in the middle of a frame, costs a deadline and
no more.
"""

import contextlib
import select
import socket
import threading
from typing import Any

import msgspec

from scroll_context.errors import KernelDied
from scroll_context.kernel.frames import MAX_FRAME, FrameReader, encode_frame, send_bytes
from scroll_context.kernel.protocol import ToHost, WireMessage

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
