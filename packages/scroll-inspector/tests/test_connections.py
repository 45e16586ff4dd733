"""Connections to the inspector and to the MCP server that send or read nothing are ended."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scroll_context import connections
from scroll_context.events import Draft
from scroll_context.store import Store
from served import Serve, Site


@pytest.fixture
def site(folder: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "STALL_SECONDS"):
        monkeypatch.setattr(connections, name, 0.5)
    with Store(folder, create=True) as store:
        store.append(Draft(session_id="s", role="user", content="x" * (40 << 20)))
    with serve(folder) as site:
        yield site


@contextmanager
def connected(site: Site) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", site.port)) as connection:
        connection.settimeout(20)
        yield connection


def ends(connection: socket.socket) -> bool:
    """Whether the server ends a connection that we leave alone."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: ",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHos",
    ],
    ids=["nothing", "half a line", "half a head", "half a body", "half of the second request"],
)
def test_a_request_that_stops_half_way_is_ended(site: Site, sent: bytes) -> None:
    with connected(site) as connection:
        connection.sendall(sent)
        assert ends(connection)


def test_a_head_that_trickles_in_is_ended(site: Site) -> None:
    with connected(site) as connection:
        until = time.monotonic() + 20
        with pytest.raises(ConnectionError):
            while time.monotonic() < until:
                connection.sendall(b"G")
                time.sleep(0.05)


def test_a_reader_that_takes_nothing_of_its_answer_is_ended(site: Site) -> None:
    with connected(site) as connection:
        cookie = f"{site.cookie}={site.cookie_value}"
        head = f"GET /event/1/download HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nCookie: {cookie}\r\n\r\n"
        connection.sendall(head.encode())
        time.sleep(3)
        received = 0
        try:
            while piece := connection.recv(1 << 20):
                received += len(piece)
        except ConnectionError:
            pass
        assert received < 40 << 20


def test_a_whole_request_is_answered_and_the_connection_is_used_again(site: Site) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    for _ in range(3):
        connection.request("GET", "/", headers={"Cookie": f"{site.cookie}={site.cookie_value}"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        time.sleep(0.7)
    connection.close()


def test_silent_connections_keep_nobody_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import http.client

    monkeypatch.setattr(connections, "HEADER_SECONDS", 60)
    strangers = [
        socket.create_connection(("127.0.0.1", site.port))
        for _ in range(connections.MOST_CONNECTIONS + 20)
    ]
    try:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
        connection.request("GET", "/", headers={"Cookie": f"{site.cookie}={site.cookie_value}"})
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_connection_finds_out_that_its_peer_is_gone() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
    ):
        connections._set_options(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
