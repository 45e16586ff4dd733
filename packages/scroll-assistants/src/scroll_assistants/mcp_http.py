"""The MCP protocol over streamable HTTP, by the SDK of the protocol.

This module needs the `mcp` extra. The server requires a token and an expected host name.
"""

import hmac
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextContent,
)

from scroll_assistants.mcp_stdio import INVALID_PARAMS, UNKNOWN_RESOURCE
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

# Protocol versions are dates. This one and later ones have no sessions.
SESSIONLESS_PROTOCOL = "2026-07-28"

Request = ServerRequestContext[Any, Any]


class _Caller(NamedTuple):
    """The client, in one of its calls."""

    kernel: str
    request: Request

    async def report_progress(self, done: float, total: float, message: str) -> None:
        await self.request.session.report_progress(done, total, message)


def sdk_server(server: RecallServer) -> Server[Any]:
    """The tools, resources and prompt of a server, for the transports of the SDK."""

    async def list_tools(*_: Any) -> ListToolsResult:
        tools = [tool.listed() for tool in TOOLS.values()]
        return ListToolsResult.model_validate({"tools": tools})

    async def call_tool(request: Request, params: CallToolRequestParams) -> CallToolResult:
        caller = _Caller(_kernel_of(request, server.own_kernel), request)
        try:
            arguments = checked(params.name, params.arguments or {})
            answer = await server.call(params.name, arguments, caller)
        except BadInput as error:
            answer = Answer(str(error), is_error=True)
        text = TextContent(type="text", text=answer.text)
        return CallToolResult(content=[text], is_error=answer.is_error)

    async def list_resources(*_: Any) -> ListResourcesResult:
        return ListResourcesResult(resources=[])

    async def list_templates(*_: Any) -> ListResourceTemplatesResult:
        templates = list(RESOURCE_TEMPLATES)
        return ListResourceTemplatesResult.model_validate({"resourceTemplates": templates})

    async def read_resource(_: Request, params: ReadResourceRequestParams) -> ReadResourceResult:
        uri = str(params.uri)
        try:
            text = await server.read(uri)
        except ScrollError as error:
            raise MCPError(UNKNOWN_RESOURCE, str(error)) from error
        contents = [{"uri": uri, "mimeType": "text/plain", "text": text}]
        return ReadResourceResult.model_validate({"contents": contents})

    async def list_prompts(*_: Any) -> ListPromptsResult:
        return ListPromptsResult.model_validate({"prompts": [BRIEF_PROMPT]})

    async def get_prompt(_: Request, params: GetPromptRequestParams) -> GetPromptResult:
        prompt = (params.arguments or {}).get("prompt")
        if params.name != BRIEF_PROMPT["name"] or not isinstance(prompt, str):
            raise MCPError(INVALID_PARAMS, "the one prompt is brief, with the argument prompt")
        return GetPromptResult.model_validate({"messages": await server.prompt_messages(prompt)})

    return Server(
        "scroll",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _kernel_of(request: Request, own: str) -> str:
    """The kernel of the client that sent a request; "" if the protocol cannot identify clients."""
    headers = getattr(request.request, "headers", None)
    if headers is None:
        # The client is in this process.
        return own
    if request.protocol_version >= SESSIONLESS_PROTOCOL:
        # The server issues no session ids there, so a client would have invented this one.
        return ""
    session = headers.get("mcp-session-id", "")
    return f"h-{session}" if session else ""


async def serve_http(
    server: RecallServer, listening: socket.socket, token: str, hosts: Iterable[str] = ()
) -> None:
    """Serve clients that hold the token over streamable HTTP, at /mcp.

    `hosts` are host names that are accepted besides those of loopback.
    """
    import uvicorn

    from scroll_context.connections import configuration

    port = listening.getsockname()[1]
    names = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", *hosts)]
    security = TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )
    app = sdk_server(server).streamable_http_app(transport_security=security)
    config = configuration(_TokenRequired(app, token), timeout_graceful_shutdown=2)
    await server.serving(uvicorn.Server(config).serve(sockets=[listening]))


class _TokenRequired:
    """Answers 401 to a request without the token, before anything else reads the request."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            values = (value for name, value in scope["headers"] if name == b"authorization")
            authorization = next(values, b"")
            if not hmac.compare_digest(authorization, self._expected):
                headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                body = b"this server needs its token: send the header 'Authorization: Bearer TOKEN'"
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)
