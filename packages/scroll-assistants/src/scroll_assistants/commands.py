"""The commands that coding assistants need: watch, install, uninstall, hook and mcp.

Each is an entry point of the group `scroll_context.commands`. `scroll_commands.txt` has the first
line of each help text, so that `scroll --help` imports nothing of this.
"""

import contextlib
import datetime as dt
import os
import secrets
import shlex
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from scroll_assistants.hooks import ASSISTANTS, TOKENS, main
from scroll_context.cli.options import (
    FILE,
    Place,
    json_option,
    open_store,
    parse_age,
    store_option,
    yes_option,
)
from scroll_context.cli.output import Command, echo, note, print_document, print_line, visible
from scroll_context.errors import BadInput
from scroll_context.log.address import has_password

if TYPE_CHECKING:
    from scroll_assistants.install import Change, Installed
    from scroll_context.importing.records import ImportReport


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
    from scroll_context.log.schemes import installed_scheme

    if isinstance(store, str):
        installed_scheme(store).check(store)
        if has_password(store):
            raise BadInput(
                "the address holds a password, which would stand in the assistant's files; "
                "put it in ~/.pgpass"
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
    """Remove Scroll from an assistant's configuration.

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

MCP_TOKEN = "SCROLL_MCP_TOKEN"
"""The variable with the token of the HTTP server; without it, each run generates one."""


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
    import anyio

    from scroll_assistants.mcp_server import RecallServer, serve_http, serve_stdio
    from scroll_assistants.project import project_task
    from scroll_context.upkeep.retention import Retention

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
@click.argument("files", metavar="[FILE]...", nargs=-1, type=FILE)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look where the system does not report changes.",
)
@click.option("--once", is_flag=True, help="Record what is new and end.")
@click.option("--keep-secrets", is_flag=True, help="Do not replace keys and tokens by markers.")
@click.option(
    "--mine", is_flag=True, help="The FILEs are your own history: the user in them is you."
)
@store_option
@json_option
def watch(
    files: tuple[Path, ...],
    every: float,
    once: bool,
    keep_secrets: bool,
    mine: bool,
    store: Path,
    as_json: bool,
) -> None:
    """Follow the histories of coding assistants as they grow.

    Records what Claude Code, Codex, the Gemini CLI, opencode, Cursor and QwenPaw write, or what is added to the FILEs,
    until it is stopped with Ctrl-C. Each file is read from where it stood, so it may be killed and started again at any
    time: nothing is lost or recorded twice. Where the system does not report changes, the files are looked at every two
    seconds. Assistants that have hooks (`scroll install`) need no watching. As with `scroll
    import`, the user in FILEs that you name is you only with --mine.

    \b
    Examples:
      scroll watch
      scroll watch --once --store ./all
      scroll watch session.jsonl --json
    """
    from scroll_assistants.importers.capture import installed, places
    from scroll_assistants.importers.capture import watch as follow
    from scroll_context.importing.layouts import detect
    from scroll_context.store import Store

    missing = [file for file in files if not file.is_file()]
    if missing:
        raise click.BadParameter(f"{missing[0]} is no file", param_hint="FILE")
    named = [str(file.absolute()) for file in files]
    for file in named:
        if not detect(Path(file), Path(file).suffix).can_be_followed:
            raise BadInput(
                f"{file} is not a history of an assistant; `scroll import {shlex.quote(file)}` reads it"
            )

    def listing() -> list[str]:
        return named or [file for history in installed() for file in history.files]

    folders = sorted({file.absolute().parent for file in files}) or [
        folder for _, folder, _ in places()
    ]
    stop = threading.Event()

    noted: dict[str, str] = {}

    def tell(report: "ImportReport") -> None:
        trouble = report.error or report.left
        if trouble and noted.get(report.file) != trouble:
            note(visible(f"{report.file}: {trouble}; it is tried again"))
        noted[report.file] = trouble
        if report.added or report.bad:
            if as_json:
                print_line(report)
            else:
                bad = f", {report.bad:,} lines cannot be read" if report.bad else ""
                echo(visible(f"{report.file}: {report.added:,} events{bad}"))

    with Store(store, create=True) as opened:
        if once:
            stop.set()
        else:
            note(f"following {len(listing()):,} files into {store}; Ctrl-C ends it")
        follow(
            opened,
            listing,
            stop=stop,
            on_report=tell,
            folders=folders,
            every=every,
            redact=not keep_secrets,
            mine=mine or not named,
        )


def checks(project: Path) -> "list[Installed]":
    """What `scroll doctor` shows about the assistants on this machine."""
    from scroll_assistants.install import examine_assistants

    return examine_assistants(project)
