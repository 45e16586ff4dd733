"""`scroll demo`: the demonstration on this terminal, in a store of its own."""

import contextlib
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from scroll_context.cli.options import open_log
from scroll_context.errors import BadInput


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Without pauses.")] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the store in a new folder.", show_default="temporary")
    ] = None,
) -> None:
    """See an agent work in a window far too small for it.

    A tour is planned with real cells, tools, evictions and a kill -9; only the model follows a script, so no key is
    needed. Every claim is checked, and the status is 1 if one is false.

    \b
    Examples:
      scroll demo
      scroll demo --keep trip
    """
    from rich.console import Console

    from scroll_context.demo.script import NotShown
    from scroll_context.demo.stage import WIDTH, Stage
    from scroll_context.demo.story import play

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadInput(f"{keep} exists and is not empty; name a new folder")
    watched = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if watched else WIDTH, highlight=False, markup=False, emoji=False)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scroll-demo-")))
        stage = Stage(console, paced=watched and not fast)
        try:
            failures = play(stage, keep or scratch / "store", scratch / "bookings.jsonl")
        except NotShown as error:
            stage.end_line()
            raise BadInput(f"the demonstration failed: {error}") from error
    typer.echo()
    if keep is not None:
        _show_around(keep)
    if failures:
        typer.secho(f"{failures} of these claims did not hold.", fg=typer.colors.RED, err=True)
        raise typer.Exit(1)
    if keep is None:
        typer.echo("That store was temporary; `scroll demo --keep DIR` leaves one to look around in.")


def _show_around(folder: Path) -> None:
    log = open_log(folder)
    request = log.query("SELECT max(seq) FROM event WHERE kind = 'request'")[0][0]
    log.close()
    where = shlex.quote(str(folder))
    typer.echo(f"The store is kept in {where}. Look around in it:")
    for command in (
        "scroll sessions",
        "scroll search 'walnut allergy'",
        f"scroll explain {request}",
        "scroll trajectory trip-4-september",
    ):
        typer.echo(f"  {command} --store {where}")
