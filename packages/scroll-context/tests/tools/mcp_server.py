"""A small real MCP server for the tests: `mcp_server.py stdio`, or `mcp_server.py http`, which
prints its port.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.types import Image
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel, Field, WithJsonSchema

READ_ONLY = ToolAnnotations(read_only_hint=True)

server = MCPServer("Weather & more", log_level="CRITICAL")
gathered: list[anyio.Event] = []
hanging: list[bool] = []


class Page(BaseModel):
    content: str


class Forecast(BaseModel):
    city: str
    days: list[float]


@server.tool(annotations=READ_ONLY)
def forecast(
    city: Annotated[str, Field(description="name of a city")],
    days: Annotated[int, Field(description="how many days", ge=1)] = 3,
    unit: Literal["C", "F"] = "C",
) -> Forecast:
    """Temperatures of the next days."""
    return Forecast(city=f"{city} in {unit}", days=[20.5] * days)


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="say-text", annotations=READ_ONLY, structured_output=False)
def say_text(text: str) -> str:
    return text


@server.tool(name="say_text", annotations=ToolAnnotations(destructive_hint=False))
def say_text_too(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text), TextContent(text="and again")])


@server.tool(annotations=READ_ONLY)
def spelling(number: Annotated[Any, WithJsonSchema({"type": "number"})]) -> str:
    """How a number arrived."""
    return repr(number)


@server.tool(annotations=READ_ONLY)
def page() -> Page:
    return Page(content="[1, 2]")


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def set_once(marker: str) -> str:
    """Die at the first call, without having done anything; the \u202eserver\x1b[31m says that
    repeating is harmless.
    """
    return die_once(marker)


@server.tool(annotations=READ_ONLY, structured_output=False)
def picture(size: int) -> Image:
    return Image(data=b"\x89PNG\r\n\x1a\n" + bytes(size), format="png")


@server.tool(annotations=READ_ONLY)
def blocks() -> CallToolResult:
    return CallToolResult(
        content=[
            TextContent(text="see"),
            Image(data=b"GIF8" + bytes(2_000), format="gif").to_image_content(),
            EmbeddedResource(resource=TextResourceContents(uri="memo://1", text="a memo")),
            EmbeddedResource(
                resource=BlobResourceContents(
                    uri="memo://2", blob="JVBERi0=", mime_type="application/pdf"
                )
            ),
            ResourceLink(uri="memo://3", name="third"),
        ]
    )


@server.tool(annotations=READ_ONLY, structured_output=False)
def long_text(kilobytes: int) -> str:
    return "k" * 1024 * kilobytes


@server.tool(annotations=READ_ONLY)
def fail(reason: str) -> str:
    raise ToolError(reason)


@server.tool()
async def hang() -> str:
    hanging.append(True)
    await anyio.Event().wait()
    return "never"


@server.tool(annotations=READ_ONLY)
def hanging_calls() -> int:
    return len(hanging)


@server.tool(annotations=READ_ONLY)
async def gather(count: int) -> int:
    """Return when `count` calls are waiting here at the same time."""
    mine = anyio.Event()
    gathered.append(mine)
    if len(gathered) == count:
        for other in gathered:
            other.set()
        gathered.clear()
    await mine.wait()
    return count


@server.tool()
def die() -> str:
    print("the disk is on fire", file=sys.stderr, flush=True)
    os._exit(7)


@server.tool(annotations=READ_ONLY)
def die_once(marker: str) -> str:
    """Die at the first call; `marker` is a file that tells the next process."""
    if Path(marker).exists():
        return "alive"
    Path(marker).touch()
    os._exit(7)


@server.tool(annotations=READ_ONLY)
def process_id() -> int:
    return os.getpid()


@server.tool(annotations=READ_ONLY)
def variable(name: str) -> str:
    return os.environ.get(name, "unset")


@server.tool(annotations=READ_ONLY)
def header(ctx: Context, name: str) -> str:
    headers = ctx.headers or {}
    return headers.get(name, "unset")


async def serve_http() -> None:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(
        server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1
    )
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1] == "http":
        anyio.run(serve_http)
    else:
        server.run("stdio")
