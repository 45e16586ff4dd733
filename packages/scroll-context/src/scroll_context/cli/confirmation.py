"""How a command that destroys something asks first.

Every such command shows what it would do and then asks. `--yes` skips the question, which programs
and scheduled runs need, and `--dry-run` ends before it.
"""

import contextlib
import sys

import click

from scroll_context.cli.output import echo, note
from scroll_context.cli.statuses import INTERRUPTED
from scroll_context.errors import BadInput

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would happen, and change nothing."
)


def confirm(question: str, *, yes: bool) -> None:
    """Return only if the user agrees to the question, or has agreed with --yes.

    A refusal exits with status 1, Ctrl-C with 130.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(
            "nothing was changed, because there is no terminal for confirmation; pass --yes if "
            "you are sure, or --dry-run to see what would happen"
        )
    forget_typed_keys()
    try:
        is_agreed = click.confirm(question, err=True)
    except click.Abort:
        # Ctrl-C, or the end of the input. The question is still on the line.
        echo(err=True)
        note("nothing was changed")
        raise click.exceptions.Exit(INTERRUPTED) from None
    if not is_agreed:
        note("nothing was changed")
        raise click.exceptions.Exit(1)


def forget_typed_keys() -> None:
    """Keys typed before the question do not answer it. Windows has no such queue."""
    try:
        import termios
    except ImportError:
        return
    with contextlib.suppress(termios.error, ValueError, OSError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
