"""The command that serves a store to coding assistants over MCP."""

import contextlib
import datetime as dt
import os
import secrets
import socket
from pathlib import Path
from typing import Literal

import click

from scroll_context.cli.options import FILE, Place, open_store, parse_age, store_option
from scroll_context.cli.output import Command, note
from scroll_context.errors import BadInput

CLIENT_SESSION = "CLAUDE_CODE_SESSION_ID"
"""The variable in which Claude Code says which session starts the server."""

TOKEN = "SCROLL_MCP_TOKEN"
"""The variable with the token that HTTP clients must send."""


@click.command(cls=Command)
@store_option
@click.option(
    "--project", envvar="CLAUDE_PROJECT_DIR", type=FILE, metavar="DIR", default=Path(),
    help="The project whose past is reached.",
)  # fmt: skip
@click.option("--task", metavar="ID", help="The task that is reached, instead of that of a project.")
@click.option(
    "--reach", type=click.Choice(["task", "all"]), default="task", show_default=True,
    help="Reach this project only, or the whole store.",
)  # fmt: skip
@click.option(
    "--retention", metavar="AGE", callback=parse_age,
    help="Once a day, erase what was recorded longer ago: 90d, 12h or 4w.",
)  # fmt: skip
@click.option("--http", is_flag=True, help="Serve over HTTP instead of standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on, with --http.")
@click.option("--port", type=click.IntRange(0, 65535), default=8377, show_default=True, help="The port, with --http.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="A further name that HTTP clients may use.")
def mcp(
    store: Place, project: Path, task: str | None, reach: Literal["task", "all"],
    retention: dt.timedelta | None, http: bool, host: str, port: int, names: tuple[str, ...],
) -> None:  # fmt: skip
    """Serve the store to a coding assistant over MCP.

    Its tools are search, expand, exec and note. Over HTTP a client must send the token of SCROLL_MCP_TOKEN as
    `Authorization: Bearer TOKEN`; without that variable one is made up for this run and printed.

    \b
    Example:
      scroll mcp --store ~/.scroll
      scroll mcp --http --port 8377
    """
    try:
        import anyio

        from scroll_context.doors.mcp_server import RecallServer, serve_http, serve_stdio
    except ImportError as error:
        raise BadInput(
            f"scroll mcp needs the mcp extra, which is not installed ({error}). "
            "Install it with: pip install 'scroll-context[mcp]'"
        ) from error
    from scroll_context.project import project_task
    from scroll_context.store.erase import Retention

    with open_store(store) as opened, Retention(opened, retention) if retention else contextlib.nullcontext():
        client = "" if http else os.environ.get(CLIENT_SESSION, "")
        server = RecallServer(opened, task=task or project_task(project), reach=reach, client_session=client)
        if not http:
            anyio.run(serve_stdio, server)
            return
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
            token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
            shown = "the one of SCROLL_MCP_TOKEN" if os.environ.get(TOKEN) else token
            where = f"[{host}]" if ":" in host else host
            note(f"serving http://{where}:{listening.getsockname()[1]}/mcp for task {server.task}, token: {shown}")
            anyio.run(serve_http, server, listening, token, (where, *names))
