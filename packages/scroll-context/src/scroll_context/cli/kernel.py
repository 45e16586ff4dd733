"""Commands of the kernel: what its jail enforces on this machine, and a prompt on it for a person.

The prompt differs from a model's cells in one way: the value of a last expression is shown, because
a person expects it. That is done here, by rewriting the source, and the kernel knows nothing of it.
Input that does not come from a terminal is run as one cell.
"""

import ast
import codeop
import contextlib
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scroll_context.cli.options import Place, json_option, open_store, store_option
from scroll_context.cli.output import (
    Command,
    echo,
    note,
    print_bytes,
    print_document,
    print_result,
    print_table,
)
from scroll_context.errors import BadInput, KernelDied
from scroll_context.log.address import is_address
from scroll_context.plugins import entry_points

if TYPE_CHECKING:
    from scroll_context.kernel.kernel import Kernel
    from scroll_context.kernel.results import CellResult
    from scroll_context.recall.memory import Memory

CHECKS = "scroll_context.checks"
"""Entry points of installed packages that `scroll doctor` calls with the current folder.

Each returns a list of rows; a row has a `title`, a `state`, and the remedies for what is `missing`.
"""
TIERS = click.Choice(["auto", "full", "kernel-only", "seatbelt", "none"])
HELP = """\
Python statements run in the kernel. The value of the last expression is shown and kept as _.
  :names    list the variables, with their types and origins
  :help     show this text
  :quit     exit (or Ctrl-D)
Ctrl-C interrupts a running cell, or clears the line."""

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@click.command(cls=Command)
@click.argument("url", metavar="[URL]", required=False)
@click.option(
    "--tier",
    type=TIERS,
    default="auto",
    help="The tier to require. auto picks full if it is available, else kernel-only; never "
    "seatbelt (untested) or none (no jail). kernel-only works in plain containers.",
)
@json_option
def doctor(url: str | None, tier: Any, as_json: bool) -> None:
    """Check the jail and the connected assistants.

    The jail has tiers, from `full`, the strictest, to `none`. Each tier is set up for real in a
    throwaway process. Exits 1 if the required tier is unavailable. For each coding assistant on
    this machine, this shows whether it is connected, when its sessions were last captured, and how
    to fix problems. With the URL of a shared store, it checks the server, the connection, your
    privileges, the object store and the replicas instead.

    \b
    Examples:
      scroll doctor
      scroll doctor --tier full --json
      scroll doctor 'postgresql://scroll@db.example/agents?store=main'
    """
    if url is not None:
        _examine_store(url, as_json=as_json)
        return
    import msgspec

    from scroll_context.jail.entry import examine
    from scroll_context.jail.spec import UNTESTED

    report = examine(tier)
    checks = {point.name: point.load()(Path.cwd()) for point in entry_points(CHECKS)}
    if as_json:
        print_document({**msgspec.to_builtins(report), **checks})
    else:
        echo(f"{report.system}, landlock ABI {report.landlock_abi or '–'}")
        for trial in report.tiers:
            count = len(trial.probes)
            blocked = f"works ({count} of {count} escape attempts blocked)"
            state = blocked if trial.available else trial.refusal
            untested = " (experimental, untested)" if trial.tier in UNTESTED else ""
            echo(f"tier {trial.tier}{untested}: {state}")
        echo(f"kernels run in tier: {report.tier or 'none is available, so no kernel can start'}\n")
        rows = [
            ("yes" if row.enforced else "NO", row.name, row.mechanism) for row in report.guarantees
        ]
        print_table(("enforced", "guarantee", "by"), rows)
        for row in report.guarantees:
            if row.remedy:
                echo(f"\n{row.name}: {row.remedy}")
        echo()
        for rows in checks.values():
            for row in rows:
                echo(f"{row.title}: {row.state}")
                for missing in row.missing:
                    echo(f"  missing: {missing}")
    if not report.ok:
        note(f"tier {tier!r} is unavailable on this machine, so no kernel can start")
        raise click.exceptions.Exit(1)


def _examine_store(address: str, *, as_json: bool) -> None:
    """Show the report of `scroll doctor URL`."""
    from scroll_context.log.schemes import installed_scheme

    if not is_address(address):
        raise BadInput(
            f"{address!r:.80} is not the address of a store; write "
            "postgresql://user@host/database?store=NAME, or leave it out to check this machine"
        )
    findings = installed_scheme(address).examine(address)
    ok = all(finding.ok for finding in findings)
    lines = [
        f"{'ok' if finding.ok else 'NO':<4}{finding.name:<12}{finding.text}" for finding in findings
    ]
    print_result({"ok": ok, "findings": findings}, "\n".join(lines), as_json=as_json)
    if not ok:
        raise click.exceptions.Exit(1)


@click.command(cls=Command)
@store_option
@click.option(
    "--tier",
    type=TIERS,
    default="auto",
    help="The jail to run in. seatbelt is experimental and untested; none means no jail.",
)
def repl(store: Place, tier: Any) -> None:
    """Run Python in the jailed kernel yourself.

    This is the jailed Python process that a model uses. If there is a store, the object `ms` gives
    read access to it. Jailed code cannot reach your files, the network or other processes.
    Variables persist between cells. Nothing is recorded.

    \b
    Examples:
      scroll repl
      scroll repl --store trip
      echo 'print(len(ms.search("toll")))' | scroll repl
    """
    from scroll_context.jail.spec import JailSpec, default_read_only, site_packages
    from scroll_context.kernel.kernel import Kernel
    from scroll_context.kernel.protocol import Prelude
    from scroll_context.kernel.results import Dispatch
    from scroll_context.recall.memory import memory_prelude, reading_memory
    from scroll_context.tools.handles import handles_prelude

    with contextlib.ExitStack() as opened:
        dispatch: Dispatch | None = None
        memory: Memory | None = None
        preludes: tuple[Prelude, ...] = ()
        if isinstance(store, str) or store.exists():
            memory = reading_memory(opened.enter_context(open_store(store)))
            opened.callback(memory.close)
            dispatch = memory.answer
            preludes = (handles_prelude(), memory_prelude())
        else:
            note(f"there is no store in {store}, so `ms` is not available")
        spec = JailSpec(tier=tier, read_only=(*default_read_only(), *site_packages()), scratch="")
        kernel = opened.enter_context(
            contextlib.closing(Kernel(dispatch, preludes=preludes, spec=spec))
        )
        status = run(kernel, Path.home() / ".scroll_history", memory)
    raise click.exceptions.Exit(status)


def run(kernel: "Kernel", history_file: Path, memory: "Memory | None" = None) -> int:
    """Read cells from standard input until it ends; returns the exit status. Starts the kernel."""
    enforcement = kernel.start()
    if not sys.stdin.isatty():
        source = sys.stdin.read()
        return 0 if not source.strip() or _execute(kernel, source, memory) else 1
    echo(f"Scroll kernel, jail tier {enforcement.tier}. :help shows more, Ctrl-D exits.")
    with _history(history_file):
        _prompt(kernel, memory)
    return 0


def _prompt(kernel: "Kernel", memory: "Memory | None") -> None:
    while True:
        try:
            source = _read_cell()
            match source.strip():
                case ":quit" | ":q":
                    return
                case ":names":
                    echo(kernel.variable_list(limit=20_000) or "no variables yet")
                case ":help":
                    echo(HELP)
                case "":
                    continue
                case _:
                    _execute(kernel, source, memory)
        except KeyboardInterrupt:
            echo()
        except EOFError:
            echo()
            return


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
            # The kernel reports the mistake.
            return source
        lines.append(input("... "))


def _execute(kernel: "Kernel", source: str, memory: "Memory | None") -> bool:
    """Run a cell and show what came of it. Ctrl-C interrupts the cell and not this program."""
    source, ended = show_last_expression(source), False

    def stop(*_: object) -> None:
        if not (kernel.interrupt() or ended):
            # The cell has not begun yet.
            raise KeyboardInterrupt

    if memory is not None:
        memory.begin_cell()
    before = signal.signal(signal.SIGINT, stop)
    try:
        result = kernel.execute(source, timeout=math.inf)
        ended = True
        _show(result)
        for line in memory.notes if memory is not None else ():
            echo(f"[note] {line}", err=True)
        kernel.save()
    except KernelDied as error:
        echo(f"the variables could not be saved: {error}", err=True)
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return result.ended == "ok"


def _show(result: "CellResult") -> None:
    """Print the output of a cell: safely on a terminal, byte for byte elsewhere."""
    from scroll_context.kernel.results import restored

    if sys.stdout.isatty():
        text = result.printed.decode("utf-8", "replace")
        echo(text, end="" if text.endswith("\n") or not text else "\n")
    else:
        print_bytes(
            result.printed
            + (b"\n" if result.printed and not result.printed.endswith(b"\n") else b"")
        )
    if result.error is not None:
        echo((result.error.traceback or result.error.message).rstrip("\n"), err=True)
    if result.restore is not None:
        echo(restored(result.restore), err=True)


def show_last_expression(source: str) -> str:
    """`source`, changed so that the value of a last expression is printed, unless it is None, and
    bound to `_`.
    """
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
    return (
        f"{head}__value__ = ({expression})\nif __value__ is not None: "
        "print(repr(__value__)); _ = __value__"
    )


@contextlib.contextmanager
def _history(file: Path) -> Iterator[None]:
    """Enable line editing with history, or without it if the history cannot be stored."""
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
