"""An inspector served on a port of this machine, and a reader of its pages without a browser."""

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import NamedTuple

import pytest

from scroll_context.events import Grant
from scroll_context.store import Store

pytest.importorskip("uvicorn", reason="the web extra is not installed")
pytest.importorskip("starlette", reason="the web extra is not installed")

from scroll_inspector.inspector import Inspector
from scroll_inspector.server import hosts_of, server

TOKEN = "correct-horse"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Site:
    """An inspector that listens on a port of this machine, in a thread of this process."""

    def __init__(self, store: Store, grant: Grant) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.inspector = Inspector(store, grant)
        self._server = server(self.inspector, TOKEN, hosts_of("127.0.0.1", self.port), self.port)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self.listening]}
        )
        self._thread.start()

    @property
    def cookie(self) -> str:
        return f"scroll-{self.port}"

    @cached_property
    def cookie_value(self) -> str:
        """The value that a browser gets for the token."""
        answer = self.get(f"/?token={TOKEN}", cookie="")
        return answer.headers["set-cookie"].split(";")[0].partition("=")[2]

    def get(
        self, path: str, *, cookie: str | None = None, host: str = "", method: str = "GET"
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        cookie = f"{self.cookie}={self.cookie_value}" if cookie is None else cookie
        headers = {"Host": host or f"127.0.0.1:{self.port}"} | (
            {"Cookie": cookie} if cookie else {}
        )
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        response = Answer(
            answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        )
        connection.close()
        return response

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self.listening.close()


Serve = Callable[..., AbstractContextManager[Site]]
