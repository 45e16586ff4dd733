"""From a command line to the command that it calls, and the border where errors become one line and a status.

Status 0: done. 1: a fault, told in one line on stderr. 2: wrong usage. 130: interrupted. 143: ended by SIGTERM. Data
goes to stdout, everything else to stderr. Of the commands, only the one that is called is imported.
"""

import functools
import importlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scroll_context import __version__
from scroll_context.cli.main import COMMANDS, INTERRUPTED, overview
from scroll_context.errors import ScrollError


def spare_conversions(parameters: list[Any]) -> list[Any]:
    """Let parameters take values that need no conversion as they are.

    Typer converts every value with pydantic, and importing that takes longer than most commands do. What is not
    plainly of the right type still goes to Typer, which has the errors for it.
    """
    for one in parameters:
        known = hasattr(one, "type_descriptor")  # in a version of Typer that tells types in another way, it does it all
        if known and not isinstance(one.process_value, functools.partial):
            one.process_value = functools.partial(_taken, one, one.process_value)
    return parameters


def _taken(parameter: Any, convert: Any, ctx: Any, value: Any) -> Any:
    wanted, info = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    if value is None and not parameter.required:
        value = () if parameter.multiple or parameter.nargs == -1 else None
    elif wanted == list[str] and value:
        value = list(value)
    elif wanted is Path and isinstance(value, str) and not (info.exists or info.readable or info.resolve_path):
        value = Path(value)
    elif wanted is int and _is_within(value, info.min, info.max):
        value = int(value)
    elif value is None or (value is not parameter.default and type(value) is not wanted):
        return convert(ctx, value)
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def _is_within(value: Any, least: float | None, most: float | None) -> bool:
    """Whether a text is a plain number within its bounds."""
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10):
        return False
    return (least is None or least <= int(value)) and (most is None or int(value) <= most)


class Commands(TyperGroup):
    """The commands of the table, and where errors end. What is not caught here is a bug and keeps its traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = dict.fromkeys(COMMANDS)  # the names, for suggestions; get_command has the commands

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(".")
        found = getattr(importlib.import_module(f"scroll_context.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            command, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(cmd_name)(command)
        whole = typer.main.get_command(found)
        spare_conversions(whole.get_params(ctx))
        return whole

    def get_params(self, ctx: Any) -> Any:
        return spare_conversions(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as Typer calls it
        formatter.write(overview())

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ScrollError as error:
            fault = str(error)
        except KeyboardInterrupt:
            typer.echo("scroll: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
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
