"""The MCP protocol over standard input and output: one JSON-RPC message on each line.

The SDK of the protocol takes most of a second to import, and an assistant starts this server with
each of its sessions. What a server needs over standard streams is little: a handshake, lists,
calls, their progress and their cancellation. So it is written out here. mcp_http.py uses the SDK.

Clients of the protocol without a handshake ask `server/discover` first. It is answered as unknown,
as a server of the older protocol does, and they shake hands.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from anyio import CancelScope

from scroll_assistants.recall_server import Answer, RecallServer
from scroll_assistants.tool_schemas import (
    BRIEF_PROMPT,
    INSTRUCTIONS,
    RESOURCE_TEMPLATES,
    TOOLS,
    checked,
)
from scroll_context import __version__
from scroll_context.errors import BadInput, ScrollError

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions of the protocol, the newest first."""

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, UNKNOWN_RESOURCE = -32603, -32002

_READ_BYTES = 1 << 16

Json = dict[str, Any]


class ProtocolError(Exception):
    """A request that is answered with an error of the protocol."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def serve_stdio(server: RecallServer, incoming: int = 0, outgoing: int = 1) -> None:
    """Serve one client over two streams, until it closes the first."""
    await server.serving(_Connection(server, outgoing).serve(incoming))


class _Caller(NamedTuple):
    """The client, in one of its calls."""

    kernel: str
    send: Callable[[Json], None]
    progress_token: str | int | None

    async def report_progress(self, done: float, total: float, message: str) -> None:
        if self.progress_token is None:
            return
        params = {
            "progressToken": self.progress_token,
            "progress": done,
            "total": total,
            "message": message,
        }
        self.send({"method": "notifications/progress", "params": params})


class _Connection:
    """One client: its requests run at the same time, each as a task."""

    def __init__(self, server: RecallServer, outgoing: int) -> None:
        self._server = server
        self._outgoing = outgoing
        # The running requests by their ids. Each is cancelled through its scope: a plain
        # cancellation would not wait until a session that is being opened can be closed again.
        self._scopes: dict[str | int, CancelScope] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, incoming: int) -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(line: bytes | None) -> None:
            with contextlib.suppress(RuntimeError):
                # The loop is closed if the server ends first.
                loop.call_soon_threadsafe(lines.put_nowait, line)

        # A thread that waits for the client must not keep the process alive.
        threading.Thread(target=_read_lines, args=(incoming, put), daemon=True).start()
        try:
            while (line := await lines.get()) is not None:
                if line.strip():
                    self._take(line)
        finally:
            for scope in self._scopes.values():
                scope.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def _take(self, line: bytes) -> None:
        """Take one message of the client."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._send_error(None, PARSE_ERROR, "a message is one line of JSON")
            return
        if not isinstance(message, dict):
            self._send_error(None, INVALID_REQUEST, "a message is an object")
            return
        method = message.get("method")
        if not isinstance(method, str):
            # An answer to something that this server never asked.
            return
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        identity = message.get("id")
        if identity is None:
            self._notified(method, params)
        elif isinstance(identity, str | int) and identity not in self._scopes:
            self._scopes[identity] = CancelScope()
            task = asyncio.create_task(self._answer(identity, method, params))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._send_error(None, INVALID_REQUEST, "an id is a text or number, used once")

    def _notified(self, method: str, params: Json) -> None:
        if method == "notifications/cancelled":
            identity = params.get("requestId")
            if isinstance(identity, str | int) and identity in self._scopes:
                self._scopes[identity].cancel()

    async def _answer(self, identity: str | int, method: str, params: Json) -> None:
        """Answer a request. One that the client has cancelled gets no answer."""
        try:
            with self._scopes[identity]:
                result = await self._result(method, params)
                self._send({"id": identity, "result": result})
        except ProtocolError as error:
            self._send_error(identity, error.code, str(error))
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._send_error(identity, INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        finally:
            del self._scopes[identity]

    async def _result(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                return _greeting(params)
            case "ping" | "logging/setLevel":
                return {}
            case "tools/list":
                return {"tools": [tool.listed() for tool in TOOLS.values()]}
            case "tools/call":
                return await self._called(params)
            case "resources/list":
                return {"resources": []}
            case "resources/templates/list":
                return {"resourceTemplates": list(RESOURCE_TEMPLATES)}
            case "resources/read":
                return await self._resource(params)
            case "prompts/list":
                return {"prompts": [BRIEF_PROMPT]}
            case "prompts/get":
                return await self._prompt(params)
        raise ProtocolError(UNKNOWN_METHOD, f"there is no method {method[:80]!r}")

    async def _called(self, params: Json) -> Json:
        name = str(params.get("name", ""))
        if name not in TOOLS:
            raise ProtocolError(INVALID_PARAMS, f"there is no tool {name[:40]!r}")
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        caller = _Caller(self._server.own_kernel, self._send, token)
        try:
            arguments = checked(name, params.get("arguments") or {})
            answer = await self._server.call(name, arguments, caller)
        except BadInput as error:
            answer = Answer(str(error), is_error=True)
        content = [{"type": "text", "text": answer.text}]
        return {"content": content, "isError": answer.is_error}

    async def _resource(self, params: Json) -> Json:
        uri = str(params.get("uri", ""))
        try:
            text = await self._server.read(uri)
        except ScrollError as error:
            raise ProtocolError(UNKNOWN_RESOURCE, str(error)) from error
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}

    async def _prompt(self, params: Json) -> Json:
        arguments = params.get("arguments")
        prompt = arguments.get("prompt") if isinstance(arguments, dict) else None
        if params.get("name") != BRIEF_PROMPT["name"] or not isinstance(prompt, str):
            raise ProtocolError(INVALID_PARAMS, "the one prompt is brief, with the argument prompt")
        return {"messages": await self._server.prompt_messages(prompt)}

    def _send_error(self, identity: str | int | None, code: int, message: str) -> None:
        self._send({"id": identity, "error": {"code": code, "message": message}})

    def _send(self, message: Json) -> None:
        """Write one message. All of them are written by the thread of the loop, one after another.

        A client that is gone is noticed by the end of its own stream.
        """
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._outgoing, data) :]


def _read_lines(incoming: int, put: Callable[[bytes | None], None]) -> None:
    """Pass on each line of a stream, and then None."""
    rest = b""
    try:
        while chunk := os.read(incoming, _READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                put(line)
    except OSError:
        pass
    put(None)


def _greeting(params: Json) -> Json:
    """The answer to the handshake, with the version of the protocol that both know."""
    wanted = params.get("protocolVersion")
    return {
        "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "scroll", "version": __version__},
        "instructions": INSTRUCTIONS,
    }
