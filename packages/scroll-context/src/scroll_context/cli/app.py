"""From a command line to the command that it calls, with the settings of the user (settings.py).

Only the command that is called is imported. The command line comes before the environment, and both
come before the user's configuration file.
"""

import difflib
import importlib
import os
from typing import Any

import click

from scroll_context import __version__
from scroll_context.cli.commands import PACKAGES, commands, overview
from scroll_context.cli.options import Place, parse_place
from scroll_context.cli.output import Command, echo, faults_in_one_line
from scroll_context.cli.settings import settings_of
from scroll_context.plugins import how_to_install

PLAIN = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
"""Whether the user or the terminal wants no colours."""


class Commands(click.Group):
    """The commands of the table and of installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return list(commands())

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        entry = commands().get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        # Commands of other packages may raise our errors too.
        with faults_in_one_line():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing:
            ctx.default_map = {args[0]: settings_of(args[0])}
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            if args[0] in PACKAGES:
                package = PACKAGES[args[0]]
                raise click.UsageError(
                    f"`scroll {args[0]}` is part of {package}, which is not installed. "
                    f"{how_to_install(package)}",
                    ctx,
                )
            close = difflib.get_close_matches(args[0], self.list_commands(ctx))
            meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        formatter.write(overview())


@click.group(
    "scroll",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "color": False if PLAIN else None},
)
@click.version_option(__version__, prog_name="scroll", message="%(prog)s %(version)s")
@click.option(
    "--store",
    type=parse_place,
    metavar="DIR",
    help="The store; the option may also follow the command.",
)
def app(store: Place | None) -> None:
    """The command `scroll`; its help is the overview in commands.py."""


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    The Tab key then completes commands, options and session ids.

    \b
    Examples:
      echo 'eval "$(scroll completion bash)"' >> ~/.bashrc
      echo 'eval "$(scroll completion zsh)"' >> ~/.zshrc
      scroll completion fish > ~/.config/fish/completions/scroll.fish
    """
    from click.shell_completion import get_completion_class

    shell_class = get_completion_class(shell)
    assert shell_class is not None
    echo(shell_class(app, {}, "scroll", "_SCROLL_COMPLETE").source())
