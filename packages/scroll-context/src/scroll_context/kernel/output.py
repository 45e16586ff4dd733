"""The standard streams of cells: what a cell prints, on its way to the host. Worker only.

`sys.stdout` and `sys.stderr` end in one `Output`, so what was printed stays in order, whichever
thread printed it. Lines of standard error are marked. The first lines of a cell leave at once, so
that a cell that has to be killed still shows how far it came; after those, text leaves in batches.
A cell that prints without end is stopped at a limit. There is no standard input.
"""

import io
from collections.abc import Callable
from threading import RLock
from time import monotonic
from typing import Any, BinaryIO, NoReturn, cast

from scroll_context.kernel.channel import Interrupts

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
