"""What a web page, another local user or a hostile upstream may try on a gateway."""

import json
import socket
import stat
from pathlib import Path

import httpx2
import pytest

from gateways import gateway
from provider_server import Exchange, ProviderServer
from scripted_upstream import ScriptedUpstream, reading
from scroll_gateway.running import RunningGateway, opened

SECRET = "sk-secret-9f8e7d"
BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
BODY["tools"] = [{"name": "read", "input_schema": {"type": "object"}}]


def port_of(running: RunningGateway) -> int:
    return int(running.socket.getsockname()[1])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "attacker.example"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"origin": "https://attacker.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_web_pages_are_refused(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        response = httpx2.post(f"{running.url}/v1/messages", json=BODY, headers=headers)
        preflight = httpx2.options(f"{running.url}/v1/messages", headers=headers)
    assert response.status_code == preflight.status_code == status
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    assert upstream.requests == []


@pytest.mark.parametrize(
    "path",
    ["/v1/messages", "/k/wrong/v1/messages", "/k//v1/messages", "/.scroll/status"],
)
def test_a_path_without_the_token_is_not_found(path: str, tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        response = httpx2.post(f"http://127.0.0.1:{port_of(running)}{path}", json=BODY)
    assert response.status_code == 404
    assert upstream.requests == []


def test_a_path_cannot_choose_another_upstream(tmp_path: Path) -> None:
    """Behind the upstream's address, "@host" would make it a user name."""
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        path = running.url.partition(f":{port_of(running)}")[2]
        for rest in ("@attacker.example/v1/messages", ":80@attacker.example/", ".attacker.example"):
            with socket.create_connection(("127.0.0.1", port_of(running))) as connection:
                head = f"GET {path}{rest} HTTP/1.1\r\nhost: 127.0.0.1:{port_of(running)}\r\n\r\n"
                connection.sendall(head.encode())
                assert connection.recv(1000).startswith(b"HTTP/1.1 404")


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        assert running.socket.getsockname()[0] == "127.0.0.1"


def test_websockets_are_refused(tmp_path: Path) -> None:
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "a"}
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        response = httpx2.get(f"{running.url}/v1/responses", headers=upgrade)
    assert response.status_code == 426


def test_keys_are_forwarded_and_nowhere_stored(
    tmp_path: Path, state_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    headers = {"x-api-key": SECRET, "authorization": f"Bearer {SECRET}"}
    with ScriptedUpstream(reading(1)) as upstream, gateway(folder, upstream) as running:
        httpx2.post(f"{running.url}/v1/messages", json=BODY, headers=headers).raise_for_status()
        assert upstream.requests[0].headers["x-api-key"] == SECRET
        assert upstream.requests[0].headers["authorization"] == f"Bearer {SECRET}"
        files = [file for place in (folder, state_folder) for file in place.rglob("*")]
        contents = [file.read_bytes() for file in files if file.is_file()]
    assert contents
    assert not [content for content in contents if SECRET.encode() in content]
    assert SECRET not in caplog.text


def test_the_token_is_for_its_user_alone(tmp_path: Path, state_folder: Path) -> None:
    with ScriptedUpstream(reading(1)) as upstream, gateway(tmp_path / "store", upstream) as running:
        (file,) = state_folder.rglob("*.json")
        assert json.loads(file.read_text())["url"] == running.url
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not list(state_folder.rglob("*.json"))


def test_headers_of_a_hostile_upstream_do_not_open_the_gateway(tmp_path: Path) -> None:
    def play(exchange: Exchange) -> None:
        headers = {
            "access-control-allow-origin": "*",
            "set-cookie": "a=b",
            "alt-svc": 'h3=":443"',
            "upgrade": "h2c",
            "request-id": "r1",
        }
        exchange.respond(200, {"content": "not a reply"}, headers)

    with (
        ProviderServer(play) as upstream,
        opened(tmp_path / "store", upstream.url, window=30_000, task_id="t") as running,
        running.serving(),
    ):
        response = httpx2.post(f"{running.url}/v1/messages", json=BODY)
    assert response.json() == {"content": "not a reply"}
    assert response.headers["request-id"] == "r1"
    hostile = {"access-control-allow-origin", "set-cookie", "alt-svc", "upgrade"}
    assert not hostile & set(response.headers)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    def play(exchange: Exchange) -> None:
        exchange.respond(307, {}, {"location": "http://127.0.0.1:1/elsewhere"})

    with (
        ProviderServer(play) as upstream,
        opened(tmp_path / "store", upstream.url, window=30_000, task_id="t") as running,
        running.serving(),
    ):
        response = httpx2.post(f"{running.url}/v1/messages", json=BODY)
        assert len(upstream.bodies) == 1
    assert response.status_code == 307
