"""A store: the log, its payloads and its search index, opened and closed together.

It is one folder, or the local copy of a shared store, which has an address (log/address.py).

The log is the truth; the index is derived from it and can be deleted at any time. Opening costs
milliseconds at any size: nothing is checked, counted or indexed until somebody asks.
"""

import contextlib
import datetime as dt
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from scroll_context.errors import StoreLocked, StoreReadOnly
from scroll_context.events import EVERYTHING, Draft, Event, Grant, Progress
from scroll_context.log import schema
from scroll_context.log.erasing import named_payloads
from scroll_context.log.file_backend import StoreLimits
from scroll_context.log.filters import TextOrTexts
from scroll_context.log.foreign import ForeignWriter
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import ArtifactRef, ToolResultRef, ref
from scroll_context.log.schemes import open_backend
from scroll_context.origin import Origin
from scroll_context.search.search import PATIENCE, SearchIndex
from scroll_context.sql.guard import GuardedSql
from scroll_context.sql.messages import SqlLimits
from scroll_context.upkeep.erase import Reason, erase, expire, finish, has_chores, select
from scroll_context.upkeep.erasure_plan import ErasureReport


class Stats(msgspec.Struct, frozen=True):
    """A store in numbers."""

    events: int
    sessions: int
    # The newest chain value, which identifies the complete history.
    head: str
    log_bytes: int
    payloads: int
    payload_bytes: int
    index_bytes: int
    indexed_seq: int
    kinds: dict[str, int]
    # Text, metadata and payloads of each kind, largest first.
    kind_bytes: dict[str, int]
    # Files that no event names, from processes that were killed.
    unused_payloads: int
    # The bytes of those files, and of damaged logs that a salvage left: they may be deleted.
    leftover_bytes: int


class Store:
    """An open store: log, payloads and search index. Use it as a context manager, or call close().

    A store that is opened as `read_only` refuses every append and does not finish work that another
    process left; only its search index may catch up with the log.

    >>> from scroll_context import Draft, Store
    >>> with Store("notes.scroll", create=True) as store:
    ...     seq = store.append(Draft(role="user", content="I always fly economy."))
    ...     [hit.event.content for hit in store.index.search("economy")]
    ['I always fly economy.']
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        create: bool = False,
        lock_timeout: float = 30.0,
        limits: StoreLimits | None = None,
        read_only: bool = False,
    ) -> None:
        """Open a store, or with `create` make one where there is none."""
        self.log = open_log(folder, create=create, lock_timeout=lock_timeout, limits=limits)
        self.folder, self.payloads = self.log.path.parent, self.log.payloads
        self.log.read_only = read_only
        self.index = SearchIndex(self.folder / "index", self.log, self.payloads)
        self.log.on_append.append(self.index.notify)
        self.log.on_erased.append(lambda: finish(self))
        if read_only:
            return
        self.payloads.sweep()
        self.log.before_first_use.append(self._finish_erasure)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish_erasure(self) -> None:
        """Finish an erasure whose process was killed.

        This happens at the first use and not at the opening, since reading the schema takes a while
        and is needed then anyway.
        """
        if has_chores(self.log):
            with contextlib.suppress(StoreReadOnly, StoreLocked):
                finish(self, patience=5.0)

    def append(self, draft: Draft) -> int:
        return self.log.append(draft)

    def append_foreign(
        self,
        origin: Origin,
        source: str,
        *,
        task_id: str = "",
        redact: bool = True,
        wait: float = 0.0,
    ) -> ForeignWriter:
        """A writer for imported or captured events, for a `with` block (log/foreign.py).

        There is no other way in for them. `source` says where they come from, and `task_id` is the
        task of imported events. The writer holds the lease of each session that it adds to; `wait`
        is how many seconds to wait for a lease.
        """
        return ForeignWriter(
            self.log, origin=origin, source=source, task_id=task_id, redact=redact, wait=wait
        )

    def ref(self, event: Event) -> ToolResultRef | ArtifactRef | None:
        """The lazy handle of an event's payload."""
        return ref(event, self.payloads)

    def sql(self, grant: Grant = EVERYTHING, limits: SqlLimits | None = None) -> GuardedSql:
        """Guarded access for model-written SQL, restricted to the grant."""
        return GuardedSql(
            self.log.path, grant, limits, before=lambda: self.log.backend.wait_for_own(PATIENCE)
        )

    def erase(
        self,
        *,
        seqs: Iterable[int] = (),
        session_id: str | None = None,
        agent_id: str | None = None,
        task_id: TextOrTexts = None,
        source: str | None = None,
        words: Collection[str] = (),
        reason: Reason = "request",
        by: str = "",
        copies: bool = False,
        possible: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ErasureReport:
        """Erase events: their content leaves every file of the store, and seqs and chain remain.

        With `copies`, events that repeat their words, or any of `words`, and events that were made
        from them are erased too; without it, the report names them. With `possible`, this includes
        results of queries that name no events but may have read these. A dry run changes nothing.
        `by` is who asked for it; the default is the user of this process. See upkeep/erase.py.
        """
        chosen = select(
            self.log, seqs, source, session_id=session_id, agent_id=agent_id, task_id=task_id
        )
        return erase(
            self,
            chosen,
            reason=reason,
            by=by,
            words=words,
            copies=copies,
            possible=possible,
            dry_run=dry_run,
            progress=progress,
        )

    def expire(
        self,
        older_than: dt.timedelta,
        *,
        kinds: Collection[str] = (),
        session_id: str | None = None,
        agent_id: str | None = None,
        task_id: TextOrTexts = None,
        by: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ErasureReport:
        """Erase events that were recorded longer ago than this. Each run is recorded.

        Copies and variables stay.
        """
        return expire(
            self,
            older_than,
            kinds=kinds,
            session_id=session_id,
            agent_id=agent_id,
            task_id=task_id,
            by=by,
            dry_run=dry_run,
            progress=progress,
        )

    def stats(self) -> Stats:
        kinds = dict(self.log.query("SELECT kind, count(*) FROM event GROUP BY kind ORDER BY kind"))
        head = self.log.query("SELECT chain FROM event ORDER BY seq DESC LIMIT 1")
        bodies = self.payloads.stored_sizes()
        sizes = self.log.query(
            """
            SELECT kind,
                sum(length(CAST(content AS BLOB)) + length(metadata) + ifnull(payload_size, 0)) n
            FROM event GROUP BY kind ORDER BY n DESC
            """
        )
        ((sessions,),) = self.log.query("SELECT count(DISTINCT session_id) FROM event")
        unused = bodies.keys() - named_payloads(self.log.backend)
        unused_bytes = sum(bodies[digest] for digest in unused)
        damaged_bytes = sum(map(schema.size_of, self.folder.glob("log.db.damaged-*")))
        wal_bytes = schema.size_of(self.log.path.with_name("log.db-wal"))
        return Stats(
            events=sum(kinds.values()),
            sessions=int(sessions),
            head=head[0][0].hex() if head else "",
            log_bytes=schema.size_of(self.log.path) + wal_bytes,
            payloads=len(bodies),
            payload_bytes=sum(bodies.values()),
            index_bytes=sum(map(schema.size_of, (self.folder / "index").rglob("*"))),
            indexed_seq=self.index.indexed_seq,
            kinds=kinds,
            kind_bytes=dict(sizes),
            unused_payloads=len(unused),
            leftover_bytes=unused_bytes + damaged_bytes,
        )

    def close(self) -> None:
        self.index.close()
        self.log.close()


def open_log(
    folder: str | Path,
    *,
    create: bool = False,
    lock_timeout: float = 30.0,
    limits: StoreLimits | None = None,
) -> EventLog:
    """The log of a store: in a folder, or where an address says."""
    backend = open_backend(folder, create=create, lock_timeout=lock_timeout, limits=limits)
    return EventLog(backend)
