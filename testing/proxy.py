"""A proxy on the loopback that does to connections what networks do."""

import contextlib
import select
import socket
import threading
from typing import Literal

Mode = Literal["pass", "swallow", "blackhole", "refuse"]


class Proxy:
    """Forwards connections to a port. `mode` may change at any time:

    pass       forward both ways
    swallow    forward what the client sends, and drop every answer
    blackhole  keep connections open and forward nothing
    refuse     close every connection at once
    """

    def __init__(self, port: int) -> None:
        self.mode: Mode = "pass"
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == "refuse":
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._pairs.append((client, server))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while True:
                for end in select.select([client, server], [], [], 0.05)[0]:
                    if self.mode == "blackhole":
                        threading.Event().wait(0.05)
                        continue
                    sent = end.recv(1 << 16)
                    if not sent:
                        return
                    if end is client:
                        server.sendall(sent)
                    elif self.mode != "swallow":
                        client.sendall(sent)
