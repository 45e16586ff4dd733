"""Runs one cell: its execution, its failure as text, and what it prints. Worker only.

Cells share one namespace, the globals of `__main__`. The value of a last expression is dropped:
only `print` shows anything. `await` works at top level, on one event loop that lives as long as the
worker. Variables bound before an exception stay bound. The traceback that is reported holds the
frames of cells and of the libraries that they called, never those of the worker.

`sys.stdout` and `sys.stderr` end in one `Output`, so what was printed stays in order, whichever
thread printed it. Lines of standard error are marked. The first lines of a cell leave at once, so
that a cell that has to be killed still shows how far it came; after those, text leaves in batches.
A cell that prints without end is stopped at a limit. There is no standard input.
"""

import ast
import io
import linecache
import re
from collections.abc import Callable
from sys import setprofile, settrace
from threading import RLock
from time import monotonic
from traceback import TracebackException, format_exception_only
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from scroll_context.kernel.channel import CpuLimitExceeded, Interrupts
from scroll_context.kernel.names import NO_NAMES, NOT_COMPILED, NamesUsed, names_used
from scroll_context.kernel.results import CellError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_CO_COROUTINE = 0x80
_TRACEBACK_CHARS = 8_000
_MESSAGE_CHARS = 4_000
_PREFIX = "<cell "
# How many of the newest cells have their source at hand, for the lines in tracebacks.
_MOST_SOURCES = 1000
# The prefix of exceptions that the worker defines.
_OWN_NAMES = re.compile(r"\bscroll_context\.kernel\.\w+\.(?=[A-Z])")


class CellRunner:
    """Executes sources in one namespace."""

    def __init__(
        self, namespace: dict[str, Any], host_names: dict[str, Any], interrupts: Interrupts
    ) -> None:
        self._namespace = namespace
        self._host_names = host_names
        self._interrupts = interrupts
        self._loop: AbstractEventLoop | None = None

    def run(self, cell: int, source: str) -> tuple[CellError | None, NamesUsed]:
        """Execute `source`. Whatever it raises ends here, as a CellError."""
        filename = f"{_PREFIX}{cell}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        linecache.cache.pop(f"{_PREFIX}{cell - _MOST_SOURCES}>", None)
        try:
            code = compile(source, filename, "exec", _FLAGS, dont_inherit=True)
        except NOT_COMPILED as error:
            return error_of(error), NO_NAMES
        used = NO_NAMES
        try:
            if self._names_a_variable(code):
                used = names_used(source, filename, self._namespace)
        except NOT_COMPILED:
            # The source is too large to be examined, but not to run.
            pass
        return self._execute(code), used

    def _names_a_variable(self, code: CodeType) -> bool:
        """Whether a name in `code` may be that of a variable which is there already; most cells
        need no closer look.
        """
        pending = [code]
        while pending:
            part = pending.pop()
            for name in part.co_names:
                if (
                    name in self._namespace
                    and self._host_names.get(name) is not self._namespace[name]
                ):
                    return True
            pending += [constant for constant in part.co_consts if type(constant) is CodeType]
        return False

    def _execute(self, code: CodeType) -> CellError | None:
        self._interrupts.arm()
        try:
            if code.co_flags & _CO_COROUTINE:
                self._await(code)
            else:
                exec(code, self._namespace)
        except BaseException as error:  # noqa: BLE001 - the border to foreign code
            # A trace function of the cell must not see anything from here on.
            settrace(None)
            setprofile(None)
            return self._report(error)
        finally:
            settrace(None)
            setprofile(None)
            self._interrupts.disarm()
        return None

    def _await(self, code: CodeType) -> None:
        # Imported late: most kernels never need asyncio, and it is slow to import.
        import asyncio

        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(eval(code, self._namespace))
        except (KeyboardInterrupt, CpuLimitExceeded):
            # It may have been stopped inside the loop's own upkeep, at every line of it: do not use
            # that loop again.
            self._loop = None
            asyncio._set_running_loop(None)
            raise

    def _report(self, error: BaseException) -> CellError:
        """Describe `error`.

        Its text may come from code of the cell, so this can be interrupted as well.
        """
        if limit_of(error):
            self._interrupts.disarm()
        try:
            return error_of(error)
        except BaseException as second:  # noqa: BLE001 - str() of a foreign exception
            self._interrupts.disarm()
            name = type.__dict__["__name__"].__get__(type(error))
            return CellError(
                _shorten(name, 250), "the exception could not be described", "", limit_of(second)
            )


def limit_of(error: BaseException) -> str:
    """The limit that an exception stands for, or nothing."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupt"
    if isinstance(error, CpuLimitExceeded):
        return "cpu"
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OutputLimitExceeded):
        return "output"
    return ""


def error_of(error: BaseException) -> CellError:
    """An exception as plain text, without the worker's own frames."""
    trace = TracebackException(
        type(error), error, _from_first_cell(error.__traceback__), capture_locals=False
    )
    _hide_worker(trace)
    text = _OWN_NAMES.sub("", "".join(trace.format()))
    # Without the lines of source that a SyntaxError shows: those are in the traceback.
    described = [
        line for line in format_exception_only(type(error), error) if not line.startswith("  ")
    ]
    message = _OWN_NAMES.sub("", "".join(described).strip())
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    name = _OWN_NAMES.sub("", name)
    return CellError(
        _shorten(name, 250),
        _shorten(message, _MESSAGE_CHARS),
        _shorten(text, _TRACEBACK_CHARS),
        limit_of(error),
    )


def _from_first_cell(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_PREFIX):
        trace = trace.tb_next
    return trace


def _hide_worker(outermost: TracebackException) -> None:
    """Drop the frames of this package, in the causes and contexts too."""
    folder = __file__.rpartition("/")[0]
    pending: list[TracebackException | None] = [outermost]
    seen: set[int] = set()
    while pending:
        trace = pending.pop()
        if trace is None or id(trace) in seen:
            continue
        seen.add(id(trace))
        trace.stack[:] = [frame for frame in trace.stack if not frame.filename.startswith(folder)]
        pending += [trace.__cause__, trace.__context__, *(trace.exceptions or ())]


def _shorten(text: str, limit: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


# output -------------------------------------------------------------------------------------------

# So many writes of a cell are sent at once.
_EAGER = 4
_BATCH_BYTES = 1 << 15
_BATCH_SECONDS = 0.05
_PIECE = 1 << 20
_MARK = b"[stderr] "


class OutputLimitExceeded(BaseException):
    """The cell printed more than is kept.

    Not an Exception, so that `except Exception` does not hide it.
    """


class Output:
    """Collects the bytes that a cell prints and sends them on."""

    def __init__(self, send: Callable[[memoryview], None], interrupts: Interrupts) -> None:
        self._send = send
        self._interrupts = interrupts
        self._lock = RLock()
        self._parts: list[bytes] = []
        self._held = 0
        self._total = 0
        self._writes = 0
        self._sent_at = 0.0
        self.limit = 0

    def begin_cell(self) -> None:
        with self._lock:
            self._total = self._writes = 0

    def write(self, data: bytes) -> None:
        with self._lock:
            allowed = data[: max(0, self.limit - self._total)]
            self._total += len(data)
            self._writes += 1
            if allowed:
                self._parts.append(allowed)
                self._held += len(allowed)
            is_due = monotonic() - self._sent_at > _BATCH_SECONDS
            if self._writes <= _EAGER or self._held >= _BATCH_BYTES or is_due:
                self.flush()
        self._interrupts.checkpoint()
        if self._total > self.limit:
            raise OutputLimitExceeded(f"the cell printed more than {self.limit:,} bytes")

    def flush(self) -> None:
        with self._lock:
            if not self._parts:
                return
            data = memoryview(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
            self._parts, self._held = [], 0
            for start in range(0, len(data), _PIECE):
                self._send(data[start : start + _PIECE])
            self._sent_at = monotonic()


class _Sink(io.BufferedIOBase):
    """The binary end under a text stream; `sys.stdout.buffer.write` lands here as well.

    With a mark, as for standard error, each line starts with it, and only complete lines are passed
    on before `finish`."""

    def __init__(self, output: Output, mark: bytes = b"") -> None:
        self._output = output
        self._mark = mark
        self._rest = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self._mark:
            self._output.write(bytes(data))
            return len(data)
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        if lines:
            self._output.write(b"".join(self._mark + line + b"\n" for line in lines))
        return len(data)

    def finish(self) -> None:
        if self._rest:
            self.write(b"\n")


class NoInput(io.TextIOBase):
    """Standard input of a cell: there is no one to answer, and the error says so."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            "a cell cannot read input: nobody is there to type it. Assign the value to a variable,"
            " or ask the user in your reply."
        )

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Stays open: `exit()` closes its input before it raises SystemExit."""

    read = readline = _refuse


class Streams:
    """The three standard streams of the cells."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._errors = _Sink(output, _MARK)
        self.stdin = NoInput()
        self.stdout = _text_stream(_Sink(output))
        self.stderr = _text_stream(self._errors)

    def finish_cell(self) -> None:
        """Pass on everything, the last line without a newline too."""
        for stream in (self.stdout, self.stderr):
            if not stream.closed:
                stream.flush()
        self._errors.finish()
        self._output.flush()


def _text_stream(sink: _Sink) -> io.TextIOWrapper:
    # Lone surrogates are printed as escapes: all output of the worker is UTF-8.
    return io.TextIOWrapper(
        cast(BinaryIO, sink),
        encoding="utf-8",
        errors="backslashreplace",
        newline="",
        line_buffering=True,
    )
