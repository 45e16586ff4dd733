"""Keeps the index folder in step with the log: opening, catching up, rebuilding.

The log is the truth. Each commit of the index carries a watermark document with the seq and chain value up to which
the log was read, so a killed process leaves either the old state or the new one and no event is missed or indexed
twice. Any number of processes read; one at a time writes, under a lock file of our own that the system releases when
its holder dies. An index that cannot be read, or that belongs to another log, is thrown away and built anew.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tantivy

from scroll_context.errors import IndexUnavailable
from scroll_context.events import BOOKKEEPING, Event, Kind
from scroll_context.store import analysis
from scroll_context.store.analysis import SCHEMA
from scroll_context.store.log import EventLog
from scroll_context.store.matching import Matcher
from scroll_context.store.payloads import PayloadStore

Progress = Callable[[int, int], None]
"""Told the newest indexed seq and the seq to reach."""

BATCH_EVENTS = 20_000  # a commit at the latest after so many events,
BATCH_CHARS = 40_000_000  # or so much text
BULK = 5_000  # events from which on a writer gets more threads and memory
MANY_SEGMENTS = 32  # a hurried catch-up leaves merging to others until there are so many
LOOK_BACK = 10_000  # seqs between a reply and the user turn that it can answer


@contextlib.contextmanager
def engine_faults(doing: str) -> Iterator[None]:
    """Turn what the engine raises, its panics included, into our error."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise IndexUnavailable(f"{doing} failed: {error}. The log is not affected.") from error
    except BaseException as error:  # a panic of the engine is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise IndexUnavailable(f"{doing} failed: {error}. The log is not affected.") from error


class State:
    """One committed state of the index."""

    def __init__(self, searcher: tantivy.Searcher, before: "State | None" = None) -> None:
        self.searcher = searcher
        self.matcher = Matcher(searcher)
        self.upto, self.chain = _watermark(searcher)
        self.current_until = self.upto  # up to here the log has nothing searchable that the index lacks
        if before is not None and before.upto <= self.upto:  # not after somebody began the index anew
            self.current_until = max(self.upto, before.current_until)


class Indexer:
    """The one owner of an index folder in this process. Safe to share between threads."""

    def __init__(self, root: Path, log: EventLog, payloads: PayloadStore) -> None:
        self.root = root
        self.folder = root / f"v{analysis.VERSION}"
        self._log = log
        self._payloads = payloads
        self._pen = threading.Lock()
        self._stopped = threading.Event()
        self._index: tantivy.Index | None = None
        self._stamp: tuple[int, int] | None = None
        self._state: State | None = None

    # reading --------------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """The newest committed state; None when there is no index yet."""
        stamp = _stamp(self.folder / "meta.json")
        if stamp is None:
            self._index = self._state = self._stamp = None
        elif self._state is None or stamp != self._stamp:
            with engine_faults("opening the search index"):
                self._open(stamp)
        return self._state

    def _open(self, stamp: tuple[int, int]) -> None:
        index, before = self._index, self._state
        if index is None:
            index = tantivy.Index(SCHEMA, str(self.folder))
            index.config_reader("manual")
            analysis.register(index)
        index.reload()
        state = State(index.searcher(), before)
        if before is None:
            self._check_origin(state)
        self._index, self._state, self._stamp = index, state, stamp

    def _check_origin(self, state: State) -> None:
        """An index made from another log (a restored backup, a salvage) must not answer for this one."""
        if state.upto:
            event = self._log.get_many([state.upto])
            if not event or event[0].chain != state.chain:
                raise IndexUnavailable("the search index was made from another log; rebuild it")

    # writing --------------------------------------------------------------------------------------------

    def catch_up(
        self, timeout: float | None = None, *, hurried: bool = False, progress: Progress | None = None
    ) -> bool:
        """Index what the log has and the index lacks; False when time ran out first.

        A hurried call leaves merging to others.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        target = self._log.last_seq()
        if self.current_until() >= target:
            return True
        if not self._pen.acquire(timeout=-1 if timeout is None else timeout):
            return self.current_until() >= target
        try:
            with self._lock(target, deadline) as held:
                return self._write(target, deadline, hurried, progress) if held else self.current_until() >= target
        finally:
            self._pen.release()

    def rebuild(self, timeout: float | None = None, progress: Progress | None = None) -> bool:
        """Throw the index away and build it from the log; False when time ran out before the end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._pen, self._lock(None, deadline) as held:
            if not held:
                return False
            self._discard()
            return self._write(self._log.last_seq(), deadline, False, progress)

    def stop(self) -> None:
        """End a running catch-up after its current batch."""
        self._stopped.set()
        with self._pen:
            self._index = self._state = self._stamp = None

    def current_until(self) -> int:
        """Every event up to here is findable, if it may ever be; 0 for an index that is missing or unreadable."""
        try:
            state = self.state()
        except IndexUnavailable:
            return 0
        return state.current_until if state else 0

    @contextlib.contextmanager
    def _lock(self, target: int | None, deadline: float | None) -> Iterator[bool]:
        """Hold the lock file; give up at the deadline, or when its holder has done what we want."""
        handle = self._open_lock()
        try:
            held = _try_lock(handle)
            while not held and not self._stopped.is_set():
                if target is not None and self.current_until() >= target:
                    break
                if deadline is not None and time.monotonic() > deadline:
                    break
                time.sleep(0.005)
                held = _try_lock(handle)
            yield held
        finally:
            os.close(handle)

    def _open_lock(self) -> int:
        try:
            self.root.mkdir(exist_ok=True)
            return os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise IndexUnavailable(
                f"the search index in {self.root} cannot be written: {error.strerror}. The log is not affected."
            ) from error

    def _write(self, target: int, deadline: float | None, hurried: bool, progress: Progress | None) -> bool:
        start = self._ready()
        if start >= target:
            return True
        index = self._index
        assert index is not None
        with engine_faults("writing the search index"):
            if target - start > BULK:
                writer = index.writer(100_000_000, min(4, os.cpu_count() or 1))
            else:
                writer = index.writer(15_000_000, 1)
            upto = start
            while upto < target and not self._stopped.is_set() and not (deadline and time.monotonic() > deadline):
                upto = self._write_batch(writer, upto, target, deadline)
                self._open(_stamp(self.folder / "meta.json") or (0, 0))
                if progress is not None:
                    progress(upto, target)
            if not hurried or index.searcher().num_segments > MANY_SEGMENTS:
                writer.wait_merging_threads()
        return upto >= target

    def _ready(self) -> int:
        """Make sure that there is a sound index, under the lock; the seq to go on from."""
        try:
            state = self.state()
        except IndexUnavailable:
            self._discard()
            state = None
        if state is None:
            self._create()
            state = self.state()
            assert state is not None
        return state.current_until

    def _write_batch(self, writer: tantivy.IndexWriter, after: int, target: int, deadline: float | None) -> int:
        turns = _Turns(self._log)
        last: Event | None = None
        chars = 0
        for count, event in enumerate(self._log.iterate(after=after, until=target)):
            if chars > BATCH_CHARS or count >= BATCH_EVENTS:
                break
            if count % 64 == 63 and (self._stopped.is_set() or (deadline and time.monotonic() > deadline)):
                break
            if event.is_searchable:
                for document in analysis.documents(event, turns.answered_by(event), self._payloads):
                    writer.add_document(document)
                chars += len(event.content) if event.payload is None else event.payload.size
            last = event
        if last is None:
            return target  # the log has gaps after a salvage, never rows that come later
        writer.add_document(analysis.watermark(last.seq, last.chain))
        writer.commit()
        return last.seq

    def _create(self) -> None:
        with engine_faults("creating the search index"):
            for other in self.root.glob("v*"):
                if other != self.folder:  # made by another version of Scroll
                    shutil.rmtree(other, ignore_errors=True)
            self.folder.mkdir(exist_ok=True)
            tantivy.Index(SCHEMA, str(self.folder))

    def _discard(self) -> None:
        """Remove the index, under the lock. It is renamed first: half an index is never taken for one."""
        self._index = self._state = self._stamp = None
        with engine_faults("removing the old search index"):
            if self.folder.exists():
                trash = tempfile.mkdtemp(prefix="trash-", dir=self.root)
                self.folder.rename(Path(trash) / "index")
            for trash_folder in self.root.glob("trash-*"):
                shutil.rmtree(trash_folder, ignore_errors=True)


class _Turns:
    """Which user turn each reply answers, followed along the log."""

    _NEVER = ", ".join(f"'{kind}'" for kind in sorted({*BOOKKEEPING, Kind.NOTICE}))

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._newest: dict[str, int] = {}  # the newest user turn of each session met so far; 0 for none

    def answered_by(self, event: Event) -> int:
        """The seq of the user turn, 0 for none; a user turn answers itself."""
        if analysis.is_user_turn(event):
            self._newest[event.session_id] = event.seq
            return event.seq
        if not analysis.is_reply(event):
            return 0
        if event.session_id not in self._newest:
            self._newest[event.session_id] = self._before(event)
        turn = self._newest[event.session_id]
        if event.reply_to and event.reply_to != turn:
            named = self._log.get_many([event.reply_to])
            if named and analysis.is_user_turn(named[0]):
                return named[0].seq
        return turn if event.seq - turn <= LOOK_BACK else 0

    def _before(self, event: Event) -> int:
        rows = self._log.query(
            f"""SELECT seq FROM event WHERE session_id = ? AND seq < ? AND seq >= ? AND role = 'user'
            AND kind NOT IN ({self._NEVER}) ORDER BY seq DESC LIMIT 20""",
            [event.session_id, event.seq, event.seq - LOOK_BACK],
        )
        return next((e.seq for e in self._log.get_many([row[0] for row in rows]) if analysis.is_user_turn(e)), 0)


def _watermark(searcher: tantivy.Searcher) -> tuple[int, bytes]:
    query = tantivy.Query.term_query(SCHEMA, "mark", "watermark", "basic")
    hits = searcher.search(query, 1, count=False, order_by_field="seq").hits
    if not hits:
        return 0, b""
    seq, address = hits[0]
    return int(seq), bytes(searcher.doc(address)["chain"][0])


def _stamp(file: Path) -> tuple[int, int] | None:
    """What changes with every commit, for the price of a stat."""
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
