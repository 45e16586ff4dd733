"""What commands print: JSON for programs, tables and bars for people.

Data goes to stdout, progress and notes to stderr. Stored text is foreign text: control characters in it are made
visible before it reaches a terminal, which could otherwise be told to do things.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int], None]

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_UNPIPED_WIDTH = 100_000  # columns of a table that goes to a file: no line is ever folded


def print_document(value: Any) -> None:
    """One JSON document, indented."""
    import msgspec

    _write(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_line(value: Any) -> None:
    """One line of JSON Lines."""
    import msgspec

    _write(msgspec.json.encode(value))


def _write(encoded: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(encoded + b"\n")
    sys.stdout.buffer.flush()


def visible(text: str) -> str:
    """Text that does nothing to a terminal but appear on it."""
    return text.translate(_CONTROLS)


def utf8(argument: str) -> str:
    """An argument or file name without the bytes that are not UTF-8, which nothing behind us could store."""
    return argument.encode("utf-8", "replace").decode()


def one_line(text: str, limit: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(visible(text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def note(text: str) -> None:
    """Something the reader should know that is not data."""
    typer.echo(f"scroll: {text}", err=True)


def console() -> "Console":
    """Rich on stdout: colours on a terminal only, and no folding of lines in a file."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _UNPIPED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[str] = ()) -> None:
    """Rows under headings. On a terminal the last column is cut to fit."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_last = column == columns[-1]
        table.add_column(
            Text(column), justify="right" if column in numeric else "left", no_wrap=True,
            overflow="ellipsis" if is_last else "fold",
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console().print(table, soft_wrap=False)


@contextlib.contextmanager
def progress(label: str) -> Iterator[Progress | None]:
    """A bar on stderr, for as long as the work takes; None when nobody is watching."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
