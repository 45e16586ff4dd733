"""The command `serve`: a store in the browser."""

import os
import secrets
import socket
from pathlib import Path

import click

from scroll_context.cli.options import (
    FILE,
    Place,
    agent_option,
    complete_session,
    require_store,
    store_option,
    task_option,
)
from scroll_context.cli.output import Command, new_file, note
from scroll_context.errors import BadInput

SERVE_TOKEN = "SCROLL_SERVE_TOKEN"
"""The variable with the token of the page; without it, each run generates one."""


def _needs(command: str, extra: str, error: ImportError) -> BadInput:
    return BadInput(
        f"{command} needs the {extra} extra, which is not installed ({error}). "
        f"Install it with: pip install 'scroll-context[{extra}]'"
    )


def _listening(host: str, port: int) -> socket.socket:
    return socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )


@click.command(cls=Command)
@click.argument("session", metavar="[SESSION]", required=False, shell_complete=complete_session)
@store_option
@agent_option
@task_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8378,
    show_default=True,
    help="The port; 0 for any.",
)
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="A further name that browsers may use."
)
@click.option(
    "--export", type=FILE, metavar="FILE", help="Write SESSION as one page to a new file, and end."
)
@click.option("--open", "open_browser", is_flag=True, help="Open the address in a browser.")
def serve(
    session: str | None,
    store: Place,
    agent: str | None,
    task: str | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    export: Path | None,
    open_browser: bool,
) -> None:
    """See a store in the browser, and what the model saw.

    Reads only, also while agents write to the store. The address that is printed has a random token in it, or the one
    of SCROLL_SERVE_TOKEN. With SESSION, --agent or --task nothing else can be seen.

    \b
    Examples:
      scroll serve
      scroll serve --open --port 0
      scroll serve --task garden
      scroll serve --export session.html s-1f2e3d4c
    """
    try:
        from scroll_inspector.app import Inspector
        from scroll_inspector.server import address, hosts_of, server
    except ImportError as error:
        raise _needs("scroll serve", "web", error) from error
    from scroll_context.events import Grant
    from scroll_context.store import Store

    if export is not None and session is None:
        raise click.UsageError("Name the SESSION to export; `scroll sessions` lists them.")
    require_store(store)
    grant = Grant(session_id=session, task_id=task, agent_id=agent)
    if export is not None:
        from scroll_inspector.export import export as exported

        with Store(store, read_only=True) as opened, new_file(export) as file:
            for piece in exported(Inspector(opened, grant), str(session)):
                file.write(piece.encode())
        note(f"written to {export}")
        return
    with Store(store, read_only=True) as opened, _listening(host, port) as listening:
        token = os.environ.get(SERVE_TOKEN) or secrets.token_urlsafe(24)
        bound = listening.getsockname()[1]
        where = address(host, bound, token)
        note(f"the inspector is at {where}")
        if open_browser:
            click.launch(where)
        server(Inspector(opened, grant), token, hosts_of(host, bound, names), bound).run(
            sockets=[listening]
        )
