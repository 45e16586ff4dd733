"""The values that a kernel's user sees: how a cell ended, what it printed, what was saved, restored and lost."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

Ended = Literal["ok", "error", "interrupted", "timeout", "killed", "output-limit", "memory"]


class CellError(msgspec.Struct, frozen=True):
    """The exception that ended a cell, as text; `traceback` holds no frame of the worker."""

    type: str
    message: str
    traceback: str = ""


class Loss(msgspec.Struct, frozen=True):
    """A variable that is not there, or not as it was, and why."""

    name: str
    reason: str


class RestoreReport(msgspec.Struct, frozen=True):
    """What a restore brought back. `stale` came back as it was saved, without later changes."""

    restored: tuple[str, ...] = ()
    stale: tuple[Loss, ...] = ()
    lost: tuple[Loss, ...] = ()


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell, from start to end."""

    cell: int
    ended: Ended
    stdout: str  # what was printed, standard error marked, cut at the kernel's limit of characters
    printed: bytes = b""  # all of it, as UTF-8
    printed_chars: int = 0
    error: CellError | None = None
    bound: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # bound again; a value that was changed in place shows in the next save
    deleted: tuple[str, ...] = ()
    read: tuple[str, ...] = ()  # whose values from before the cell it could see
    rebound: tuple[str, ...] = ()  # names of the host that an earlier cell had overwritten, now put back
    seqs: tuple[int, ...] = ()  # the events that the host handed to this cell
    calls: int = 0  # capability calls made
    duration: float = 0.0  # seconds
    restore: RestoreReport | None = None  # set when the kernel had to be started again

    @property
    def is_cut(self) -> bool:
        """Whether `stdout` is only the beginning of what was printed."""
        return self.printed_chars > len(self.stdout)


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable of the namespace, and where it comes from."""

    name: str
    type: str = ""
    detail: str = ""  # a small value, a shape or a length
    inline: bool = False  # whether `detail` is the value itself
    size: int = 0  # bytes, estimated; 0 when unknown
    cell: int = 0  # the cell that bound it
    used: int = 0  # the last cell that bound, changed or read it
    seqs: tuple[int, ...] = ()  # the events that it derives from, in order


class SavedVariable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable in a manifest: a pickle (a blob or, when small, inline), a module, or the reason why neither.

    Variables with the same `group` are names of one object.
    """

    name: str
    group: int
    type: str = ""
    size: int = 0
    digest: str = ""
    inline: bytes = b""
    module: str = ""
    reason: str = ""
    cell: int = 0
    seqs: tuple[int, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace at rest: enough to restore it into another kernel, given the blobs."""

    variables: tuple[SavedVariable, ...] = ()
    cell: int = 0  # the last cell that it includes
    python: str = ""


class SaveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a save found."""

    manifest: Manifest
    mutated: tuple[str, ...] = ()  # changed in place since the last save, without being bound again
    lost: tuple[Loss, ...] = ()  # variables that cannot be saved
    duration: float = 0.0


class CapabilityCall(msgspec.Struct, frozen=True):
    """A request of a cell, as the host's dispatch receives it. Arguments are plain values, not checked further."""

    capability: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cell: int
    deadline: float  # on time.monotonic(); an answer after that is dropped


class CapabilityResult(msgspec.Struct, frozen=True):
    """What a dispatch may return instead of a bare value: the value, and the events that it was made from."""

    value: Any
    seqs: tuple[int, ...] = ()
    unknown: bool = False  # it was also made from events that cannot be named


Dispatch = Callable[[CapabilityCall], Any]
"""Runs a call, in a thread of its own; returns the value, or a CapabilityResult. What it raises, the cell raises."""


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
