"""The variables of a session: listed for the model, saved after each cell, restored at a resume.

Saving happens in the background, so that neither the model nor the next cell waits for it unless
it is still going on. A snapshot event holds what changed since the one before; folding the
snapshots in order gives the namespace at any seq. Values are never unpickled on this side of the
jail.
"""

from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from scroll_context.contents import Snapshot, SnapshotVariable
from scroll_context.errors import BadInput, ScrollError
from scroll_context.events import Event, Kind, source_facts
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.results import MAX_SEQS, UNKNOWN_SEQ, Loss, Manifest, RestoreReport
from scroll_context.log.journal import Journal
from scroll_context.log.payloads import PayloadStore

BLOB_TYPE = "application/x-python-pickle"


def snapshot_between(before: Manifest, after: Manifest) -> Snapshot:
    """The changes from one namespace to the next."""
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
    variables: dict[str, SnapshotVariable] = {}
    sources: dict[int, tuple[int, ...]] = {}
    cell, python = 0, ""
    for snapshot in snapshots:
        sources |= snapshot.sources
        cell, python = snapshot.cell, snapshot.python
        for name in snapshot.gone:
            variables.pop(name, None)
        variables.update((variable.name, variable) for variable in snapshot.variables)
    needed: set[int] = set()
    for variable in variables.values():
        needed.update(variable.cells)
    sources = {cell: seqs for cell, seqs in sources.items() if cell in needed}
    return Manifest(variables=tuple(variables.values()), cell=cell, python=python, sources=sources)


class Blobs:
    """The payload store as a place for pickles."""

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


class SessionVariables:
    """The variables of one kernel.

    One thread lists and saves them. The list comes first, so that the next request need not wait
    for the save.
    """

    def __init__(self, kernel: Kernel, journal: Journal, blobs: Blobs) -> None:
        # Why the newest finished save failed; the next one tries again.
        self.save_trouble = ""
        self._kernel = kernel
        self._journal = journal
        self._blobs = blobs
        self._cell_seq = 0
        self._saved = Manifest()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scroll-save")
        # None while the list is not known.
        self._list: Future[str] | None = None
        self._saving: Future[None] | None = None

    def list_text(self) -> str:
        """The variable list, for the end of the newest message."""
        if self._list is None:
            self._list = self._thread.submit(self._kernel.variable_list)
        text = self._list.result()
        if self.save_trouble:
            return f"(your variables could not be saved: {self.save_trouble})\n{text}"
        return text

    def list_again(self) -> None:
        """Forget the variable list, because something may have changed the variables."""
        self._list = None

    def save_after(self, cell_seq: int) -> None:
        """List and save the variables in the background, after a cell."""
        self._cell_seq = cell_seq
        self._list = self._thread.submit(self._kernel.variable_list)
        self._saving = self._thread.submit(self._save)

    def wait_for_save(self) -> None:
        """Wait for a save that is under way."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def restore(self, snapshots: Iterable[Event]) -> RestoreReport:
        """Bring back the namespace that these snapshots lead to.

        The report names those that cannot be read.
        """
        readable: list[Snapshot] = []
        unreadable: list[Loss] = []
        for event in snapshots:
            try:
                readable.append(Snapshot.decode(self._journal.log.text(event)))
            except BadInput:
                name = f"variables of seq {event.seq}"
                unreadable.append(Loss(name, "their snapshot cannot be read"))
        self._saved = namespace_after(readable)
        self.list_again()
        report = self._kernel.restore(self._saved)
        return replace(report, lost=(*report.lost, *unreadable))

    def close(self) -> None:
        """Save what may have changed without a cell, and end the thread."""
        try:
            self.wait_for_save()
            if any(variable.stale for variable in self._saved.variables):
                self._save(full=True)
        finally:
            self._thread.shutdown()

    def _save(self, full: bool = False) -> None:
        quota, used = self._journal.quota.snapshot_bytes, self._journal.used.snapshot_bytes
        if used >= quota:
            self.save_trouble = f"this session has saved {used:,} of {quota:,} bytes, its quota"
            return
        try:
            report = self._kernel.save(full)
            snapshot = snapshot_between(self._saved, report.manifest)
            if snapshot.variables or snapshot.gone:
                self._record(snapshot)
                self._saved = report.manifest
            self.save_trouble = ""
        except ScrollError as error:
            self.save_trouble = str(error)

    def _record(self, snapshot: Snapshot) -> None:
        content = snapshot.encode()
        size = {"bytes": self._blobs.take_written() + len(content)}
        draft = self._journal.draft(
            Kind.SNAPSHOT, content=content, reply_to=self._cell_seq, metadata=size
        )
        self._journal.append(draft)

    # the cells behind values --------------------------------------------------------------------

    def cells_behind(self, source: str) -> dict[str, Any]:
        """The metadata of a cell's event about the variables that it is going to read."""
        self.wait_for_save()
        return made_from(self._kernel.names.cells_behind(source, self._source_of))

    def cells_behind_list(self, results: Collection[int]) -> dict[str, Any]:
        """The metadata of a request about the variables it lists and the results it describes."""
        return made_from((*self._kernel.names.made_by_list(), *results))

    def _source_of(self, seq: int) -> str:
        """The source of a cell, by its address."""
        events = self._journal.log.get_many([seq])
        return self._journal.log.text(events[0]) if events else ""


def made_from(cells: Collection[int]) -> dict[str, Any]:
    """The metadata of an event about the cells that made its values."""
    seqs = [seq for seq in cells if seq != UNKNOWN_SEQ]
    return source_facts("made_from", seqs, MAX_SEQS, unknown=UNKNOWN_SEQ in cells)
