"""Keeps the index folder in step with the log: opening, catching up in the background, rebuilding,
checking files.

The log is the truth. The last document of each commit also records the seq and chain value up to
which the log was read, so a killed process leaves either the old state or the new one and no event
is missed or indexed twice. Any number of processes read; one at a time writes, under a lock file of
our own that the system releases when its holder dies. The engine merges files in threads of its
own: the indexer waits for these before it gives up the lock, and so before the store is closed. An
index that cannot be read, or that belongs to another log, is thrown away and built anew. Readers
map its files into memory, so no file is ever changed in place: files are only renamed and removed.

One thread of each process does the indexing. It starts when it is first needed, waits a little for
more events before it indexes, rests between commits, and does neither while a search waits. A
search never indexes by itself: it waits for this thread up to its own time limit, so a large
payload or a slow merge cannot hold it longer.
"""

import contextlib
import functools
import os
import re
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec
import tantivy

from scroll_context.errors import IndexUnavailable, ScrollError, StoreUnsafe
from scroll_context.events import UNSEARCHABLE, Event, Progress
from scroll_context.files import complete_file
from scroll_context.log import schema
from scroll_context.log.log import EventLog
from scroll_context.log.ownership import is_made_by_us, is_own, open_file, open_folder
from scroll_context.log.payloads import PayloadStore
from scroll_context.origin import TURN_SQL
from scroll_context.search import tokenize
from scroll_context.search.tokenize import SCHEMA

BATCH_EVENTS = 50_000  # a commit at the latest after so many events,
BATCH_CHARS = 100_000_000  # or so much text
HEAP = 128_000_000  # bytes that one thread of a writer may fill before it begins a new segment
MANY = 2_000  # events from which on a second thread of the engine is worth starting
SIGN_OF_LIFE = 1_000  # events between two reports of progress
LOOK_BACK = (
    10_000  # events of a session that are looked through for the user turn which a reply answers
)
SETTLE = 0.05  # seconds to wait for more events before indexing
PAUSE = 0.5  # seconds to rest after a commit
NOTES_PATIENCE = 0.1  # seconds to wait for other writers before notes are not kept

_VERSION = re.compile(r"v\d+")
_TRASH = re.compile(r"trash-[a-z0-9_]{8}")  # as mkdtemp makes it
_ENGINE_FILE = re.compile(r"[0-9a-f]{32}\.[a-z0-9.]+|meta\.json")

_MAGIC = (1337).to_bytes(
    4, "little"
)  # the last four bytes of a file; before them, the length of its footer
_TAIL = 8
_CHUNK = 1 << 20
_PARTS = (
    "fast",
    "fieldnorm",
    "idx",
    "pos",
    "store",
    "term",
)  # of every segment; nothing is ever deleted from one

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class EngineFaults:
    """Turns what the engine raises, its panics included, into our error.

    A class: every search enters it.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # a panic of the engine is no Exception
        if (
            isinstance(error, ValueError | TypeError | OSError)
            or type(error).__name__ == "PanicException"
        ):
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
        self.upto, self.chain = _watermark(searcher)
        self.current_until = (
            self.upto
        )  # up to here the log has nothing searchable that the index lacks
        if (
            before is not None and before.upto <= self.upto
        ):  # not after another process began the index anew
            self.current_until = max(self.upto, before.current_until)


class Indexer:
    """The one owner of an index folder in this process. Safe to share between threads."""

    def __init__(self, root: Path, log: EventLog, payloads: PayloadStore) -> None:
        self.root = root
        self._log = log
        self._payloads = payloads
        self._write_lock = (
            threading.RLock()
        )  # reentrant: the callback that gets the progress may close the store
        self._stopped = threading.Event()
        self._index: tantivy.Index | None = None
        self._stamp: tuple[int, int] | None = None
        self._commit: Commit | None = None
        self.trouble = ""  # why the last attempt failed; empty while another one is under way
        self._failures = 0
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None

    # Paths are made when they are needed: opening a store needs none of them.

    @functools.cached_property
    def folder(self) -> Path:
        return self.root / f"v{tokenize.VERSION}"

    @functools.cached_property
    def _meta(self) -> Path:
        return self.folder / "meta.json"

    # reading --------------------------------------------------------------------------------------------

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
                self._check_files()
                index = self._engine(folder)
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
            yield Path(links)  # opened files stay open without their names

    def _check_files(self) -> None:
        """Refuse an index with files that the engine must not open, follow or remove; it is then
        built again.

        The engine opens files by name, so a link would lead it out of the folder. It also removes
        every file that `.managed.json` lists and no segment needs: an absolute path there was
        removed wherever it was.
        """
        handle = open_folder(self.folder)
        try:
            with os.scandir(handle) as entries:
                plain = all(_is_plain(entry) for entry in entries)
        finally:
            os.close(handle)
        if not plain or not all(_ENGINE_FILE.fullmatch(name) for name in _managed(self.folder)):
            raise IndexUnavailable(
                "the search index has files that Scroll did not make. The log is not affected."
            )

    def _engine(self, folder: Path) -> tantivy.Index:
        index = tantivy.Index(SCHEMA, str(folder))
        index.config_reader("manual")
        tokenize.register(index)
        return index

    def _check_origin(self, commit: Commit) -> None:
        """An index made from another log (a restored backup, a salvage) must not answer for this
        one.
        """
        if commit.upto:
            event = self._log.get_many([commit.upto])
            if not event or event[0].chain != commit.chain:
                raise IndexUnavailable("the search index was made from another log; rebuild it")

    # notes ----------------------------------------------------------------------------------------------

    def notes(self, name: str) -> bytes | None:
        """What was kept under a name since the index was begun."""
        try:
            with open(open_file(self.folder / name, os.O_RDONLY), "rb") as file:
                return file.read()
        except (OSError, StoreUnsafe):
            return None

    def keep_notes(self, name: str, data: bytes, is_valid: Callable[[], bool]) -> bool:
        """Keep something that was made from the log, if it still holds; False when it does not, or
        others write now.

        It goes with the index, so what is erased from the log is gone from it: an erasure throws
        the index away after the rows have changed, and alone, as this is done. So notes of before
        are removed, and none are made later.
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

    # following the log ----------------------------------------------------------------------------------

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
        if not self._wake.is_set():  # each append asks; waking costs more than asking
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
            self._hurry.wait(SETTLE)
            self._wake.clear()
            self._hurry.clear()
            self.trouble = ""
            try:
                self.catch_up(progress=lambda *_: self._notify_waiting())
            except (
                ScrollError
            ) as error:  # said with the next search; the next append or search tries again
                self.trouble = str(error)
                self._failures += 1
            self._notify_waiting()
            if not self._stopped.is_set():
                self._hurry.wait(PAUSE)

    def _notify_waiting(self) -> None:
        with self._progress:
            self._progress.notify_all()

    # writing --------------------------------------------------------------------------------------------

    def catch_up(self, timeout: float | None = None, progress: Progress | None = None) -> bool:
        """Index what the log has and the index lacks; False when time ran out first.

        The time is looked at between events: one large payload is finished in any case.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        target = self._log.applied_seq()
        if self.current_until() >= target:
            return True
        with self._alone(deadline, target) as alone:
            return (
                self._write(target, deadline, progress) if alone else self.current_until() >= target
            )

    def discard(self, timeout: float | None = None) -> bool:
        """Throw the index away, so that catching up builds it anew; False when another process held
        it too long.
        """
        with self._alone(None if timeout is None else time.monotonic() + timeout) as alone:
            if alone:
                self._discard()
            return alone

    def stop(self) -> None:
        """End a running catch-up soon, and refuse others."""
        with self._progress:  # so that no thread is started afterwards
            self._stopped.set()

    def close(self) -> None:
        """Stop the thread and every running catch-up, wait for them and for merges, and let go of
        the files.
        """
        self.stop()
        self._hurry.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._notify_waiting()  # no search should wait any longer
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
                while not (held := schema.try_lock(handle)):
                    reached = target is not None and self.current_until() >= target
                    if reached or _is_past(deadline) or self._stopped.wait(0.005):
                        break
                yield held and not self._stopped.is_set()
            finally:
                os.close(handle)
        finally:
            self._write_lock.release()

    def _open_lock(self) -> int:
        try:
            schema.private_folder(self.root)
            return open_file(self.root / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise IndexUnavailable(
                f"the search index in {self.root} cannot be written: {error.strerror}. The log is not affected."
            ) from error

    def _write(self, target: int, deadline: float | None, progress: Progress | None) -> bool:
        index, start = self._ready()
        if start >= target:
            return True
        threads = 2 if target - start >= MANY else 1
        with self._writer(index, threads) as writer:
            upto = start
            while upto < target and not self._stopped.is_set() and not _is_past(deadline):
                upto = self._write_batch(writer, upto, target, deadline, progress)
                if (
                    self._stopped.is_set() and self._commit is None
                ):  # closed by what was told of the progress
                    break
                self._make_private()
                self._open(_stamp(self._meta) or (0, 0)).current_until = upto
                if progress is not None:
                    progress(upto, target)
        return upto >= target

    @contextlib.contextmanager
    def _writer(self, index: tantivy.Index, threads: int) -> Iterator[tantivy.IndexWriter]:
        """A writer; none of its threads runs afterwards. What it did not commit is read from the
        log again.

        Merges are waited for even when the store is being closed: one that is cut off has to be
        done again, by the next process, and a process that merely searches may never live long
        enough.
        """
        with EngineFaults("writing the search index"):
            for stale in self.folder.glob(
                ".tmp*"
            ):  # of a process that was killed while the engine wrote its meta.json
                stale.unlink(missing_ok=True)
            writer = index.writer(threads * HEAP, threads)
            try:
                yield writer
            except BaseException:
                with contextlib.suppress(
                    ValueError
                ):  # the writer failed: that is already on its way to the caller
                    writer.wait_merging_threads()
                raise
            writer.wait_merging_threads()
            self._make_private()

    def _make_private(self) -> None:
        """The engine creates files as the umask says.

        Nobody else can enter their folder; nor may they be read.
        """
        for file in self.folder.iterdir():
            schema.make_private(file)

    def _ready(self) -> tuple[tantivy.Index, int]:
        """A sound index, made anew if need be, and the seq to go on from. Under the lock.

        A fresh engine knows the files that other processes have made, and so removes those that are
        no longer used.
        """
        with contextlib.suppress(IndexUnavailable):
            if (commit := self.newest()) is not None:
                with EngineFaults("opening the search index"):
                    self._check_files()
                    return self._engine(self.folder), commit.current_until
        self._discard()
        with EngineFaults("creating the search index"):
            schema.private_folder(self.folder)
            return self._engine(self.folder), 0

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
        turns = _Turns(self._log)
        last: Event | None = None
        held: tantivy.Document | None = None
        chars = 0
        for count, event in enumerate(self._log.iterate(after=after, until=target)):
            if chars > BATCH_CHARS or count >= BATCH_EVENTS:
                break
            if count % 64 == 63 and (self._stopped.is_set() or _is_past(deadline)):
                break
            if progress is not None and count % SIGN_OF_LIFE == SIGN_OF_LIFE - 1:
                progress(event.seq, target)
            if event.is_searchable:
                for document in tokenize.documents(event, turns.answered_by(event), self._payloads):
                    if held is not None:
                        writer.add_document(held)
                    held = document
                chars += len(event.content) if event.payload is None else event.payload.size
            last = event
        if last is None:  # the log has gaps after a salvage, never rows that come later
            return target
        if held is not None:
            tokenize.mark(held, last.seq, last.chain)
            writer.add_document(held)
            writer.commit()
        return last.seq

    def _discard(self) -> None:
        """Remove the index and those of other versions.

        It is renamed first: half an index is never taken for one.
        """
        self._index = self._commit = self._stamp = None
        with EngineFaults("removing the old search index"):
            for folder in self._made_by_us(_VERSION):
                folder.rename(Path(tempfile.mkdtemp(prefix="trash-", dir=self.root)) / folder.name)
            for trash in self._made_by_us(_TRASH):
                shutil.rmtree(trash, ignore_errors=True)  # which follows no link

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


class _Turns:
    """Which turn each reply answers, followed along the log.

    A short first reply that makes no calls is a turn of its own: between two people, or with an
    assistant that talks like one, both say what is asked for later. Long replies and the remarks of
    an agent at work are not.
    """

    _NEVER = ", ".join(f"'{kind}'" for kind in UNSEARCHABLE)

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._newest: dict[
            str, int
        ] = {}  # the newest user turn of each session met so far; 0 for none
        self._last_answered: dict[str, int] = {}  # the user turn that was answered last

    def answered_by(self, event: Event) -> int:
        """The seq of the user turn, 0 for none; a turn answers itself."""
        if tokenize.is_user_turn(event):
            self._newest[event.session_id] = event.seq
            return event.seq
        if not tokenize.is_reply(event):
            return 0
        if event.session_id not in self._newest:
            turn = self._newest[event.session_id] = self._before(event)
            if turn and self._is_answered(turn, event):
                self._last_answered[event.session_id] = turn
        turn = self._newest[event.session_id]
        if event.reply_to and event.reply_to != turn:
            named = self._log.get_many([event.reply_to])
            if named and tokenize.is_user_turn(named[0]):
                return named[0].seq
        is_first = self._last_answered.get(event.session_id) != turn
        self._last_answered[event.session_id] = turn
        return event.seq if turn and is_first and tokenize.is_short_reply(event) else turn

    def _is_answered(self, turn: int, event: Event) -> bool:
        """Whether a reply before this one, in an earlier batch, answers the same turn."""
        between = self._log.iterate(
            after=turn, until=event.seq - 1, session_id=event.session_id, role="assistant"
        )
        return any(map(tokenize.is_reply, between))

    def _before(self, event: Event) -> int:
        rows = self._log.query(
            f"""SELECT seq FROM (SELECT seq, role, kind FROM event WHERE session_id = ? AND seq < ? ORDER BY seq DESC
            LIMIT {LOOK_BACK}) WHERE {TURN_SQL} AND kind NOT IN ({self._NEVER}) ORDER BY seq DESC LIMIT 20""",
            [event.session_id, event.seq],
        )
        return next(
            (
                e.seq
                for e in self._log.get_many([seq for (seq,) in rows])
                if tokenize.is_user_turn(e)
            ),
            0,
        )


def _watermark(searcher: tantivy.Searcher) -> tuple[int, bytes]:
    query = tantivy.Query.term_query(SCHEMA, "mark", "last", "basic")
    hits = searcher.search(query, 1, count=False, order_by_field="upto").hits
    if not hits:
        return 0, b""
    upto, address = hits[0]
    return int(upto), bytes(searcher.doc(address)["chain"][0])


def _is_plain(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file(follow_symlinks=False) and is_own(entry.stat(follow_symlinks=False))
    except FileNotFoundError:  # another process has just removed it
        return True


def _managed(folder: Path) -> list[str]:
    """The files that the engine believes to be its own."""
    try:
        return msgspec.json.decode((folder / ".managed.json").read_bytes(), type=list[str])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as error:
        raise IndexUnavailable(f"{folder / '.managed.json'} cannot be read: {error}") from error


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _stamp(file: Path) -> tuple[int, int] | None:
    """What changes with every commit, for the price of a stat."""
    try:
        status = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


# checking the files -------------------------------------------------------------------------------------


def damaged_files(root: Path) -> list[str]:
    """The names of files of the committed index below this folder that are missing or do not match
    their checksums.

    The engine ends each file with a footer that holds a checksum of the rest, and never looks at it
    again: a flipped bit in a posting list makes searches miss events in silence. Reading everything
    takes time, so this is part of `verify` and never of opening. The files are read, not mapped: a
    file that is cut short meanwhile, or a failing device, is then damage to report and no signal
    that ends the process.
    """
    found: list[str] = []
    for meta in root.glob("v*/meta.json"):
        try:
            bad = [file for file in committed_files(meta) if not _is_whole(file)]
            found += [
                file.name for file in bad if file in committed_files(meta)
            ]  # else a merge has done away with it
        except FileNotFoundError:  # it is being built anew
            continue
        except (OSError, ValueError, KeyError, TypeError):
            found.append(meta.name)
    return found


def committed_files(meta: Path) -> list[Path]:
    """What an index consists of, according to its meta.json: the files that have a checksum."""
    segments = sorted(
        str(one["segment_id"]).replace("-", "") for one in _decode(meta.read_bytes())["segments"]
    )
    return [meta.parent / f"{segment}.{part}" for segment in segments for part in _PARTS]


def _is_whole(file: Path) -> bool:
    try:
        with file.open("rb") as handle:
            end, expected = footer(handle)
            handle.seek(0)
            checksum = 0
            while piece := handle.read(min(_CHUNK, end - handle.tell())):
                checksum = zlib.crc32(piece, checksum)
            return checksum == expected
    except (
        OSError,
        ValueError,
        KeyError,
    ):  # is missing, cannot be read, is empty, or has no footer
        return False


def footer(handle: IO[bytes]) -> tuple[int, int]:
    """Where the body of a file ends, and its checksum.

    The rest of the footer, the engine's version, has none.
    """
    size = handle.seek(0, 2)
    handle.seek(max(0, size - _TAIL))
    length, magic = int.from_bytes(handle.read(4), "little"), handle.read(4)
    end = size - _TAIL - length
    if magic != _MAGIC or end < 0:
        raise ValueError("no footer")
    handle.seek(end)
    return end, _decode(handle.read(length))["crc"]
