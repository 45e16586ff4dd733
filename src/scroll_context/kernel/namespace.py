"""What the host knows of the namespace: every variable, the cell that bound it, the events that it derives from.

The host records which events each cell was given; that is the authority. A name that a cell binds derives from
those, and from what the names that the cell read derive from. A value that is changed in place is noticed by the
next save, and then derives from the cells that touched it since the last. Pure bookkeeping: no process, no clock.
"""

from collections.abc import Iterable, Sequence

import msgspec

from scroll_context.kernel.messages import Fact
from scroll_context.kernel.results import Loss, Manifest, RestoreReport, Variable

_SPANS_SHOWN = 3
_MOST = 20_000  # variables; what a process claims beyond that pushes out the oldest


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
