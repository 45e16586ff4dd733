"""Histories of assistants that grow: where they are on this machine, reading what is new in one,
and following them.

How far a file was read is kept in a small file of the store's `captured` folder. It is only a
shortcut: events are recognised by the ids of the source, so a lost or old position costs time and
doubles nothing. A position counts only if the bytes before it are the ones that were read, and if
the log still has the newest event of that run; so a transcript that was written anew, or a store
that was restored from a backup, is read from its beginning.

A run waits for others a short while at most. What it leaves, the next run finds: a position moves
only when everything before it is in the log. The same holds for a run that was killed, and for a
watcher. Lines that cannot be read are reported once and passed over, since a transcript that is
being written cannot be mended.
"""

import contextlib
import datetime as dt
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from scroll_assistants.importers.databases import READERS as DATABASES
from scroll_assistants.importers.formats import is_one_value, subagent_files
from scroll_assistants.importers.records import Format
from scroll_context.errors import BadInput, ScrollError, SessionBusy, StoreLocked
from scroll_context.events import IMPORTED, Progress
from scroll_context.files import complete_file
from scroll_context.importing.layouts import (
    JSON,
    JSONL,
    InstalledHistory,
    Renamed,
    detect,
    layout_named,
    read,
)
from scroll_context.importing.records import Fault, Imported, ImportReport, Labels
from scroll_context.importing.run import BATCH_EVENTS as IMPORT_BATCH
from scroll_context.importing.run import (
    ImportFile,
    ImportOptions,
    append_new,
    batches,
    first_number,
    is_open_to,
    pieces_of,
)
from scroll_context.importing.sources import Part, Source
from scroll_context.importing.text_files import Position
from scroll_context.log.foreign import ForeignWriter
from scroll_context.origin import Origin
from scroll_context.store import Store

_logger = logging.getLogger("scroll_assistants.importers")

FOLDER = "captured"  # in a store
WAIT = 0.1  # seconds that a capture waits for a lease
BATCH_EVENTS = 500  # of a run with a budget
BATCH_BYTES = 4 << 20
_TAIL = 512  # bytes before a position, by which the file is recognised
_CALLS = 200  # tool calls of a session that may still get a result


class _Cursor(msgspec.Struct):
    """What is kept of the last run over one file."""

    path: str
    layout: str  # its name
    position: Position
    tail: str = ""  # hash of the bytes before the position
    renamed: dict[str, int | None] = {}
    seq: int = 0  # the newest event of the log after that run, and its chain value
    chain: str = ""
    stamp: str = ""  # size and time of a file that is read as a whole


def capture(
    store: Store,
    path: str | Path,
    *,
    wait: float = WAIT,
    budget: float | None = None,
    redact: bool = True,
    mine: bool = True,
) -> ImportReport:
    """Append what an assistant's history has had added since the last run, its sub-agents' too.

    Transcripts of Claude Code, Codex and Gemini are read from where they stood. Of a database, the
    sessions that have changed are read. Other files of assistants are read completely when they
    have changed. A file that no assistant writes is refused, since what it says would be taken for
    words of the user.

    Waits up to `wait` seconds for the lease of a session, and, if a `budget` of seconds is given,
    stops when it is spent; `ImportReport.left` says why the rest was left to the next run. Open the
    store with a short `lock_timeout` to bound the wait for its write lock as well. Secrets are
    replaced by markers, as `import_file` does it. The history is the user's own, unless `mine` is
    False (origin.py).
    """
    run = _Run(store, wait, budget, redact, mine)
    with contextlib.closing(run):
        files = [Path(path), *subagent_files(Path(path))]
        try:
            for file in files:
                run.file(file)
        except (SessionBusy, StoreLocked) as error:
            run.left = str(error)
        except _BudgetSpent:
            run.left = f"the budget of {budget:g} s is spent"
    return run.report(str(path))


class _BudgetSpent(Exception):
    """The time that a capture may take is over."""


class _Run:
    """One capture: its files, one after the other, and what came of them."""

    def __init__(
        self, store: Store, wait: float, budget: float | None, redact: bool, mine: bool
    ) -> None:
        self.store = store
        self.left = ""
        self._wait = wait
        self._deadline = None if budget is None else time.monotonic() + budget
        self._batch = IMPORT_BATCH if budget is None else BATCH_EVENTS
        self._redact = redact
        self._mine = mine
        self._writers: dict[str, ForeignWriter] = {}
        self._parts: list[Part] = []
        self._total = ImportReport(file="")

    def close(self) -> None:
        """Let others have the sessions again."""
        for writer in self._writers.values():
            writer.release()

    def file(self, path: Path) -> None:
        kept = (
            self.store.folder
            / FOLDER
            / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]}.json"
        )
        try:
            size = path.stat().st_size
            cursor = self._load(kept, path)
            if cursor is None:
                cursor = _Cursor(str(path.absolute()), detect(path, path.suffix).name, Position())
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error
        layout = layout_named(cursor.layout)
        if not layout.can_be_followed:
            if layout in (JSONL, JSON):
                # No line of it says yet which assistant wrote it.
                return
            raise BadInput(f"{path} is not a history of an assistant; `scroll import` reads it")
        self._parts.append(Part(path, path.stem, layout))
        is_document = cursor.layout == Format.GEMINI and is_one_value(path)
        if layout.grows_by_lines and not is_document:
            if size > cursor.position.offset:
                self._rest(path, kept, cursor)
        elif (stamp := file_stamp(path)) != cursor.stamp:
            if cursor.layout in DATABASES:
                if (
                    stamp.partition(":")[0] != cursor.stamp.partition(":")[0]
                ):  # another file in its place
                    cursor.position = Position()
                self._rest(path, kept, cursor)
            else:
                self._whole(path, cursor)
            cursor.stamp = stamp  # of a file without messages too
            self._save(kept, cursor, path)

    def _rest(self, path: Path, kept: Path, cursor: _Cursor) -> None:
        """Append what is behind the position of the cursor."""
        messages = self._messages_behind(path, cursor)
        for batch in batches(messages, self._batch, BATCH_BYTES, keep_lines=True):
            self._append(batch, cursor.layout)
            self._save(kept, cursor, path)
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise _BudgetSpent

    def _whole(self, path: Path, cursor: _Cursor) -> None:
        """Import a file that can only be read as a whole."""
        self.close()
        options = ImportOptions(
            layout=cursor.layout, skip_bad=True, redact=self._redact, mine=self._mine
        )
        with ImportFile(path, options) as file:
            try:
                file.check()
            except BadInput:
                if file.messages:
                    raise
            else:
                self._total = self._total.plus(file.write(self.store))

    def report(self, file: str) -> ImportReport:
        described = Source(file, self._parts).described(set()) if self._parts else ""
        total = self._total
        for writer in self._writers.values():
            total = total.plus(ImportReport(file="", redacted=writer.redacted))
        return ImportReport(file=file, format=described, left=self.left).plus(total)

    def _messages_behind(self, path: Path, cursor: _Cursor) -> Iterator[Imported]:
        labels = Labels(session_id=path.stem)
        layout = layout_named(cursor.layout)
        renamed = self._renaming(cursor)
        for item in read(path, layout, labels, position=cursor.position, renamed=renamed):
            if isinstance(item, Fault):
                self._total = self._total.plus(ImportReport(file="", bad=1, faults=(item,)))
            else:
                yield item

    def _append(self, batch: list[Imported], layout: str) -> None:
        if layout not in self._writers:
            origin = Origin.CAPTURED if self._mine else Origin.IMPORTED
            self._writers[layout] = self.store.append_foreign(
                origin, layout, redact=self._redact, wait=self._wait
            )
        added, known = append_new(self.store, self._writers[layout], pieces_of(batch))
        self._total = self._total.plus(
            ImportReport(file="", messages=len(batch), added=added, known=known)
        )

    def _renaming(self, cursor: _Cursor) -> Renamed:
        """The numbers of sessions whose names another source has taken: asked of the log once for
        each session.
        """
        family = f"{IMPORTED}{cursor.layout}:"

        def number_of(session: str) -> int | None:
            if session not in cursor.renamed:
                cursor.renamed[session] = first_number(
                    lambda one: is_open_to(self.store.log, one, family), session
                )
            return cursor.renamed[session]

        return number_of

    def _load(self, kept: Path, path: Path) -> _Cursor | None:
        try:
            cursor = msgspec.json.decode(kept.read_bytes(), type=_Cursor)
        except (OSError, msgspec.DecodeError):
            return None
        rows = self.store.log.query("SELECT chain FROM event WHERE seq = ?", [cursor.seq])
        is_same_log = bool(rows) and rows[0][0].hex() == cursor.chain
        return (
            cursor if is_same_log and cursor.tail == _tail(path, cursor.position.offset) else None
        )

    def _save(self, kept: Path, cursor: _Cursor, path: Path) -> None:
        newest = self.store.log.query("SELECT seq, chain FROM event ORDER BY seq DESC LIMIT 1")
        if not newest:
            return
        cursor.seq, cursor.chain = newest[0][0], newest[0][1].hex()
        cursor.tail = _tail(path, cursor.position.offset)
        cursor.position.tools = {
            session: dict(list(calls.items())[-_CALLS:])
            for session, calls in cursor.position.tools.items()
        }
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        with complete_file(kept, replace=True, durable=False) as file:
            file.write(msgspec.json.encode(cursor))


def file_stamp(path: Path) -> str:
    """What changes with a file or, of a database, with the log beside it; it begins with which file
    it is.
    """
    found = []
    for one in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            status = one.stat()
            found.append(f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")
    return " ".join(found)


def _tail(path: Path, offset: int) -> str:
    """The hash of the bytes before an offset."""
    with path.open("rb") as file:
        file.seek(start := max(0, offset - _TAIL))
        return hashlib.sha256(file.read(offset - start)).hexdigest()[:32]


# the assistants on this machine ---------------------------------------------------------------------------


def places(
    home: Path | None = None, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[tuple[str, Path, tuple[str, ...]]]:
    """The name of each assistant, the folder in which it keeps its history, and patterns of the
    files.

    Environment variables that the assistants themselves obey are obeyed here too.
    """
    home = home or Path.home()

    def folder(variable: str, *default: str) -> Path:
        return Path(environ[variable]) if environ.get(variable) else home.joinpath(*default)

    if platform == "win32":
        settings = folder("APPDATA", "AppData", "Roaming")
    elif platform == "darwin":
        settings = home / "Library" / "Application Support"
    else:
        settings = folder("XDG_CONFIG_HOME", ".config")
    gemini = Path(environ["GEMINI_CLI_HOME"]) if environ.get("GEMINI_CLI_HOME") else home
    return [
        ("Claude Code", folder("CLAUDE_CONFIG_DIR", ".claude") / "projects", ("*/*.jsonl",)),
        (
            "Codex",
            folder("CODEX_HOME", ".codex"),
            ("sessions/**/rollout-*.jsonl", "archived_sessions/**/rollout-*.jsonl"),
        ),
        ("Gemini CLI", gemini / ".gemini" / "tmp", ("*/chats/**/*.json", "*/chats/**/*.jsonl")),
        ("opencode", folder("XDG_DATA_HOME", ".local", "share") / "opencode", ("opencode*.db",)),
        (
            "Cursor",
            settings / "Cursor" / "User",
            ("globalStorage/state.vscdb", "workspaceStorage/*/state.vscdb"),
        ),
        (
            "Cursor agent",
            folder("CURSOR_CONFIG_DIR", ".cursor") / "projects",
            ("*/agent-transcripts/**/*.jsonl",),
        ),
        ("QwenPaw", folder("QWENPAW_WORKING_DIR", ".qwenpaw"), ("**/history.db",)),
    ]


def installed(
    home: Path | None = None, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[InstalledHistory]:
    """The assistants that have kept something here.

    No file is opened: names, sizes and times are enough.
    """
    found = (_history(*place) for place in places(home, environ, platform))
    return [history for history in found if history.files]


def _history(assistant: str, folder: Path, patterns: tuple[str, ...]) -> InstalledHistory:
    files = []
    for path in {path for pattern in patterns for path in folder.glob(pattern)}:
        try:
            status = path.stat()
        except OSError:  # it has just been removed
            continue
        if path.is_file() and status.st_size:
            files.append((status.st_mtime, str(path), status.st_size))
    files.sort()
    days = [
        dt.datetime.fromtimestamp(time, dt.UTC).date().isoformat()
        for time, _, _ in (*files[:1], *files[-1:])
    ]
    return InstalledHistory(
        assistant=assistant,
        folder=str(folder),
        files=tuple(path for _, path, _ in files),
        bytes=sum(size for _, _, size in files),
        first=days[0] if days else "",
        last=days[-1] if days else "",
    )


def capture_all(
    store: Store,
    files: Iterable[str],
    *,
    redact: bool = True,
    mine: bool = True,
    wait: float = 0.1,
    progress: Progress | None = None,
    on_report: Callable[[ImportReport], None] | None = None,
) -> None:
    """Capture each file, and tell of it.

    What is wrong with one file does not keep the others from being read.
    """
    sizes = [(path, Path(path).stat().st_size if Path(path).exists() else 0) for path in files]
    done, total = 0, sum(size for _, size in sizes)
    for path, size in sizes:
        if progress:
            progress(done, total)
        try:
            report = capture(store, path, wait=wait, redact=redact, mine=mine)
        except ScrollError as error:
            report = ImportReport(file=path, error=str(error))
        if on_report:
            on_report(report)
        done += size


# following --------------------------------------------------------------------------------------------------

EVERY = 2.0  # seconds between two looks
Listing = Callable[[], list[str]]
"""Which files there are to follow; asked at each look, since sessions begin."""


def watch(
    store: Store,
    listing: Listing,
    *,
    stop: threading.Event,
    on_report: Callable[[ImportReport], None],
    folders: list[Path] | None = None,
    every: float = EVERY,
    redact: bool = True,
    mine: bool = True,
) -> None:
    """Capture what changes until `stop` is set.

    With `folders`, the system reports changes in them; where it cannot, and from time to time in
    any case, the files are looked at. A file that a capture left, since another process was writing, is tried again then.
    """
    seen: dict[str, str] = {}

    def reported(report: ImportReport) -> None:
        if report.left or report.error:
            seen.pop(report.file, None)  # look again
        on_report(report)

    for _ in _moments(folders or [], every, stop):
        changed = []
        for path in listing():
            stamp = " ".join(map(file_stamp, (Path(path), *subagent_files(Path(path)))))
            if seen.get(path) != stamp:
                seen[path] = stamp
                changed.append(path)
        capture_all(store, changed, redact=redact, mine=mine, on_report=reported)


def _moments(folders: list[Path], every: float, stop: threading.Event) -> Iterator[None]:
    """When to look: at once, then at each change of the folders, and in any case every so many
    seconds.
    """
    yield
    there = [folder for folder in folders if folder.is_dir()]
    if there and not stop.is_set():
        import watchfiles

        every_ms = int(every * 1000)
        try:
            for _ in watchfiles.watch(
                *there,
                watch_filter=None,
                stop_event=stop,
                rust_timeout=every_ms,
                yield_on_timeout=True,
                debounce=500,
            ):
                yield
            return
        except (OSError, RuntimeError) as error:  # as many folders are watched as the system allows
            _logger.warning(
                "the system does not report changes (%s): files are looked at instead", error
            )
    while not stop.wait(every):
        yield
