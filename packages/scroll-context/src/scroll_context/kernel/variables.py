"""The host's knowledge of the namespace: each variable, the cell that bound it, and the events
behind it.

The host records which events each cell was given; that is the authority. A name that a cell binds
derives from those, and from what the names that the cell read derive from. So a variable refers to
cells, and each cell has one bounded tuple of events: nothing is stored once for each variable.

For an erasure, which must find everything, each variable also knows the events of the cells that
bound or changed it (`made_by`). The event of a cell names those behind the values that it was about
to read (`cells_behind`), and so on: the log has all of it, without a bound.

What a worker claims about its variables is bounded in size and believed only for that worker's own
namespace. Names are identifiers and reasons come from a fixed list, because both are shown to the
model in the host's own words: the variable list at the end of a request. Modules, None, empty
values, loop variables and names that begin with an underscore are not listed: they did not help a
model and took a third of the list.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import log2

import msgspec

from scroll_context.contents import SnapshotVariable
from scroll_context.errors import KernelDied
from scroll_context.kernel.cell_source import (
    PARSED_CHARS,
    Seqs,
    assigned_from,
    loop_names,
    may_use_files,
    names_read,
    names_read_later,
)
from scroll_context.kernel.names import NOT_COMPILED
from scroll_context.kernel.results import (
    MAX_SEQS,
    UNKNOWN_SEQ,
    Loss,
    Manifest,
    RestoreReport,
    Variable,
    is_variable_name,
)

# The most variables. Further ones push out the oldest.
MOST_VARIABLES = 20_000
# How many cells a variable is recorded to derive from, the newest ones.
_CELLS_BEHIND = 64
# The most events of cells behind one variable. The rest of them is UNKNOWN_SEQ.
_MOST_CELLS = 1_000
_UNCHANGING = frozenset(
    {"int", "float", "bool", "complex", "str", "bytes", "NoneType", "date", "datetime", "range"}
)
# Types whose pickle changes with their content. A cache, a queue or a generator can hold a value
# and show none of it.
_SHOWN_BY_PICKLE = _UNCHANGING | {
    "list",
    "dict",
    "set",
    "frozenset",
    "tuple",
    "bytearray",
    "deque",
    "Counter",
    "OrderedDict",
    "defaultdict",
    "DataFrame",
    "Series",
    "ndarray",
}


class _Record(msgspec.Struct):
    """The host's knowledge of one variable."""

    variable: Variable
    # Cells whose events went into it.
    behind: tuple[int, ...] = ()
    # If a cell read it since the last save: cells whose events may have gone into it.
    touched: set[int] | None = None
    # The cell that bound it, if that was since the last save.
    bound: int = 0
    by_loop: bool = False
    # Events of the cells that bound it or changed it.
    made_by: Seqs = frozenset()
    # Events of the cells in `touched`.
    touched_by: Seqs = frozenset()
    # The events that its assignments read, for display; None when only its cells are known.
    origin: Seqs | None = None

    @property
    def cells(self) -> Seqs:
        """The events of the cells whose values may be in it."""
        if self.variable.type in _UNCHANGING:
            return self.made_by
        return self.made_by | self.touched_by


class Namespace:
    """The variables of one kernel, by name, in the order in which they were bound."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        # The events that each cell was given.
        self._sources: dict[int, tuple[int, ...]] = {}
        # The last cell that ran to an end.
        self._finished = 0
        self._saved_cell = 0
        # The newest cell that may have written files.
        self._files: Seqs = frozenset()
        # All cells that may have used files. A variable that they bound may lead to a file.
        self._file_cells: Seqs = frozenset()
        # By event of a cell; None stands for every name.
        self._read_later: dict[int, frozenset[str] | None] = {}
        # The names in the newest variable list.
        self._listed: tuple[str, ...] = ()

    def variables(self) -> tuple[Variable, ...]:
        """Every variable, with the events that its assignments read.

        After a restore only the cells behind a variable are known: then these are all events that
        the cells were given.
        """
        by_cells: dict[tuple[int, ...], tuple[int, ...]] = {}
        variables = []
        for record in list(self._records.values()):
            if record.origin is not None:
                seqs = _listed(record.origin)
            else:
                if record.behind not in by_cells:
                    by_cells[record.behind] = _listed(self._origin(record))
                seqs = by_cells[record.behind]
            variables.append(msgspec.structs.replace(record.variable, seqs=seqs))
        return tuple(variables)

    def _origin(self, record: _Record) -> Seqs:
        if record.origin is not None:
            return record.origin
        return frozenset().union(*(self._sources.get(cell, ()) for cell in record.behind))

    def record_cell(
        self,
        cell: int,
        written: Sequence[str],
        deleted: Sequence[str],
        read: Sequence[str],
        seqs: tuple[int, ...],
        source: str = "",
        event: int = 0,
        lines: Mapping[int, Seqs] | None = None,
    ) -> None:
        """A cell ran: it was given `seqs`, read and wrote those names.

        `event` is its address in a log; `lines` has the events by line of the cell, for display.
        """
        self._finished = cell
        here = frozenset([event] if event else ())
        if here and may_use_files(source):
            self._files = here
            self._file_cells |= here
        if not (written or deleted or read):
            return
        seen = [self._records[name] for name in read if name in self._records]
        origins = self._origins(source, seen, lines or {}, bool(seqs))
        behind: set[int] = {cell} if seqs else set()
        for record in seen:
            behind.update(record.behind)
        for record in seen:
            record.variable = msgspec.structs.replace(record.variable, used=cell)
            record.touched = behind | (record.touched or set())
            record.touched_by |= here
            if origins is None:
                record.origin = None
            else:
                record.origin = origins.get(record.variable.name, record.origin)
        for name in deleted:
            self._records.pop(name, None)
        if seqs and (written or seen):
            self._sources[cell] = seqs[:MAX_SEQS]
        if event and written:
            self._read_later[event] = names_read_later(source)
        derived = _newest(behind)
        loops = loop_names(source)
        for name in written:
            old = self._records.get(name)
            self._records[name] = _Record(
                Variable(name=name, cell=cell, used=cell),
                behind=derived,
                # The old value may have other names.
                touched=old.touched if old is not None else None,
                bound=cell,
                by_loop=name in loops,
                made_by=here,
                origin=origins.get(name) if origins is not None else None,
            )
        for name in list(self._records)[:-MOST_VARIABLES]:
            del self._records[name]

    def _origins(
        self, source: str, seen: Sequence[_Record], lines: Mapping[int, Seqs], was_given: bool
    ) -> dict[str, Seqs] | None:
        """The events behind the names that a cell bound or changed; None if these are not known."""
        if not was_given and not any(map(self._origin, seen)):
            return {}
        if len(source) > PARSED_CHARS or (was_given and not lines):
            return None

        def before(name: str) -> Seqs:
            return self._origin(self._records[name]) if name in self._records else frozenset()

        try:
            origins = assigned_from(source, lines, before)
        except NOT_COMPILED:
            return None
        return {name: frozenset(_listed(events)) for name, events in origins.items()}

    def record_description(self, described: Iterable[Variable]) -> None:
        """Replace the record by the variables that the worker's namespace has now."""
        current: dict[str, _Record] = {}
        for variable in described:
            check_names((variable.name,))
            # If no cell is known to have bound the name, a thread may have done it that a cell left
            # running.
            unknown = _Record(Variable(name=variable.name), made_by=frozenset([UNKNOWN_SEQ]))
            record = self._records.get(variable.name) or unknown
            record.variable = msgspec.structs.replace(
                record.variable,
                type=variable.type,
                detail=variable.detail,
                inline=variable.inline,
                size=variable.size or record.variable.size,
            )
            current[variable.name] = record
        self._records = current

    def record_save(
        self,
        names: Sequence[str],
        changed: Iterable[str],
        cell: int,
        unsaved: Collection[str] = (),
    ) -> tuple[str, ...]:
        """A save found these names, and these with another pickle than before.

        `unsaved` have no complete pickle. Returns those changed in place.
        """
        records = self._records
        mutated = [name for name in changed if name in records and not records[name].bound]
        self._record_changes_in_place(mutated)
        present = set(names)
        self._records = {name: record for name, record in records.items() if name in present}
        for name, record in self._records.items():
            if name in unsaved or record.variable.type not in _SHOWN_BY_PICKLE:
                # Nothing shows whether a cell put a value into it, so each reader may have.
                record.made_by = _bounded(record.made_by | record.touched_by)
            record.touched = None
            record.touched_by = frozenset()
            record.bound = 0
        self._saved_cell = cell
        self._forget_unneeded_cells()
        return tuple(mutated)

    def _record_changes_in_place(self, names: Iterable[str]) -> None:
        # Cells that may have reached a variable by another name.
        any_cells: set[int] = set()
        any_events: set[int] = set()
        for record in self._records.values():
            any_cells |= record.touched or set()
            any_events |= record.touched_by
        for name in names:
            record = self._records[name]
            # A cell that read it by name names the events that it was made by before, so the chain
            # of cells continues from there.
            record.made_by = record.touched_by or _bounded(record.made_by | any_events)
            touched = any_cells if record.touched is None else record.touched
            record.behind = _newest({*record.behind, *touched})

    def _forget_unneeded_cells(self) -> None:
        needed_events = set(self.made_by(self._records))
        needed_cells: set[int] = set()
        for record in self._records.values():
            needed_cells.update(record.behind)
        for event in self._read_later.keys() - needed_events:
            del self._read_later[event]
        for cell in self._sources.keys() - needed_cells:
            del self._sources[cell]

    def saved(
        self, entries: dict[str, SnapshotVariable], names: Sequence[str], unchecked: Iterable[str]
    ) -> Manifest:
        """The manifest of a save, each variable with the origin that is known here."""
        stale = set(unchecked)
        variables: list[SnapshotVariable] = []
        for name in names:
            entry = entries.get(name) or SnapshotVariable(name=name, group=0, reason="unsent")
            record = self._records.get(name) or _Record(Variable(name=name))
            is_stale = name in stale and not (entry.module or entry.reason)
            variables.append(
                msgspec.structs.replace(
                    entry,
                    cell=record.variable.cell,
                    cells=record.behind,
                    made_by=tuple(sorted(record.cells)),
                    stale=is_stale,
                )
            )
        return Manifest(variables=tuple(variables), sources=dict(self._sources))

    def record_restore(
        self, manifest: Manifest, restored: Iterable[str], lost: Iterable[Loss]
    ) -> RestoreReport:
        """The process was replaced, so only the restored variables remain. Reports the others."""
        saved = {variable.name: variable for variable in manifest.variables}
        back = [saved[name] for name in restored if name in saved]
        losses = {loss.name: loss for loss in lost}
        for name, record in self._records.items():
            if name not in saved:
                reason = "not in the last save"
                if record.bound:
                    reason = f"bound by cell {record.bound}, after the last save"
                losses.setdefault(name, Loss(name, reason))
        is_behind = self._finished > max(self._saved_cell, manifest.cell)
        complete: list[str] = []
        stale: list[Loss] = []
        for entry in back:
            old = self._records.get(entry.name)
            if old is not None and old.bound:
                reason = f"as it was after cell {manifest.cell}; later changes are lost"
                stale.append(Loss(entry.name, reason))
            elif (entry.stale or is_behind) and not entry.module:
                reason = "as it was when it was last saved; it may have changed since"
                stale.append(Loss(entry.name, reason))
            else:
                complete.append(entry.name)
        self._sources = {cell: seqs[:MAX_SEQS] for cell, seqs in manifest.sources.items()}
        self._records = {entry.name: _restored(entry) for entry in back}
        self._files = frozenset()
        return RestoreReport(tuple(complete), tuple(stale), tuple(losses.values()))

    def made_by(self, names: Iterable[str]) -> tuple[int, ...]:
        """The events of the cells that these variables come from."""
        events = frozenset().union(
            *(self._records[name].cells for name in names if name in self._records)
        )
        return tuple(sorted(events))

    def made_by_list(self) -> tuple[int, ...]:
        """The events of the cells that made the variables in the newest variable list."""
        return self.made_by(self._listed)

    def cells_behind(self, source: str, text_of: Callable[[int], str]) -> tuple[int, ...]:
        """The events of the cells whose values a source would read, if it ran now. It may name too
        many, not too few.

        Asked before the cell runs, so that it is recorded whatever becomes of the cell, and decided
        here: what a worker tells is not needed for it. A function reads its names when it is
        called, so those are followed through the source of the cell that defined it, which
        `text_of` gives. UNKNOWN_SEQ stands for cells that are not known.
        """
        names = self._names_reached(source, text_of)
        behind = self.made_by(self._records if names is None else names)
        if self._files and (may_use_files(source) or not self._file_cells.isdisjoint(behind)):
            return tuple(sorted({*behind, *self._files}))
        return behind

    def _names_reached(self, source: str, text_of: Callable[[int], str]) -> set[str] | None:
        """The variables that a source reads, by way of functions too; None when it may be any."""
        read = names_read(source, self._records)
        if read is None:
            return None
        names: set[str] = set()
        pending = list(read)
        while pending:
            name = pending.pop()
            if name in names or name not in self._records:
                continue
            names.add(name)
            for event in self._records[name].cells:
                if event not in self._read_later:
                    self._read_later[event] = names_read_later(text_of(event))
                later = self._read_later[event]
                if later is None:
                    return None
                pending += later
        return names

    def variable_list(self, limit: int, heading: str = "") -> str:
        """The variable list in about `limit` characters."""
        listing = [(record.variable, record.by_loop) for record in list(self._records.values())]
        text, self._listed = variable_list(listing, limit, heading)
        return text


def _restored(entry: SnapshotVariable) -> _Record:
    variable = Variable(
        name=entry.name, type=entry.type, size=entry.size, cell=entry.cell, used=entry.cell
    )
    behind = entry.cells[-_CELLS_BEHIND:]
    return _Record(variable, behind, made_by=frozenset(entry.made_by))


def _listed(seqs: Seqs) -> tuple[int, ...]:
    """As many events as are listed for one variable, in order."""
    return tuple(sorted(seqs)[:MAX_SEQS])


def _newest(cells: Iterable[int]) -> tuple[int, ...]:
    """As many cells as are recorded behind one variable, in order."""
    return tuple(sorted(cells)[-_CELLS_BEHIND:])


def _bounded(events: Seqs) -> Seqs:
    if len(events) <= _MOST_CELLS:
        return events
    return frozenset([UNKNOWN_SEQ, *sorted(events)[-_MOST_CELLS:]])


def check_names(*lists: Sequence[str]) -> None:
    """Raise KernelDied on a name that no variable can have: such a message is a forgery."""
    for names in lists:
        if not all(map(is_variable_name, names)):
            raise KernelDied("the kernel process named a variable that cannot be one")


# the variable list --------------------------------------------------------------------------------

# A larger value is listed even if a loop bound it.
_LOOP_BYTES = 64 << 10
_FUNCTIONS_CHARS = 600
# Descriptions of values without content.
_EMPTY = frozenset({"0", "0 bytes"})
_EMPTY_TEXT = frozenset({"''"})


def variable_list(
    variables: Iterable[tuple[Variable, bool]], limit: int, heading: str = ""
) -> tuple[str, tuple[str, ...]]:
    """The list in about `limit` characters, and the names in it: data by use and size, then
    functions.

    Each variable comes with whether a loop bound it.
    """
    data: list[Variable] = []
    callables: list[Variable] = []
    for variable, is_by_loop in variables:
        if variable.type in ("function", "class"):
            callables.append(variable)
        elif variable.type != "module" and not _is_leftover(variable, is_by_loop):
            data.append(variable)
    data.sort(key=_rank)
    callables.sort(key=lambda variable: (-variable.used, variable.name))
    lines = [heading] if heading else []
    functions = _functions_line(callables, min(_FUNCTIONS_CHARS, limit // 3))
    room = limit - sum(len(line) + 1 for line in (*lines, functions) if line)
    names: list[str] = []
    for position, variable in enumerate(data):
        line = describe_line(variable)
        left = len(data) - position
        reserved = 0 if left == 1 else len(_rest(left))
        if len(line) + 1 > room - reserved:
            lines.append(_rest(left))
            break
        lines.append(line)
        names.append(variable.name)
        room -= len(line) + 1
    if functions:
        lines.append(functions)
    return "\n".join(lines), tuple(names)


def _rank(variable: Variable) -> tuple[float, int, str]:
    """The order of the variable list: recent and large values first."""
    weight = variable.used + log2(variable.size + 1) / 2
    return -weight, -variable.cell, variable.name


def _is_leftover(variable: Variable, is_by_loop: bool) -> bool:
    """Whether a variable is not a result that a later cell would use."""
    if variable.name.startswith("_") or variable.type == "NoneType":
        return True
    if variable.detail in (_EMPTY_TEXT if variable.inline else _EMPTY):
        return True
    return is_by_loop and variable.size <= _LOOP_BYTES


def describe_line(variable: Variable) -> str:
    """A variable in one line of plain text."""
    is_type_name = all(map(str.isidentifier, variable.type.split(".")))
    text = f"{variable.name}: {variable.type if is_type_name else '?'}"
    if variable.detail:
        text += f" = {variable.detail}" if variable.inline else f" {variable.detail}"
    if variable.size >= 1 << 20 and not variable.inline:
        text += f", {variable.size / (1 << 20):,.1f} MB"
    if not text.isprintable():
        # A worker in the hands of its cell may claim anything.
        text = "".join(character if character.isprintable() else "?" for character in text)
    return text


def _functions_line(callables: Sequence[Variable], limit: int) -> str:
    text = ""
    for position, variable in enumerate(callables):
        label = f"class {variable.name}"
        if variable.type == "function":
            label = f"{variable.name}{variable.detail}"
        if not label.isprintable():
            label = variable.name
        left = len(callables) - position
        if len(text) + len(label) > limit:
            return f"{text} and {left} more" if text else f"functions: {left}"
        text += f", {label}" if text else f"functions: {label}"
    return text


def _rest(count: int) -> str:
    return f"... and {count} more variable{'s' if count > 1 else ''}"
