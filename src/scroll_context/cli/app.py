"""From a command line to the command that it calls, and the border where errors become one line and a status.

Status 0: done. 1: a fault, told in one line on stderr. 2: wrong usage. 130: interrupted. Data goes to stdout,
everything else to stderr. Of the commands, only the one that is called is imported.
"""

import importlib
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scroll_context import __version__
from scroll_context.cli.main import COMMANDS, overview
from scroll_context.errors import ScrollError


class Commands(TyperGroup):
    """The commands of the table, and where errors end. What is not caught here is a bug and keeps its traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)  # the names, for suggestions; get_command has the commands

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - as Typer calls it
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(".")
        found = getattr(importlib.import_module(f"scroll_context.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            command, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cmd_name)(command)
        return typer.main.get_command(found)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        formatter.write(overview())

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ScrollError as error:
            fault = str(error)
        except KeyboardInterrupt:
            typer.echo("scroll: interrupted", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # the reader has enough; typer ends quietly
        except OSError as error:
            fault = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        typer.echo(f"scroll: {fault}", err=True)
        raise typer.Exit(1)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain errors and help: the boxed ones cost the import of rich
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "color": False if os.environ.get("NO_COLOR") else None},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scroll {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
