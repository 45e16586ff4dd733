"""Histories of assistants that grow: find them on this machine, read new messages, and follow them.

The position up to which a file was read is kept in a small file of the store's `captured` folder.
It is only a shortcut: events are recognised by the ids of the source, so a lost or old position
costs time and duplicates nothing. A position counts only if the bytes before it are the ones that
were read, and if the log still has the newest event of that run. So a transcript that was
rewritten is read from its beginning, and so are all after a store was restored from a backup.

A run waits for others a short while at most. The next run reads the rest: a position moves only
when everything before it is in the log. The same holds for a run that was killed, and for a
watcher. Lines that cannot be read are reported once and skipped, since a transcript that is being
written cannot be fixed.
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
from scroll_context.events import Progress
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
from scroll_context.importing.recorded import HostRecord, Matched, first_number, is_open_to
from scroll_context.importing.records import Fault, Imported, ImportReport, Labels
from scroll_context.importing.run import BATCH_EVENTS as IMPORT_BATCH
from scroll_context.importing.run import (
    ImportFile,
    ImportOptions,
    append_new,
    batches,
    pieces_of,
)
from scroll_context.importing.sources import Part, Source
from scroll_context.importing.text_files import Position
from scroll_context.log.foreign import ForeignWriter
from scroll_context.origin import Origin
from scroll_context.store import Store

_logger = logging.getLogger("scroll_assistants.importers")

# The folder of the store with the positions.
FOLDER = "captured"
# The seconds that a capture waits for a lease.
WAIT = 0.1
# The size of a batch in a run with a budget.
BATCH_EVENTS = 500
BATCH_BYTES = 4 << 20
# A file is recognised by this many bytes before the position.
_TAIL = 512
# The number of tool calls of a session that are remembered because they may still get a result.
_CALLS = 200


class _Cursor(msgspec.Struct):
    """The state after the last run over one file."""

    path: str
    # The name of the layout.
    layout: str
    position: Position
    # The hash of the bytes before the position.
    tail: str = ""
    renamed: dict[str, int | None] = {}
    # Messages before the position that a gateway had recorded.
    matched: Matched = {}
    # The newest event of the log after that run, and its chain value.
    seq: int = 0
    chain: str = ""
    # The size and time of a file that is always read completely.
    stamp: str = ""


def capture(
    store: Store,
    path: str | Path,
    *,
    wait: float = WAIT,
    budget: float | None = None,
    redact: bool = True,
    mine: bool = True,
) -> ImportReport:
    """Append new messages of an assistant's history, and of its sub-agents, since the last run.

    Transcripts of Claude Code, Codex and Gemini are read from the position of the last run. In a
    database, the changed sessions are read. Other files of assistants are read completely when they
    have changed. A file that no assistant writes is refused, since its text would count as the
    user's words.

    Waits up to `wait` seconds for the lease of a session. With a `budget` in seconds, the run stops
    when it is spent. `ImportReport.left` says why the rest was left to the next run. Open the store
    with a short `lock_timeout` to bound the wait for its write lock as well. Secrets are replaced
    by markers, as in `import_file`. The history is the user's own, unless `mine` is False
    (origin.py).
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
    """One capture: it reads the files one after the other and counts the results."""

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
        self._host = HostRecord(store.log)
        self._parts: list[Part] = []
        self._total = ImportReport(file="")

    def close(self) -> None:
        """Release the sessions."""
        for writer in self._writers.values():
            writer.release()

    def file(self, path: Path) -> None:
        digest = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
        cursor_file = self.store.folder / FOLDER / f"{digest[:32]}.json"
        try:
            size = path.stat().st_size
            cursor = self._load(cursor_file, path)
            if cursor is None:
                cursor = _Cursor(str(path.absolute()), detect(path, path.suffix).name, Position())
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error
        layout = layout_named(cursor.layout)
        if not layout.can_be_followed:
            if layout in (JSONL, JSON):
                # No line shows yet which assistant wrote the file.
                return
            raise BadInput(f"{path} is not a history of an assistant; `scroll import` reads it")
        self._parts.append(Part(path, path.stem, layout))
        is_document = cursor.layout == Format.GEMINI and is_one_value(path)
        if layout.grows_by_lines and not is_document:
            if size > cursor.position.offset:
                self._append_rest(path, cursor_file, cursor)
            return
        stamp = file_stamp(path)
        if stamp == cursor.stamp:
            return
        if cursor.layout in DATABASES:
            if _inode(stamp) != _inode(cursor.stamp):
                # Another file has taken its place.
                cursor.position = Position()
            self._append_rest(path, cursor_file, cursor)
        else:
            self._import_complete(path, cursor)
        # The stamp of a file without messages is saved too.
        cursor.stamp = stamp
        self._save(cursor_file, cursor, path)

    def _append_rest(self, path: Path, cursor_file: Path, cursor: _Cursor) -> None:
        """Append the messages after the position of the cursor."""
        messages = self._messages_after(path, cursor)
        for batch in batches(messages, self._batch, BATCH_BYTES, keep_lines=True):
            self._append(batch, cursor)
            self._save(cursor_file, cursor, path)
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise _BudgetSpent

    def _import_complete(self, path: Path, cursor: _Cursor) -> None:
        """Import a file that can only be read completely."""
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

    def _messages_after(self, path: Path, cursor: _Cursor) -> Iterator[Imported]:
        labels = Labels(session_id=path.stem)
        layout = layout_named(cursor.layout)
        renamed = self._renaming(cursor)
        for item in read(path, layout, labels, position=cursor.position, renamed=renamed):
            if isinstance(item, Fault):
                self._total = self._total.plus(ImportReport(file="", bad=1, faults=(item,)))
            else:
                yield item

    def _append(self, batch: list[Imported], cursor: _Cursor) -> None:
        layout = cursor.layout
        if layout not in self._writers:
            origin = Origin.CAPTURED if self._mine else Origin.IMPORTED
            self._writers[layout] = self.store.append_foreign(
                origin, layout, redact=self._redact, wait=self._wait
            )
        added, already_recorded = append_new(
            self.store, self._writers[layout], pieces_of(batch), self._host, cursor.matched
        )
        self._total = self._total.plus(
            ImportReport(file="", messages=len(batch), added=added, known=already_recorded)
        )

    def _renaming(self, cursor: _Cursor) -> Renamed:
        """Numbers for sessions whose names another source has taken. The log is asked once for each
        session.
        """

        def is_free(session_name: str) -> bool:
            log = self.store.log
            return is_open_to(log, session_name, cursor.layout, is_capture=self._mine)

        def number_of(session: str) -> int | None:
            if session not in cursor.renamed:
                cursor.renamed[session] = first_number(is_free, session)
            return cursor.renamed[session]

        return number_of

    def _load(self, cursor_file: Path, path: Path) -> _Cursor | None:
        try:
            cursor = msgspec.json.decode(cursor_file.read_bytes(), type=_Cursor)
        except (OSError, msgspec.DecodeError):
            return None
        rows = self.store.log.query("SELECT chain FROM event WHERE seq = ?", [cursor.seq])
        is_same_log = bool(rows) and rows[0][0].hex() == cursor.chain
        if is_same_log and cursor.tail == _tail(path, cursor.position.offset):
            return cursor
        return None

    def _save(self, cursor_file: Path, cursor: _Cursor, path: Path) -> None:
        newest = self.store.log.query("SELECT seq, chain FROM event ORDER BY seq DESC LIMIT 1")
        if not newest:
            return
        seq, chain = newest[0]
        cursor.seq = seq
        cursor.chain = chain.hex()
        cursor.tail = _tail(path, cursor.position.offset)
        cursor.position.tools = {
            session: dict(list(calls.items())[-_CALLS:])
            for session, calls in cursor.position.tools.items()
        }
        cursor_file.parent.mkdir(mode=0o700, exist_ok=True)
        with complete_file(cursor_file, replace=True, durable=False) as file:
            file.write(msgspec.json.encode(cursor))


def file_stamp(path: Path) -> str:
    """The inode, size and time of a file and of the write-ahead log of a database.

    The stamp changes with the content.
    """
    stamps = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            status = file.stat()
            stamps.append(f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")
    return " ".join(stamps)


def _inode(stamp: str) -> str:
    return stamp.partition(":")[0]


def _tail(path: Path, offset: int) -> str:
    """The hash of the bytes before an offset."""
    start = max(0, offset - _TAIL)
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(offset - start)).hexdigest()[:32]


# the assistants on this machine -------------------------------------------------------------------


def places(
    home: Path | None = None, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[tuple[str, Path, tuple[str, ...]]]:
    """The name of each assistant, the folder of its history, and patterns of the files.

    The environment variables that move the folders of the assistants are respected here too.
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
    qwen_home = folder("QWEN_HOME", ".qwen")
    qwen = Path(environ["QWEN_RUNTIME_DIR"]) if environ.get("QWEN_RUNTIME_DIR") else qwen_home
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
        ("Qwen Code", qwen / "projects", ("*/chats/*.jsonl",)),
        ("Pi", folder("PI_CODING_AGENT_DIR", ".pi", "agent") / "sessions", ("*/*.jsonl",)),
        (
            "Copilot CLI",
            folder("COPILOT_HOME", ".copilot") / "session-state",
            ("*/events.jsonl",),
        ),
        ("QwenPaw", folder("QWENPAW_WORKING_DIR", ".qwenpaw"), ("**/history.db",)),
    ]


def installed(
    home: Path | None = None, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[InstalledHistory]:
    """The assistants that have a history on this machine.

    No file is opened: names, sizes and times are enough.
    """
    histories = (_history(*place) for place in places(home, environ, platform))
    return [history for history in histories if history.files]


def _history(assistant: str, folder: Path, patterns: tuple[str, ...]) -> InstalledHistory:
    paths: set[Path] = set()
    for pattern in patterns:
        paths.update(folder.glob(pattern))
    files = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            # The file has just been removed.
            continue
        if path.is_file() and status.st_size:
            files.append((status.st_mtime, str(path), status.st_size))
    files.sort()
    return InstalledHistory(
        assistant=assistant,
        folder=str(folder),
        files=tuple(path for _, path, _ in files),
        bytes=sum(size for _, _, size in files),
        first=_day(files[0][0]) if files else "",
        last=_day(files[-1][0]) if files else "",
    )


def _day(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).date().isoformat()


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
    """Capture each file, and report on it. A fault in one file does not stop the others."""
    sizes = {path: Path(path).stat().st_size if Path(path).exists() else 0 for path in files}
    done = 0
    total = sum(sizes.values())
    for path, size in sizes.items():
        if progress:
            progress(done, total)
        try:
            report = capture(store, path, wait=wait, redact=redact, mine=mine)
        except ScrollError as error:
            report = ImportReport(file=path, error=str(error))
        if on_report:
            on_report(report)
        done += size


# following ----------------------------------------------------------------------------------------

# The seconds between two checks of the files.
EVERY = 2.0
Listing = Callable[[], list[str]]
"""Lists the files to follow. It is called at each check, since new sessions begin."""


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
    """Capture changed files until `stop` is set.

    With `folders`, the system reports changes in them. If it cannot, and at intervals in any case,
    the files are checked. A capture that stopped because another process was writing is tried again
    then.
    """
    seen: dict[str, str] = {}

    def reported(report: ImportReport) -> None:
        if report.left or report.error:
            # The next check captures the file again.
            seen.pop(report.file, None)
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
    """Yields when the files should be checked: at once, at each change in the folders, and in any
    case every `every` seconds.
    """
    yield
    existing = [folder for folder in folders if folder.is_dir()]
    if existing and not stop.is_set():
        import watchfiles

        try:
            for _ in watchfiles.watch(
                *existing,
                watch_filter=None,
                stop_event=stop,
                rust_timeout=int(every * 1000),
                yield_on_timeout=True,
                debounce=500,
            ):
                yield
            return
        except (OSError, RuntimeError) as error:
            # The system limits the number of folders that can be watched.
            _logger.warning(
                "the system does not report changes (%s): checking files at intervals", error
            )
    while not stop.wait(every):
        yield
