"""How bytes are framed: a four-byte big-endian length, then that many bytes of msgpack, over one stream socket.

Both halves use this file. It knows nothing of what a message means (`messages`), of who waits for it (`channel`
in the worker, `connection` in the host) or of the process behind it (`launch`). The reader treats what it reads
as hostile: a length above the cap is refused before anything is allocated, a frame is handed out only whole, and
no more than one frame is held at a time. Large frames are received in place, so a 10 MB text is copied once by
the kernel on each side and once by the decoder.
"""

import socket
import struct
from typing import Any

import msgspec

MAX_FRAME = 32 << 20
"""The largest frame, in bytes, that either side sends or accepts."""

_PREFIX = struct.Struct(">I")
_SMALL = 1 << 16

_encoder = msgspec.msgpack.Encoder()


class FrameTooLarge(ValueError):
    """A message that does not fit into one frame."""


def encode_frame(message: msgspec.Struct) -> bytearray:
    """`message` with its length prefix, ready to be sent."""
    buffer = bytearray(_PREFIX.size)
    _encoder.encode_into(message, buffer, _PREFIX.size)
    size = len(buffer) - _PREFIX.size
    if size > MAX_FRAME:
        raise FrameTooLarge(f"{size:,} bytes do not fit into one frame of at most {MAX_FRAME:,}")
    _PREFIX.pack_into(buffer, 0, size)
    return buffer


class FrameReader:
    """Assembles frames from a non-blocking stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(_SMALL)
        self._view = memoryview(self._buffer)
        self._start = 0  # of the bytes received and not yet handed out
        self._end = 0
        self._large: bytearray | None = None
        self._filled = 0

    def take(self) -> memoryview | bytearray | None:
        """The next whole frame of what was received, valid until the next call; None when there is none yet.

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
        if size > MAX_FRAME:
            raise ValueError(f"a frame of {size:,} bytes was announced; at most {MAX_FRAME:,} are allowed")
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
        """Take once from the socket, which does not block. Raises EOFError at the end of the stream, and OSError."""
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


def decoder_for(union: Any, **options: Any) -> "msgspec.msgpack.Decoder[Any]":
    """A decoder that accepts exactly the messages of `union`."""
    return msgspec.msgpack.Decoder(union, **options)
