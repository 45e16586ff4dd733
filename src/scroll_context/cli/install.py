"""Commands that connect coding assistants to a store, and the one that the assistants call."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from scroll_context.cli.options import FILE, Place, json_option, user_store_option
from scroll_context.cli.output import Command, echo, note, print_document
from scroll_context.doors.hooks import ASSISTANTS, TOKENS, main
from scroll_context.errors import BadInput
from scroll_context.store.shared.address import parse

if TYPE_CHECKING:
    from scroll_context.doors.install import Change

_SCOPES: tuple[Literal["user", "project"], ...] = ("user", "project")

assistant_argument = click.argument("assistant", type=click.Choice(ASSISTANTS))
scope_option = click.option(
    "--scope", type=click.Choice(_SCOPES), default="user", show_default=True,
    help="For all projects of this user, or for one project.",
)  # fmt: skip
project_option = click.option(
    "--project", type=FILE, metavar="DIR", default=Path(), help="The project, with --scope project.", show_default="."
)
reach_option = click.option(
    "--reach", type=click.Choice(["task", "all"]), default="task", show_default=True,
    help="Reach the project that the assistant works in, or the whole store.",
)  # fmt: skip
tokens_option = click.option(
    "--tokens", type=click.IntRange(200, 20_000), default=TOKENS, show_default=True,
    help="The most that a session is told at its start.",
)  # fmt: skip
yes_option = click.option("--yes", is_flag=True, help="Do it without asking.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")


@click.command(cls=Command)
@assistant_argument
@scope_option
@project_option
@user_store_option
@reach_option
@tokens_option
@yes_option
@dry_run_option
@json_option
def install(
    assistant: str, scope: Literal["user", "project"], project: Path, store: Place, reach: str, tokens: int, yes: bool,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Connect a coding assistant: its hooks and its MCP server.

    Its own configuration files are changed: the change is shown first, and what they held before is kept. Installing
    again changes nothing, or brings the entries up to date.

    \b
    Examples:
      scroll install claude-code
      scroll install codex --scope project --dry-run
      scroll install gemini --store ~/.scroll --yes
    """
    from scroll_context.doors.install import StoreLink, plan_install

    if importlib.util.find_spec("mcp") is None:
        raise BadInput(
            "connecting an assistant needs the mcp extra, which is not installed; nothing was changed. "
            "Install it with: pip install 'scroll-context[mcp]'"
        )
    if isinstance(store, str) and parse(store).secrets:
        raise BadInput("the address holds a password, which would stand in the assistant's files; put it in ~/.pgpass")
    place = store if isinstance(store, str) else str(store.expanduser().absolute())
    link = StoreLink(store=place, reach=reach, tokens=tokens)
    changes = plan_install(assistant, scope, project.absolute(), link)
    if _carry_out(changes, "installed", yes=yes, dry_run=dry_run, as_json=as_json) and not dry_run:
        from scroll_context.store.store import Store

        Store(place, create=isinstance(store, Path)).close()
        note(f"{assistant} is connected to {place}; it takes effect when {assistant} is started next")


@click.command(cls=Command)
@assistant_argument
@scope_option
@project_option
@yes_option
@dry_run_option
@json_option
def uninstall(
    assistant: str, scope: Literal["user", "project"], project: Path, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Take what `scroll install` wrote out of an assistant again.

    Only our entries are removed. A file that was not edited since is put back as it was, byte for byte. The store
    stays.

    \b
    Examples:
      scroll uninstall claude-code
      scroll uninstall codex --scope project --yes
    """
    from scroll_context.doors.install import examine_assistants, plan_uninstall

    changes = plan_uninstall(assistant, scope, project.absolute())
    _carry_out(changes, "uninstalled", yes=yes, dry_run=dry_run, as_json=as_json)
    for one in examine_assistants(project.absolute()):
        if one.assistant == assistant and one.scope not in ("", scope):
            note(f"it is also connected here: `scroll uninstall {assistant} --scope {one.scope}`")


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, metavar="ASSISTANT --store DIR [--reach task|all] [--tokens N]")
def hook(arguments: tuple[str, ...]) -> None:
    """Handle one event of a coding assistant, which calls this.

    The event is JSON on standard input. What the transcript has had added is recorded; at the start of a session, and
    after a compaction, the answer is a text that says where the work stands. The status is always 0.

    \b
    Example:
      scroll hook claude-code --store ~/.scroll
    """
    main(list(arguments))


def _carry_out(changes: "list[Change]", done: str, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Show the changes, ask, and make them; whether things are now as they were asked for."""
    from scroll_context.doors.install import apply

    if not as_json:
        for change in changes:
            echo(change.diff, end="")
        if not changes:
            note("nothing to change")
    if changes and not (yes or dry_run):
        if as_json or not sys.stdin.isatty():
            raise BadInput("nothing was changed: say --yes to write this, or --dry-run to see it only")
        if not click.confirm(f"Write {len(changes)} file{'s' * (len(changes) > 1)}?"):
            note("nothing was changed")
            return False
    if not dry_run:
        apply(changes)
    if as_json:
        files: list[dict[str, Any]] = [{"file": str(change.file), "diff": change.diff} for change in changes]
        print_document({done: bool(changes) and not dry_run, "files": files})
    return True
