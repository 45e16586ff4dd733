"""An interactive prompt for a person, on the same jailed kernel that a model gets.

It differs from a model's cells in one way: the value of a last expression is shown, because a person expects it.
That is done here, by rewriting the source, and the kernel knows nothing of it. Ctrl-C interrupts the cell, Ctrl-D
leaves. Input that does not come from a terminal is run as one cell.
"""

import ast
import codeop
import contextlib
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from scroll_context.errors import KernelDied
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.observation import restored
from scroll_context.kernel.results import CellResult

_HELP = """\
Python statements run in the kernel; the value of a last expression is shown, and kept as _.
  :names    the variables, with their types and where they come from
  :help     this text
  :quit     leave (or Ctrl-D)
Ctrl-C interrupts a running cell, or clears the line."""

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def run(kernel: Kernel, history_file: Path) -> int:
    """Read cells from standard input until it ends; returns the exit status. Starts the kernel."""
    enforcement = kernel.start()
    if not sys.stdin.isatty():
        return _run_script(kernel, sys.stdin)
    print(f"Scroll kernel, jail tier {enforcement.tier}. :help tells more, Ctrl-D leaves.")
    with _history(history_file):
        _prompt(kernel)
    return 0


def _run_script(kernel: Kernel, stream: TextIO) -> int:
    source = stream.read()
    if not source.strip():
        return 0
    return 0 if _execute(kernel, source) else 1


def _prompt(kernel: Kernel) -> None:
    while True:
        try:
            source = _read_cell()
            if source.strip() in (":quit", ":q"):
                return
            _obey(kernel, source)
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def _obey(kernel: Kernel, source: str) -> None:
    match source.strip():
        case "":
            return
        case ":names":
            print(kernel.digest(limit=20_000) or "no variables yet")
        case ":help":
            print(_HELP)
        case _:
            _execute(kernel, source)


def _read_cell() -> str:
    """One complete statement, as the interpreter's own prompt would read it. Raises EOFError."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= _FLAGS
    lines = [input(">>> ")]
    if lines[0].lstrip().startswith(":"):
        return lines[0]
    while True:
        source = "\n".join(lines)
        try:
            if compiler(source, "<stdin>", "single") is not None:
                return source
        except (SyntaxError, ValueError, OverflowError):
            return source  # the kernel says what is wrong with it
        lines.append(input("... "))


def _execute(kernel: Kernel, source: str) -> bool:
    """Run a cell and show what came of it. Ctrl-C interrupts the cell and not this program."""
    source, ended = show_last_expression(source), False

    def stop(*_: object) -> None:
        if not (kernel.interrupt() or ended):
            raise KeyboardInterrupt  # the cell has not begun yet

    before = signal.signal(signal.SIGINT, stop)
    try:
        result = kernel.execute(source, timeout=math.inf)
        ended = True
        _show(result)
        kernel.save()
    except KernelDied as error:
        print(f"the namespace could not be saved: {error}", file=sys.stderr)
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return result.ended == "ok"


def _show(result: CellResult) -> None:
    text = result.printed.decode("utf-8", "replace")
    sys.stdout.write(text)
    if text and not text.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()
    if result.error is not None:
        print((result.error.traceback or result.error.message).rstrip("\n"), file=sys.stderr)
    if result.restore is not None:
        print(restored(result.restore), file=sys.stderr)
    sys.stderr.flush()


def show_last_expression(source: str) -> str:
    """`source`, changed so that the value of a last expression is printed, unless it is None, and bound to `_`."""
    try:
        tree = compile(source, "<stdin>", "exec", _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return source
    last = tree.body[-1] if isinstance(tree, ast.Module) and tree.body else None
    if not isinstance(last, ast.Expr) or last.end_lineno is None or last.end_col_offset is None:
        return source
    # Positions count bytes. The line numbers stay, so that a traceback points to what was typed.
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    begin = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    data = b"".join(lines)
    head, expression = data[:begin].decode(), data[begin:end].decode()
    return f"{head}__value__ = ({expression})\nif __value__ is not None: print(repr(__value__)); _ = __value__"


@contextlib.contextmanager
def _history(file: Path) -> Iterator[None]:
    """Line editing with what was typed before; where that cannot be kept, it is done without."""
    try:
        import readline
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(10_000)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
