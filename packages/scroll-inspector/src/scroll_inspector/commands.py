"""The command `scroll serve`, which the entry point of this distribution adds."""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scroll_context.cli.options import (
    FILE,
    Narrowing,
    Place,
    complete_session,
    narrowing_options,
    require_store,
    session_named,
    store_option,
)
from scroll_context.cli.output import Command, new_file, note

if TYPE_CHECKING:
    from scroll_inspector.inspector import Inspector

SERVE_TOKEN = "SCROLL_SERVE_TOKEN"
"""The environment variable with the token. Without it, each run generates one."""


@click.command(cls=Command)
@click.argument("session", metavar="[SESSION]", required=False, shell_complete=complete_session)
@narrowing_options(session=False)
@store_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8378,
    show_default=True,
    help="The port to listen on; 0 picks a free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="An additional host name to accept in requests, for example behind a proxy.",
)
@click.option(
    "--export", type=FILE, metavar="FILE", help="Write SESSION as one page to a new file and exit."
)
@click.option("--open", "open_browser", is_flag=True, help="Open the address in a browser.")
def serve(
    session: str | None,
    narrowing: Narrowing,
    store: Place,
    host: str,
    port: int,
    names: tuple[str, ...],
    export: Path | None,
    open_browser: bool,
) -> None:
    """Open a store in the browser: sessions, search and each request.

    The inspector only reads, and it can run while agents write to the store. The printed address
    contains a random token, or the one in SCROLL_SERVE_TOKEN. SESSION, --agent, --task and
    --project restrict what the inspector shows.

    \b
    Examples:
      scroll serve
      scroll serve --open --port 0
      scroll serve trip-4
      scroll serve trip-4 --export session.html
    """
    from scroll_context.events import Grant
    from scroll_context.store import Store
    from scroll_inspector.inspector import Inspector

    if export is not None and session is None:
        raise click.UsageError("Name the SESSION to export; `scroll sessions` lists them.")
    require_store(store)
    with Store(store, read_only=True) as opened:
        place = narrowing.resolve(opened.log)
        if session is not None:
            session = session_named(opened.log, session)
        grant = Grant(session_id=session, task_id=place.task, agent_id=place.agent)
        inspector = Inspector(opened, grant)
        if export is not None:
            _write_page(inspector, str(session), export)
        else:
            _listen(inspector, host, port, names, open_browser)


def _write_page(inspector: "Inspector", session: str, target: Path) -> None:
    from scroll_inspector.export import export

    with new_file(target) as file:
        for piece in export(inspector, session):
            file.write(piece.encode())
    note(f"written to {target}")


def _listen(
    inspector: "Inspector", host: str, port: int, names: tuple[str, ...], open_browser: bool
) -> None:
    from scroll_context.connections import listen
    from scroll_inspector.server import address, hosts_of, server

    with listen(host, port) as listening:
        token = os.environ.get(SERVE_TOKEN) or secrets.token_urlsafe(24)
        bound_port = listening.getsockname()[1]
        url = address(host, bound_port, token)
        note(f"the inspector is at {url}")
        if open_browser:
            click.launch(url)
        hosts = hosts_of(host, bound_port, names)
        server(inspector, token, hosts, bound_port).run(sockets=[listening])
