"""Kernel snapshots in the log: each event holds what changed in the namespace since the one before.

A namespace of many variables changes little from cell to cell, so a snapshot names only the variables that are new,
changed or gone. Folding the snapshots of a session in order gives the manifest at its end, or at any seq before.
"""

from collections.abc import Iterable

import msgspec

from scroll_context.kernel.results import Manifest, SavedVariable


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a snapshot event."""

    cell: int
    python: str
    saved: tuple[SavedVariable, ...] = ()
    gone: tuple[str, ...] = ()
    sources: dict[int, tuple[int, ...]] = {}  # of cells that were not among those before

    @property
    def is_empty(self) -> bool:
        return not self.saved and not self.gone


def change(before: Manifest, after: Manifest) -> Change:
    """What makes the one manifest into the other."""
    known = {one.name: one for one in before.variables}
    names = {one.name for one in after.variables}
    return Change(
        after.cell,
        after.python,
        tuple(one for one in after.variables if known.get(one.name) != one),
        tuple(name for name in known if name not in names),
        {cell: seqs for cell, seqs in after.sources.items() if before.sources.get(cell) != seqs},
    )


def fold(changes: Iterable[Change]) -> Manifest:
    """The manifest that a series of changes leads to."""
    variables: dict[str, SavedVariable] = {}
    sources: dict[int, tuple[int, ...]] = {}
    cell, python = 0, ""
    for one in changes:
        sources |= one.sources
        cell, python = one.cell, one.python
        for name in one.gone:
            variables.pop(name, None)
        variables.update((saved.name, saved) for saved in one.saved)
    needed = {cell for saved in variables.values() for cell in saved.cells}
    kept = {cell: seqs for cell, seqs in sources.items() if cell in needed}
    return Manifest(variables=tuple(variables.values()), cell=cell, python=python, sources=kept)
