"""The process that runs model-written SQL. Only the fork server imports this module, not the host.

It answers one query at a time, in frames of the kernel's wire. SQLite is loaded only after the
fork: the fork server also makes kernels, whose jail must hold no database, and SQLite reads the
folder for temporary files from the environment when it is loaded.
"""

import os
import select
import socket

import msgspec

from scroll_context.kernel.frames import FrameReader, encode_frame, send_bytes
from scroll_context.kernel.process import report_process
from scroll_context.sql.messages import Query, Ready, SqlAnswer, SqlLimits, SqlSettings


class Wire:
    """The worker's end of the socket: one query in, its answer out."""

    def __init__(self, sock: socket.socket, limits: SqlLimits) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._limits = limits
        self._reader = FrameReader(sock)
        self._decoder = msgspec.msgpack.Decoder(Query)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def receive(self) -> Query | None:
        """The next query; None when the host has ended, or sent nothing for as long as it may."""
        while True:
            frame = self._reader.take()
            if frame is not None:
                return self._decoder.decode(frame)
            if not self._poll.poll(self._limits.idle * 1000):
                return None
            try:
                self._reader.receive()
            except (EOFError, OSError):
                return None

    def send(self, message: msgspec.Struct) -> None:
        send_bytes(self._sock, encode_frame(message, self._limits.frame_bytes))


def serve(sock: socket.socket, settings: bytes) -> None:
    """Answer queries until the host goes away, or has no query for a while."""
    config = msgspec.msgpack.decode(settings, type=SqlSettings)
    report_process(sock, os.getpid())
    os.environ["SQLITE_TMPDIR"] = config.scratch
    from scroll_context.sql.window import Window, answer, confine, failed_to_open, limit_process

    wire = Wire(sock, config.limits)
    limit_process(config.limits.memory_bytes)
    try:
        confine(config)
        window = Window(config)
    except Exception as error:  # noqa: BLE001 - whatever it is, the first query is told
        if wire.receive() is not None:
            wire.send(failed_to_open(error))
        return
    for query in iter(wire.receive, None):
        result = answer(window, query, lambda: wire.send(Ready()))
        try:
            wire.send(result)
        except (MemoryError, ValueError):
            result = SqlAnswer(error="memory")
            wire.send(result)
        if result.error == "memory":
            # A process that ran out of memory is not worth keeping.
            return
