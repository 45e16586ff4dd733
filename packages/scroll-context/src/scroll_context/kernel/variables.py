"""The host's knowledge of the namespace: each variable, the cell that bound it, the events behind
it, its save.

The host records which events each cell was given; that is the authority. A name that a cell binds
derives from those, and from what the names that the cell read derive from. So a variable refers to
cells, and each cell has one bounded tuple of events: nothing is stored once for each variable.
Pickles are opaque bytes: the host keeps them, sends them back, and never unpickles.

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
from math import log2
from typing import Any

import msgspec

from scroll_context.contents import SavedVariable
from scroll_context.errors import KernelDied, KernelUnavailable
from scroll_context.kernel.cell import NOT_COMPILED, names_read_later, names_used
from scroll_context.kernel.dataflow import assigned_from
from scroll_context.kernel.protocol import Blob, Load, Loaded, SavedValue
from scroll_context.kernel.results import (
    MAX_SEQS,
    UNKNOWN_SEQ,
    BlobStore,
    Loss,
    Manifest,
    RestoreReport,
    Variable,
    is_variable_name,
    reason_text,
)
from scroll_context.kernel.worker_process import WorkerProcess

# The most variables. Further ones push out the oldest.
_MOST = 20_000
# How many cells a variable is recorded to derive from, the newest ones.
_CELLS_BEHIND = 64
# A larger value is listed even if a loop bound it.
_LOOP_BYTES = 64 << 10
_FUNCTIONS_CHARS = 600
_INLINE_BYTES = 1024
_PIECE = 4 << 20
_LOAD_SECONDS = 60.0
_ATTEMPTS = 3
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
# Descriptions of values without content.
_EMPTY = frozenset({"0", "0 bytes"})
_EMPTY_TEXT = frozenset({"''"})
# So much of a cell is searched for loops.
_SOURCE_CHARS = 10_000

_ENDED_RESTORING = "the kernel process ended while it was being restored"
_UNREADABLE = "its saved bytes cannot be read"


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
        if len(self._records) > _MOST:
            for name in list(self._records)[:-_MOST]:
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
        self, entries: dict[str, SavedVariable], names: Sequence[str], unchecked: Iterable[str]
    ) -> Manifest:
        """The manifest of a save, each variable with the origin that is known here."""
        stale = set(unchecked)
        variables: list[SavedVariable] = []
        for name in names:
            entry = entries.get(name) or SavedVariable(name=name, group=0, reason="unsent")
            record = self._records.get(name) or _Record(Variable(name=name))
            is_stale = name in stale and not (entry.module or entry.reason)
            variables.append(
                msgspec.structs.replace(
                    entry,
                    cell=record.variable.cell,
                    cells=record.behind,
                    seqs=(),
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
            if entry.seqs:
                # Older versions wrote one tuple for each variable.
                self._sources.setdefault(entry.cell, entry.seqs[:MAX_SEQS])
                behind = (entry.cell,)
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

    def digest(self, limit: int, heading: str = "") -> str:
        """The variable list in about `limit` characters: data by use and size, then functions.

        Modules, None, empty values, loop variables and names that begin with an underscore are not
        listed: they did not help a model and took a third of the list.
        """
        data: list[Variable] = []
        callables: list[Variable] = []
        for record in list(self._records.values()):
            variable = record.variable
            if variable.type in ("function", "class"):
                callables.append(variable)
            elif variable.type != "module" and not _is_leftover(record):
                data.append(variable)
        data.sort(key=_rank)
        callables.sort(key=lambda variable: (-variable.used, variable.name))
        lines = [heading] if heading else []
        functions = _functions_line(callables, min(_FUNCTIONS_CHARS, limit // 3))
        room = limit - sum(len(line) + 1 for line in (*lines, functions) if line)
        self.listed = tuple(variable.name for variable in data)
        for position, variable in enumerate(data):
            line = describe_line(variable)
            left = len(data) - position
            if len(line) + 1 > room - (0 if left == 1 else len(_rest(left))):
                lines.append(_rest(left))
                self.listed = self.listed[:position]
                break
            lines.append(line)
            room -= len(line) + 1
        return "\n".join([*lines, functions] if functions else lines)


def _rank(variable: Variable) -> tuple[float, int, str]:
    """The order of the variable list: recent and large values first."""
    weight = variable.used + log2(variable.size + 1) / 2
    return -weight, -variable.cell, variable.name


def _is_leftover(record: _Record) -> bool:
    """Whether a variable is not a result that a later cell would use."""
    variable = record.variable
    if variable.name.startswith("_") or variable.type == "NoneType":
        return True
    if variable.detail in (_EMPTY_TEXT if variable.inline else _EMPTY):
        return True
    return record.by_loop and variable.size <= _LOOP_BYTES


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
        if isinstance(message, Blob):
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
        if not value.names or self._count > _MOST:
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
            self.entries[name] = SavedVariable(
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
        except (KernelDied, KernelUnavailable):
            discard()
            if not group:
                raise
            for variable in group:
                deadly[variable.name] = Loss(variable.name, _ENDED_RESTORING)
    live()
    return [], [Loss(variable.name, _ENDED_RESTORING) for variable in manifest.variables]


def _groups(manifest: Manifest, without: dict[str, Loss]) -> list[list[SavedVariable]]:
    """Names of one object together; modules first, because unpickling may need them."""
    groups: dict[int, list[SavedVariable]] = {}
    for variable in manifest.variables:
        if variable.name not in without and is_variable_name(variable.name):
            groups.setdefault(variable.group, []).append(variable)
    return sorted(groups.values(), key=lambda group: not group[0].module)


def _load(worker: WorkerProcess, group: list[SavedVariable], blobs: BlobStore) -> str:
    """Send one value; returns the reason if it could not be restored."""
    first = group[0]
    names = tuple(variable.name for variable in group)
    if first.reason:
        return f"it could not be saved: {reason_text(first.reason)}"
    try:
        data = blobs.get(first.digest) if first.digest else first.inline
    except Exception:  # noqa: BLE001 - a blob store of the caller
        return _UNREADABLE
    last = max(0, (len(data) - 1) // _PIECE * _PIECE)
    for start in range(0, last, _PIECE):
        worker.connection.send(Load(names, data[start : start + _PIECE], False))
    load = Load(names, data[last:] if last else data, True, first.module)
    reason = worker.ask(load, Loaded, _LOAD_SECONDS).reason
    return reason_text(reason) if reason else ""
