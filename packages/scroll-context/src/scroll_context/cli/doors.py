"""Commands that open a store to others: coding assistants (install, uninstall, hook, mcp) and a
browser (serve).
"""

import contextlib
import datetime as dt
import importlib.util
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from scroll_assistants.hooks import ASSISTANTS, TOKENS, main
from scroll_context.cli.options import (
    FILE,
    Place,
    agent_option,
    complete_session,
    json_option,
    open_store,
    parse_age,
    require_store,
    store_option,
    task_option,
    yes_option,
)
from scroll_context.cli.output import Command, echo, new_file, note, print_document
from scroll_context.errors import BadInput
from scroll_shared.address import parse

if TYPE_CHECKING:
    from scroll_assistants.install import Change


_SCOPES: tuple[Literal["user", "project"], ...] = ("user", "project")

assistant_argument = click.argument("assistant", type=click.Choice(ASSISTANTS))
scope_option = click.option(
    "--scope",
    type=click.Choice(_SCOPES),
    default="user",
    show_default=True,
    help="For all projects of this user, or for one project.",
)
project_option = click.option(
    "--project",
    type=FILE,
    metavar="DIR",
    default=Path(),
    help="The project, with --scope project.",
    show_default=".",
)
reach_option = click.option(
    "--reach",
    type=click.Choice(["task", "all"]),
    default="task",
    show_default=True,
    help="Reach the project that the assistant works in, or the whole store.",
)
tokens_option = click.option(
    "--tokens",
    type=click.IntRange(200, 20_000),
    default=TOKENS,
    show_default=True,
    help="The most that a session is told at its start.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and change nothing."
)


@click.command(cls=Command)
@assistant_argument
@scope_option
@project_option
@store_option
@reach_option
@tokens_option
@yes_option
@dry_run_option
@json_option
def install(
    assistant: str,
    scope: Literal["user", "project"],
    project: Path,
    store: Place,
    reach: str,
    tokens: int,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Connect a coding assistant: its hooks and its MCP server.

    Its own configuration files are changed: the change is shown first, and what they held before is kept. Installing
    again changes nothing, or brings the entries up to date.

    \b
    Examples:
      scroll install claude-code
      scroll install codex --scope project --dry-run
      scroll install gemini --store ~/history --yes
    """
    from scroll_assistants.install import StoreLink, plan_install

    if importlib.util.find_spec("mcp") is None:
        raise BadInput(
            "connecting an assistant needs the mcp extra, which is not installed; nothing was changed. "
            "Install it with: pip install 'scroll-context[mcp]'"
        )
    if isinstance(store, str) and parse(store).secrets:
        raise BadInput(
            "the address holds a password, which would stand in the assistant's files; put it in ~/.pgpass"
        )
    place = store if isinstance(store, str) else str(store.expanduser().absolute())
    link = StoreLink(store=place, reach=reach, tokens=tokens)
    changes = plan_install(assistant, scope, project.absolute(), link)
    if _carry_out(changes, "installed", yes=yes, dry_run=dry_run, as_json=as_json) and not dry_run:
        from scroll_context.store import Store

        Store(place, create=isinstance(store, Path)).close()
        note(
            f"{assistant} is connected to {place}; it takes effect when {assistant} is started next"
        )


@click.command(cls=Command)
@assistant_argument
@scope_option
@project_option
@yes_option
@dry_run_option
@json_option
def uninstall(
    assistant: str,
    scope: Literal["user", "project"],
    project: Path,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take what `scroll install` wrote out of an assistant again.

    Only our entries are removed. A file that was not edited since is put back as it was, byte for byte. The store
    stays.

    \b
    Examples:
      scroll uninstall claude-code
      scroll uninstall codex --scope project --yes
    """
    from scroll_assistants.install import connected_scopes, plan_uninstall

    changes = plan_uninstall(assistant, scope, project.absolute())
    if changes:
        where = (
            f"the project {project.absolute()}"
            if scope == "project"
            else "all projects of this user"
        )
        note(f"this disconnects {assistant} for {where}; no store is changed")
    _carry_out(changes, "uninstalled", yes=yes, dry_run=dry_run, as_json=as_json)
    for other in connected_scopes(assistant, project.absolute()):
        if other != scope:
            note(f"it is also connected here: `scroll uninstall {assistant} --scope {other}`")


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument(
    "arguments", nargs=-1, metavar="ASSISTANT --store DIR [--reach task|all] [--tokens N]"
)
def hook(arguments: tuple[str, ...]) -> None:
    """Handle one event of a coding assistant, which calls this.

    The event is JSON on standard input. What the transcript has had added is recorded; at the start of a session, and
    after a compaction, the answer is a text that says where the work stands. The status is always 0.

    \b
    Example:
      scroll hook claude-code --store ~/.scroll
    """
    main(list(arguments))


def _carry_out(
    changes: "list[Change]", done: str, *, yes: bool, dry_run: bool, as_json: bool
) -> bool:
    """Show the changes, ask, and make them.

    Returns whether the files are now as the user wanted them.
    """
    from scroll_assistants.install import apply

    if not as_json:
        for change in changes:
            echo(change.diff, end="")
        if not changes:
            note("nothing to change")
    if changes and not (yes or dry_run):
        if as_json or not sys.stdin.isatty():
            raise BadInput(
                "nothing was changed: say --yes to write this, or --dry-run to see it only"
            )
        if not click.confirm(f"Write {len(changes)} file{'s' * (len(changes) > 1)}?"):
            note("nothing was changed")
            return False
    if not dry_run:
        apply(changes)
    if as_json:
        files: list[dict[str, Any]] = [
            {"file": str(change.file), "diff": change.diff} for change in changes
        ]
        print_document({done: bool(changes) and not dry_run, "files": files})
    return True


# servers -----------------------------------------------------------------------------------------------------

CLIENT_SESSION = "CLAUDE_CODE_SESSION_ID"
"""The variable in which Claude Code says which session starts the server."""

MCP_TOKEN, SERVE_TOKEN = "SCROLL_MCP_TOKEN", "SCROLL_SERVE_TOKEN"
"""The variables with the tokens of the servers; without them, a token is made up for each run."""


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
@store_option
@click.option(
    "--project",
    envvar="CLAUDE_PROJECT_DIR",
    type=FILE,
    metavar="DIR",
    default=Path(),
    help="The project whose past is reached.",
)
@click.option(
    "--task", metavar="ID", help="The task that is reached, instead of that of a project."
)
@click.option(
    "--reach",
    type=click.Choice(["task", "all"]),
    default="task",
    show_default=True,
    help="Reach this project only, or the whole store.",
)
@click.option(
    "--retention",
    metavar="AGE",
    callback=parse_age,
    help="Once a day, erase what was recorded longer ago: 90d, 12h or 4w.",
)
@click.option(
    "--assistant",
    type=click.Choice(ASSISTANTS),
    help="Who starts it, so that a search does not find its own question.",
)
@click.option("--http", is_flag=True, help="Serve over HTTP instead of standard input and output.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on, with --http."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8377,
    show_default=True,
    help="The port, with --http.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A further name that HTTP clients may use.",
)
def mcp(
    store: Place,
    project: Path,
    task: str | None,
    reach: Literal["task", "all"],
    retention: dt.timedelta | None,
    assistant: str | None,
    http: bool,
    host: str,
    port: int,
    names: tuple[str, ...],
) -> None:
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

        from scroll_assistants.mcp_server import RecallServer, serve_http, serve_stdio
    except ImportError as error:
        raise _needs("scroll mcp", "mcp", error) from error
    from scroll_assistants.project import project_task
    from scroll_context.upkeep.erase import Retention

    with (
        open_store(store) as opened,
        Retention(opened, retention) if retention else contextlib.nullcontext(),
    ):
        client = "" if http else os.environ.get(CLIENT_SESSION, "")
        server = RecallServer(
            opened,
            task=task or project_task(project),
            reach=reach,
            client_session=client,
            assistant=assistant or "",
        )
        if not http:
            anyio.run(serve_stdio, server)
            return
        with _listening(host, port) as listening:
            token = os.environ.get(MCP_TOKEN) or secrets.token_urlsafe(32)
            shown = "the one of SCROLL_MCP_TOKEN" if os.environ.get(MCP_TOKEN) else token
            where = f"[{host}]" if ":" in host else host
            note(
                f"serving http://{where}:{listening.getsockname()[1]}/mcp for task {server.task}, token: {shown}"
            )
            anyio.run(serve_http, server, listening, token, (where, *names))


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
