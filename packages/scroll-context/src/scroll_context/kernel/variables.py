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
model in the host's own words.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from scroll_context.contents import SnapshotVariable
from scroll_context.errors import KernelDied
from scroll_context.kernel.cell import NOT_COMPILED, names_read_later, names_used
from scroll_context.kernel.dataflow import assigned_from
from scroll_context.kernel.results import (
    MAX_SEQS,
    UNKNOWN_SEQ,
    Loss,
    Manifest,
    RestoreReport,
    Variable,
    is_variable_name,
)
from scroll_context.kernel.variable_list import variable_list

# The most variables. Further ones push out the oldest.
MOST_VARIABLES = 20_000
# How many cells a variable is recorded to derive from, the newest ones.
_CELLS_BEHIND = 64
# The most events of cells behind one variable. The rest of them is UNKNOWN_SEQ.
_MOST_CELLS = 1_000
_UNCHANGING = frozenset(
    {"int", "float", "bool", "complex", "str", "bytes", "NoneType", "date", "datetime", "range"}
)
# A source with one of these words may read any variable without naming it.
_ANY_NAME = re.compile(
    r"\b(?:globals|locals|vars|eval|exec|__main__|__globals__|f_globals|f_locals|f_back|modules"
    r"|gc|inspect|ctypes)\b"
)
# A source with one of these words may write files of the kernel, or read them.
_FILES = re.compile(
    r"\b(?:\w*open\w*|Path|pathlib|linecache|runpy|fileinput|configparser|ConfigParser|logging"
    r"|FileIO|ElementTree|ET|importlib|__import__|pkgutil|zipimport|mmap|codecs|tokenize|shutil"
    r"|tempfile|glob|sqlite3|shelve|dbm|zipfile|tarfile|gzip|bz2|lzma|h5py|os\.\w+"
    r"|(?:to|read|write|scan|sink)_(?:csv|json|parquet|pickle|excel|feather|hdf|sql|text|bytes"
    r"|table|xml|html|ndjson)"
    r"|savefig|savetxt|loadtxt|genfromtxt|memmap|imread|imsave|tofile|fromfile"
    r"|savez?(?=\()|load(?=\()|dump(?=\())\b"
)
_IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
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
"""Types whose pickle changes with their content. A cache, a queue or a generator can hold a value
and show none of it."""
# The start of code that may run, and read names, after its cell has ended.
_DEFINES = re.compile(r"\b(?:def|lambda|class|for)\b")
_WORD = re.compile(r"\w+")
PARSED_CHARS = 10_000
"""Longer sources are not parsed on the host, which would hold the interpreter lock.

Parsing takes up to 40 ms for 10,000 characters, and 11 s were seen for an f-string of 180,000.
"""
_LOOP = re.compile(r"^[ \t]*(?:async[ \t]+)?for\s([\w\s,()*]{1,60}?)\sin\b", re.MULTILINE)
# So much of a cell is searched for loops.
_SOURCE_CHARS = 10_000


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
    made_by: frozenset[int] = frozenset()
    # Events of the cells in `touched`.
    touched_by: frozenset[int] = frozenset()
    # The events that its assignments read, for display; None when only its cells are known.
    origin: frozenset[int] | None = None

    @property
    def cells(self) -> frozenset[int]:
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
        self._files: frozenset[int] = frozenset()
        # All cells that may have used files. A variable that they bound may lead to a file.
        self._file_cells: frozenset[int] = frozenset()
        # By event of a cell; None stands for every name.
        self._read_later: dict[int, frozenset[str] | None] = {}
        # The names in the newest variable list.
        self.listed: tuple[str, ...] = ()

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

    def _origin(self, record: _Record) -> frozenset[int]:
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
        lines: Mapping[int, frozenset[int]] | None = None,
    ) -> None:
        """A cell ran: it was given `seqs`, read and wrote those names.

        `event` is its address in a log; `lines` has the events by line of the cell, for display.
        """
        self._finished = cell
        here = frozenset([event] if event else ())
        if here and self._uses_files(source):
            self._files = here
            self._file_cells |= here
        if not (written or deleted or read):
            return
        origins = self._origins(source, read, lines or {}, bool(seqs))
        behind: set[int] = {cell} if seqs else set()
        seen = [self._records[name] for name in read if name in self._records]
        for record in seen:
            behind.update(record.behind)
        for record in seen:
            record.variable = msgspec.structs.replace(record.variable, used=cell)
            record.touched = behind | (record.touched or set())
            record.touched_by |= here
            if origins is None:
                record.origin = None
            elif record.variable.name in origins:
                record.origin = frozenset(_listed(origins[record.variable.name]))
        for name in deleted:
            self._records.pop(name, None)
        derived = tuple(sorted(behind)[-_CELLS_BEHIND:])
        if seqs and (written or seen):
            self._sources[cell] = seqs[:MAX_SEQS]
        loops = _loop_names(source)
        if event and written:
            self._read_later[event] = _names_read_later(source)
        for name in written:
            fresh = Variable(name=name, cell=cell, used=cell)
            # The old value may have other names.
            touched = self._records[name].touched if name in self._records else None
            self._records[name] = _Record(fresh, derived, touched, cell, name in loops, here)
            if origins is not None and name in origins:
                self._records[name].origin = frozenset(_listed(origins[name]))
        if len(self._records) > MOST_VARIABLES:
            for name in list(self._records)[:-MOST_VARIABLES]:
                del self._records[name]

    def _origins(
        self,
        source: str,
        read: Sequence[str],
        lines: Mapping[int, frozenset[int]],
        was_given: bool,
    ) -> dict[str, frozenset[int]] | None:
        """The events behind the names that a cell bound or changed; None if these are not known."""
        read_records = [self._records[name] for name in read if name in self._records]
        if not was_given and not any(map(self._origin, read_records)):
            return {}
        if len(source) > PARSED_CHARS or (was_given and not lines):
            return None

        def before(name: str) -> frozenset[int]:
            return self._origin(self._records[name]) if name in self._records else frozenset()

        try:
            return assigned_from(source, lines, before)
        except NOT_COMPILED:
            return None

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
        mutated = tuple(
            name for name in changed if name in self._records and not self._records[name].bound
        )
        # Cells that may have reached a variable by another name.
        anything: set[int] = set()
        for record in self._records.values():
            anything |= record.touched or set()
        anything_by = frozenset().union(*(record.touched_by for record in self._records.values()))
        for name in mutated:
            record = self._records[name]
            # A cell that read it by name names the events that it was made by before, so the chain
            # of cells continues from there.
            record.made_by = record.touched_by or _bounded(record.made_by | anything_by)
            touched = anything if record.touched is None else record.touched
            record.behind = tuple(sorted({*record.behind, *touched})[-_CELLS_BEHIND:])
        present = set(names)
        self._records = {name: record for name, record in self._records.items() if name in present}
        for name, record in self._records.items():
            if name in unsaved or record.variable.type not in _SHOWN_BY_PICKLE:
                # Nothing shows whether a cell put a value into it, so each reader may have.
                record.made_by = _bounded(record.made_by | record.touched_by)
            record.touched, record.bound, record.touched_by = None, 0, frozenset()
        self._saved_cell = cell
        made_by = set(self.made_by(self._records))
        self._read_later = {
            event: names for event, names in self._read_later.items() if event in made_by
        }
        needed: set[int] = set()
        for record in self._records.values():
            needed.update(record.behind)
        self._sources = {cell: seqs for cell, seqs in self._sources.items() if cell in needed}
        return mutated

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
        back = tuple(name for name in restored if name in saved)
        losses = {loss.name: loss for loss in lost}
        for name, record in self._records.items():
            if name not in saved:
                reason = "not in the last save"
                if record.bound:
                    reason = f"bound by cell {record.bound}, after the last save"
                losses.setdefault(name, Loss(name, reason))
        has_unsaved_cell = self._finished > max(self._saved_cell, manifest.cell)
        stale: list[Loss] = []
        for name in back:
            if name in self._records and self._records[name].bound:
                reason = f"as it was after cell {manifest.cell}; later changes are lost"
                stale.append(Loss(name, reason))
            elif (saved[name].stale or has_unsaved_cell) and not saved[name].module:
                reason = "as it was when it was last saved; it may have changed since"
                stale.append(Loss(name, reason))
        self._sources = {cell: seqs[:MAX_SEQS] for cell, seqs in manifest.sources.items()}
        self._records = {}
        self._files = frozenset()
        for name in back:
            entry = saved[name]
            behind = entry.cells[-_CELLS_BEHIND:]
            variable = Variable(
                name=name, type=entry.type, size=entry.size, cell=entry.cell, used=entry.cell
            )
            self._records[name] = _Record(variable, behind, made_by=frozenset(entry.made_by))
        old = {loss.name for loss in stale}
        return RestoreReport(
            tuple(name for name in back if name not in old), tuple(stale), tuple(losses.values())
        )

    def made_by(self, names: Iterable[str]) -> tuple[int, ...]:
        """The events of the cells that these variables come from."""
        events = frozenset().union(
            *(self._records[name].cells for name in names if name in self._records)
        )
        return tuple(sorted(events))

    def cells_behind(self, source: str, text_of: Callable[[int], str]) -> tuple[int, ...]:
        """The events of the cells whose values a source would read, if it ran now. It may name too
        many, not too few.

        Asked before the cell runs, so that it is recorded whatever becomes of the cell, and decided
        here: what a worker tells is not needed for it. A function reads its names when it is
        called, so those are followed through the source of the cell that defined it, which
        `text_of` gives. UNKNOWN_SEQ stands for cells that are not known.
        """
        names = self._names_read(source, text_of)
        behind = self.made_by(self._records if names is None else names)
        if self._files and (self._uses_files(source) or not self._file_cells.isdisjoint(behind)):
            return tuple(sorted({*behind, *self._files}))
        return behind

    def _uses_files(self, source: str) -> bool:
        """Whether a source may read or write files of the kernel, as far as its words tell."""
        if _FILES.search(source):
            return True
        # A module outside the standard library may be a file that a cell wrote.
        return any(name not in sys.stdlib_module_names for name in _IMPORTED.findall(source))

    def _names_read(self, source: str, text_of: Callable[[int], str]) -> set[str] | None:
        """The variables that a source reads, by way of functions too; None when it may be any."""
        if _ANY_NAME.search(source):
            return None
        if source.isascii() and self._records.keys().isdisjoint(_WORD.findall(source)):
            return set()
        if len(source) > PARSED_CHARS:
            return None
        try:
            pending = list(names_used(source, "<cell>", self._records).read)
        except SyntaxError:
            # It does not run.
            return set()
        except NOT_COMPILED:
            return None
        names: set[str] = set()
        while pending:
            name = pending.pop()
            if name in names or name not in self._records:
                continue
            names.add(name)
            for event in self._records[name].cells:
                later = self._names_read_later(event, text_of)
                if later is None:
                    return None
                pending += later
        return names

    def _names_read_later(self, event: int, text_of: Callable[[int], str]) -> frozenset[str] | None:
        if event not in self._read_later:
            self._read_later[event] = _names_read_later(text_of(event))
        return self._read_later[event]

    def variable_list(self, limit: int, heading: str = "") -> str:
        """The variable list in about `limit` characters (variable_list.py)."""
        listing = [(record.variable, record.by_loop) for record in list(self._records.values())]
        text, self.listed = variable_list(listing, limit, heading)
        return text


def _loop_names(source: str) -> set[str]:
    """The names that the `for` statements of a source bind."""
    if "for" not in source:
        return set()
    names: set[str] = set()
    for targets in _LOOP.findall(source, 0, _SOURCE_CHARS):
        names.update(_WORD.findall(targets))
    return names


def _listed(seqs: frozenset[int]) -> tuple[int, ...]:
    """As many events as are listed for one variable, in order."""
    return tuple(sorted(seqs)[:MAX_SEQS])


def _names_read_later(source: str) -> frozenset[str] | None:
    """The names that definitions in a source read whenever they run; None if that may be any."""
    if not _DEFINES.search(source):
        return frozenset()
    if len(source) <= PARSED_CHARS and not _ANY_NAME.search(source):
        with contextlib.suppress(*NOT_COMPILED):
            return names_read_later(source, "<cell>")
    return None


def _bounded(events: frozenset[int]) -> frozenset[int]:
    if len(events) <= _MOST_CELLS:
        return events
    return frozenset([UNKNOWN_SEQ, *sorted(events)[-_MOST_CELLS:]])


def check_names(*lists: Sequence[str]) -> None:
    """Raise KernelDied on a name that no variable can have: such a message is a forgery."""
    for names in lists:
        if not all(map(is_variable_name, names)):
            raise KernelDied("the kernel process named a variable that cannot be one")
