"""HTTP connections of our two servers, the inspector and the MCP server: none of them lasts without
use.

uvicorn ends a connection that is idle between two requests. It waits for ever for one that sends
half a request, that never reads its answer, or whose peer has vanished. Here each of these has a
deadline. A stream that is being read (events of a live page, of MCP) may last as long as its reader
is there, which TCP finds out by itself.
"""

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # for the head of a request, from its first byte or from the connection
BODY_SECONDS = 60.0  # for the rest of it
STALL_SECONDS = 60.0  # in which a reader takes nothing of an answer
MOST_CONNECTIONS = 500

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class TimedProtocol(H11Protocol):
    """One connection. A deadline that passes closes it, as if the peer had."""

    _sending: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _state: Any = None  # of the request, while its deadline runs

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _find_out_who_is_gone(transport.get_extra_info("socket"))
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

    def _watch(self) -> None:
        """Give the request that is under way its deadline; bytes that trickle in do not move it."""
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


def configuration(app: Any, **options: Any) -> uvicorn.Config:
    """How both servers run."""
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="error",
        limit_concurrency=MOST_CONNECTIONS,
        **options,
    )


def _find_out_who_is_gone(connection: socket.socket) -> None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
