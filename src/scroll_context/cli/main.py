"""The command `scroll`: the list of its commands, and the border where errors become one line and a status.

Status 0: done. 1: a fault, told in one line on stderr. 2: wrong usage. 130: interrupted. Data goes to stdout,
everything else to stderr. To add a command, write a function and name it in COMMANDS; its docstring is its help.
"""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scroll_context.cli import agent_commands, demo, eval_commands, importing, kernel_commands, reading, upkeep
from scroll_context.errors import ScrollError

COMMANDS = (
    importing.import_,
    reading.search,
    reading.show,
    reading.sessions,
    reading.stats,
    reading.sql,
    upkeep.verify,
    upkeep.salvage,
    upkeep.reindex,
    upkeep.backup,
    upkeep.export,
    kernel_commands.doctor,
    kernel_commands.repl,
    agent_commands.chat,
    agent_commands.run,
    agent_commands.resume,
    agent_commands.fork,
    agent_commands.explain,
    agent_commands.trajectory,
    demo.demo,
)


class Border(TyperGroup):
    """Where errors end. What is not listed here is a bug and keeps its traceback."""

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
    cls=Border,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help takes half the time of the boxed one
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Scroll keeps the whole history of your agents: nothing is summarised away, everything can be found.

    A store is a folder. Commands use the one named by --store, else by SCROLL_STORE, else .scroll here.

    \b
    Begin with:
      scroll import chat.jsonl
      scroll search 'toll-free route'
      scroll show 12
    """,
)

for _command in COMMANDS:
    app.command(_command.__name__.rstrip("_"))(_command)
app.add_typer(eval_commands.app, name="eval")


def _show_version(wanted: bool) -> None:
    if wanted:
        from scroll_context import __version__

        typer.echo(f"scroll {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that lacks a letter
    try:
        app(prog_name="scroll")
    except SystemExit as end:
        status = end.code
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        status = status or 1
        if not isinstance(error, BrokenPipeError):
            typer.echo(f"scroll: the output could not be written: {error.strerror}", err=True)
    sys.exit(status)
