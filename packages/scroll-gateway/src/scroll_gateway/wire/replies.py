"""Read a provider's reply from the bytes of a response, as they pass.

The bytes are not changed and not held back. A reply counts only when it is complete: a stream that
is cut, or that reports an error, gives none.
"""

from typing import Any

import msgspec

from scroll_gateway.wire.protocol import Protocol, WireReply

_DONE = b"[DONE]"


class ServerSentEvents:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        # The chunks of a line that has not ended.
        self._rest: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that ends in this chunk."""
        self._rest.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk and not self._rest[0].endswith(b"\r"):
            return []
        # A line may end in "\r\n", and the chunk between the two.
        text = b"".join(self._rest).replace(b"\r\n", b"\n")
        held = text.endswith(b"\r")
        lines = text.removesuffix(b"\r").replace(b"\r", b"\n").split(b"\n")
        self._rest = [lines.pop() + (b"\r" if held else b"")]
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events


class ReplyReader:
    """Collects one reply from the chunks of a response, streamed or not."""

    def __init__(self, protocol: Protocol, content_type: str) -> None:
        self._protocol = protocol
        self._events = protocol.events()
        self._is_stream = content_type.startswith("text/event-stream")
        self._splitter = ServerSentEvents()
        self._chunks: list[bytes] = []
        self._has_failed = False
        # Whether the last event of the stream has come: the client may read no further.
        self.has_ended = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the response."""
        if not self._is_stream:
            self._chunks.append(chunk)
            return
        for data in self._splitter.feed(chunk):
            if data == _DONE:
                self.has_ended = True
            elif data:
                self._add(data)

    def _add(self, data: bytes) -> None:
        event = _decoded(data)
        if event is None or event.get("error"):
            self._has_failed = True
            return
        self._events.add(event)
        self.has_ended = self.has_ended or self._events.has_ended

    def reply(self) -> WireReply | None:
        """The reply, if it is complete. Call it when the response has ended, or `has_ended`."""
        if self._is_stream:
            value = None if self._has_failed else self._events.value()
        else:
            value = _decoded(b"".join(self._chunks))
        return self._protocol.reply(value) if value else None


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
