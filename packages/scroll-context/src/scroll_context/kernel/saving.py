"""Pickles on their way between a worker and the blob store: collected when a kernel is saved, sent
back when it is restored.

A pickle is opaque bytes here: the host keeps it, sends it back, and never unpickles it. A message
of a save that exceeds its limits is a forgery, and ends the worker."""

from collections.abc import Callable
from typing import Any

from scroll_context.contents import SnapshotVariable
from scroll_context.errors import KernelDied, KernelUnavailable
from scroll_context.kernel.protocol import Load, Loaded, LoadPiece, SavedValue, SavePiece
from scroll_context.kernel.results import (
    BlobStore,
    Loss,
    Manifest,
    is_variable_name,
    reason_text,
)
from scroll_context.kernel.variables import MOST_VARIABLES, check_names
from scroll_context.kernel.worker_process import WorkerProcess

_INLINE_BYTES = 1024
_PIECE = 4 << 20
_LOAD_SECONDS = 60.0
_ATTEMPTS = 3
_ENDED_RESTORING = "the kernel process ended while it was being restored"
_UNREADABLE = "its saved bytes cannot be read"


class SavedPieces:
    """Collects the messages of one save, on top of the manifest before it."""

    def __init__(self, before: Manifest, blobs: BlobStore, limit: int, limit_of_all: int) -> None:
        self.entries = {variable.name: variable for variable in before.variables}
        self._next_group = 1 + max((variable.group for variable in before.variables), default=0)
        self._blobs = blobs
        self._limit = limit
        self._left = limit_of_all
        self._data = bytearray()
        self._count = 0
        self.changed: list[str] = []
        # An error of the blob store. The save must not be used then.
        self.trouble: Exception | None = None

    def take(self, message: Any) -> None:
        """One message of a save. Raises KernelDied on what does not belong to one."""
        if isinstance(message, SavePiece):
            self._data += message.piece
            self._left -= len(message.piece)
            if len(self._data) > self._limit or self._left < 0:
                raise KernelDied("the kernel process sent larger pickles than it may")
        elif isinstance(message, SavedValue):
            self._add(message)
        else:
            raise KernelDied(
                f"the kernel process sent {type(message).__name__} in the middle of a save"
            )

    def _add(self, value: SavedValue) -> None:
        check_names(value.names)
        self._count += len(value.names)
        if not value.names or self._count > MOST_VARIABLES:
            raise KernelDied("the kernel process sent more variables than it may have")
        data, self._data = bytes(self._data), bytearray()
        before = self.entries.get(value.names[0])
        group, self._next_group = self._next_group, self._next_group + 1
        digest, inline = "", b""
        if value.changed and not (value.module or value.reason):
            if len(data) <= _INLINE_BYTES:
                inline = data
            else:
                digest = self._put(data)
        elif before is not None:
            digest, inline = before.digest, before.inline
        for name in value.names:
            self.entries[name] = SnapshotVariable(
                name=name,
                group=group,
                type=value.label,
                size=value.size,
                digest=digest,
                inline=inline,
                module=value.module,
                reason=value.reason,
            )
        if value.changed:
            self.changed += value.names

    def _put(self, data: bytes) -> str:
        try:
            return self._blobs.put(data)
        # The blob store is the caller's code, and the worker must be heard to the end.
        except Exception as error:  # noqa: BLE001
            self.trouble = error
            return ""


def load_into(
    live: Callable[[], WorkerProcess],
    discard: Callable[[], None],
    manifest: Manifest,
    blobs: BlobStore,
) -> tuple[list[str], list[Loss]]:
    """Restore every variable into a live worker.

    A variable that kills the worker is left out of the next attempt.
    """
    deadly: dict[str, Loss] = {}
    for _ in range(_ATTEMPTS):
        restored: list[str] = []
        lost: list[Loss] = list(deadly.values())
        group: list[SnapshotVariable] = []
        try:
            worker = live()
            for group in _groups(manifest, deadly):
                reason = _load(worker, group, blobs)
                if reason:
                    lost += [Loss(variable.name, reason) for variable in group]
                else:
                    restored += [variable.name for variable in group]
            return restored, lost
        except (KernelDied, KernelUnavailable):
            discard()
            if not group:
                raise
            for variable in group:
                deadly[variable.name] = Loss(variable.name, _ENDED_RESTORING)
    live()
    return [], [Loss(variable.name, _ENDED_RESTORING) for variable in manifest.variables]


def _groups(manifest: Manifest, without: dict[str, Loss]) -> list[list[SnapshotVariable]]:
    """Names of one object together; modules first, because unpickling may need them."""
    groups: dict[int, list[SnapshotVariable]] = {}
    for variable in manifest.variables:
        if variable.name not in without and is_variable_name(variable.name):
            groups.setdefault(variable.group, []).append(variable)
    return sorted(groups.values(), key=lambda group: not group[0].module)


def _load(worker: WorkerProcess, group: list[SnapshotVariable], blobs: BlobStore) -> str:
    """Send one value; returns the reason if it could not be restored."""
    first = group[0]
    names = tuple(variable.name for variable in group)
    if first.reason:
        return f"it could not be saved: {reason_text(first.reason)}"
    try:
        data = blobs.get(first.digest) if first.digest else first.inline
    except Exception:  # noqa: BLE001 - a blob store of the caller
        return _UNREADABLE
    for start in range(0, len(data), _PIECE):
        worker.connection.send(LoadPiece(data[start : start + _PIECE]))
    reason = worker.ask(Load(names, first.module), Loaded, _LOAD_SECONDS).reason
    return reason_text(reason) if reason else ""
