"""Frames: messages as bytes on a stream socket. Worker and host.

A frame is a four-byte big-endian length, then that many bytes of msgpack. The reader treats what it
reads as hostile: a length above the cap is refused before anything is allocated, a frame is handed
out only when complete, and no more than one frame is held at a time. Large frames are received in
place.
"""

import select
import socket
import struct

import msgspec

MAX_FRAME = 32 << 20
"""The largest frame, in bytes, that a kernel and its host send or accept."""

_PREFIX = struct.Struct(">I")
_SMALL = 1 << 16

_encoder = msgspec.msgpack.Encoder()


class FrameTooLarge(ValueError):
    """A message that does not fit into one frame."""


def encode_frame(message: msgspec.Struct, limit: int = MAX_FRAME) -> bytearray:
    """`message` with its length prefix, ready to be sent."""
    buffer = bytearray(_PREFIX.size)
    _encoder.encode_into(message, buffer, _PREFIX.size)
    size = len(buffer) - _PREFIX.size
    if size > limit:
        raise FrameTooLarge(f"{size:,} bytes do not fit into one frame of at most {limit:,}")
    _PREFIX.pack_into(buffer, 0, size)
    return buffer


def send_bytes(sock: socket.socket, data: bytes | bytearray, seconds: float | None = None) -> None:
    """Send everything over a socket that does not block.

    Raises TimeoutError when the other side reads nothing for so many seconds, and OSError.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(sock.fileno(), select.POLLOUT)
            if not poll.poll(None if seconds is None else seconds * 1000):
                raise TimeoutError("the other side does not read") from None


class FrameReader:
    """Assembles frames of at most `limit` bytes from a non-blocking stream socket."""

    def __init__(self, sock: socket.socket, limit: int = MAX_FRAME) -> None:
        self._sock = sock
        self._limit = limit
        self._buffer = bytearray(_SMALL)
        self._view = memoryview(self._buffer)
        # The start of the bytes that were received and not yet returned.
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._filled = 0

    def take(self) -> memoryview | bytearray | None:
        """The next complete frame of the received bytes, valid until the next call; None when there
        is none yet.

        Raises ValueError on a length above the cap.
        """
        large = self._large
        if large is not None:
            if self._filled < len(large):
                return None
            self._large = None
            return large
        held = self._end - self._start
        if held < _PREFIX.size:
            return None
        (size,) = _PREFIX.unpack_from(self._buffer, self._start)
        if size > self._limit:
            raise ValueError(
                f"a frame of {size:,} bytes was announced; at most {self._limit:,} are allowed"
            )
        begin = self._start + _PREFIX.size
        if held - _PREFIX.size >= size:
            self._start = begin + size
            return self._view[begin : self._start]
        if size + _PREFIX.size > _SMALL:
            self._large = bytearray(size)
            self._filled = held - _PREFIX.size
            self._large[: self._filled] = self._view[begin : self._end]
            self._start = self._end = 0
        return None

    def receive(self) -> None:
        """Take once from the socket, which does not block.

        Raises EOFError at the end of the stream, and OSError.
        """
        if self._large is not None:
            count = self._sock.recv_into(memoryview(self._large)[self._filled :])
            self._filled += count
        else:
            if self._start:
                held = self._end - self._start
                self._buffer[:held] = self._buffer[self._start : self._end]
                self._start, self._end = 0, held
            count = self._sock.recv_into(self._view[self._end :])
            self._end += count
        if count == 0:
            raise EOFError("the other side closed the connection")
