"""HTTP connections of the two servers, the inspector and the MCP server: each has its deadlines.

uvicorn ends a connection that is idle between two requests. It waits forever for a peer that sends
half a request, that never reads its answer, or that has vanished. Here each of these has a
deadline. Near the limit of connections, the oldest one that asks for nothing makes room, so that
strangers without a token keep nobody out. A stream that is being read (live pages, MCP) may last as
long as its reader is there, which TCP finds out by itself.

The extra `serve` declares what this module imports. The core itself imports it nowhere.
"""

import asyncio
import errno
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# The head of a request must be complete so long after the connection or its first byte, the body so
# long after the head. A reader that reads no byte of an answer for STALL_SECONDS is disconnected.
HEADER_SECONDS = 10.0
BODY_SECONDS = 60.0
STALL_SECONDS = 60.0
MOST_CONNECTIONS = 500
# So many places are kept free of connections that ask for nothing.
SPARE_CONNECTIONS = 20

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class TimedProtocol(H11Protocol):
    """One connection. A deadline that passes closes it, as if the peer had."""

    _sending: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    # The state of the request that `_sending` was set for.
    _state: Any = None
    _connected_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connected_at = self.loop.time()
        self._make_room()
        _set_options(transport.get_extra_info("socket"))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._sending, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self._stalled or self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _make_room(self) -> None:
        """Near the limit, close the oldest connection without a running request.

        Those that never sent a complete request go first.
        """
        # A connection that was just aborted stays in the set until the loop's next turn.
        others = [
            other
            for other in self.connections
            if isinstance(other, TimedProtocol)
            and other is not self
            and not other.transport.is_closing()
        ]
        if len(others) < MOST_CONNECTIONS - SPARE_CONNECTIONS:
            return
        silent = [other for other in others if other.cycle is None]
        idle = [other for other in others if other.cycle and other.cycle.response_complete]
        candidates = silent or idle
        if candidates:
            min(candidates, key=lambda other: other._connected_at).transport.abort()

    def _watch(self) -> None:
        """Give the running request its deadline; bytes that trickle in do not move it."""
        state = self.conn.their_state
        if state is self._state:
            return
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._state = state
        if state is h11.IDLE:
            self._sending = self.loop.call_later(HEADER_SECONDS, self.transport.abort)
        elif state is h11.SEND_BODY:
            self._sending = self.loop.call_later(BODY_SECONDS, self.transport.abort)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an IPv4 or IPv6 address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(
            f"another program uses port {port} on {host}; choose another port with --port"
        ) from error


def configuration(app: Any, **options: Any) -> uvicorn.Config:
    """The uvicorn configuration of both servers."""
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="error",
        limit_concurrency=MOST_CONNECTIONS,
        **options,
    )


def _set_options(connection: socket.socket) -> None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # asyncio does this only for sockets that name their protocol, which accepted ones do not. The
    # body of an answer would wait 40 ms for the client's acknowledgement of the head.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
