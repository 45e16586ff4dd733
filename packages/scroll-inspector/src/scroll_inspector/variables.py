"""The variables of a session at one of its requests, and the events that they derive from."""

import bisect
import re

import msgspec
from msgspec.structs import replace

from scroll_context.contents import Snapshot, SnapshotVariable
from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import Event
from scroll_context.session.past import Past
from scroll_context.tools.plain import HEADING

EVERY = 200
"""Snapshots between two copies of a namespace."""

_LINE = re.compile(r"^(\w+): (.*)$", re.MULTILINE)
_ORIGIN = re.compile(r"  \[seq [^\]]*\]$")


class ShownVariable(msgspec.Struct, frozen=True):
    """A variable as the page shows it. Cells are named by their seqs."""

    name: str
    type: str
    size: int
    preview: str
    # 0 where it is not known.
    bound_by: int = 0
    # The events that it derives from.
    seqs: tuple[int, ...] = ()
    trouble: str = ""


class Namespaces:
    """The namespace of one session at any of its snapshots. Not for two threads.

    Snapshots hold what changed; adding them up in order gives the namespace. Copies are kept along
    the way. Nothing is ever unpickled: types and sizes come from the snapshots, values from the
    digest that the model was shown, and where a variable comes from is what the host recorded when
    it gave events to a cell.
    """

    def __init__(self) -> None:
        # By the kernel's number of a cell: the seq of its event, and the events that it read.
        self._cells: dict[int, int] = {}
        self._sources: dict[int, tuple[int, ...]] = {}
        # Copies of the namespace, each with the number of snapshots that it adds up.
        self._copies: list[tuple[int, dict[str, SnapshotVariable]]] = [(0, {})]

    def at(self, past: Past, request: Event) -> list[ShownVariable]:
        """The variables that the cells before a request had left, the one that was bound last
        first.
        """
        cell_seqs = [snapshot.reply_to or 0 for snapshot in past.snapshots]
        count = bisect.bisect_left(cell_seqs, request.seq)
        names = self._names_after(past, count)
        # Behind the variables, the list has the shapes of tool results.
        variable_list = str(request.metadata.get("digest", "")).partition(HEADING)[0]
        previews = {name: _ORIGIN.sub("", line) for name, line in _LINE.findall(variable_list)}
        variables = [
            self._variable(saved, previews.get(saved.name, "")) for saved in names.values()
        ]
        for name, preview in previews.items():
            if name not in names:
                variables.append(ShownVariable(name, "", 0, preview))
        return sorted(variables, key=lambda variable: (-variable.bound_by, variable.name))

    def _names_after(self, past: Past, count: int) -> dict[str, SnapshotVariable]:
        """The namespace after this many snapshots, from the nearest copy before it."""
        following = bisect.bisect_right(self._copies, count, key=lambda copy: copy[0])
        done, copy = self._copies[following - 1]
        names = dict(copy)
        while done < count:
            next_copy = done + EVERY - done % EVERY
            part = past.snapshots[done : min(count, next_copy)]
            self._add(past, names, [snapshot.seq for snapshot in part])
            done += len(part)
            if done % EVERY == 0 and done > self._copies[-1][0]:
                self._copies.append((done, dict(names)))
        return names

    def _add(self, past: Past, names: dict[str, SnapshotVariable], seqs: list[int]) -> None:
        log = past.store.log
        for event in log.get_many(seqs):
            try:
                snapshot = Snapshot.decode(log.text(event))
            except (BadInput, PayloadMissing, PayloadDamaged):
                # It was erased or is damaged, so its variables are unknown.
                continue
            self._cells[snapshot.cell] = event.reply_to or 0
            self._sources.update(snapshot.sources)
            for name in snapshot.gone:
                names.pop(name, None)
            for variable in snapshot.variables:
                # The page does not show values, so the copies do not keep them.
                names[variable.name] = replace(variable, inline=b"")

    def _variable(self, saved: SnapshotVariable, preview: str) -> ShownVariable:
        seqs: set[int] = set()
        for cell in (*saved.cells, saved.cell):
            if cell in self._cells:
                seqs.update(self._sources.get(cell, ()))
        seqs.discard(0)
        trouble = saved.reason.partition(":")[0]
        if not trouble and saved.stale:
            trouble = "may have changed since it was saved"
        return ShownVariable(
            name=saved.name,
            type=saved.type,
            size=saved.size,
            preview=preview,
            bound_by=self._cells.get(saved.cell, 0),
            seqs=tuple(sorted(seqs)),
            trouble=trouble,
        )
