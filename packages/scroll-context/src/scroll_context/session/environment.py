"""The session environment: a kernel, and everything that code in it may reach.

It runs one cell at a time and answers the cell's calls: `ms.*` from recall, tools from
the toolbox, `ask` from a model. Every call is checked on this side of the wire; the kernel is never
trusted. After a cell its namespace is saved in the background, so that neither the model nor the
next cell waits for it unless it is still going on. A snapshot event holds what changed since the
one before; folding them in order gives the namespace at any seq.
"""

import ast
import contextlib
import re
import threading
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from scroll_context.contents import SavedVariable, Snapshot
from scroll_context.errors import BadInput, LimitReached, ScrollError
from scroll_context.events import Event, Kind, packed_seqs
from scroll_context.jail.spec import JailSpec
from scroll_context.kernel.connection import MOST_SEQS
from scroll_context.kernel.kernel import Kernel, KernelOptions
from scroll_context.kernel.protocol import Prelude
from scroll_context.kernel.results import (
    MAX_SEQS,
    UNKNOWN_SEQ,
    CapabilityCall,
    CapabilityResult,
    CellResult,
    Loss,
    Manifest,
    RestoreReport,
    observation,
)
from scroll_context.kernel.variables import PARSED_CHARS
from scroll_context.log.journal import Journal
from scroll_context.log.payloads import PayloadStore
from scroll_context.recall.memory import Memory, memory_prelude
from scroll_context.session.context import Actions
from scroll_context.tools.ask import Ask
from scroll_context.tools.handles import handles_prelude
from scroll_context.tools.toolbox import Toolbox

BLOB_TYPE = "application/x-python-pickle"


def snapshot_between(before: Manifest, after: Manifest) -> Snapshot:
    """What changed from one namespace to the next."""
    old = {variable.name: variable for variable in before.variables}
    names = {variable.name for variable in after.variables}
    return Snapshot(
        after.cell,
        after.python,
        tuple(variable for variable in after.variables if old.get(variable.name) != variable),
        tuple(name for name in old if name not in names),
        {cell: seqs for cell, seqs in after.sources.items() if before.sources.get(cell) != seqs},
    )


def namespace_after(snapshots: Iterable[Snapshot]) -> Manifest:
    """The namespace that a series of snapshots leads to."""
    variables: dict[str, SavedVariable] = {}
    sources: dict[int, tuple[int, ...]] = {}
    cell, python = 0, ""
    for snapshot in snapshots:
        sources |= snapshot.sources
        cell, python = snapshot.cell, snapshot.python
        for name in snapshot.gone:
            variables.pop(name, None)
        variables.update((variable.name, variable) for variable in snapshot.saved)
    needed = {cell for variable in variables.values() for cell in variable.cells}
    sources = {cell: seqs for cell, seqs in sources.items() if cell in needed}
    return Manifest(variables=tuple(variables.values()), cell=cell, python=python, sources=sources)


class Environment:
    """Owns the kernel of a session.

    `close` ends it; what was saved can be restored into another.
    """

    def __init__(
        self,
        journal: Journal,
        toolbox: Toolbox,
        memory: Memory,
        ask: Ask | None,
        *,
        actions: Actions,
        jail: JailSpec | None = None,
        options: KernelOptions | None = None,
        packages: tuple[str, ...] = (),
    ) -> None:
        self.journal = journal
        self.toolbox = toolbox
        self.memory = memory
        self.ask = ask
        self.actions = actions
        self.save_trouble = ""  # why the newest save failed; the next one tries again
        self._cell_seq = 0
        self._cell_over = threading.Event()
        self._given = _Given()
        self._saved = Manifest()
        self._blobs = _Blobs(journal.log.payloads)
        self._after_cell = ThreadPoolExecutor(
            1, thread_name_prefix="scroll-save"
        )  # digest first, then save
        self._digest: Future[str] | None = None  # None is unknown
        self._saving: Future[None] | None = None
        options = options or KernelOptions()
        self._call_seconds = options.call_seconds
        self.kernel = Kernel(
            self._dispatch,
            preludes=self._preludes(),
            blobs=self._blobs,
            spec=jail,
            options=replace(
                options, packages=(*options.packages, *packages), call_seconds=self._longest_call()
            ),
        )

    def start(self) -> None:
        """Start the kernel, if the model writes cells at all."""
        if self.actions.exec:
            self.kernel.start()

    def digest(self) -> str:
        """The variables of the namespace, for the end of the newest message."""
        if not self.actions.exec:
            return ""
        if self._digest is None:
            self._digest = self._after_cell.submit(self.kernel.digest)
        trouble = (
            f"(your variables could not be saved: {self.save_trouble})\n"
            if self.save_trouble
            else ""
        )
        return trouble + self._digest.result()

    def run(self, source: str, cell: Event, timeout: float) -> tuple[CellResult, str]:
        """Run a cell whose event is already recorded; its result, and the text that the model is
        shown of it.

        The calls that the cell makes are recorded as made inside it.
        """
        self.settle()
        self._cell_seq = cell.seq
        self._given = _Given()
        self.memory.begin_cell()
        self._digest = None
        self._cell_over = threading.Event()
        calls_before = self.toolbox.started
        try:
            result = self.kernel.execute(source, timeout, event=cell.seq)
        finally:
            self._cell_over.set()
        # before the save, so that the next request need not wait for that
        self._digest = self._after_cell.submit(self.kernel.digest)
        self._saving = self._after_cell.submit(self._save)
        text = observation(result, self.toolbox.started - calls_before)
        text += "".join(f"\n[note] {note}" for note in self.memory.notes)
        return result, text

    def cells_behind(self, source: str) -> dict[str, Any]:
        """What the event of a cell records about the variables that it is going to read: the cells
        that made them.
        """
        if not self.actions.exec:
            return {}
        self.settle()
        return origin(self.kernel.cells_behind(source, self._source_of))

    def cells_behind_digest(self) -> dict[str, Any]:
        """What a request records about the variables that it lists: the cells that made them."""
        return origin(self.kernel.cells_behind_digest()) if self.actions.exec else {}

    def _source_of(self, seq: int) -> str:
        """The source of a cell, by its address."""
        found = self.journal.log.get_many([seq])
        return self.journal.log.text(found[0]) if found else ""

    def settle(self) -> None:
        """Wait for a save that is under way."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def restore(self, snapshots: Iterable[Event]) -> RestoreReport:
        """Bring back the namespace that these snapshots lead to; one that cannot be read is
        reported.
        """
        readable: list[Snapshot] = []
        unreadable: list[Loss] = []
        for event in snapshots:
            try:
                readable.append(Snapshot.decode(self.journal.log.text(event)))
            except BadInput:
                unreadable.append(
                    Loss(f"variables of seq {event.seq}", "their snapshot cannot be read")
                )
        self._saved = namespace_after(readable)
        self._digest = None
        report = self.kernel.restore(self._saved)
        return replace(report, lost=(*report.lost, *unreadable))

    def tools_changed(self) -> None:
        """Let the cells have the tools that the toolbox has now."""
        self.kernel.replace_preludes(self._preludes(), self._longest_call())
        self._digest = None

    def close(self) -> None:
        """Save in full what may have changed without a cell, then end the kernel."""
        with contextlib.ExitStack() as parts:  # each is closed, whatever happens to the others
            parts.callback(self.memory.close)
            parts.callback(self.kernel.close)
            parts.callback(self._after_cell.shutdown)
            self.settle()
            if any(variable.stale for variable in self._saved.variables):
                self._save(full=True)

    def _save(self, full: bool = False) -> None:
        quota, used = self.journal.quota.snapshot_bytes, self.journal.used.snapshot_bytes
        if used >= quota:
            self.save_trouble = f"this session has saved {used:,} of {quota:,} bytes, its quota"
            return
        try:
            report = self.kernel.save(full)
            snapshot = snapshot_between(self._saved, report.manifest)
            if snapshot.saved or snapshot.gone:
                content = snapshot.encode()
                written = {"bytes": self._blobs.take_written() + len(content)}
                self.journal.append(
                    self.journal.draft(
                        Kind.SNAPSHOT, content=content, reply_to=self._cell_seq, metadata=written
                    )
                )
                self._saved = report.manifest
            self.save_trouble = ""
        except ScrollError as error:
            self.save_trouble = str(error)

    def _longest_call(self) -> float:
        """Seconds that a call of a cell may take: a little more than the tool that may take the
        longest.
        """
        return max(
            [
                self._call_seconds,
                *(
                    one.limits.timeout + 5
                    for one in self.toolbox.tools.values()
                    if one.limits.timeout
                ),
            ]
        )

    def _preludes(self) -> tuple[Prelude, ...]:
        preludes = [handles_prelude(), self.toolbox.prelude()]
        if self.actions.ms:
            preludes.append(memory_prelude())
        if self.ask is not None:
            preludes.append(self.ask.prelude())
        return tuple(preludes)

    def _dispatch(self, call: CapabilityCall) -> CapabilityResult:
        """Answer a call of a cell.

        The name and the arguments are whatever the kernel process sent.
        """
        given = self._given
        kind, _, name = call.capability.partition(".")
        if not call.cell and kind in ("tools", "ask"):
            # These answer the running cell only. Reading history and payloads is harmless.
            call.work.stop()
        if kind == "tools":
            # Its result need not be noted as given: it is an event of this cell, and so is every
            # call after it.
            outcome = self.toolbox.call(
                name,
                call.args,
                call.kwargs,
                cell_seq=self._cell_seq,
                deadline=call.deadline,
                given=given.so_far(),
                work=call.work,
            )
            return CapabilityResult(outcome.for_cell(), (outcome.result_seq,))
        result = self._read(call, kind, given)
        given.add(result)
        return result

    def _read(self, call: CapabilityCall, kind: str, given: "_Given") -> CapabilityResult:
        if kind == "payload" or (kind == "ms" and self.actions.ms):
            return self.memory.answer(call)
        methods: Mapping[str, Callable[..., CapabilityResult]] = {}
        if kind == "ask" and self.ask is not None:
            if call.work.is_over:
                raise LimitReached("the cell that asked this has ended; nothing was asked")
            methods = self.ask.methods(self._cell_seq, self._cell_over, given.so_far())
        if call.capability not in methods:
            raise NameError(f"the host offers no capability {call.capability!r}")
        return methods[call.capability](*call.args, **call.kwargs)


MOST_GIVEN = 100  # entries in what a call records of the events that its cell was given before it


class _Given:
    """The events that the running cell was given so far: its next call may have been made from
    them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seqs: set[int] = set()
        self._unknown = False

    def add(self, result: CapabilityResult) -> None:
        with self._lock:
            self._unknown |= result.unknown
            if len(self._seqs) < MOST_SEQS:
                self._seqs.update(result.seqs)
            else:
                self._unknown |= bool(result.seqs)

    def so_far(self) -> dict[str, Any]:
        """What the event of a call records about them."""
        with self._lock:
            return ({"seqs": packed_seqs(self._seqs, MOST_GIVEN)} if self._seqs else {}) | (
                {"unknown": True} if self._unknown else {}
            )


def origin(cells: Collection[int]) -> dict[str, Any]:
    """What an event records about the cells behind the values that it has to do with."""
    known = [seq for seq in cells if seq != UNKNOWN_SEQ]
    facts: dict[str, Any] = {"made_from": packed_seqs(known, MAX_SEQS)} if known else {}
    return facts if len(known) == len(cells) else facts | {"unknown": True}


_MS = re.compile(r"\bms\b")


def recalls(source: str) -> bool:
    """Whether a cell uses `ms`.

    What it prints may then repeat history, and must never be found instead of that. A source that
    is too long to be parsed here uses `ms` if the word occurs in it.
    """
    if len(source) > PARSED_CHARS:
        return _MS.search(unicodedata.normalize("NFKC", source)) is not None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "ms" and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Import) and any(alias.name == "ms" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "ms":
            return True
    return False


class _Blobs:
    """The payload store as a place for pickles. They are never unpickled on this side."""

    def __init__(self, payloads: PayloadStore) -> None:
        self._payloads = payloads
        self._written = 0

    def put(self, data: bytes, /) -> str:
        self._written += len(data)
        return self._payloads.put(data, BLOB_TYPE).digest

    def get(self, digest: str, /) -> bytes:
        return self._payloads.read(digest)

    def take_written(self) -> int:
        """The bytes put since this was last asked."""
        written, self._written = self._written, 0
        return written
