"""MCP servers as namespaces of tools: `weather.forecast(city="Graz")` in a cell calls a tool of a
server.

A mount owns one connection, over standard streams to a process that it starts or over HTTP, on an
event loop in another thread; its tools are used like any others. When the server dies, the running
calls fail with the server's last error output, and the next call connects again, once. A call is
sent a second time only when the server marked its tool as read-only or idempotent: any other may
have taken effect already. The list of tools is read when the server is mounted and does not change
after that.

How its schemas and results become Python signatures and values: mcp_values.py.

The `mcp` package is an extra and is imported when a server is mounted. A server's claim that a tool
is read-only is believed; pass `effects=True` for a server that you do not trust.
"""

import asyncio
import contextlib
import inspect
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from scroll_context.background import in_loop
from scroll_context.errors import BadInput, ToolFailed
from scroll_context.plugins import how_to_install
from scroll_context.text.printable import printable
from scroll_context.tools.mcp_values import (
    SPELT_CHARS,
    doc_of,
    identifier,
    namespace_name,
    signature_of,
    text_of,
    value_of,
)
from scroll_context.tools.plain import Plain, plain
from scroll_context.tools.recorder import MAX_RESULT
from scroll_context.tools.tools import AnyTool, Tool, ToolLimits

if TYPE_CHECKING:
    import mcp

    Connect = Callable[[], contextlib.AbstractAsyncContextManager[mcp.Client]]

CONNECT_SECONDS = 30.0
# The SDK ends a process that does not end by itself in about six seconds.
CLOSE_SECONDS = 10.0
# For calls that do not go through a toolbox.
DIRECT_SECONDS = 60.0
MAX_TOOLS = 1_000
# Calls at the same time.
UNLIMITED = 10_000
STDERR_BYTES = 600


class McpMount:
    """One mounted server. Its `tools` go into a toolbox. Close it at the end.

    `where` is how errors name the server until it has a name, `connect` opens a new connection,
    `stderr` is the file that the server's error stream goes to.
    """

    def __init__(
        self,
        where: str,
        connect: "Connect",
        *,
        name: str,
        effects: bool | None,
        max_concurrent: int | None,
        connect_timeout: float,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self._where = where
        self._connect = connect
        self._connect_timeout = connect_timeout
        self._stderr = stderr
        self._link: _Link | None = None
        self._linking = asyncio.Lock()
        # For the calls of all tools together.
        self._places = asyncio.Semaphore(max_concurrent or UNLIMITED)
        self._dropped: set[asyncio.Task[None]] = set()
        self._closed = False
        try:
            title, listed = in_loop(self._list(), "libraries").result()
            self.name = namespace_name(name or title)
            self._where = f"the MCP server {self.name!r}"
            self.tools = self._make_tools(
                listed, effects, ToolLimits(max_concurrent=max_concurrent)
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "McpMount":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and the process when there is one."""
        if not self._closed:
            self._closed = True
            closing = in_loop(self._unlink(), "libraries")
            try:
                closing.result(CLOSE_SECONDS)
            except TimeoutError:
                # This cancels the tasks that hold the connection as well.
                closing.cancel()
            if self._stderr is not None:
                self._stderr.close()

    # making tools ---------------------------------------------------------------------------------

    async def _list(self) -> "tuple[str, list[mcp.Tool]]":
        link = await self._linked()
        listed: list[mcp.Tool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._connect_timeout):
                while True:
                    page = await link.client.list_tools(cursor=cursor)
                    listed += page.tools
                    cursor = page.next_cursor
                    if cursor is None or len(listed) >= MAX_TOOLS:
                        break
        except Exception as error:
            # A foreign server can make the SDK raise anything.
            raise ToolFailed(
                f"{self._where} does not list its tools: {_reason(error)}{self._last_words()}"
            ) from error
        info = link.client.server_info
        return (info.name if info else "server"), listed[:MAX_TOOLS]

    def _make_tools(
        self, listed: "list[mcp.Tool]", effects: bool | None, limits: ToolLimits
    ) -> tuple[AnyTool, ...]:
        tools: dict[str, AnyTool] = {}
        for listing in sorted(listed, key=lambda listing: listing.name):
            spelt = identifier(listing.name, taken=tools, limit=SPELT_CHARS - len(self.name))
            tools[spelt] = self._make_tool(f"{self.name}.{spelt}", listing, effects, limits)
        return tuple(tools.values())

    def _make_tool(
        self, name: str, listing: "mcp.Tool", effects: bool | None, limits: ToolLimits
    ) -> AnyTool:
        hints = listing.annotations
        idempotent = hints is not None and hints.idempotent_hint is True
        effects_declared = effects is not None or _declares_effects(hints)
        if effects is None:
            effects = hints is None or hints.read_only_hint is not True
        signature, aliases = signature_of(listing.input_schema, listing.output_schema)
        originals = {spelt: original for original, spelt in aliases.items()}

        def launch(arguments: inspect.BoundArguments) -> Future[Plain]:
            if self._closed:
                raise self._was_closed()
            by_original_name = {
                originals.get(spelt, spelt): value
                for spelt, value in arguments.arguments.items()
                if value is not ...
            }
            sent = msgspec.to_builtins(by_original_name)
            is_repeatable = not tool.effects or tool.idempotent
            return in_loop(self._call(name, listing, sent, is_repeatable), "libraries")

        def direct(*args: Any, **kwargs: Any) -> Any:
            future = tool.start(tool.convert(tool.names(args, kwargs)))
            try:
                return future.result(DIRECT_SECONDS).value
            except TimeoutError:
                future.cancel()
                raise ToolFailed(
                    f"{name} gave no answer in {DIRECT_SECONDS:g} s", kind="TimeoutError"
                ) from None

        tool = Tool(
            direct,
            launch,
            name=name,
            doc=doc_of(listing.description, listing.input_schema),
            signature=signature,
            schema=listing.input_schema,
            aliases=aliases,
            effects=effects,
            effects_declared=effects_declared,
            idempotent=idempotent,
            limits=limits,
        )
        return tool

    # calling --------------------------------------------------------------------------------------

    async def _call(
        self, name: str, listing: "mcp.Tool", arguments: dict[str, Any], is_repeatable: bool
    ) -> Plain:
        link = await self._linked()
        try:
            async with self._places:
                result = await link.client.call_tool(listing.name, arguments)
        except Exception as error:
            # A foreign server can make the SDK raise anything.
            if not _is_lost(error):
                raise ToolFailed(f"{self._where} did not run {name}: {_reason(error)}") from error
            self._drop(link)
            if is_repeatable:
                return await self._call(name, listing, arguments, is_repeatable=False)
            raise ToolFailed(
                f"{self._where} was lost while {name} ran ({_reason(error)}): whether it took "
                "effect is not known, and it was not called again. The next call connects again."
                f"{self._last_words()}",
                kind="ConnectionError",
            ) from error
        if result.is_error:
            raise ToolFailed(text_of(result))
        return plain(value_of(result, listing.output_schema))

    # the connection, all of it on the loop --------------------------------------------------------

    async def _linked(self) -> "_Link":
        """The connection; a new one when there is none."""
        async with self._linking:
            if self._closed:
                raise self._was_closed()
            if self._link is not None and self._link.is_over:
                self._link = None
            if self._link is None:
                link = _Link(self._connect)
                try:
                    async with asyncio.timeout(self._connect_timeout):
                        await asyncio.shield(link.opened)
                except BaseException as error:
                    await link.close()
                    if not isinstance(error, Exception):
                        raise
                    raise ToolFailed(
                        f"{self._where} cannot be reached: {_reason(error)}{self._last_words()}",
                        kind="ConnectionError",
                    ) from error
                self._link = link
            return self._link

    def _was_closed(self) -> ToolFailed:
        return ToolFailed(
            f"{self._where} was closed; mount it again to call its tools", kind="ConnectionError"
        )

    def _drop(self, link: "_Link") -> None:
        """Close a lost connection without making a caller wait for it."""
        if self._link is link:
            self._link = None
        task = asyncio.create_task(link.close())
        self._dropped.add(task)
        task.add_done_callback(self._dropped.discard)

    def _last_words(self) -> str:
        """The end of what the server wrote to its error stream.

        The file's position is shared with the server.
        """
        if self._stderr is None:
            return ""
        size = os.fstat(self._stderr.fileno()).st_size
        end = os.pread(self._stderr.fileno(), STDERR_BYTES, max(0, size - STDERR_BYTES))
        text = printable(end.decode(errors="replace")).strip()
        return f" It last wrote: {text}" if text else ""

    async def _unlink(self) -> None:
        if self._link is not None:
            self._drop(self._link)
        await asyncio.gather(*self._dropped)


class _Link:
    """One connection, held by a task of its own, because the SDK wants to leave it in the task that
    entered it.
    """

    client: "mcp.Client"

    def __init__(self, connect: "Connect") -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._hold(connect))

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def _hold(self, connect: "Connect") -> None:
        try:
            async with connect() as self.client:
                self.opened.set_result(None)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - the SDK raises it in the calls that wait
            if not self.opened.done():
                self.opened.set_exception(error)

    async def close(self) -> None:
        self._closing.set()
        if not self.opened.done():
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


def mount_stdio(
    command: str,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    name: str = "",
    cwd: str | Path | None = None,
    effects: bool | None = None,
    max_concurrent: int | None = None,
    connect_timeout: float = CONNECT_SECONDS,
) -> McpMount:
    """Start a server as a process and mount its tools.

    The process gets `env` and a few variables (PATH, HOME and similar ones), not the complete
    environment.
    `name` is the name of the namespace, by default the server's own. `effects` overrules the
    server's claims about its tools. `max_concurrent` limits the calls that run at the same time.
    """
    sdk = _sdk()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the mount closes it
    parameters = sdk.StdioServerParameters(
        command=command, args=list(args), env=dict(env or {}), cwd=cwd
    )

    def connect() -> "contextlib.AbstractAsyncContextManager[mcp.Client]":
        client: mcp.Client = sdk.Client(sdk.stdio_client(parameters, errlog=stderr), cache=None)
        return client

    where = f"the MCP server {command!r}"
    return McpMount(
        where,
        connect,
        name=name,
        effects=effects,
        max_concurrent=max_concurrent,
        connect_timeout=connect_timeout,
        stderr=stderr,
    )


def mount_http(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    name: str = "",
    effects: bool | None = None,
    max_concurrent: int | None = None,
    connect_timeout: float = CONNECT_SECONDS,
) -> McpMount:
    """Mount the tools of a server that speaks streamable HTTP.

    The other arguments are as for mount_stdio().
    """
    sdk = _sdk()
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    @contextlib.asynccontextmanager
    async def connect() -> "AsyncIterator[mcp.Client]":
        # The toolbox decides how long an answer may take.
        waits = httpx2.Timeout(connect_timeout, read=None)
        async with httpx2.AsyncClient(headers=dict(headers or {}), timeout=waits) as http:
            transport = streamable_http_client(
                url, http_client=http, max_sse_event_size=2 * MAX_RESULT
            )
            async with sdk.Client(transport, cache=None) as client:
                yield client

    # An error shows the address without its secrets.
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    where = f"the MCP server at {parts._replace(netloc=host, query='', fragment='').geturl()}"
    return McpMount(
        where,
        connect,
        name=name,
        effects=effects,
        max_concurrent=max_concurrent,
        connect_timeout=connect_timeout,
    )


def _declares_effects(hints: "mcp.types.ToolAnnotations | None") -> bool:
    """Whether a server says that a tool has effects, rather than being silent about it."""
    if hints is None:
        return False
    is_writing = hints.read_only_hint is False
    return is_writing or hints.destructive_hint is True or hints.idempotent_hint is True


def _sdk() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise BadInput(
            f"MCP servers need the mcp extra, which is not installed ({error}). "
            f"{how_to_install('scroll-context[mcp]')}"
        ) from error
    return mcp


def _is_lost(error: BaseException) -> bool:
    """Whether an error says that the connection is lost, rather than that the server answered."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

    if isinstance(error, MCPError):
        return error.code == CONNECTION_CLOSED or (
            error.code == INVALID_REQUEST and "terminated" in error.message
        )
    return isinstance(error, OSError)


def _reason(error: BaseException) -> str:
    """The first cause in what may be groups of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return printable(str(error)) or type(error).__name__
