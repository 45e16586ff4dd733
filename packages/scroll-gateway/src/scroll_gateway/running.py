"""Gateways that run on this machine: starting one, and finding those of the same user.

Each leaves a file in the user's state folder while it runs, readable by that user alone, since it
holds the token. Whoever wants to know more asks the gateway itself.
"""

import contextlib
import gc
import json
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import uvicorn

from scroll_context.connections import listen
from scroll_context.files import NOFOLLOW, state_folder
from scroll_context.log.address import printable_place
from scroll_context.store import Store
from scroll_gateway.conversations import Conversations
from scroll_gateway.server import STATUS_PATH, Gateway, server
from scroll_gateway.sums import Sums

UPSTREAMS = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com"}
HOST = "127.0.0.1"
ANSWER_SECONDS = 2.0
COLLECT_AFTER = 50_000
"""New objects after which the garbage collector looks at them."""


class RunningGateway(msgspec.Struct, frozen=True):
    """A gateway of this process. `url` is the base URL that clients are given."""

    url: str
    conversations: Conversations
    server: uvicorn.Server
    socket: Any

    def serve(self) -> None:
        """Answer requests until a signal ends the process."""
        self.server.run(sockets=[self.socket])

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answer requests in a thread, until the block ends."""
        thread = threading.Thread(target=self.serve, name="scroll-gateway", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.server.should_exit = True
            thread.join()

    def sums(self) -> Sums:
        return self.conversations.sums()


@contextlib.contextmanager
def opened(
    place: Path | str,
    upstream: str,
    *,
    window: int,
    task_id: str,
    earlier_tasks: tuple[str, ...] = (),
    port: int = 0,
) -> Iterator[RunningGateway]:
    """A gateway that listens, and does not answer yet.

    It records in the task; recall also reads the earlier tasks of the same project.

    A port that the caller chose keeps its token, so clients find a restarted gateway again.
    """
    is_chosen = port > 0
    with Store(place, create=True) as store, listen(HOST, port) as listening:
        port = listening.getsockname()[1]
        token = _token(port) if is_chosen else secrets.token_urlsafe(24)
        facts = {
            "pid": os.getpid(),
            "port": port,
            "upstream": upstream,
            "window": window,
            "store": str(printable_place(place)),
            "task": task_id,
        }
        conversations = Conversations(
            store, window=window, task_id=task_id, earlier_tasks=earlier_tasks
        )
        gateway = Gateway(conversations, upstream, token=token, port=port, facts=facts)
        url = f"http://{HOST}:{port}{gateway.base_path}"
        with _announced(port, url):
            try:
                yield RunningGateway(url, conversations, server(gateway), listening)
            finally:
                conversations.close()


@contextlib.contextmanager
def _announced(port: int, url: str) -> Iterator[None]:
    file = _folder() / f"{os.getpid()}-{port}.json"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as stream:
        json.dump({"pid": os.getpid(), "url": url}, stream)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _token(port: int) -> str:
    """The token of a port, which its first gateway writes."""
    file = _folder() / f"{port}.token"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        token = file.read_text().strip()
        if token:
            return token
        # A gateway was killed before it had written the token.
        descriptor = os.open(file, os.O_WRONLY | NOFOLLOW)
    token = secrets.token_urlsafe(24)
    with open(descriptor, "w") as stream:
        stream.write(token)
    return token


def collect_garbage_rarely() -> None:
    """For a process that only runs a gateway, before it answers requests.

    The first request of a list of 2,000 messages makes 75,000 objects that stay. With Python's
    settings, the collector ran 120 times meanwhile and took a tenth of the time.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)


def running() -> list[dict[str, Any]]:
    """The reports of this user's running gateways, oldest first."""
    files = sorted(_folder().glob("*.json"), key=lambda file: file.stat().st_mtime)
    rows = [_status(file) for file in files]
    return [row for row in rows if row is not None]


def _status(file: Path) -> dict[str, Any] | None:
    """The report of one gateway; None if it is gone, and then its file leaves too."""
    try:
        announced = json.loads(file.read_text())
        with httpx2.Client(trust_env=False, timeout=ANSWER_SECONDS) as client:
            response = client.get(announced["url"] + STATUS_PATH)
        row: dict[str, Any] = response.json()
        return row if response.status_code == 200 else None
    except httpx2.ConnectError:
        file.unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, httpx2.HTTPError):
        pass
    return None


def _folder() -> Path:
    return Path(state_folder()) / "gateways"
