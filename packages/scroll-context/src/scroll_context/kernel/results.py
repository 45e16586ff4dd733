"""The values that a user of a kernel sees, how a cell ended and what was saved or lost, and the
words for them.

The words are pure functions of a CellResult. Four cases must never be confused: the cell failed
before it printed anything (which says nothing about what a search would have found), it failed
after it had printed, it ran and printed nothing, and it printed more than fits. Each text says what
happened, what was kept, and what to do next.
"""

import builtins
from collections.abc import Callable
from itertools import groupby
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from scroll_context.contents import SnapshotVariable
from scroll_context.work import Work

Ended = Literal["ok", "error", "interrupted", "timeout", "killed", "output-limit", "memory"]

MAX_SEQS = 1_000
"""How many events are listed for one variable."""

Name = Annotated[str, Meta(max_length=256)]
Line = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(max_length=65_536)]

REASONS = {
    "pickle": "it cannot be pickled",
    "size": "its pickle is larger than the limit",
    "module": "it is a module that cannot be imported by its name",
    "limit": "it took too much time or memory",
    "load": "it cannot be unpickled",
    "import": "its module cannot be imported",
    "unsent": "it was not sent",
}
"""Why a variable could not be saved or restored.

What a kernel process says beyond that is not repeated.
"""


def is_variable_name(name: object) -> bool:
    """Whether a key of the namespace is a variable: an identifier that is not one of the
    interpreter's own.
    """
    return (
        type(name) is str
        and name.isidentifier()
        and len(name) <= 256
        and not (name.startswith("__") and name.endswith("__"))
    )


def reason_text(reason: str) -> str:
    """A code of REASONS as a text, with the exception if that is a built-in one."""
    code, _, error = reason.partition(":")
    if code not in REASONS:
        return "the reason is not known"
    kind = getattr(builtins, error, None) if error.isidentifier() else None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return f"{REASONS[code]} ({error})"
    return REASONS[code]


class CellError(msgspec.Struct, frozen=True):
    """The exception that ended a cell, as text; `traceback` holds no frame of the worker."""

    type: Line
    message: Text
    traceback: Text = ""
    # The limit that it stands for, if any.
    limit: Annotated[str, Meta(pattern="^(|interrupt|cpu|memory|output)$")] = ""


class Loss(msgspec.Struct, frozen=True):
    """A variable that is not there, or not as it was, and why.

    The reason is one of the texts of this package.
    """

    name: str
    reason: str


class RestoreReport(msgspec.Struct, frozen=True):
    """The result of a restore.

    `restored` is as it was. `stale` is back as well, but without later changes, or it is not known
    whether there were any.
    """

    restored: tuple[str, ...] = ()
    stale: tuple[Loss, ...] = ()
    lost: tuple[Loss, ...] = ()


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell, from start to end."""

    cell: int
    ended: Ended
    # The printed output with standard error marked; its beginning and end if it is too long.
    stdout: str
    # The complete printed output as UTF-8.
    printed: bytes = b""
    printed_chars: int = 0
    # The characters between the beginning and the end in `stdout`.
    hidden_chars: int = 0
    error: CellError | None = None
    # New names first, then those that were bound again. A value that was changed in place shows in
    # the next save.
    bound: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    # Names whose earlier values the cell could see.
    read: tuple[str, ...] = ()
    # Host names that an earlier cell had overwritten, now put back.
    rebound: tuple[str, ...] = ()
    # The events that the host gave to this cell.
    seqs: tuple[int, ...] = ()
    # In seconds.
    duration: float = 0.0
    # Set when the kernel had to be started again.
    restore: RestoreReport | None = None

    @property
    def is_cut(self) -> bool:
        """Whether `stdout` lacks a part of what was printed."""
        return self.hidden_chars > 0


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable of the namespace.

    The worker describes the value; the host knows where it comes from.
    """

    name: Name
    type: Name = ""
    # A small value, a shape, a length, or the first keys.
    detail: Line = ""
    # Whether `detail` is the value itself.
    inline: bool = False
    # In bytes, estimated; 0 when unknown.
    size: Annotated[int, Meta(ge=0)] = 0
    # The cell that bound it.
    cell: int = 0
    # The last cell that bound, changed or read it.
    used: int = 0
    # The events that it derives from, in order.
    seqs: Annotated[tuple[int, ...], Meta(max_length=MAX_SEQS)] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace at rest: enough to restore it into another kernel, given the blobs."""

    variables: tuple[SnapshotVariable, ...] = ()
    # The last cell that it includes.
    cell: int = 0
    python: str = ""
    # The events that each cell was given.
    sources: dict[int, tuple[int, ...]] = {}


class SaveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a save."""

    manifest: Manifest
    # Variables that were changed in place since the last save, without being bound again.
    mutated: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[Loss, ...]:
        """Variables that cannot be saved."""
        unsaved = [variable for variable in self.manifest.variables if variable.reason]
        return tuple(Loss(variable.name, reason_text(variable.reason)) for variable in unsaved)


class CapabilityCall(msgspec.Struct, frozen=True):
    """A request of a cell, as the host's dispatch receives it.

    Arguments are plain values, not checked further.
    """

    capability: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cell: int
    """The running cell; 0 for a call from a thread of an earlier cell, or during a save."""
    # As `time.monotonic()` counts. A later answer is dropped.
    deadline: float
    # It ends with the cell. A tool that has started is not stopped by it.
    work: Work


UNKNOWN_SEQ = 0
"""Stands for events that cannot be named, among the seqs of a cell or a variable."""


class CapabilityResult(msgspec.Struct, frozen=True):
    """A value that a dispatch returns together with the events that it was made from."""

    value: Any
    seqs: tuple[int, ...] = ()
    # Whether it was also made from events that cannot be named; recorded as UNKNOWN_SEQ.
    unknown: bool = False


Dispatch = Callable[[CapabilityCall], Any]
"""Runs a call, in a thread of its own; returns the value, or a CapabilityResult.

What it raises, the cell raises.
"""


class BlobStore(Protocol):
    """Where pickles are kept. Content-addressed: `get(put(data)) == data`."""

    def put(self, data: bytes, /) -> str: ...

    def get(self, digest: str, /) -> bytes: ...


class MemoryBlobs:
    """A BlobStore that lasts as long as this object."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes, /) -> str:
        from hashlib import sha256

        digest = sha256(data).hexdigest()
        self._blobs[digest] = data
        return digest

    def get(self, digest: str, /) -> bytes:
        return self._blobs[digest]


# a cell's output for the model --------------------------------------------------------------------

_NAMES_SHOWN = 20
_NAME_CHARS = 60


LONG_CELL = 2.0
"""From this many seconds on, the observation of a cell without calls includes its time."""
EQUAL_LINES = 4
"""From this many equal lines in a row on, they are shown as one line with a count."""


def observation(result: CellResult, tool_calls: int = 0) -> str:
    """Everything about a finished cell that belongs into the model's view."""
    parts: list[str] = []
    if result.stdout:
        parts.append(result.stdout.rstrip("\n"))
    if result.ended != "ok":
        describe = failed_after_output if result.printed_chars else failed_before_output
        parts.append(describe(result))
    elif not result.printed_chars:
        parts.append(printed_nothing(result))
    if result.rebound:
        parts.append(host_names_are_back(result.rebound))
    if result.restore is not None:
        parts.append(restored(result.restore))
    if tool_calls or result.duration >= LONG_CELL:
        called = f"{tool_calls:,} tool call{'s' * (tool_calls > 1)}, " if tool_calls else ""
        parts.append(f"[{called}{result.duration:,.1f} s]")
    return "\n".join(parts)


def failed_before_output(result: CellResult) -> str:
    return (
        f"[the cell failed before it printed anything: {_how(result)}. This is an error in running "
        "the cell and says nothing about what the data or the history contains. "
        f"{_what_is_kept(result)} Correct the cell and run it again.]{_trace(result)}"
    )


def failed_after_output(result: CellResult) -> str:
    return (
        f"[the cell failed after printing the text above: {_how(result)}. The text is valid but "
        f"may be incomplete. {_what_is_kept(result)} Run only what is still "
        f"missing.]{_trace(result)}"
    )


def printed_nothing(result: CellResult) -> str:
    bindings = f" It bound {_listed(result.bound)}." if result.bound else ""
    return (
        f"[the cell ran to its end and printed nothing.{bindings} The value of a last expression "
        "is not shown: use print() to see a value. Printing nothing does not mean that nothing was "
        "found.]"
    )


def head_and_tail(text: str, limit: int, printed: int) -> tuple[str, int]:
    """A printed text, or its beginning and end with one message between; and the characters hidden.

    `printed` is how many characters the cell printed, before repeated lines were taken out.
    """
    hidden = len(text) - limit
    if hidden <= 0:
        return text, 0
    # With the default limit these are 22,000 of 32,000.
    head = limit * 11 // 16
    between = text[head : head + hidden]
    lines = between.count("\n")
    message = (
        f"[cut: the cell printed {printed:,} characters. Above are the first {head:,}, below the "
        f"last {limit - head:,}; {hidden:,} characters in {lines:,} lines between them are not "
        "shown. The complete output is recorded under this cell, and your variables are intact: "
        "print less of them, such as a count, a few rows, or a slice of each text.]"
    )
    return f"{text[:head]}\n{message}\n{text[head + hidden :]}", hidden


def without_repeats(text: str) -> str:
    """A printed text in which runs of empty lines and of equal lines take one or two lines."""
    if "\n" not in text:
        return text
    lines: list[str] = []
    printed = ["" if line.isspace() else line for line in text.split("\n")]
    for line, run in groupby(printed):
        count = sum(1 for _ in run)
        if not line:
            lines += [""] * min(count, 2)
        elif count < EQUAL_LINES:
            lines += [line] * count
        else:
            lines += [line, f"[the line above {count:,} times in all]"]
    return "\n".join(lines)


def host_names_are_back(names: tuple[str, ...]) -> str:
    return (
        f"[{_listed(names)} had been overwritten by an earlier cell and "
        f"{'were' if len(names) > 1 else 'was'} put back before this one. Use another name for "
        "your own values.]"
    )


def restored(report: RestoreReport) -> str:
    """The variables that a restart of the kernel brought back, and those that it did not."""
    lines = ["[the kernel was started again. What was saved is back:"]
    if report.restored or not report.stale:
        lines.append(
            f" restored: {_listed(report.restored)}" if report.restored else " restored: nothing"
        )
    if report.stale:
        lines.append(f" restored, but perhaps not as they were last: {_reasons(report.stale)}")
    if report.lost:
        lines.append(f" lost: {_reasons(report.lost)}")
    return "\n".join(lines) + "]"


def _how(result: CellResult) -> str:
    error = result.error
    match result.ended:
        case "timeout":
            return error.message.rstrip(".") if error is not None else "it ran out of time"
        case "interrupted":
            return "it was interrupted"
        case "killed":
            return f"its process was ended ({error.message if error else 'no reason is known'})"
        case "memory":
            return (
                "it ran out of memory (MemoryError). "
                "Delete large variables, or work in smaller parts"
            )
        case "output-limit":
            return "it printed without end and was stopped"
        case _:
            return error.message.rstrip(".") if error is not None else "it raised an exception"


def _what_is_kept(result: CellResult) -> str:
    if result.ended == "killed":
        return "What it had bound is lost; what was saved before it is restored."
    if result.bound:
        return f"What it bound before that is kept: {_listed(result.bound)}."
    return "Earlier variables are unchanged."


def _trace(result: CellResult) -> str:
    if result.error is None or not result.error.traceback:
        return ""
    return f"\n{result.error.traceback.rstrip()}"


def _listed(names: tuple[str, ...]) -> str:
    text = ", ".join(map(_quoted, names[:_NAMES_SHOWN]))
    hidden = len(names) - _NAMES_SHOWN
    return f"{text} and {hidden} more" if hidden > 0 else text


def _reasons(losses: tuple[Loss, ...]) -> str:
    """Names by reason, since many names often have one and the same."""
    by_reason: dict[str, list[str]] = {}
    for loss in losses:
        by_reason.setdefault(loss.reason, []).append(loss.name)
    texts = [f"{_listed(tuple(names))} ({reason})" for reason, names in by_reason.items()]
    return "; ".join(texts)


def _quoted(name: str) -> str:
    """A name that a kernel process chose, marked as a name: it may read like a sentence."""
    if len(name) > _NAME_CHARS:
        name = f"{name[:_NAME_CHARS]}…"
    return f"`{name}`"
