"""A model provider on loopback: a real HTTP server that plays prepared answers and keeps what it
was sent.

Each play answers one request. The last play repeats, so that a client that retries in secret is
found out by counting `bodies`.
"""

import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Play = Callable[["Exchange"], None]


class Exchange(BaseHTTPRequestHandler):
    """One request and the means to answer it."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.body: dict[str, Any] = json.loads(self.rfile.read(length))
        self.close_connection = True
        play = self.server.next_play(self.path, self.body)
        try:
            play(self)
        except (BrokenPipeError, ConnectionResetError):
            self.server.client_left.set()

    def respond(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        kind = "text/html" if isinstance(body, str) else "application/json"
        for name, value in {
            "content-type": kind,
            "content-length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def start_stream(self, *, chunked: bool = True) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.chunked = chunked
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("connection", "close")
        self.end_headers()

    def send(self, data: object, event: str = "") -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        line = (f"event: {event}\n" if event else "") + f"data: {text}\n\n"
        self.write(line.encode())

    def write(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content) if self.chunked else content)
        self.wfile.flush()

    def end_stream(self) -> None:
        if self.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def linger(self) -> None:
        """Stay silent but alive until the client leaves."""
        while not self.server.released.wait(0.01):
            self.write(b": waiting\n\n")

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, plays: Iterable[Play]) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.plays = list(plays)
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.released = threading.Event()
        self.client_left = threading.Event()
        self._lock = threading.Lock()

    def next_play(self, path: str, body: dict[str, Any]) -> Play:
        with self._lock:
            self.paths.append(path)
            self.bodies.append(body)
            return self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]


class ProviderServer:
    """`with ProviderServer(play, play) as server`: `server.url` is its address."""

    def __init__(self, *plays: Play) -> None:
        self._server = _Server(plays)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return self._server.bodies

    @property
    def paths(self) -> list[str]:
        return self._server.paths

    @property
    def client_left(self) -> threading.Event:
        return self._server.client_left

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def fault(status: int, body: object, headers: dict[str, str] | None = None) -> Play:
    """An HTTP error."""
    return lambda exchange: exchange.respond(status, body, headers)
