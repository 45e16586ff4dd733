"""The commands for coding assistants: watch, install, hook and mcp.

Each is an entry point of the group `scroll_context.commands`. `scroll_commands.txt` has the first
line of each help text, so that `scroll --help` does not import this module.
"""

import contextlib
import datetime as dt
import os
import secrets
import shlex
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
)
from scroll_context.cli.output import (
    Command,
    confirm,
    counted,
    dry_run_option,
    echo,
    note,
    print_document,
    print_line,
    visible,
    yes_option,
)
from scroll_context.errors import BadInput
from scroll_context.log.address import has_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from scroll_assistants.install import Change
    from scroll_assistants.installations import Installed
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
    help="What the assistant may read: its own project (task) or the entire store (all).",
)
tokens_option = click.option(
    "--tokens",
    type=click.IntRange(200, 20_000),
    default=TOKENS,
    show_default=True,
    help="The maximum size, in tokens, of the text about earlier sessions that a new session gets.",
)


keep_option = click.option(
    "--keep-transcripts",
    type=click.IntRange(0, 36_500),
    metavar="DAYS",
    default=0,
    help="For Claude Code: keep its transcripts for this many days instead of 30.",
)


@click.command(cls=Command)
@assistant_argument
@click.option("--remove", is_flag=True, help="Disconnect the assistant. The store remains.")
@scope_option
@project_option
@store_option
@reach_option
@tokens_option
@keep_option
@yes_option
@dry_run_option
@json_option
def install(
    assistant: str,
    remove: bool,
    scope: Literal["user", "project"],
    project: Path,
    store: Place,
    reach: str,
    tokens: int,
    keep_transcripts: int,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Connect a coding assistant to the store (hooks and MCP server).

    This changes the assistant's own configuration files. The changes are shown first, and Scroll
    saves a copy of each file as it was. Running it again is safe: it only updates Scroll's entries.

    --remove removes only Scroll's entries. A file that nobody has edited since is restored byte for
    byte.

    \b
    Examples:
      scroll install claude-code
      scroll install codex --scope project --dry-run
      scroll install gemini --store ~/history --yes
      scroll install claude-code --keep-transcripts 3650
      scroll install claude-code --remove
    """
    if remove:
        _disconnect(assistant, scope, project, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    from scroll_assistants.install import plan_install
    from scroll_assistants.settings_entries import StoreLink
    from scroll_context.log.schemes import installed_scheme

    if isinstance(store, str):
        installed_scheme(store).check(store)
        if has_password(store):
            raise BadInput(
                "the address contains a password, which would be written into the assistant's "
                "files; put it in ~/.pgpass"
            )
    place = store if isinstance(store, str) else str(store.expanduser().absolute())
    if keep_transcripts and assistant != "claude-code":
        raise BadInput("--keep-transcripts is a setting of Claude Code; leave it out")
    link = StoreLink(store=place, reach=reach, tokens=tokens, keep_days=keep_transcripts)
    changes = plan_install(assistant, scope, project.absolute(), link)
    _carry_out(changes, "installed", yes=yes, dry_run=dry_run, as_json=as_json)
    if not dry_run:
        from scroll_context.store import Store

        Store(place, create=isinstance(store, Path)).close()
        note(
            f"{assistant} is connected to {place}; "
            f"this takes effect the next time you start {assistant}"
        )
        if assistant == "claude-code":
            _note_deletion()


def _note_deletion() -> None:
    """Say when Claude Code deletes its transcripts, and how to change that."""
    from scroll_assistants.kept_transcripts import MANY_DAYS, kept_days

    days = kept_days()
    if days >= MANY_DAYS:
        return
    note(
        f"Claude Code deletes its transcripts after {days} days. Scroll keeps what it has "
        "recorded: run `scroll import --all` to record older sessions. To keep the transcripts: "
        f"`scroll install claude-code --keep-transcripts {MANY_DAYS}`"
    )


def _disconnect(
    assistant: str,
    scope: Literal["user", "project"],
    project: Path,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    from scroll_assistants.install import plan_uninstall
    from scroll_assistants.installations import connected_scopes

    changes = plan_uninstall(assistant, scope, project.absolute())
    if changes:
        where = "all projects of this user"
        if scope == "project":
            where = f"the project {project.absolute()}"
        note(f"this disconnects {assistant} for {where}; no store is changed")
    _carry_out(changes, "uninstalled", yes=yes, dry_run=dry_run, as_json=as_json)
    for other in connected_scopes(assistant, project.absolute()):
        if other != scope:
            note(
                f"it is also connected here: `scroll install {assistant} --remove --scope {other}`"
            )


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument(
    "arguments", nargs=-1, metavar="ASSISTANT --store DIR [--reach task|all] [--tokens N]"
)
def hook(arguments: tuple[str, ...]) -> None:
    """Handle one event from a coding assistant, which runs this command.

    The event is JSON on standard input. New lines of the transcript are recorded. At the start of
    a session, and after a compaction, the answer is a hand-over: a text about earlier sessions
    of the project. The exit status is always 0.

    \b
    Example:
      scroll hook claude-code --store ~/.scroll
    """
    main(list(arguments))


def _carry_out(
    changes: "list[Change]", done: str, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Show the changes, ask for confirmation, and make them."""
    from scroll_assistants.install import apply

    if not as_json:
        for change in changes:
            echo(change.diff, end="")
        if not changes:
            note("nothing to change")
    if changes and not dry_run:
        if as_json and not yes:
            raise BadInput(
                "nothing was changed: pass --yes to write the changes, or --dry-run to see them"
            )
        confirm(f"Write {counted(len(changes), 'file')}?", yes=yes)
    if not dry_run:
        apply(changes)
    if as_json:
        files: list[dict[str, Any]] = [
            {"file": str(change.file), "diff": change.diff} for change in changes
        ]
        print_document({done: bool(changes) and not dry_run, "files": files})


# servers ------------------------------------------------------------------------------------------

CLIENT_SESSION = "CLAUDE_CODE_SESSION_ID"
"""The environment variable in which Claude Code passes the session that starts the server."""

MCP_TOKEN = "SCROLL_MCP_TOKEN"
"""The environment variable with the HTTP server's token. Without it, each run generates one."""


@click.command(cls=Command)
@store_option
@click.option(
    "--project",
    envvar="CLAUDE_PROJECT_DIR",
    type=FILE,
    metavar="DIR",
    default=Path(),
    help="The project whose history is served.",
)
@click.option("--task", metavar="ID", help="The task to serve, instead of a project's.")
@click.option(
    "--reach",
    type=click.Choice(["task", "all"]),
    default="task",
    show_default=True,
    help="Let clients read only this project (task) or the entire store (all).",
)
@click.option(
    "--retention",
    metavar="AGE",
    callback=parse_age,
    help="Once a day, erase events older than this without asking: 90d, 12h or 4w.",
)
@click.option(
    "--assistant",
    type=click.Choice(ASSISTANTS),
    help=(
        "The assistant that starts this server. Searches then leave out the message that it is "
        "answering."
    ),
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
    help="An additional host name to accept in requests, for example behind a proxy.",
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

    Its tools are search, expand, brief, exec and note. Over HTTP a client must send the token in
    SCROLL_MCP_TOKEN as `Authorization: Bearer TOKEN`. If that variable is not set, a token is
    generated for this run and printed.

    \b
    Examples:
      scroll mcp --store ~/.scroll
      scroll mcp --http --port 8377
    """
    import anyio

    from scroll_assistants.mcp_stdio import serve_stdio
    from scroll_assistants.recall_server import RecallServer
    from scroll_context.projects import remember_project

    with open_store(store) as opened, contextlib.ExitStack() as resources:
        if retention:
            from scroll_context.upkeep.erase import Retention

            resources.enter_context(Retention(opened, retention))
        own = remember_project(project)
        client = "" if http else os.environ.get(CLIENT_SESSION, "")
        server = RecallServer(
            opened,
            task=task or own.task,
            earlier_tasks=own.earlier if task in (None, own.task) else (),
            reach=reach,
            client_session=client,
            assistant=assistant or "",
        )
        if not http:
            anyio.run(serve_stdio, server)
            return
        from scroll_assistants.mcp_http import serve_http
        from scroll_context.connections import listen

        with listen(host, port) as listening:
            own_token = os.environ.get(MCP_TOKEN)
            token = own_token or secrets.token_urlsafe(32)
            token_text = "the one in SCROLL_MCP_TOKEN" if own_token else token
            host_name = f"[{host}]" if ":" in host else host
            address = f"http://{host_name}:{listening.getsockname()[1]}/mcp"
            note(f"serving {address} for task {server.task}, token: {token_text}")
            anyio.run(serve_http, server, listening, token, (host_name, *names))


@click.command(cls=Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=FILE)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to check the files if the system does not report changes.",
)
@click.option("--once", is_flag=True, help="Record new messages and exit.")
@click.option("--keep-secrets", is_flag=True, help="Do not replace keys and tokens with markers.")
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

    Records new messages of Claude Code, Codex, the Gemini CLI, Qwen Code, Pi, the Copilot CLI,
    opencode, Cursor and QwenPaw, or new content of the FILEs, until you press Ctrl-C. It resumes
    each file where it stopped, so you can kill and restart it at any time: nothing is lost or
    recorded twice. If the system does not report changes, the files are checked every two seconds.
    Claude Code, Codex and the Gemini CLI need no watching once they are connected with `scroll
    install`. As with `scroll import`, user messages in FILEs that you name count as yours only with
    --mine.

    \b
    Examples:
      scroll watch
      scroll watch --once --store ./all
      scroll watch session.jsonl --json
    """
    from scroll_assistants.importers.capture import installed, places
    from scroll_assistants.importers.capture import watch as follow
    from scroll_context.store import Store

    _check_histories(files)
    paths = [str(file.absolute()) for file in files]

    def listing() -> list[str]:
        return paths or [file for history in installed() for file in history.files]

    folders = sorted({file.absolute().parent for file in files})
    stop = threading.Event()
    with Store(store, create=True) as opened:
        if once:
            stop.set()
        else:
            note(f"following {counted(len(listing()), 'file')} into {store}; press Ctrl-C to stop")
        follow(
            opened,
            listing,
            stop=stop,
            on_report=_report_printer(as_json=as_json),
            folders=folders or [folder for _, folder, _ in places()],
            every=every,
            redact=not keep_secrets,
            mine=mine or not paths,
        )


def _check_histories(files: tuple[Path, ...]) -> None:
    """Refuse a file that is missing or that no assistant writes."""
    from scroll_context.importing.layouts import detect

    for file in files:
        if not file.is_file():
            raise click.BadParameter(f"{file} is not a file", param_hint="FILE")
    for path in (file.absolute() for file in files):
        if not detect(path, path.suffix).can_be_followed:
            raise BadInput(
                f"{path} is not a history of an assistant; "
                f"`scroll import {shlex.quote(str(path))}` reads it"
            )


def _report_printer(*, as_json: bool) -> "Callable[[ImportReport], None]":
    """A function that prints the report of each capture, and each problem once."""
    problems: dict[str, str] = {}

    def print_report(report: "ImportReport") -> None:
        problem = report.error or report.left
        if problem and problems.get(report.file) != problem:
            note(visible(f"{report.file}: {problem}; it will be tried again"))
        problems[report.file] = problem
        if not (report.added or report.bad):
            return
        if as_json:
            print_line(report)
            return
        bad = f", {counted(report.bad, 'unreadable line')}" if report.bad else ""
        echo(visible(f"{report.file}: {counted(report.added, 'event')}{bad}"))

    return print_report


def checks(project: Path) -> "list[Installed]":
    """The assistants on this machine, for `scroll doctor`."""
    from scroll_assistants.installations import examine_assistants

    return examine_assistants(project)
