"""Keeps the index folder in step with the log: opening, catching up in the background, rebuilding,
checking files.

The log is the truth. The last document of each commit also records the seq and chain value up to
which the log was read, so a killed process leaves either the old state or the new one and no event
is missed or indexed twice. Any number of processes read; one at a time writes, under a lock file of
our own that the system releases when its holder dies. The engine merges files in threads of its
own: the indexer waits for these before it releases the lock, and so before the store is closed. An
index that cannot be read, or that belongs to another log, is discarded and built again. Readers
map its files into memory, so no file is ever changed in place: files are only renamed and removed.

One thread of each process does the indexing. It starts when it is first needed, waits a little for
more events before it indexes, rests between commits, and does neither while a search waits. A
search never indexes by itself: it waits for this thread up to its own time limit, so a large
payload or a slow merge cannot hold it longer.
"""

import contextlib
import functools
import math
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tantivy

from scroll_context.errors import IndexUnavailable, ScrollError, StoreUnsafe
from scroll_context.events import Event, Progress
from scroll_context.files import complete_file, release, try_lock
from scroll_context.log import schema
from scroll_context.log.log import EventLog
from scroll_context.log.ownership import is_made_by_us, open_file
from scroll_context.log.payloads import PayloadStore
from scroll_context.search import documents
from scroll_context.search.engine import check_files, open_engine, version_folder, watermark
from scroll_context.search.turns import Turns
from scroll_context.work import Work

# The indexer commits at the latest after this many events, or characters of text.
BATCH_EVENTS = 50_000
BATCH_CHARS = 100_000_000
# Bytes that one thread of a writer may fill before it begins a new segment.
HEAP = 128_000_000
# From this many events on, a second thread of the engine is worth starting.
MANY = 2_000
# Events between two reports of progress.
REPORT_EVERY = 1_000
# Seconds to wait for more events before indexing.
GATHER = 0.05
# Seconds to rest after a commit.
PAUSE = 0.5
# Seconds to wait for other writers before notes are given up.
NOTES_PATIENCE = 0.1

_VERSION = re.compile(r"v\d+")
# A name that mkdtemp makes.
_TRASH = re.compile(r"trash-[a-z0-9_]{8}")


class EngineFaults:
    """Turns the errors of the engine, its panics included, into ours.

    It is a class, since every search enters it and generators are slower.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # A panic of the engine is a BaseException, and its class cannot be imported.
        is_panic = type(error).__name__ == "PanicException"
        if is_panic or isinstance(error, ValueError | TypeError | OSError):
            raise IndexUnavailable(
                f"{self._doing} failed: {error}. The log is not affected."
            ) from error


class Commit:
    """One committed state of the index."""

    def __init__(self, searcher: tantivy.Searcher, before: "Commit | None" = None) -> None:
        self.searcher = searcher
        # Numbers of documents and forms of words, remembered by searches.
        self.counts: dict[tuple[object, ...], int] = {}
        self.known_forms: dict[str, tuple[str, ...] | None] = {}
        self.upto, self.chain = watermark(searcher)
        # Up to here the log has nothing searchable that the index lacks.
        self.current_until = self.upto
        if before is not None and before.upto <= self.upto:
            # Otherwise another process began the index again.
            self.current_until = max(self.upto, before.current_until)


class Indexer:
    """The one owner of an index folder in this process. Safe to share between threads."""

    def __init__(self, root: Path, log: EventLog, payloads: PayloadStore) -> None:
        self.root = root
        self._log = log
        self._payloads = payloads
        # It is reentrant, because the callback that gets the progress may close the store.
        self._write_lock = threading.RLock()
        self._stopped = threading.Event()
        self._index: tantivy.Index | None = None
        self._stamp: tuple[int, int] | None = None
        self._commit: Commit | None = None
        # Why the last attempt failed; empty while another attempt runs.
        self.trouble = ""
        self._failures = 0
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        # Work to be done in the thread whenever many events were indexed, by name.
        self.after_many: dict[str, Callable[[], None]] = {}
        # Events that were indexed since.
        self._indexed = 0
        self._work = Work(math.inf)

    # Paths are made when they are needed: opening a store needs none of them.

    @functools.cached_property
    def folder(self) -> Path:
        return Path(version_folder(self.root))

    @functools.cached_property
    def _meta(self) -> Path:
        return self.folder / "meta.json"

    # reading --------------------------------------------------------------------------------------

    def newest(self) -> Commit | None:
        """The newest committed state; None when there is no index yet."""
        if self._stopped.is_set():
            raise schema.closed(self.root, "search")
        with EngineFaults("opening the search index"):
            stamp = _stamp(self._meta)
            if stamp is None:
                self._index = self._commit = self._stamp = None
            elif self._commit is None or stamp != self._stamp:
                self._open(stamp)
        return self._commit

    def _open(self, stamp: tuple[int, int]) -> Commit:
        before = self._commit
        with self._lockable() as folder:
            index = self._index
            if index is None:
                check_files(self.folder)
                index = open_engine(folder)
            index.reload()
            commit = Commit(index.searcher(), before)
        if before is None:
            self._check_origin(commit)
        self._index = index if folder == self.folder else None
        self._commit, self._stamp = commit, stamp
        return commit

    @contextlib.contextmanager
    def _lockable(self) -> Iterator[Path]:
        """The folder itself, or links to its files where it cannot be written: the engine opens
        none without a lock.
        """
        if os.access(self.folder, os.W_OK):
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="scroll-index-") as links:
            for file in self.folder.glob("[!.]*"):
                (Path(links) / file.name).symlink_to(file.absolute())
            # Open files stay open when their names are removed.
            yield Path(links)

    def _check_origin(self, commit: Commit) -> None:
        """An index made from another log (a restored backup, a salvage) must not answer for this
        one.
        """
        if commit.upto:
            event = self._log.get_many([commit.upto])
            if not event or event[0].chain != commit.chain:
                raise IndexUnavailable("the search index was made from another log; rebuild it")

    # notes ----------------------------------------------------------------------------------------

    def notes(self, name: str) -> bytes | None:
        """Data that was stored under a name since the index was begun."""
        try:
            with open(open_file(self.folder / name, os.O_RDONLY), "rb") as file:
                return file.read()
        except (OSError, StoreUnsafe):
            return None

    def keep_notes(self, name: str, data: bytes, is_valid: Callable[[], bool]) -> bool:
        """Store data that was made from the log, if it is still valid. Returns False if it is not,
        or if others write now.

        Notes are removed with the index. An erasure discards the index after the rows have changed,
        as the only writer, and notes are stored by the only writer too: so no note outlives the
        content that it was made from.
        """
        with (
            contextlib.suppress(ScrollError, OSError),
            self._alone(time.monotonic() + NOTES_PATIENCE) as alone,
        ):
            if alone and self.folder.is_dir() and is_valid():
                # A file that a killed process leaves is removed when the index is next written to,
                # by its prefix.
                with complete_file(
                    self.folder / name, replace=True, prefix=".tmp-", durable=False
                ) as file:
                    file.write(data)
                return True
        return False

    # following the log ----------------------------------------------------------------------------

    def start(self) -> None:
        """Follow the log from now on."""
        with self._progress:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._follow, name="scroll-index", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def notify(self) -> None:
        """Something was appended."""
        # Each append comes here, and setting an event costs more than asking for its state.
        if not self._wake.is_set():
            self._wake.set()

    def wait_for(self, seq: int, timeout: float) -> bool:
        """Wait until everything up to `seq` is indexed; False when that takes too long or fails
        (see `trouble`).
        """
        failures = self._failures
        self._hurry.set()
        self.start()
        with self._progress:
            self._progress.wait_for(
                lambda: (
                    self.current_until() >= seq
                    or self._failures > failures
                    or self._stopped.is_set()
                ),
                timeout,
            )
        return self.current_until() >= seq

    def _follow(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._hurry.wait(GATHER)
            self._wake.clear()
            self._hurry.clear()
            self.trouble = ""
            try:
                self.catch_up(progress=lambda *_: self._notify_waiting())
            except ScrollError as error:
                # The next search reports it; the next append or search tries again.
                self.trouble = str(error)
                self._failures += 1
            self._notify_waiting()
            self._do_after_many()
            if not self._stopped.is_set():
                self._hurry.wait(PAUSE)

    def _do_after_many(self) -> None:
        """Do the work that follows an import or a new index. Closing the store ends it."""
        if self._indexed < MANY:
            return
        self._indexed = 0
        with self._work.in_this_thread():
            for task in list(self.after_many.values()):
                # Whoever needs the result makes it again.
                with contextlib.suppress(ScrollError):
                    self._work.check()
                    task()

    def _notify_waiting(self) -> None:
        with self._progress:
            self._progress.notify_all()

    # writing --------------------------------------------------------------------------------------

    def catch_up(self, timeout: float | None = None, progress: Progress | None = None) -> bool:
        """Index the events that the index lacks; False when time ran out first.

        The time is checked between events: one large payload is finished in any case.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        target = self._log.applied_seq()
        if self.current_until() >= target:
            return True
        with self._alone(deadline, target) as alone:
            if alone:
                return self._write(target, deadline, progress)
            return self.current_until() >= target

    def discard(self, timeout: float | None = None) -> bool:
        """Discard the index, so that catching up builds it again; False when another process held
        it too long.
        """
        with self._alone(None if timeout is None else time.monotonic() + timeout) as alone:
            if alone:
                self._discard()
            return alone

    def stop(self) -> None:
        """End a running catch-up soon, and refuse others."""
        # Under the lock, so that no thread is started afterwards.
        with self._progress:
            self._stopped.set()
        self._work.stop()

    def close(self) -> None:
        """Stop the thread and every running catch-up, wait for them and for merges, and let go of
        the files.
        """
        self.stop()
        self._hurry.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        # No search should wait any longer.
        self._notify_waiting()
        with self._write_lock:
            self._index = self._commit = self._stamp = None

    def current_until(self) -> int:
        """Every event up to here is findable, if it may ever be; 0 for an index that is missing or
        unreadable.
        """
        try:
            commit = self.newest()
        except IndexUnavailable:
            return 0
        return commit.current_until if commit else 0

    @contextlib.contextmanager
    def _alone(self, deadline: float | None, target: int | None = None) -> Iterator[bool]:
        """Be the only writer of all threads and processes; not at the deadline, nor when others
        reached the target.
        """
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._write_lock.acquire(timeout=left):
            yield False
            return
        try:
            handle = self._open_lock()
            try:
                is_locked = try_lock(handle)
                while not is_locked:
                    is_reached = target is not None and self.current_until() >= target
                    if is_reached or _is_past(deadline) or self._stopped.wait(0.005):
                        break
                    is_locked = try_lock(handle)
                yield is_locked and not self._stopped.is_set()
            finally:
                release(handle)
                os.close(handle)
        finally:
            self._write_lock.release()

    def _open_lock(self) -> int:
        try:
            schema.private_folder(self.root)
            return open_file(self.root / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise IndexUnavailable(
                f"the search index in {self.root} cannot be written: {error.strerror}. "
                "The log is not affected."
            ) from error

    def _write(self, target: int, deadline: float | None, progress: Progress | None) -> bool:
        index, start = self._ready()
        if start >= target:
            return True
        threads = 2 if target - start >= MANY else 1
        with self._writer(index, threads) as writer:
            upto = start
            while upto < target and not self._stopped.is_set() and not _is_past(deadline):
                before = upto
                upto = self._write_batch(writer, before, target, deadline, progress)
                if self._stopped.is_set() and self._commit is None:
                    # The callback that got the progress has closed the store.
                    break
                self._make_private()
                self._open(_stamp(self._meta) or (0, 0)).current_until = upto
                self._indexed += upto - before
                if progress is not None:
                    progress(upto, target)
        return upto >= target

    @contextlib.contextmanager
    def _writer(self, index: tantivy.Index, threads: int) -> Iterator[tantivy.IndexWriter]:
        """A writer; none of its threads runs afterwards. Events that it did not commit are read
        from the log again.

        It waits for merges even when the store is being closed: an interrupted merge has to be
        done again by the next process, and a process that only searches may never live long enough.
        """
        with EngineFaults("writing the search index"):
            # A process that was killed while the engine wrote its meta.json leaves these.
            for stale in self.folder.glob(".tmp*"):
                stale.unlink(missing_ok=True)
            writer = index.writer(threads * HEAP, threads)
            try:
                yield writer
            except BaseException:
                # If the writer has failed, that error already reaches the caller.
                with contextlib.suppress(ValueError):
                    writer.wait_merging_threads()
                raise
            writer.wait_merging_threads()
            self._make_private()

    def _make_private(self) -> None:
        """Make files private, which the engine creates with the modes of the umask."""
        for file in self.folder.iterdir():
            schema.make_private(file)

    def _ready(self) -> tuple[tantivy.Index, int]:
        """An intact index, built again if necessary, and the seq to continue from. Under the lock.

        A new engine knows the files that other processes have made, so it removes those that are
        no longer used.
        """
        with contextlib.suppress(IndexUnavailable):
            commit = self.newest()
            if commit is not None:
                with EngineFaults("opening the search index"):
                    check_files(self.folder)
                    return open_engine(self.folder), commit.current_until
        self._discard()
        with EngineFaults("creating the search index"):
            schema.private_folder(self.folder)
            return open_engine(self.folder), 0

    def _write_batch(
        self,
        writer: tantivy.IndexWriter,
        after: int,
        target: int,
        deadline: float | None,
        progress: Progress | None,
    ) -> int:
        """Index and commit the next events; the seq of the last one.

        Without anything searchable nothing is written.
        """
        turns = Turns(self._log)
        last: Event | None = None
        # The newest document is added when the next one is known: the last one gets the mark.
        pending: tantivy.Document | None = None
        chars = 0
        for count, event in enumerate(self._log.iterate(after=after, until=target)):
            if chars > BATCH_CHARS or count >= BATCH_EVENTS:
                break
            if count % 64 == 63 and (self._stopped.is_set() or _is_past(deadline)):
                break
            if progress is not None and count % REPORT_EVERY == REPORT_EVERY - 1:
                progress(event.seq, target)
            if event.is_searchable:
                for document in documents.documents(
                    event, turns.answered_by(event), self._payloads
                ):
                    if pending is not None:
                        writer.add_document(pending)
                    pending = document
                chars += len(event.content) if event.payload is None else event.payload.size
            last = event
        if last is None:
            # The log has gaps after a salvage, but no row ever fills one.
            return target
        if pending is not None:
            documents.mark(pending, last.seq, last.chain)
            writer.add_document(pending)
            writer.commit()
        return last.seq

    def _discard(self) -> None:
        """Remove the index and those of other versions.

        It is renamed first, so half an index is never used.
        """
        self._index = self._commit = self._stamp = None
        with EngineFaults("removing the old search index"):
            for folder in self._made_by_us(_VERSION):
                folder.rename(Path(tempfile.mkdtemp(prefix="trash-", dir=self.root)) / folder.name)
            for trash in self._made_by_us(_TRASH):
                # This follows no link.
                shutil.rmtree(trash, ignore_errors=True)

    def _made_by_us(self, name: "re.Pattern[str]") -> list[Path]:
        """The files and folders with names that this program makes.

        Everything else here is left alone.
        """
        with os.scandir(self.root) as entries:
            return [
                Path(entry)
                for entry in entries
                if name.fullmatch(entry.name) and is_made_by_us(entry.stat(follow_symlinks=False))
            ]


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _stamp(file: Path) -> tuple[int, int] | None:
    """A value that changes with every commit and costs one stat."""
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns
