"""Runs one cell: compile, execute, catch, and find out which names it touched. Worker only.

Cells share one namespace, the globals of `__main__`. The value of a last expression is dropped: only `print`
shows anything. `await` works at top level, on one event loop that lives as long as the worker. Variables bound
before an exception stay bound. The traceback that is reported holds the frames of cells and of the libraries that
they called, never those of the worker.
"""

import ast
import linecache
import re
from collections.abc import Container
from opcode import opmap
from sys import setprofile, settrace
from traceback import TracebackException, format_exception_only
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from scroll_context.kernel.interrupts import CpuLimitExceeded, Interrupts
from scroll_context.kernel.messages import Fault
from scroll_context.kernel.output import OutputLimitExceeded

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_CO_COROUTINE = 0x80
_TRACEBACK_CHARS = 8_000
_MESSAGE_CHARS = 4_000
_PREFIX = "<cell "
_SOURCES_KEPT = 1000  # of the newest cells, for the lines in tracebacks
_LOAD_GLOBAL, _STORE_GLOBAL, _STORE_NAME = opmap["LOAD_GLOBAL"], opmap["STORE_GLOBAL"], opmap["STORE_NAME"]
_EXTENDED_ARG = opmap["EXTENDED_ARG"]
_LOADS = {opmap["LOAD_NAME"], opmap.get("LOAD_FROM_DICT_OR_GLOBALS", opmap["LOAD_NAME"])}  # the second since 3.12
_OWN_NAMES = re.compile(r"\bscroll_context\.kernel\.\w+\.(?=[A-Z])")  # of exceptions that the worker defines


class NamesUsed(msgspec.Struct, frozen=True):
    """The names of the namespace whose values a cell can see, and those that it binds."""

    read: frozenset[str]
    bound: frozenset[str]


def names_used(source: str, filename: str, code: CodeType, existing: Container[str]) -> NamesUsed:
    """What `code`, compiled from `source`, reads of the values that are there before it runs, and what it binds."""
    loaded, stored = loaded_and_stored(code)
    read = loaded - stored
    if old := {name for name in loaded & stored if name in existing}:
        tree = compile(source, filename, "exec", _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
        read |= old - bound_before_read(tree)
    return NamesUsed(frozenset(read), frozenset(stored))


def loaded_and_stored(code: CodeType) -> tuple[set[str], set[str]]:
    """The global names that compiled code loads and stores, with the functions and classes in it.

    Read from the instructions, because the symbol tables of the source would cost a second parse and more.
    """
    loaded: set[str] = set()
    stored: set[str] = set()
    pending = [code]
    while pending:
        part = pending.pop()
        names, high = part.co_names, 0
        instructions = part.co_code if names else b""
        for operation, low in zip(instructions[::2], instructions[1::2], strict=True):
            if operation == _EXTENDED_ARG:
                high = (high | low) << 8
                continue
            if operation == _LOAD_GLOBAL:
                loaded.add(names[(high | low) >> 1])  # the lowest bit is not part of the index
            elif operation in _LOADS:
                loaded.add(names[high | low])
            elif operation == _STORE_GLOBAL or (operation == _STORE_NAME and part is code):  # else of a class body
                stored.add(names[high | low])
            high = 0
        pending += [constant for constant in part.co_consts if type(constant) is CodeType]
    return loaded, stored


def bound_before_read(tree: ast.Module) -> set[str]:
    """Names that the cell surely binds before anything in it reads them: it sees none of their old values."""
    seen: set[str] = set()
    fresh: set[str] = set()
    for statement in tree.body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        direct = {name for target in targets for name in _targets(target)}
        seen |= {node.id for node in names if node.id not in fresh and not (node.id in direct and _is_store(node))}
        fresh |= direct - seen
    return fresh


def _targets(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, ast.Tuple | ast.List):
        return [name for element in target.elts for name in _targets(element)]
    return []


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


class CellRunner:
    """Executes sources in one namespace."""

    def __init__(self, namespace: dict[str, Any], interrupts: Interrupts) -> None:
        self._namespace = namespace
        self._interrupts = interrupts
        self._loop: AbstractEventLoop | None = None
        interrupts.protect(globals())

    def run(self, cell: int, source: str) -> tuple[Fault | None, NamesUsed]:
        """Execute `source`. Whatever it raises ends here, as a Fault."""
        filename = f"{_PREFIX}{cell}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        linecache.cache.pop(f"{_PREFIX}{cell - _SOURCES_KEPT}>", None)
        try:
            code = compile(source, filename, "exec", _FLAGS, dont_inherit=True)
            used = names_used(source, filename, code, self._namespace)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            return fault_of(error), NamesUsed(frozenset(), frozenset())
        return self._execute(code), used

    def _execute(self, code: CodeType) -> Fault | None:
        self._interrupts.arm()
        try:
            if code.co_flags & _CO_COROUTINE:
                self._await(code)
            else:
                exec(code, self._namespace)
        except BaseException as error:  # noqa: BLE001 - the border to foreign code
            settrace(None)  # before anything that a trace function of the cell could see
            setprofile(None)
            return self._report(error)
        finally:
            settrace(None)
            setprofile(None)
            self._interrupts.disarm()
        return None

    def _await(self, code: CodeType) -> None:
        import asyncio  # late, because most kernels never need it and it is slow to import

        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(eval(code, self._namespace))
        except (KeyboardInterrupt, CpuLimitExceeded):
            # It may have been stopped inside the loop's own upkeep, at every line of it: do not use that loop again.
            self._loop = None
            asyncio._set_running_loop(None)
            raise

    def _report(self, error: BaseException) -> Fault:
        """Describe `error`. Its text may come from code of the cell, so this can be interrupted as well."""
        if limit_of(error):
            self._interrupts.disarm()
        try:
            return fault_of(error)
        except BaseException as second:  # noqa: BLE001 - str() of a foreign exception
            self._interrupts.disarm()
            name = type.__dict__["__name__"].__get__(type(error))
            return Fault(_shorten(name, 250), "the exception could not be described", "", limit_of(second))


def limit_of(error: BaseException) -> str:
    """Which limit an exception stands for, or nothing."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupt"
    if isinstance(error, CpuLimitExceeded):
        return "cpu"
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OutputLimitExceeded):
        return "output"
    return ""


def fault_of(error: BaseException) -> Fault:
    """An exception as plain text, without the worker's own frames."""
    shown = TracebackException(type(error), error, _from_first_cell(error.__traceback__), capture_locals=False)
    _hide_worker(shown)
    text = _OWN_NAMES.sub("", "".join(shown.format()))
    # Without the lines of source that a SyntaxError shows: those are in the traceback.
    described = [line for line in format_exception_only(type(error), error) if not line.startswith("  ")]
    message = _OWN_NAMES.sub("", "".join(described).strip())
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    name = _OWN_NAMES.sub("", name)
    return Fault(
        _shorten(name, 250), _shorten(message, _MESSAGE_CHARS), _shorten(text, _TRACEBACK_CHARS), limit_of(error)
    )


def _from_first_cell(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_PREFIX):
        trace = trace.tb_next
    return trace


def _hide_worker(shown: TracebackException | None) -> None:
    """Drop the frames of this package, in the causes and contexts too."""
    folder = __file__.rpartition("/")[0]
    pending = [shown]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(folder)]
        pending += [one.__cause__, one.__context__, *(one.exceptions or ())]


def _shorten(text: str, limit: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
