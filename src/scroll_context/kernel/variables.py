"""What the host knows of the namespace: each variable, the cell that bound it, the events behind it, its save.

The host records which events each cell was given; that is the authority. A name that a cell binds derives from
those, and from what the names that the cell read derive from. Pickles are opaque bytes: the host keeps them, sends
them back, and never unpickles. What a worker claims about its variables is bounded in size and believed only for that
worker's own namespace.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from scroll_context.errors import KernelDied, KernelUnavailable
from scroll_context.kernel.protocol import Blob, Fact, Import, Kept, Load, Loaded
from scroll_context.kernel.results import BlobStore, Loss, Manifest, RestoreReport, SavedVariable, Variable
from scroll_context.kernel.worker_process import WorkerProcess

_SPANS_SHOWN = 3
_MOST = 20_000  # variables; what a process claims beyond that pushes out the oldest
_INLINE_BYTES = 1024
_PIECE = 4 << 20
_LOAD_SECONDS = 60.0
_ATTEMPTS = 3


class Namespace:
    """The variables of one kernel, by name, in the order in which they were bound."""

    def __init__(self) -> None:
        self._variables: dict[str, Variable] = {}
        self._touched: dict[str, set[int]] = {}  # read since the last save, with the seqs that may have gone in
        self._unsaved: dict[str, int] = {}  # bound since the last save, with the cell

    def __getitem__(self, name: str) -> Variable:
        return self._variables[name]

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def variables(self) -> tuple[Variable, ...]:
        return tuple(self._variables.values())

    def record_cell(
        self,
        cell: int,
        written: Sequence[str],
        deleted: Sequence[str],
        read: Sequence[str],
        seqs: Iterable[int],
    ) -> None:
        """A cell ran: it was given `seqs`, read and wrote those names."""
        if not (written or deleted or read):
            return
        sources = set(seqs)
        known = [name for name in read if name in self._variables]
        for name in known:
            sources.update(self._variables[name].seqs)
        for name in deleted:
            self._forget(name)
        for name in known:
            if name in self._variables:
                self._variables[name] = msgspec.structs.replace(self._variables[name], used=cell)
                self._touched.setdefault(name, set()).update(sources)
        derived = tuple(sorted(sources))
        for name in written:
            self._variables[name] = Variable(name=name, cell=cell, used=cell, seqs=derived)
            self._unsaved[name] = cell
        for name in list(self._variables)[:-_MOST] if len(self._variables) > _MOST else ():
            self._forget(name)

    def record_save(self, names: Iterable[str], changed: Iterable[str]) -> tuple[str, ...]:
        """A save found these names, and these with another pickle than before. Returns those changed in place."""
        mutated = tuple(name for name in changed if name not in self._unsaved and name in self._variables)
        anything = {seq for seqs in self._touched.values() for seq in seqs}  # it was reached by way of another name
        for name in mutated:
            variable = self._variables[name]
            seqs = tuple(sorted({*variable.seqs, *self._touched.get(name, anything)}))
            self._variables[name] = msgspec.structs.replace(variable, seqs=seqs)
        present = set(names)
        for name in [name for name in self._variables if name not in present]:
            self._forget(name)
        self._touched.clear()
        self._unsaved.clear()
        return mutated

    def record_facts(self, facts: Iterable[Fact]) -> None:
        """A look at the worker's namespace: what is there now is what there is."""
        seen: dict[str, Variable] = {}
        for fact in facts:
            known = self._variables.get(fact.name, Variable(name=fact.name))
            seen[fact.name] = msgspec.structs.replace(
                known, type=fact.type, detail=fact.detail, inline=fact.inline, size=fact.size or known.size
            )
        self._variables = seen

    def record_restore(self, manifest: Manifest, restored: Iterable[str], lost: Iterable[Loss]) -> RestoreReport:
        """The process was replaced: only what was restored is left. Reports what else there was."""
        saved = {variable.name: variable for variable in manifest.variables}
        back = tuple(name for name in restored if name in saved)
        losses = {loss.name: loss for loss in lost}
        for name, cell in self._unsaved.items():
            if name not in saved:
                losses.setdefault(name, Loss(name, f"bound by cell {cell}, after the last save"))
        for name in self._variables:
            if name not in saved:
                losses.setdefault(name, Loss(name, "not part of the last save"))
        stale = tuple(
            Loss(name, f"as it was after cell {manifest.cell}; later changes are lost")
            for name in back
            if name in self._unsaved or name in self._touched
        )
        self._variables = {
            name: Variable(
                name=name,
                type=saved[name].type,
                size=saved[name].size,
                cell=saved[name].cell,
                used=saved[name].cell,
                seqs=saved[name].seqs,
            )
            for name in back
        }
        self._touched.clear()
        self._unsaved.clear()
        return RestoreReport(back, stale, tuple(losses.values()))

    def digest(self, limit: int, heading: str = "") -> str:
        """One line a variable, most recently used first, in at most about `limit` characters; the rest is counted."""
        lines = [heading] if heading else []
        room = limit - len(heading)
        ordered = sorted(self._variables.values(), key=lambda one: (-one.used, -one.cell, one.name))
        for position, variable in enumerate(ordered):
            line = describe_line(variable)
            left = len(ordered) - position
            if len(line) + 1 > room - (0 if left == 1 else len(_rest(left))):
                lines.append(_rest(left))
                break
            lines.append(line)
            room -= len(line) + 1
        return "\n".join(lines)

    def _forget(self, name: str) -> None:
        self._variables.pop(name, None)
        self._touched.pop(name, None)
        self._unsaved.pop(name, None)


def describe_line(variable: Variable) -> str:
    """A variable in one line of plain text."""
    text = f"{variable.name}: {variable.type or '?'}"
    if variable.detail:
        text += f" = {variable.detail}" if variable.inline else f" {variable.detail}"
    if variable.size >= 1 << 20 and not variable.inline:
        text += f", {variable.size / (1 << 20):,.1f} MB"
    if not text.isprintable():  # a worker in the hands of its cell may claim anything
        text = "".join(character if character.isprintable() else "?" for character in text)
    origin = [f"cell {variable.cell}"] if variable.cell else []
    if variable.seqs:
        origin.append(f"seq {spans(variable.seqs, _SPANS_SHOWN)}")
    return f"{text}  [{', '.join(origin)}]" if origin else text


def spans(seqs: Iterable[int], most: int) -> str:
    """Sorted numbers as ranges: `3-5, 9`. Past `most` ranges only the count is told."""
    runs: list[list[int]] = []
    for seq in sorted(seqs):
        if runs and seq == runs[-1][1] + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    shown = ", ".join(f"{low}-{high}" if high > low else str(low) for low, high in runs[:most])
    return shown if len(runs) <= most else f"{shown} and {len(runs) - most} more ranges"


def _rest(count: int) -> str:
    return f"... and {count} more variable{'s' if count > 1 else ''}"


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
        if not kept.names or self._named > _MOST:
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
    live: Callable[[], WorkerProcess], discard: Callable[[], None], manifest: Manifest, blobs: BlobStore
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


def _load(worker: WorkerProcess, group: list[SavedVariable], blobs: BlobStore) -> str:
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
