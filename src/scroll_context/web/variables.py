"""The variables of a session at one of its requests, from the snapshots of its namespace.

Snapshots hold what changed; adding them up in order gives the namespace. Copies are kept along the way. Nothing is
ever unpickled: types and sizes come from the snapshots, values from the digest that the model was shown, and where
a variable comes from is what the host recorded when it gave events to a cell.
"""

import bisect
import re

import msgspec

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import Event
from scroll_context.session.explain import Past

EVERY = 200  # snapshots between two copies

_LINE = re.compile(r"^(\w+): (.*)$", re.MULTILINE)
_ORIGIN = re.compile(r"  \[seq [^\]]*\]$")


class SavedName(msgspec.Struct, frozen=True):
    """What a snapshot tells of a variable, without its value."""

    name: str
    type: str = ""
    size: int = 0
    cell: int = 0
    cells: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
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
    bound_by: int  # 0 where it is not known
    cells: tuple[tuple[int, tuple[int, ...]], ...]  # those that had a part in it, each with the events it was given
    trouble: str = ""

    @property
    def seqs(self) -> list[int]:
        """The events that it derives from."""
        return sorted({seq for _, seqs in self.cells for seq in seqs})


class Namespaces:
    """The namespace of one session at any of its snapshots. Not for two threads."""

    def __init__(self) -> None:
        self._cells: dict[int, int] = {}  # the kernel's number of a cell -> the seq of its event
        self._sources: dict[int, tuple[int, ...]] = {}  # number of a cell -> the events that it was given
        self._kept: list[tuple[int, dict[str, SavedName]]] = [(0, {})]  # after so many snapshots

    def at(self, past: Past, request: Event) -> list[ShownVariable]:
        """The variables that the cells before a request had left, the one that was bound last first."""
        count = bisect.bisect_left([one.reply_to or 0 for one in past.snapshots], request.seq)
        at = bisect.bisect_right(self._kept, count, key=lambda one: one[0])
        done, kept = self._kept[at - 1]
        names = dict(kept)
        while done < count:
            part = past.snapshots[done : min(count, done + EVERY - done % EVERY)]
            self._add(past, names, [one.seq for one in part])
            done += len(part)
            if done % EVERY == 0 and done > self._kept[-1][0]:
                self._kept.append((done, dict(names)))
        shown = {name: _ORIGIN.sub("", line) for name, line in _LINE.findall(str(request.metadata.get("digest", "")))}
        found = [self._variable(one, shown.get(one.name, "")) for one in names.values()]
        found += [ShownVariable(name, "", 0, line, 0, ()) for name, line in shown.items() if name not in names]
        return sorted(found, key=lambda one: (-one.bound_by, one.name))

    def _add(self, past: Past, names: dict[str, SavedName], seqs: list[int]) -> None:
        log = past.store.log
        for event in log.get_many(seqs):
            try:
                change = msgspec.json.decode(log.text(event), type=_Change)
            except (msgspec.MsgspecError, PayloadMissing, PayloadDamaged):
                continue  # erased, or damaged: what it said is not known
            self._cells[change.cell] = event.reply_to or 0
            self._sources.update(change.sources)
            for name in change.gone:
                names.pop(name, None)
            names.update((one.name, one) for one in change.saved)

    def _variable(self, one: SavedName, preview: str) -> ShownVariable:
        given = {cell: self._sources.get(cell, ()) for cell in (*one.cells, one.cell)}
        if one.seqs:  # of an older version, which named events instead of cells
            given[one.cell] = one.seqs
        cells = sorted(
            (self._cells[cell], tuple(seq for seq in seqs if seq))
            for cell, seqs in given.items()
            if cell in self._cells
        )
        trouble = one.reason.partition(":")[0] or ("may have changed since it was saved" if one.stale else "")
        bound = self._cells.get(one.cell, 0)
        return ShownVariable(one.name, one.type, one.size, preview, bound, tuple(cells), trouble)
