"""Erasing events on purpose: their content leaves every file of the store, seqs and chain remain.

An erased event keeps its seq, session, agent, task, kind, times and the hash of its former content
(`leaf`); content, headline, name, metadata and payload are removed. An event of kind `erasure`
records what was erased, when, by whom and why, never the content. A hash of the source key stays,
keyed with a secret that lies outside the store, so that importing the same file again does not
bring the event back, and the hash alone reveals nothing about the key.

The rows change in one transaction, with the guards of the log lifted inside it. The transaction
also notes the work that remains (`chore`): remove payload files, discard the search index, rebuild
the log file without its free pages, empty the write-ahead log. A process that is killed leaves the
old state, or the new one with chores that the next opening of the store finishes before its first
read or append. The log stays the same file throughout, so other processes can continue.

`Retention` erases what is older than a period, in a long-running service. The log shows whether a
run is due, since each run is an event with its rule. So there is one run in each interval, however
many services have the store open and however often they start. Two services that begin at the same
moment may both run; the second finds nothing to erase. A run that fails is logged and tried again.

Erasing cannot reach backups and exports, variables in running kernels, and names of sessions,
agents and tasks.
"""

import contextlib
import datetime as dt
import getpass
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Unpack

from msgspec.structs import replace

from scroll_context.errors import BadInput, ScrollError, UnknownSeq
from scroll_context.events import STORE_SESSION, Event, Kind, Progress
from scroll_context.files import HAS_FOLDER_HANDLES, READ_FOLDER, release, try_lock
from scroll_context.log import schema
from scroll_context.log.erasing import PURGE, remove_unnamed, unshared_payloads
from scroll_context.log.filters import FilterFields, SearchFilters, conditions
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import IS_ERASED
from scroll_context.log.schema import LOG_NAME
from scroll_context.search.search import SearchIndex
from scroll_context.upkeep.erasure_plan import ErasureReport, plan_alone, plan_with_copies
from scroll_context.upkeep.needles import is_too_short

Reason = Literal["request", "secret", "retention", "mistake", "other"]
REASONS = ("request", "secret", "retention", "mistake", "other")

_CLEANING = f"name NOT LIKE '{PURGE}%'"
_LEFTOVER = re.compile(r"log\.db\.damaged-[\w-]+|\.creating-[\w.-]+")


class StoreFiles(Protocol):
    """The parts of a store, each with files that may hold the words of an event."""

    folder: Path
    log: EventLog
    payloads: PayloadStore
    index: SearchIndex


def select(
    log: EventLog, seqs: Iterable[int], source: str | None, **labels: Unpack[FilterFields]
) -> list[int]:
    """The seqs of the events that meet all of these conditions.

    `source` is the beginning of a source key, or the name of an import as `metadata.imported` has
    it.
    """
    candidates = sorted(set(seqs))
    is_filtered = source is not None or any(label is not None for label in labels.values())
    if not candidates and not is_filtered:
        raise BadInput("name the events to erase, by seqs, session_id, agent_id, task_id or source")
    if not is_filtered:
        existing = {event.seq for event in log.get_many(candidates)}
        for seq in candidates:
            if seq not in existing:
                raise UnknownSeq(f"no event has seq {seq}; nothing was erased")
        return candidates
    matches: list[int] = []
    among = set(candidates)
    for event in log.iterate(**labels):
        if among and event.seq not in among:
            continue
        if source is None or _comes_from(event, source):
            matches.append(event.seq)
    return matches


def _comes_from(event: Event, source: str) -> bool:
    return event.metadata.get("imported") == source or event.source_key.startswith(source)


def erase(
    store: StoreFiles,
    seqs: Sequence[int],
    *,
    reason: Reason = "request",
    by: str = "",
    words: Collection[str] = (),
    copies: bool = False,
    possible: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ErasureReport:
    """Erase these events, and with `copies` also events that repeat them or were made from them.

    erasure_plan.py finds the copies; events with one of `words` count too. `possible` counts
    results of queries that name no events as copies, if they may have read one of these.
    """
    if reason not in REASONS:
        raise BadInput(
            f"a reason is one of {', '.join(REASONS)}, not {reason!r:.40}: the log keeps no free "
            "text here"
        )
    if any(is_too_short(word) for word in words):
        raise BadInput(
            "a word to search for must have at least 3 characters, or 2 of a script without spaces"
        )
    store.log.backend.check_writable()
    store.log.backend.refresh()
    plan = plan_with_copies(
        store.log, seqs, words, copies=copies, possible=possible, progress=progress
    )
    is_dry = dry_run or not plan.erased
    return _carry_out(store, plan, {"reason": reason, "by": by}, is_dry, progress)


def expire(
    store: StoreFiles,
    older_than: dt.timedelta,
    *,
    kinds: Collection[str] = (),
    by: str = "",
    dry_run: bool = False,
    progress: Progress | None = None,
    **labels: Unpack[FilterFields],
) -> ErasureReport:
    """Erase events that were *recorded* longer ago than this. Copies and variables stay.

    Dates in an import do not matter, so imported history is not old at once. Each run is recorded,
    even if nothing was due.
    """
    if older_than <= dt.timedelta(0):
        raise BadInput("the retention period must be greater than zero")
    store.log.backend.check_writable()
    store.log.backend.refresh()
    before = (dt.datetime.now(dt.UTC) - older_than).isoformat(timespec="microseconds")
    filters = SearchFilters.of(**labels).narrowed(kind=list(kinds) or None)
    where, values = conditions(filters=filters)
    rows = store.log.query(
        f"SELECT seq FROM event WHERE {where} AND recorded_at < ? AND NOT {IS_ERASED} ORDER BY seq",
        [*values, before],
    )
    plan = plan_alone(store.log, [seq for (seq,) in rows])
    rule = {"older_than": older_than.total_seconds(), "kinds": [str(kind) for kind in kinds]}
    rule |= {name: value for name, value in labels.items() if value is not None}
    facts = {"reason": "retention", "by": by, "rule": rule}
    return _carry_out(store, plan, facts, dry_run, progress)


def _carry_out(
    store: StoreFiles,
    plan: ErasureReport,
    facts: dict[str, Any],
    is_dry: bool,
    progress: Progress | None,
) -> ErasureReport:
    """Erase what a plan says. The event that records the erasure has the facts."""
    payloads = unshared_payloads(store.log.backend, set(plan.erased))
    sizes = map(store.payloads.stored_size, payloads)
    report = replace(plan, payloads=len(payloads), payload_bytes=sum(sizes))
    if is_dry:
        return report
    facts["by"] = facts["by"] or getpass.getuser()
    record = store.log.backend.erase(sorted(plan.erased), payloads, facts)
    unfinished = filter(None, [finish(store, progress), record.unfinished])
    return replace(report, seq=record.seq, unfinished="; ".join(unfinished))


# cleaning up --------------------------------------------------------------------------------------


def finish(store: StoreFiles, progress: Progress | None = None, *, patience: float = 60.0) -> str:
    """Finish the work of an erasure. Returns why some of it must wait.

    The answer is "" when the content has left every file.
    """
    if not has_chores(store.log):
        return ""
    with _alone(store.folder) as alone:
        if not alone:
            return "another process is cleaning the store"
        return _clean(store, progress, patience)


def _clean(store: StoreFiles, progress: Progress | None, patience: float) -> str:
    log = store.log
    last = log.last_seq()
    chores = [name for (name,) in log.query(f"SELECT name FROM chore WHERE {_CLEANING}")]
    payloads = [name.removeprefix("payload ") for name in chores if name.startswith("payload ")]
    remove_unnamed(log.backend, payloads)
    store.payloads.sweep()
    for file in store.folder.iterdir():
        if _LEFTOVER.fullmatch(file.name):
            # A salvage or a killed process left a file that has the content too.
            file.unlink(missing_ok=True)
    if not store.index.discard(patience):
        return "another process holds the search index; the next opening of the store removes it"
    with (
        schema.Translated(log.path),
        contextlib.closing(schema.connect(log.path, writable=True)) as database,
    ):
        database.execute("PRAGMA secure_delete = ON")
        for done, step in enumerate((_vacuum, _empty_wal)):
            if progress:
                progress(done, 2)
            if not _until(partial(step, database), patience):
                return (
                    "other processes are reading or writing; "
                    "the next opening of the store cleans the log file"
                )
        schema.begin(database, log.path, log.backend.lock_timeout)
        # Another erasure may have come after its rows were read here; then its chores remain.
        newer = "SELECT 1 FROM event WHERE session_id = ? AND seq > ?"
        if database.execute(newer, [STORE_SESSION, last]).fetchone() is None:
            database.executemany("DELETE FROM chore WHERE name = ?", [(name,) for name in chores])
        database.execute("COMMIT")
        _until(partial(_empty_wal, database), patience)
    return _clean(store, progress, patience) if has_chores(log) else ""


def has_chores(log: EventLog) -> bool:
    """Whether an erasure was cut short."""
    return bool(log.query(f"SELECT 1 FROM chore WHERE {_CLEANING} LIMIT 1"))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Keep other processes from cleaning the same store; False when one does already."""
    handle = os.open(folder if HAS_FOLDER_HANDLES else folder / LOG_NAME, READ_FOLDER)
    try:
        yield try_lock(handle)
    finally:
        release(handle)
        os.close(handle)


def _vacuum(database: sqlite3.Connection) -> bool:
    try:
        database.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return False
        raise
    return True


def _empty_wal(database: sqlite3.Connection) -> bool:
    busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _until(step: Callable[[], bool], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not step():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def unreachable(store: str) -> str:
    """A sentence about data that erasing cannot reach, for the person who asked for it."""
    return (
        f"Backups and exports of {store} still contain the words, and so may the variables of open "
        "sessions. Session, agent and task names were not changed."
    )


# retention ----------------------------------------------------------------------------------------

# How often the service checks whether a run is due.
_CHECK_INTERVAL = dt.timedelta(hours=1)

_logger = logging.getLogger("scroll_context.retention")


class Retention:
    """Erases events that were recorded longer ago than `older_than`, once in every interval.

    It works in a thread inside its `with` block.
    """

    def __init__(
        self,
        store: StoreFiles,
        older_than: dt.timedelta,
        *,
        every: dt.timedelta = dt.timedelta(days=1),
        kinds: Collection[str] = (),
    ) -> None:
        self._store = store
        self._older_than = older_than
        self._every = every
        self._kinds = tuple(kinds)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scroll-retention", daemon=True)

    def __enter__(self) -> "Retention":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for a run that has begun.

        If the process is killed instead, the next opening of the store finishes the run.
        """
        self._stop.set()
        self._thread.join()

    def run_if_due(self) -> ErasureReport | None:
        """Erase the events that are due, unless a run was recorded within the interval."""
        last = self._last_run()
        if last is not None and dt.datetime.now(dt.UTC) - last < self._every:
            return None
        return expire(self._store, self._older_than, kinds=self._kinds, by="scroll retention")

    def _last_run(self) -> dt.datetime | None:
        rule = {"older_than": self._older_than.total_seconds(), "kinds": list(self._kinds)}
        erasures = self._store.log.tail(100, session_id=STORE_SESSION, kind=Kind.ERASURE)
        for event in reversed(erasures):
            if event.metadata.get("rule") == rule:
                return dt.datetime.fromisoformat(event.recorded_at)
        return None

    def _work(self) -> None:
        is_over = False
        while not is_over:
            try:
                report = self.run_if_due()
                if report is not None:
                    _logger.info("%d events erased by retention, seq %s", report.events, report.seq)
            except (ScrollError, OSError) as error:
                _logger.warning("retention could not run, and is tried again later: %s", error)
            is_over = self._stop.wait(min(self._every, _CHECK_INTERVAL).total_seconds())
