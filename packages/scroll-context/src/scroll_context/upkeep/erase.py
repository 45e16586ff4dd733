"""Erasing events on purpose: their words leave every file of the store, their addresses and the
chain stay.

An erased event keeps its seq, whose it was, its kind, its times and the hash of what it was
(`leaf`); content, headline, name, metadata and payload are gone. An event of kind `erasure` records
what was erased, when, by whom and why, never the content. A hash of the source key stays, keyed
with a secret that lies outside the store, so that importing the same file again does not bring the
event back, and the hash alone tells nothing about the key.

The rows change in one transaction, with the guards of the log lifted inside it, together with a
list of what is left to do (`chore`): remove payload files, throw the search index away, rebuild the
log file without its free pages, empty the write-ahead log. A process that is killed leaves the old
state, or the new one with chores that the next opening of the store finishes, before its first read
or append. The log stays the same file throughout, so other processes simply go on.

What erasing cannot reach: backups and exports, variables in running kernels, and names of sessions,
agents and tasks.

`Retention` does it in a service that runs for long: what is older than a period is erased now and
then. Whether a run is due is read from the log, where each run is an event with its rule. So
however many services have the store open, and however often they are started, there is one run in
each interval; two that begin in the same moment may both run, and the second finds nothing. A run
that fails is logged and tried again; the service goes on.
"""

import contextlib
import datetime as dt
import getpass
import logging
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from scroll_context.errors import BadInput, ScrollError, StoreReadOnly, UnknownSeq
from scroll_context.events import ABOUT_THE_LOG, STORE_SESSION, Draft, Kind, Progress, runs
from scroll_context.log import schema
from scroll_context.log.chain import leaf_of
from scroll_context.log.columns import EventColumns, TableRow
from scroll_context.log.filters import SearchFilters, conditions
from scroll_context.log.log import PAGE, EventLog
from scroll_context.log.rows import ERASED, ERASED_METADATA, IS_ERASED, event_from_row, prepare
from scroll_context.log.schema import utc_now
from scroll_context.log.writer import INSERT, erased_key, head_of, is_replica
from scroll_context.upkeep.copies import ErasurePlan, remove_unnamed, unshared_payloads
from scroll_context.upkeep.needles import is_too_short

if TYPE_CHECKING:
    from scroll_context.store import Store


Reason = Literal["request", "secret", "retention", "mistake", "other"]
REASONS = ("request", "secret", "retention", "mistake", "other")

_SET = ", ".join(f"{name} = ?" for name in EventColumns._fields)
REPLACE = (
    f"UPDATE event SET {_SET}, nonce = NULL, leaf = ? WHERE seq = ?"  # an event by an erased one
)
PURGE = "erase "  # how a chore of a copy begins whose server has erased events
_CLEANING = f"name NOT LIKE '{PURGE}%'"
_LEFTOVER = re.compile(r"log\.db\.damaged-[\w-]+|\.creating-[\w.-]+")
_PLAIN_ROLES = ("user", "assistant", "tool", "system", "developer", "function", "")
_PLAIN_STATES = frozenset(
    (
        "",
        "ok",
        "error",
        "timeout",
        "refused",
        "unknown",
        "killed",
        "interrupted",
        "output-limit",
        "memory",
    )
)
_MACHINE_ID = re.compile(
    r"(?:[a-z]{1,10}_)?[0-9A-Za-z]{16,64}"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?:c|call_)\d{1,6}"
)
"""Ids of calls that an erased event keeps. A host or an import may write words into an id."""


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, or with a dry run what would be, and what remains."""

    asked: tuple[int, ...]  # the events that were asked for
    copies: tuple[int, ...]  # events that repeat their words, or were made from them
    why: dict[str, tuple[int, ...]] = {}  # the copies by the reason why they count as such
    possible: tuple[int, ...] = ()  # what may have been made from them: its query names no events
    labels: tuple[
        str, ...
    ] = ()  # names of sessions, agents and tasks that have one of the words, and stay
    snapshots: tuple[int, ...]  # saved variables of the sessions concerned
    variables: tuple[str, ...]  # the names of those variables
    sessions: tuple[str, ...]
    payloads: int = 0  # files that no other event needs
    payload_bytes: int = 0
    seq: int | None = None  # of the event that records the erasure; None for a dry run
    remaining: tuple[int, ...] = ()  # copies that were not erased
    unfinished: str = ""  # why some cleaning is left to the next opening of the store

    @property
    def events(self) -> int:
        """How many events the erasure is about."""
        return len(self.asked) + len(self.snapshots) + len(self.copies) - len(self.remaining)


def select(
    log: EventLog,
    *,
    seqs: Iterable[int] = (),
    session_id: str | None = None,
    agent_id: str | None = None,
    task_id: str | None = None,
    source: str | None = None,
) -> list[int]:
    """The addresses that a request for erasure means. Several conditions together mean events that
    meet all of them.

    `source` is the beginning of a source key, or the name of an import as `metadata.imported` has
    it.
    """
    wanted = sorted(set(seqs))
    is_filtered = any(one is not None for one in (session_id, agent_id, task_id, source))
    if not wanted and not is_filtered:
        raise BadInput(
            "say which events are to be erased: by seqs, session_id, agent_id, task_id or source"
        )
    if not is_filtered:
        known = {event.seq for event in log.get_many(wanted)}
        if unknown := [seq for seq in wanted if seq not in known]:
            raise UnknownSeq(f"no event has seq {unknown[0]}; nothing was erased")
        return wanted
    found = []
    among = set(wanted)
    for event in log.iterate(session_id=session_id, agent_id=agent_id, task_id=task_id):
        if among and event.seq not in among:
            continue
        if (
            source is not None
            and event.metadata.get("imported") != source
            and not event.source_key.startswith(source)
        ):
            continue
        found.append(event.seq)
    return found


def due(
    log: EventLog,
    older_than: dt.timedelta,
    *,
    kinds: Collection[str] = (),
    session_id: str | None = None,
    agent_id: str | None = None,
    task_id: str | None = None,
) -> list[int]:
    """The events that were *recorded* longer ago than this: imported dates never make imported
    history old.
    """
    if older_than <= dt.timedelta(0):
        raise BadInput("a retention period must be longer than nothing")
    before = (dt.datetime.now(dt.UTC) - older_than).isoformat(timespec="microseconds")
    where, values = conditions(
        filters=SearchFilters.of(
            session_id=session_id, agent_id=agent_id, task_id=task_id, kind=list(kinds) or None
        )
    )
    never = ", ".join(f"'{kind}'" for kind in sorted(ABOUT_THE_LOG))
    rows = log.query(
        f"SELECT seq FROM event WHERE {where} AND recorded_at < ? AND NOT ({IS_ERASED}) AND kind NOT IN ({never}) "
        "ORDER BY seq",
        [*values, before],
    )
    return [seq for (seq,) in rows]


def erase(
    store: "Store",
    seqs: Sequence[int],
    *,
    reason: Reason = "request",
    by: str = "",
    words: Collection[str] = (),
    copies: bool = False,
    possible: bool = False,
    dry_run: bool = False,
    related: bool = True,
    rule: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> ErasureReport:
    """Erase these events, and with `copies` also whatever repeats them or was made from them (see
    copies.py).

    `words` are looked for besides. `possible` counts results of queries that name no events as
    copies, if they may have read one of these.

    Without `related`, nothing but these events: neither copies nor saved variables are looked for.
    `rule` is kept with the record.
    """
    if reason not in REASONS:
        raise BadInput(
            f"a reason is one of {', '.join(REASONS)}, not {reason!r:.40}: the log keeps no free text here"
        )
    if any(is_too_short(word) for word in words):
        raise BadInput(
            "a word to look for must have at least 3 characters, or 2 of a script without spaces"
        )
    if is_replica(store.folder) and store.log.erase_on_server is None:
        raise StoreReadOnly(
            f"{store.folder} is the local copy of a shared store; nothing was erased. Open the store by its "
            "postgresql:// address."
        )
    store.log.refresh()
    plan = ErasurePlan(store.log, seqs)
    if related:
        plan.look_around(words, copies=copies, possible=possible, progress=progress)
    chosen = [*plan.asked, *plan.snapshots, *(plan.copies if copies else ())]
    gone = unshared_payloads(store.log, set(chosen))
    report = ErasureReport(
        asked=tuple(plan.asked),
        copies=tuple(plan.copies),
        why={str(why): tuple(seqs) for why, seqs in plan.why.items()},
        possible=tuple(plan.possible),
        labels=tuple(plan.labels),
        snapshots=tuple(plan.snapshots),
        variables=tuple(plan.variables()),
        sessions=tuple(sorted(plan.sessions)),
        remaining=() if copies else tuple(plan.copies),
        payloads=len(gone),
        payload_bytes=sum(map(store.payloads.stored_size, gone)),
    )
    if dry_run or (not chosen and reason != "retention"):  # each run of a retention is recorded
        return report
    facts = {"reason": reason, "by": by or getpass.getuser()} | ({"rule": rule} if rule else {})
    if store.log.erase_on_server is not None:
        seq, unfinished = store.log.erase_on_server(sorted(chosen), gone, facts)
        unfinished = "; ".join(filter(None, [finish(store, progress), unfinished]))
        return msgspec.structs.replace(report, seq=seq, unfinished=unfinished)
    seq = _erase_rows(store.log, sorted(chosen), gone, facts)
    unfinished = finish(store, progress)
    return msgspec.structs.replace(report, seq=seq, unfinished=unfinished)


# changing the rows --------------------------------------------------------------------------------------


def _erase_rows(log: EventLog, seqs: list[int], payloads: list[str], facts: dict[str, Any]) -> int:
    """Erase the rows and record it, all or nothing; the seq of the record."""
    with rewriting(log) as database:
        last, head = head_of(database, log.path)
        _blank(database, seqs)
        if seqs:
            add_chores(database, payloads)
        draft = erasure_draft(seqs, facts)
        database.execute(INSERT, prepare(draft, utc_now(), log.payloads).at(last + 1, head))
    return last + 1


def erasure_draft(seqs: list[int], facts: Mapping[str, Any]) -> Draft:
    """The event that records an erasure: which events went, never what they said."""
    metadata = {"spans": runs(seqs), **facts}
    return Draft(
        kind=Kind.ERASURE,
        session_id=STORE_SESSION,
        content=f"{len(seqs)} events were erased",
        metadata=metadata,
    )


@contextlib.contextmanager
def rewriting(log: EventLog) -> Iterator[sqlite3.Connection]:
    """A transaction in which rows may be changed: the guards of the log are lifted inside it, and
    stand after it.
    """
    with (
        schema.Translated(log.path),
        contextlib.closing(schema.connect(log.path, writable=True)) as database,
    ):
        database.execute("PRAGMA secure_delete = ON")
        schema.begin(database, log.path, log.lock_timeout)
        try:
            guards = database.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall()
            for name, _ in guards:
                database.execute(f"DROP TRIGGER {name}")
            yield database
            for _, statement in guards:
                database.execute(statement)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
    if log.on_append is not None:
        log.on_append()


def add_chores(database: sqlite3.Connection, payloads: Iterable[str] = ()) -> None:
    """Note what is left to do when the transaction is committed: clean every file, and remove these
    payloads.
    """
    database.executemany(
        "INSERT OR REPLACE INTO chore VALUES (?, '')",
        [("clean",), *((f"payload {digest}",) for digest in payloads)],
    )


def _blank(database: sqlite3.Connection, seqs: list[int]) -> None:
    """Take everything out of the rows but what an erased event keeps."""
    for at in range(0, len(seqs), PAGE):
        part = seqs[at : at + PAGE]
        rows = database.execute(
            f"SELECT * FROM event WHERE seq IN ({', '.join('?' * len(part))})", part
        ).fetchall()
        for row in sorted(map(TableRow._make, rows)):
            if row.leaf is None:
                leaf = leaf_of(row.nonce or b"", row.columns)
                columns = blanked(row, erased_key(row.source_key))
                database.execute(REPLACE, (*columns, leaf, row.seq))


def _is_machine_made(call_id: object) -> bool:
    """Whether an id of a call cannot hold words: a provider, a host or the toolbox counted or drew it."""
    return isinstance(call_id, str) and _MACHINE_ID.fullmatch(call_id) is not None


def blanked(row: TableRow, source_key: str | None) -> EventColumns:
    """What an event says after it was erased."""
    is_foreign = event_from_row(row).is_foreign
    is_harmless_id = _is_machine_made(row.tool_call_id) and not is_foreign
    is_harmless_state = row.tool_state in _PLAIN_STATES and not is_foreign
    return row.columns._replace(
        role=row.role if row.role in _PLAIN_ROLES else "",
        name="",
        content=ERASED,
        payload=None,
        payload_size=None,
        payload_type=None,
        tool_call_id=row.tool_call_id if is_harmless_id else "",
        tool_state=row.tool_state if is_harmless_state else "",
        headline="",
        metadata=ERASED_METADATA,
        source_key=source_key,
    )


# cleaning up --------------------------------------------------------------------------------------------


def finish(store: "Store", progress: Progress | None = None, *, patience: float = 60.0) -> str:
    """Do what an erasure has left to do; why some of it must wait, or "" when the words are gone
    from every file.
    """
    if not has_chores(store.log):
        return ""
    with _alone(store.folder) as alone:
        return (
            _clean(store, progress, patience) if alone else "another process is cleaning the store"
        )


def _clean(store: "Store", progress: Progress | None, patience: float) -> str:
    log = store.log
    last = log.last_seq()
    chores = [name for (name,) in log.query(f"SELECT name FROM chore WHERE {_CLEANING}")]
    remove_unnamed(
        log, [name.removeprefix("payload ") for name in chores if name.startswith("payload ")]
    )
    store.payloads.sweep()
    for file in store.folder.iterdir():
        if _LEFTOVER.fullmatch(file.name):
            # A salvage or a killed process left a file that holds the words too.
            file.unlink(missing_ok=True)
    shutil.rmtree(
        store.folder / "meaning", ignore_errors=True
    )  # vectors tell what was said; they are made anew
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
                return "other processes are reading or writing; the next opening of the store cleans the log file"
        schema.begin(database, log.path, log.lock_timeout)
        # another erasure, after its rows were read here
        newer = "SELECT 1 FROM event WHERE session_id = ? AND seq > ?"
        if database.execute(newer, [STORE_SESSION, last]).fetchone() is None:
            database.executemany("DELETE FROM chore WHERE name = ?", [(name,) for name in chores])
        database.execute("COMMIT")
        _until(partial(_empty_wal, database), patience)
    return "" if not has_chores(log) else _clean(store, progress, patience)


def has_chores(log: EventLog) -> bool:
    """Whether an erasure was cut short."""
    return bool(log.query(f"SELECT 1 FROM chore WHERE {_CLEANING} LIMIT 1"))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Keep other processes from cleaning the same store; False when one does already."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield schema.try_lock(handle)
    finally:
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
    """What erasing cannot reach, as a sentence for the person who asked for it."""
    return (
        f"Backups and exports of {store} still hold the words, and so do variables of sessions that are open now. "
        "Names of sessions, agents and tasks were not changed."
    )


# retention ----------------------------------------------------------------------------------------------

_LOOK = dt.timedelta(hours=1)  # how often it is looked whether a run is due

_logger = logging.getLogger("scroll_context.retention")


class Retention:
    """Erases what was recorded longer ago than `older_than`, once in every interval, while it is
    entered.
    """

    def __init__(
        self,
        store: "Store",
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
        """Wait for a run that is under way; what is killed instead is finished by the next opening
        of the store.
        """
        self._stop.set()
        self._thread.join()

    def run_if_due(self) -> ErasureReport | None:
        """Erase what is due, unless that was done within the interval."""
        if (last := self._last_run()) is not None and dt.datetime.now(dt.UTC) - last < self._every:
            return None
        return self._store.expire(self._older_than, kinds=self._kinds, by="scroll retention")

    def _last_run(self) -> dt.datetime | None:
        rule = {"older_than": self._older_than.total_seconds(), "kinds": list(self._kinds)}
        for event in reversed(
            self._store.log.tail(100, session_id=STORE_SESSION, kind=Kind.ERASURE)
        ):
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
            is_over = self._stop.wait(min(self._every, _LOOK).total_seconds())
