"""`scroll demo`: the demonstration on this terminal, in a store of its own."""

import contextlib
import shlex
import sys
import tempfile
from pathlib import Path

import click

from scroll_context.cli.options import FILE, open_log
from scroll_context.cli.output import Command, echo
from scroll_context.errors import BadInput


@click.command(cls=Command)
@click.option("--fast", is_flag=True, help="Skip the pauses.")
@click.option(
    "--keep",
    type=FILE,
    metavar="DIR",
    show_default="temporary",
    help="Keep the store in a new folder.",
)
def demo(fast: bool, keep: Path | None) -> None:
    """Watch an agent work in a context window that is far too small.

    An agent plans a tour of Portugal. Its code, its tools, the evictions and the kill -9 are real;
    only the model is scripted, so you need no API key. The demo checks each claim that it prints,
    and exits 1 if one is false. Takes about 20 seconds.

    --keep leaves a store with four sessions, in which you can try the other commands.

    \b
    Examples:
      scroll demo
      scroll demo --keep trip
    """
    from rich.console import Console

    from scroll_context.demo.script import NotShown
    from scroll_context.demo.stage import WIDTH, Stage
    from scroll_context.demo.story import Story

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadInput(f"{keep} exists and is not empty; name a new folder")
    watched = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        width=None if watched else WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scroll-demo-")))
        stage = Stage(console, paced=watched and not fast)
        try:
            failures = Story(stage, keep or scratch / "store", scratch / "bookings.jsonl").play()
        except NotShown as error:
            raise BadInput(f"the demo failed: {error}") from error
    echo()
    if keep is not None:
        _show_around(keep)
    if failures:
        verb = "claim is" if failures == 1 else "claims are"
        echo(f"{failures} {verb} false.", colour="red", err=True)
        raise click.exceptions.Exit(1)
    if keep is None:
        echo("That store was temporary; `scroll demo --keep trip` keeps one for other commands.")


def _show_around(folder: Path) -> None:
    log = open_log(folder)
    request = log.query("SELECT max(seq) FROM event WHERE kind = 'request'")[0][0]
    log.close()
    where = shlex.quote(str(folder))
    echo(f"The store is in {where}. Look around:")
    for command in (
        "scroll sessions",
        "scroll search 'walnut allergy'",
        f"scroll explain {request}",
        "scroll read trip-4 --steps",
    ):
        echo(f"  {command} --store {where}")
