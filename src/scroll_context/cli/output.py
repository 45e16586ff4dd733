"""What commands print and write: JSON for programs, tables and bars for people, files that are whole.

Data goes to stdout, progress and notes to stderr. Stored text is foreign text: control characters in it are made
visible before it reaches a terminal, which could otherwise be told to do things.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from scroll_context.errors import BadInput
from scroll_context.events import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
NARROWEST = 20  # columns that are left to the last one of a table, however narrow the terminal
UNSEEN = 0.3  # seconds of work before a bar appears


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


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[str] = (), *, fit: bool = False
) -> None:
    """Rows under headings. With `fit`, a terminal shows of the last column what it has room for."""
    from rich.cells import cell_len, set_cell_size

    lines = [[" ".join(visible(cell).splitlines()) for cell in row] for row in (columns, *rows)]
    widths = [max(cell_len(line[at]) for line in lines) for at in range(len(columns))]
    taken = sum(width + 2 for width in widths[:-1])
    room = max(shutil.get_terminal_size().columns - taken, NARROWEST) if fit and sys.stdout.isatty() else None
    for number, line in enumerate(lines):
        if room is not None and cell_len(line[-1]) > room:
            line[-1] = set_cell_size(line[-1], room - 1) + "…"
        padded = []
        for column, cell, width in zip(columns, line, widths, strict=True):
            blank = " " * (width - cell_len(cell))
            padded.append(blank + cell if column in numeric else cell + blank)
        text = "  ".join(padded).rstrip()
        typer.echo(typer.style(text, bold=True) if number == 0 else text)


@contextlib.contextmanager
def progress(label: str) -> Iterator[Progress | None]:
    """A bar on stderr for work that takes its time; None when nobody is watching."""
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
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with live(Progress(*columns, console=Console(stderr=True), transient=True)) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextlib.contextmanager
def live(bars: "Bars") -> Iterator["Bars"]:
    """Bars on the terminal, and its cursor back afterwards: an interrupt can come before rich is ready to see to it."""
    try:
        with bars:
            yield bars
    finally:
        bars.console.show_cursor()


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete; one that exists is never overwritten."""
    if target.exists():
        raise BadInput(f"{target} exists and is not overwritten; name a new file")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".partial")
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}; name a file in another folder") from error
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        try:
            os.link(name, target)
        except FileExistsError:
            raise BadInput(f"{target} appeared meanwhile and is not overwritten; name a new file") from None
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
