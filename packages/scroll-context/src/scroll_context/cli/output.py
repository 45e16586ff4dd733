"""The output of commands: lines and tables for people, JSON for programs, progress bars, diffs,
questions, and files that are written atomically.

Data goes to stdout, progress and notes to stderr. Stored text is foreign text, and so is every name
in it: `echo`, `note`, `print_table` and the `Screen` of watch.py are the only ways to a terminal,
and each makes visible what could steer one (control characters, or characters that reverse the
direction of writing) with `visible` before it prints.

Every command that destroys something shows what it would do and then asks (`confirm`). `--yes`
skips the question, which programs and scheduled runs need, and `--dry-run` ends before it.
"""

import contextlib
import difflib
import io
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from scroll_context.cli.commands import INTERRUPTED
from scroll_context.errors import BadInput, ScrollError
from scroll_context.events import Progress
from scroll_context.files import complete_file
from scroll_context.log.address import printable_place
from scroll_context.text.printable import one_line as one_line
from scroll_context.text.printable import visible as visible
from scroll_context.text.printable import visible_json

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


# Columns that are left to the last one of a table, however narrow the terminal.
NARROWEST = 20
# Seconds of work before a bar appears.
UNSEEN = 0.3
CARRIED = ("store", "project", "model", "base_url", "window", "tools", "mcp", "ask", "system")
"""The options that a printed hint takes over from the command line, where the command that it names
has them.
"""
_NAMED_BY_USER = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun: `1 event`, `2,000 events`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def echo(
    text: str = "",
    *,
    end: str = "\n",
    err: bool = False,
    bold: bool = False,
    colour: str | None = None,
    marked: "re.Pattern[str] | None" = None,
) -> None:
    """Print text for people, the parts that `marked` matches standing out."""
    printable = visible(text)
    if bold or colour:
        printable = click.style(printable, bold=bold or None, fg=colour)
    if marked is not None:
        printable = marked.sub(
            lambda match: click.style(match[0], bold=True, fg="yellow"), printable
        )
    click.echo(printable + end, nl=False, err=err)


def note(text: str) -> None:
    """Something the reader should know that is not data."""
    echo(f"scroll: {with_options(text)}", err=True)


def with_options(text: str) -> str:
    """A text of ours in which each command in backquotes works as it is printed.

    A text that says `scroll show 7` need not know which store was named on the command line: the
    options that both commands have, and that this one was given, are added here.
    """
    here = click.get_current_context(silent=True)
    if here is None:
        return text
    return re.sub(r"`scroll ([a-z]+)([^`]*)`", lambda match: _completed(match, here), text)


def _completed(match: "re.Match[str]", here: click.Context) -> str:
    name, arguments = match.groups()
    group = here.find_root().command
    command = group.get_command(here, name) if isinstance(group, click.Group) else None
    offered = {parameter.name for parameter in command.params} if command else set()
    for parameter in here.command.params:
        option = parameter.opts[0]
        if parameter.name not in offered.intersection(CARRIED) or option in arguments:
            continue
        if here.get_parameter_source(parameter.name) in _NAMED_BY_USER:
            value = here.params[parameter.name]
            for item in value if isinstance(value, tuple | list) else (value,):
                arguments += f" {option} {shlex.quote(printable_place(item))}"
    return f"`scroll {name}{arguments}`"


class Command(click.Command):
    """A click command that reports errors while its options are still available."""

    def invoke(self, ctx: click.Context) -> Any:
        with faults_in_one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def faults_in_one_line() -> Iterator[None]:
    """Turn expected errors into one line on stderr and an exit status. Any other exception is a bug
    and keeps its traceback.

    Status 0: done. 1: an error, in one line on stderr. 2: usage error. 130: interrupted. 143: ended
    by SIGTERM.
    """
    try:
        yield
        return
    except ScrollError as error:
        fault, status = str(error), 1
    except KeyboardInterrupt:
        fault, status = "interrupted", INTERRUPTED
    except BrokenPipeError:
        # The reader has enough; click ends quietly.
        raise
    except OSError as error:
        if _output_is_lost():
            # The module main.py reports it, once.
            raise
        fault, status = f"{error.filename}: {error.strerror}" if error.filename else str(error), 1
    note(fault)
    raise click.exceptions.Exit(status)


def _output_is_lost() -> bool:
    """Whether there is buffered output that cannot be written."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.flush()
    except OSError:
        return True
    return False


# data -------------------------------------------------------------------------------------------


def print_document(value: Any) -> None:
    """One JSON document, indented."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    print_bytes(visible_json(text).encode() + b"\n")


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: a JSON document for programs, or a text for people."""
    if as_json:
        print_document(value)
    else:
        echo(text)


def print_line(value: Any) -> None:
    """One line of JSON Lines."""
    import msgspec

    print_bytes(visible_json(msgspec.json.encode(value).decode()).encode() + b"\n")


def print_bytes(data: bytes) -> None:
    """Data as it is: JSON whose control characters are escaped, or bytes that do not go to a
    terminal.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def utf8(argument: str) -> str:
    """An argument or file name without the bytes that are not UTF-8, which a store cannot hold."""
    return argument.encode("utf-8", "replace").decode()


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[str] = (),
    *,
    fit: bool = False,
) -> None:
    """Rows under headings. With `fit`, the last column is truncated to the terminal's width.

    On a terminal too narrow for that, each row is a block of lines, one for each column that has
    something to say.
    """
    from rich.cells import cell_len, set_cell_size

    lines = [list(map(one_line, row)) for row in (columns, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    *others, last = widths
    # Two spaces follow each column.
    left_for_last = sys.maxsize
    if sys.stdout.isatty():
        terminal = shutil.get_terminal_size().columns
        left_for_last = terminal - sum(others) - 2 * len(others)
        if left_for_last < (min(NARROWEST, last) if fit else last):
            _print_blocks(columns, lines[1:], terminal)
            return
    for number, line in enumerate(lines):
        if fit and cell_len(line[-1]) > left_for_last:
            line[-1] = set_cell_size(line[-1], left_for_last - 1) + "…"
        padded = []
        for column, cell, room in zip(columns, line, widths, strict=True):
            blank = " " * (room - cell_len(cell))
            padded.append(blank + cell if column in numeric else cell + blank)
        echo("  ".join(padded).rstrip(), bold=number == 0)


class _Page(io.StringIO):
    """Collects lines that a pager will show on the terminal, so they are made for a terminal."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def paged() -> Iterator[None]:
    """Show printed lines in the user's pager if the terminal has fewer lines."""
    if not sys.stdout.isatty():
        yield
        return
    page = _Page()
    with contextlib.redirect_stdout(page):
        yield
    text = page.getvalue()
    if text.count("\n") < shutil.get_terminal_size().lines:
        click.echo(text, nl=False)
    else:
        click.echo_via_pager(text)


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    margin = max(map(len, columns[1:]), default=0) + 4
    for first, *others in rows:
        echo(first, bold=True)
        for column, cell in zip(columns[1:], others, strict=True):
            if cell:
                echo(f"  {column:<{margin - 4}}  {wrapped(cell, margin, width).lstrip()}")


def wrapped(text: str, margin: int, width: int | None = None) -> str:
    """A text behind a margin, broken between words at the width of the terminal.

    Elsewhere lines are not broken.
    """
    import textwrap

    blank = " " * margin
    if width is None and not sys.stdout.isatty():
        return blank + text
    width = max(width or shutil.get_terminal_size().columns, margin + NARROWEST)
    return "\n".join(
        textwrap.wrap(
            text, width, initial_indent=blank, subsequent_indent=blank, break_on_hyphens=False
        )
        or [blank]
    )


# bars -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(label: str) -> Iterator[Progress | None]:
    """A progress bar on stderr for slow work; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        show: Progress | None = None

        def update(done: int, total: int) -> None:
            nonlocal show
            if show is None and time.monotonic() - begun > UNSEEN:
                show = stack.enter_context(_bar(label))
            if show is not None:
                show(done, total)

        yield update


@contextlib.contextmanager
def _bar(label: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with live(Progress(*columns, console=Console(stderr=True), transient=True)) as bars:
        task = bars.add_task(one_line(label), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextlib.contextmanager
def live(bars: "Bars") -> Iterator["Bars"]:
    """Show progress bars, and always restore the cursor: an interrupt can arrive before rich would
    do so.
    """
    try:
        with bars:
            yield bars
    finally:
        bars.console.show_cursor()


# files ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete; one that exists is never overwritten.

    It holds history, so only its owner can read it, whatever the umask.
    """
    if target.exists():
        raise BadInput(f"{target} exists and is not overwritten; name a new file")
    try:
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(complete_file(target))
            except OSError as error:
                raise BadInput(
                    f"{target} cannot be written: {error.strerror}; name a file in another folder"
                ) from error
            yield file
    except FileExistsError:
        raise BadInput(
            f"{target} appeared meanwhile and is not overwritten; name a new file"
        ) from None


# confirmation -------------------------------------------------------------------------------------

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


# edits as diffs -----------------------------------------------------------------------------------

_FILE = ("file_path", "filePath", "path", "filename")
_OLD = ("old_string", "oldString", "old_str", "old_text")
_NEW = ("new_string", "newString", "new_str", "new_text")
_PATCH = ("patch", "input", "patchText", "patch_text")
_PATCH_BEGINS = ("*** Begin Patch", "--- ", "diff --git ")


def edit_as_diff(call: str) -> str | None:
    """The edit that a tool call makes, as a diff; None if the call is not an edit."""
    try:
        arguments = msgspec.json.decode(call)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    patch = _text(arguments, _PATCH)
    if patch is not None and patch.startswith(_PATCH_BEGINS):
        return patch
    several = arguments.get("edits")
    lines: list[str] = []
    for edit in several if isinstance(several, list) else [arguments]:
        if isinstance(edit, dict):
            lines += _changes(edit)
    if not lines:
        return None
    name = _text(arguments, _FILE) or "file"
    return "\n".join([f"--- {name}", f"+++ {name}", *lines])


def _changes(edit: dict[str, Any]) -> list[str]:
    old = _text(edit, _OLD)
    new = _text(edit, _NEW)
    if old is None or new is None:
        return []
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="")
    # The first two lines name the files.
    return list(lines)[2:]


def _text(arguments: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
    return None
