"""The kernels of the clients of `scroll mcp`: each client has its own, in a session of its own.

A kernel is opened with the first cell of its client. There is a bounded number of places; an idle
kernel is closed when another client needs its place or when it was idle for long, and its variables
come back with the next cell. The name of a kernel is a secret of its client: the log has a hash of
it.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

from anyio import CancelScope, to_thread

from scroll_context.errors import KernelError
from scroll_context.events import Scope, id_of
from scroll_context.log.redact import Redactor
from scroll_context.store import Store

if TYPE_CHECKING:
    from scroll_context.session.session import Session

Reach = Literal["task", "all"]

# When all kernels are open, the least recently used idle one is closed. If every kernel runs a
# cell, another cell waits up to PLACE_SECONDS.
MAX_KERNELS = 16
IDLE_SECONDS = 900.0
PLACE_SECONDS = 120.0
LEASE_SECONDS = 10.0
# The most characters of a cell's output.
PRINTED_CHARS = 16_000

AGENT = "mcp"
_ISSUED = re.compile(r"scroll_kernel_[0-9a-f]{32}")


class _Client:
    """One client's kernel, and whether it is in use."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.running = asyncio.Lock()
        # The number of cells that run or wait.
        self.users = 0
        self.used = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self.session is not None and not self.users


class Kernels:
    """The sessions of clients, opened at their first cell, and closed when they are idle or others
    need room.

    A place is taken before a kernel is opened and given back after it was closed. So there are
    never more kernels than places, however many clients come at once.
    """

    def __init__(self, store: Store, scope: Scope, reach: Reach, most: int) -> None:
        self._store = store
        self._scope = scope
        self._reach = reach
        self._free_places = most
        self._most = most
        # Clients by the name of their kernel, least recently used first.
        self._clients: dict[str, _Client] = {}
        # Set when a kernel becomes idle or a place becomes free.
        self._changed = asyncio.Event()

    @property
    def open(self) -> int:
        return sum(client.session is not None for client in self._clients.values())

    def knows(self, name: str) -> bool:
        """Whether a server of this task has given this name to a client."""
        if not _ISSUED.fullmatch(name):
            return False
        if name in self._clients:
            return True
        return bool(self._store.log.tail(1, session_id=self._session_id(name)))

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator["Session"]:
        """The session behind the name of a kernel, for one cell at a time."""
        client = self._clients.pop(name, None) or _Client()
        self._clients[name] = client
        client.users += 1
        try:
            async with client.running:
                if client.session is None:
                    await self._take_place()
                    try:
                        client.session = await to_thread.run_sync(self._open, name)
                    except BaseException:
                        self._give_back_place()
                        raise
                yield client.session
        finally:
            client.users -= 1
            client.used = time.monotonic()
            if client.session is None and not client.users and self._clients.get(name) is client:
                del self._clients[name]
            self._changed.set()

    async def _take_place(self) -> None:
        """Take a place. If all are taken, close the least recently used idle kernel."""
        deadline = asyncio.get_running_loop().time() + PLACE_SECONDS
        while not self._free_places:
            idle = next((client for client in self._clients.values() if client.is_idle), None)
            if idle is not None:
                await self._close(idle)
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                raise KernelError(
                    f"all {self._most} kernels of this server are running cells. "
                    "Nothing was run; try again later."
                ) from None
        self._free_places -= 1

    def _give_back_place(self) -> None:
        self._free_places += 1
        self._changed.set()

    async def _close(self, client: _Client) -> None:
        """Close a kernel. A cell that its client sends meanwhile waits, and then opens it again."""
        async with client.running:
            session, client.session = client.session, None
            if session is None:
                return
            try:
                with CancelScope(shield=True):
                    await to_thread.run_sync(session.close)
            finally:
                self._give_back_place()
                self._forget_closed()

    def _forget_closed(self) -> None:
        closed = [
            name
            for name, client in self._clients.items()
            if client.session is None and not client.users
        ]
        for name in closed:
            del self._clients[name]

    async def close_idle_for_ever(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SECONDS / 10)
            long_ago = time.monotonic() - IDLE_SECONDS
            for client in list(self._clients.values()):
                if client.is_idle and client.used < long_ago:
                    await self._close(client)

    def _session_id(self, name: str) -> str:
        """The session of a kernel. A reader of the log cannot derive the kernel's name from it.

        The task is part of it, so that a name is of no use in another project.
        """
        return f"{AGENT}-{id_of(self._scope.task_id, name)}"

    def _open(self, name: str) -> "Session":
        from scroll_context.kernel.kernel import KernelOptions
        from scroll_context.session.options import SessionOptions
        from scroll_context.session.session import Session

        options = SessionOptions(
            reach=self._reach, kernel=KernelOptions(output_chars=PRINTED_CHARS)
        )
        session = Session.open_or_resume(
            self._store,
            self._session_id(name),
            agent_id=AGENT,
            task_id=self._scope.task_id,
            earlier_tasks=self._scope.earlier_tasks,
            options=options,
            wait=LEASE_SECONDS,
        )
        # A cell may print the name of its kernel, which nobody else may learn from the log.
        session.journal.redact = _KernelNames()
        return session

    async def close(self) -> None:
        """Close every kernel, and interrupt running cells."""
        for client in list(self._clients.values()):
            session, client.session = client.session, None
            if session is not None:
                await to_thread.run_sync(session.close)
                self._give_back_place()
        self._clients.clear()


class _KernelNames(Redactor):
    """Replaces kernel names and nothing else, since cells are the client's own."""

    def text(self, text: str) -> str:
        return _ISSUED.sub(lambda name: self.marker("kernel name", name[0]), text)


def new_name() -> str:
    """A kernel name that nobody can guess.

    Redaction recognises its shape, so that no transcript reveals it.
    """
    return f"scroll_kernel_{secrets.token_hex(16)}"
