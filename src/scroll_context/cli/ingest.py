"""Files of messages into a store, each whole or not at all.

A file is read twice. The first pass only looks for faults; unless they may be skipped, one fault is enough and
nothing of the file is imported, and all of them are told. The second pass appends in batches. A run that is killed
between two batches is completed by running it again, since what is already there is recognised by its source key.
"""

import contextlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from scroll_context.cli.output import Progress, note, progress, utf8, visible
from scroll_context.errors import BadInput, IndexUnavailable
from scroll_context.events import BOOKKEEPING, Draft
from scroll_context.importers.formats import detect, read
from scroll_context.importers.values import Fault, Format, Imported, Labels, Piece
from scroll_context.store.store import Store
from scroll_context.store.transfer import merge_export, restore_export

STDIN = Path("-")
BATCH_EVENTS = 2_000
BATCH_BYTES = 16 << 20
LISTED = 20  # faults of a file that are printed; the others are counted


class FileReport(msgspec.Struct, frozen=True):
    """What became of one file."""

    file: str
    messages: int = 0
    added: int = 0  # events that are new in the store
    known: int = 0  # events that were there already
    bad: int = 0  # messages that could not be read
    error: str = ""  # why nothing of it was imported


class _Source(msgspec.Struct, frozen=True):
    """A file that can be read twice, and what to call it."""

    path: Path
    label: str  # in messages to the user
    name: str  # for a session without a name
    layout: Format


class Ingest:
    """One run of the import. The store is opened, or created, when the first sound file is met."""

    def __init__(
        self, folder: Path, labels: Labels, layout: Format | None, skip_bad: bool, lock_timeout: float
    ) -> None:
        if labels.kind in BOOKKEEPING or not labels.kind:
            raise BadInput(f"kind {labels.kind!r} is reserved for Scroll's own bookkeeping; choose another")
        self._folder = folder
        self._labels = msgspec.structs.replace(
            labels, **{k: utf8(v) for k, v in msgspec.structs.asdict(labels).items()}
        )
        self._layout = layout
        self._skip_bad = skip_bad
        self._lock_timeout = lock_timeout
        self._store: Store | None = None

    def __enter__(self) -> "Ingest":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            self._store.close()

    def file(self, path: Path) -> FileReport:
        """Import one file. What is wrong with the file is in the report; what is wrong with the store is raised."""
        label, name = ("stdin", "stdin") if path == STDIN else (utf8(str(path)), utf8(path.stem))
        try:
            with contextlib.ExitStack() as stack:
                copy = _readable(path, stack)
                if not copy.stat().st_size:
                    raise BadInput("it is empty")
                layout = self._layout or detect(copy, path.suffix)
                source = _Source(copy, label, name, layout)
                return self._export(source) if layout is Format.EXPORT else self._messages(source)
        except BadInput as error:
            return FileReport(label, error=str(error))

    def index(self) -> None:
        """Make what was imported searchable now, not at the first search."""
        if self._store is None:
            return
        try:
            with progress("indexing") as bar:
                self._store.index.catch_up(progress=bar)
        except IndexUnavailable as error:
            note(f"{error} Everything was imported; the next search tries again.")

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._folder, create=True, lock_timeout=self._lock_timeout)
        return self._store

    # messages -------------------------------------------------------------------------------------------

    def _messages(self, source: _Source) -> FileReport:
        messages, bad = self._check(source)
        if bad and not self._skip_bad:
            plural = "message cannot" if bad == 1 else "messages cannot"
            return FileReport(
                source.label,
                messages,
                bad=bad,
                error=f"{bad:,} {plural} be read, so nothing of this file was imported; --skip-bad imports the others",
            )
        if not messages:
            return FileReport(source.label, bad=bad, error="there are no messages in it")
        added = known = 0
        with progress(f"importing {source.label}") as bar:
            for batch in self._batches(source, bar):
                new, old = self._append(batch)
                added, known = added + new, known + old
        return FileReport(source.label, messages, added, known, bad)

    def _read(self, source: _Source, bar: Progress | None) -> Iterator[Imported | Fault]:
        total = source.path.stat().st_size
        for count, item in enumerate(read(source.path, source.name, self._labels, source.layout)):
            if bar and count % 500 == 0:
                bar(item.offset, total)
            yield item

    def _check(self, source: _Source) -> tuple[int, int]:
        """Read the file for its faults only: how many messages are good, and how many are not."""
        messages = bad = 0
        with progress(f"checking {source.label}") as bar:
            for item in self._read(source, bar):
                if not isinstance(item, Fault):
                    messages += 1
                    continue
                bad += 1
                if bad <= LISTED:
                    note(f"{source.label}:{item.line}: {visible(item.reason)}")
        if bad > LISTED:
            note(f"{source.label}: {bad - LISTED:,} more messages that cannot be read")
        return messages, bad

    def _batches(self, source: _Source, bar: Progress | None) -> Iterator[list[Piece]]:
        batch: list[Piece] = []
        size = 0
        for item in self._read(source, bar):
            if isinstance(item, Fault):
                if self._skip_bad:
                    continue
                raise BadInput(f"it changed while it was read (line {item.line}: {item.reason}); import it again")
            batch += item.pieces
            size += sum(len(p.draft.content) + (len(p.attachment.body) if p.attachment else 0) for p in item.pieces)
            if len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _append(self, batch: list[Piece]) -> tuple[int, int]:
        """Record a batch; how many of its events are new, and how many were there."""
        store = self._opened()
        last = store.log.last_seq()
        seqs = store.log.append_many([_draft(piece, store) for piece in batch])
        new = sum(seq > last for seq in seqs)
        return new, len(seqs) - new

    # exports --------------------------------------------------------------------------------------------

    def _export(self, source: _Source) -> FileReport:
        if self._labels != Labels():
            raise BadInput("an export names the session, agent, task and kind of each event; leave those options out")
        if self._store is None and _is_vacant(self._folder):
            with source.path.open("rb") as lines, progress(f"restoring {source.label}") as bar:
                count = restore_export(lines, self._folder, bar)
            self._opened()
            return FileReport(source.label, count, count)
        self._check_export(source)
        store = self._opened()
        last = store.log.last_seq()
        with source.path.open("rb") as lines, progress(f"importing {source.label}") as bar:
            seqs = merge_export(lines, store.log, bar)
        new = sum(seq > last for seq in seqs)
        return FileReport(source.label, len(seqs), new, len(seqs) - new)

    def _check_export(self, source: _Source) -> None:
        """Restore it somewhere else first, so that a damaged one leaves no half of itself here."""
        with (
            tempfile.TemporaryDirectory(prefix="scroll-") as scratch,
            source.path.open("rb") as lines,
            progress(f"checking {source.label}") as bar,
        ):
            restore_export(lines, Path(scratch) / "check", bar)


def _readable(path: Path, stack: contextlib.ExitStack) -> Path:
    """The file itself, or a copy of what can be read only once: stdin, a pipe. The copy goes with the stack."""
    try:
        if path != STDIN:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise BadInput("this is a folder; name the files in it")
            if stat.S_ISREG(mode):
                path.open("rb").close()
                return path
        copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scroll-"))) / "spool"
        with copy.open("wb") as target, contextlib.ExitStack() as opened:
            source = sys.stdin.buffer if path == STDIN else opened.enter_context(path.open("rb"))
            shutil.copyfileobj(source, target)
        return copy
    except OSError as error:
        raise BadInput(error.strerror or str(error)) from error


def _is_vacant(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _draft(piece: Piece, store: Store) -> Draft:
    """The draft, its attachment stored as its payload."""
    if piece.attachment is None:
        return piece.draft
    payload = store.payloads.put(piece.attachment.body, piece.attachment.media_type)
    return msgspec.structs.replace(piece.draft, payload=payload)
