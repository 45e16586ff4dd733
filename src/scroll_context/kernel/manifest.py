"""The host's half of save and restore: keeps pickles as opaque bytes and sends them back. It never unpickles.

A small pickle stays inside the manifest; a larger one goes to the blob store. What the worker claims about its
variables is bounded in size and believed only for that worker's own namespace.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from scroll_context.errors import KernelDied, KernelUnavailable
from scroll_context.kernel.incarnation import Incarnation
from scroll_context.kernel.messages import Blob, Import, Kept, Load, Loaded
from scroll_context.kernel.namespace import Namespace
from scroll_context.kernel.results import BlobStore, Loss, Manifest, SavedVariable

_INLINE_BYTES = 1024
_PIECE = 4 << 20
_LOAD_SECONDS = 60.0
_ATTEMPTS = 3
_NAMES = 20_000  # more variables than a worker looks at


class SavedPieces:
    """Collects what one save sends, on top of the manifest before it."""

    def __init__(self, before: Manifest, blobs: BlobStore, limit: int) -> None:
        self._entries = {variable.name: variable for variable in before.variables}
        self._next_group = 1 + max((variable.group for variable in before.variables), default=0)
        self._blobs = blobs
        self._limit = limit
        self._data = bytearray()
        self._named = 0
        self.changed: list[str] = []
        self.trouble: Exception | None = None  # what the blob store raised; the save is not to be kept then

    def take(self, message: Any) -> None:
        """One message of a save. Raises KernelDied on what does not belong to one."""
        if isinstance(message, Blob):
            self._data += message.piece
            if len(self._data) > self._limit:
                raise KernelDied("the kernel process sent a larger pickle than it may")
        elif isinstance(message, Kept):
            self._keep(message)
        else:
            raise KernelDied(f"the kernel process sent {type(message).__name__} in the middle of a save")

    def _keep(self, kept: Kept) -> None:
        self._named += len(kept.names)
        if not kept.names or self._named > _NAMES:
            raise KernelDied("the kernel process sent more variables than it may have")
        data, self._data = bytes(self._data), bytearray()
        before = self._entries.get(kept.names[0])
        group, self._next_group = self._next_group, self._next_group + 1
        digest, inline = "", b""
        if kept.changed and not (kept.module or kept.reason):
            digest, inline = ("", data) if len(data) <= _INLINE_BYTES else (self._put(data), b"")
        elif before is not None:
            digest, inline = before.digest, before.inline
        for name in kept.names:
            self._entries[name] = SavedVariable(
                name=name,
                group=group,
                type=kept.label,
                size=kept.size,
                digest=digest,
                inline=inline,
                module=kept.module,
                reason=kept.reason,
            )
        if kept.changed:
            self.changed += kept.names

    def _put(self, data: bytes) -> str:
        try:
            return self._blobs.put(data)
        except Exception as error:  # noqa: BLE001 - a blob store of the caller; the worker must be heard to the end
            self.trouble = error
            return ""

    def manifest(self, names: tuple[str, ...], known: Namespace, cell: int, python: str) -> Manifest:
        """What there is now, each variable with the origin that the host knows."""
        variables: list[SavedVariable] = []
        for name in names:
            entry = self._entries.get(name, SavedVariable(name=name, group=0, reason="it was not sent"))
            if name in known:
                entry = msgspec.structs.replace(entry, cell=known[name].cell, seqs=known[name].seqs)
            variables.append(entry)
        return Manifest(variables=tuple(variables), cell=cell, python=python)


def load_into(
    live: Callable[[], Incarnation], discard: Callable[[], None], manifest: Manifest, blobs: BlobStore
) -> tuple[list[str], list[Loss]]:
    """Restore every variable into a live worker. One that kills the worker is left out of the next attempt."""
    deadly: dict[str, Loss] = {}
    for _ in range(_ATTEMPTS):
        restored: list[str] = []
        lost: list[Loss] = list(deadly.values())
        group: list[SavedVariable] = []
        try:
            worker = live()
            for group in _groups(manifest, deadly):
                reason = _load(worker, group, blobs)
                if reason:
                    lost += [Loss(variable.name, reason) for variable in group]
                else:
                    restored += [variable.name for variable in group]
            return restored, lost
        except (KernelDied, KernelUnavailable) as error:
            discard()
            if not group:
                raise
            deadly |= {
                one.name: Loss(one.name, f"the kernel process ended while restoring it: {error}") for one in group
            }
    live()
    rest = {
        one.name: Loss(one.name, "restoring was given up: it ended the process repeatedly")
        for one in manifest.variables
    }
    return [], list((rest | deadly).values())


def _groups(manifest: Manifest, without: dict[str, Loss]) -> list[list[SavedVariable]]:
    """Names of one object together; modules first, because unpickling may need them."""
    groups: dict[int, list[SavedVariable]] = {}
    for variable in manifest.variables:
        if variable.name not in without:
            groups.setdefault(variable.group, []).append(variable)
    return sorted(groups.values(), key=lambda group: not group[0].module)


def _load(worker: Incarnation, group: list[SavedVariable], blobs: BlobStore) -> str:
    """Send one value; returns the reason if it could not be restored."""
    first = group[0]
    names = tuple(variable.name for variable in group)
    if first.reason:
        return f"it could not be saved: {first.reason}"
    if first.module:
        for name in names:
            reason = worker.ask(Import(name, first.module), Loaded, _LOAD_SECONDS).reason
            if reason:
                return reason
        return ""
    try:
        data = blobs.get(first.digest) if first.digest else first.inline
    except Exception as error:  # noqa: BLE001 - a blob store of the caller
        return f"its blob cannot be read: {error}"
    last = max(0, (len(data) - 1) // _PIECE * _PIECE)
    for start in range(0, last, _PIECE):
        worker.send(Load(names, data[start : start + _PIECE], False))
    return worker.ask(Load(names, data[last:] if last else data, True), Loaded, _LOAD_SECONDS).reason
