"""The variables of a session at one of its requests, and the events that they derive from."""

import bisect
import re

import msgspec

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import Event
from scroll_context.session.past import Past
from scroll_context.tools.shapes import HEADING

EVERY = 200  # snapshots between two copies

_LINE = re.compile(r"^(\w+): (.*)$", re.MULTILINE)
_ORIGIN = re.compile(r"  \[seq [^\]]*\]$")


class SavedName(msgspec.Struct, frozen=True):
    """A variable in a snapshot, without its value."""

    name: str
    type: str = ""
    size: int = 0
    cell: int = 0
    cells: tuple[int, ...] = ()
    reason: str = ""
    stale: bool = False


class _Change(msgspec.Struct, frozen=True):
    cell: int = 0
    saved: tuple[SavedName, ...] = ()
    gone: tuple[str, ...] = ()
    sources: dict[int, tuple[int, ...]] = {}


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
        self._copies: list[tuple[int, dict[str, SavedName]]] = [(0, {})]

    def at(self, past: Past, request: Event) -> list[ShownVariable]:
        """The variables that the cells before a request had left, the one that was bound last
        first.
        """
        cell_seqs = [snapshot.reply_to or 0 for snapshot in past.snapshots]
        count = bisect.bisect_left(cell_seqs, request.seq)
        at = bisect.bisect_right(self._copies, count, key=lambda copy: copy[0])
        done, copy = self._copies[at - 1]
        names = dict(copy)
        while done < count:
            part = past.snapshots[done : min(count, done + EVERY - done % EVERY)]
            self._add(past, names, [snapshot.seq for snapshot in part])
            done += len(part)
            if done % EVERY == 0 and done > self._copies[-1][0]:
                self._copies.append((done, dict(names)))
        # Behind the variables, the list has the shapes of tool results.
        listed, _, _ = str(request.metadata.get("digest", "")).partition(HEADING)
        previews = {name: _ORIGIN.sub("", line) for name, line in _LINE.findall(listed)}
        variables = [
            self._variable(saved, previews.get(saved.name, "")) for saved in names.values()
        ]
        for name, preview in previews.items():
            if name not in names:
                variables.append(ShownVariable(name, "", 0, preview))
        return sorted(variables, key=lambda variable: (-variable.bound_by, variable.name))

    def _add(self, past: Past, names: dict[str, SavedName], seqs: list[int]) -> None:
        log = past.store.log
        for event in log.get_many(seqs):
            try:
                change = msgspec.json.decode(log.text(event), type=_Change)
            except (msgspec.MsgspecError, PayloadMissing, PayloadDamaged):
                # It was erased or is damaged, so its variables are unknown.
                continue
            self._cells[change.cell] = event.reply_to or 0
            self._sources.update(change.sources)
            for name in change.gone:
                names.pop(name, None)
            for saved in change.saved:
                names[saved.name] = saved

    def _variable(self, saved: SavedName, preview: str) -> ShownVariable:
        seqs = {
            seq
            for cell in (*saved.cells, saved.cell)
            if cell in self._cells
            for seq in self._sources.get(cell, ())
            if seq
        }
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
