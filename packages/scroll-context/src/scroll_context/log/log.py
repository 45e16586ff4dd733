"""The Event Log: append-only, the ground truth of every session, on one backend (backend.py).

Once an append returns, the event is on disk. Appends come from any number of threads and processes:
threads of one process share a commit (commits.py), and the backend orders processes. Reads never
hold a transaction open across a yield. Nothing here updates or deletes, and the file itself refuses
both (see schema.py). The events of an open session come through its journal (journal.py). Imports
and merges append here directly; erase, merge and salvage also write rows themselves, each under the
write lock or into a file of its own.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import msgspec

from scroll_context.errors import (
    PayloadDamaged,
    PayloadMissing,
    ScrollError,
    StoreReadOnly,
    UnknownSeq,
)
from scroll_context.events import EVERYTHING, STORE_SESSION, Draft, Event, Excerpt, Grant, Kind
from scroll_context.log import schema
from scroll_context.log.backend import LogBackend, Written
from scroll_context.log.commits import Batch, GroupCommit, Ticket
from scroll_context.log.erasing import remove_unnamed
from scroll_context.log.filters import NO_FILTERS, FilterFields, SearchFilters, conditions
from scroll_context.log.payloads import excerpt
from scroll_context.log.rows import PreparedRow, TableRow, event_from_row, prepare, put_again
from scroll_context.log.schema import PAGE, Values, marked_pages, utc_now
from scroll_context.work import check as check_work

NEWEST_ERASURE = (
    "SELECT ifnull(max(seq), 0) FROM event "
    f"WHERE session_id = '{STORE_SESSION}' AND kind = '{Kind.ERASURE}'"
)


class SessionInfo(msgspec.Struct, frozen=True):
    """One session in a few numbers."""

    session_id: str
    agent_id: str
    task_id: str
    events: int
    first_seq: int
    last_seq: int
    first_at: str
    last_at: str


class EventLog:
    """Append to and read one log file. Share one instance between threads."""

    def __init__(self, backend: LogBackend) -> None:
        self.backend = backend
        self.path = backend.path
        self.payloads = backend.payloads
        self.on_append: list[Callable[[], object]] = []
        """Called after each commit of this process, and when rows of other hosts arrive."""
        self.on_erased: list[Callable[[], object]] = []
        """Called after rows were erased by another host, to clean the other files of the store."""
        self.before_first_use: list[Callable[[], object]] = []
        """Called once, before the first read or append."""
        self.read_only = False
        """A log that was opened to be read refuses every append."""
        self._closed = False
        # It guards what is called before the first use.
        self._lock = threading.Lock()
        self.commits = GroupCommit(self.path, self._write, backend.linger, self.rows_appended)
        backend.watch(self)

    # appending ------------------------------------------------------------------------------------

    def append(self, draft: Draft) -> int:
        """Record one event and return its address; durable when this returns."""
        return self.append_many((draft,))[0]

    def append_many(
        self, drafts: Iterable[Draft], epochs: Mapping[str, int | None] | None = None
    ) -> list[int]:
        """Record all or none, in order. Returns their seqs.

        A draft whose source key is already recorded yields the existing seq.
        `epochs` are those of the leases under which sessions of a shared log are added to, by
        session.
        """
        now = utc_now()
        rows = [prepare(draft, now, self.payloads) for draft in drafts]
        written = self.write(rows, epochs)
        self.keep_bodies(rows, written)
        return [place.seq for place in written]

    def keep_bodies(self, rows: list[PreparedRow], written: list[Written]) -> None:
        """Store bodies of recorded rows again if an erasure has just removed them.

        A body that was stored for an event which is erased already goes again: nothing else of the
        event was recorded a second time.
        """
        old_bodies: dict[int, str] = {}
        for row, place in zip(rows, written, strict=True):
            digest = row.columns.payload
            if digest is None:
                continue
            put_again(row, self.payloads)
            if not place.is_new:
                old_bodies[place.seq] = digest
        if old_bodies:
            erased = [event for event in self.get_many(list(old_bodies)) if event.is_erased]
            remove_unnamed(self.backend, [old_bodies[event.seq] for event in erased])

    def write(
        self, rows: list[PreparedRow], epochs: Mapping[str, int | None] | None = None
    ) -> list[Written]:
        """Record checked rows, all or none, in order; durable when this returns.

        `epochs` are those of the leases under which sessions of a shared log are written, by
        session.
        """
        if not rows:
            return []
        return self.commits.commit(self.ticket(rows, epochs))

    def ticket(
        self, rows: list[PreparedRow], epochs: Mapping[str, int | None] | None = None
    ) -> Ticket:
        """Rows for the queue of this log's commits (commits.py)."""
        self.backend.check_writable()
        self._prepare_first_use()
        return Ticket(rows, epochs or {})

    def _write(self, batch: Batch) -> Sequence[Written | ScrollError]:
        if self._closed:
            raise schema.closed(self.path, "append")
        if self.read_only:
            raise StoreReadOnly(f"{self.path} is open read-only; nothing was written")
        return self.backend.write(batch)

    def rows_appended(self) -> None:
        """Report new rows to those who follow the log."""
        for callback in self.on_append:
            callback()

    def rows_erased(self) -> None:
        """Report that another host has erased rows."""
        for callback in self.on_erased:
            callback()

    def resolve_unanswered(self) -> None:
        """Find out what became of an append that had no answer."""
        with self.commits.running:
            self.backend.resolve_unanswered()

    # reading --------------------------------------------------------------------------------------

    def get(self, seq: int, grant: Grant = EVERYTHING) -> Event:
        """The event at an address, if it exists and the grant reaches it."""
        events = self.get_many([seq], grant)
        if not events:
            newest = self.tail(1, grant=grant)
            end = f"; the newest has seq {newest[0].seq}" if newest else ""
            raise UnknownSeq(f"no event has seq {seq} within reach{end}")
        return events[0]

    def get_many(self, seqs: Sequence[int], grant: Grant = EVERYTHING) -> list[Event]:
        """The events at these addresses that exist and are in reach, in the order asked for."""
        by_seq: dict[int, Event] = {}
        for part, marks in marked_pages(seqs):
            by_seq |= {event.seq: event for event in self._select(f"seq IN ({marks})", part)}
        events = [by_seq[seq] for seq in seqs if seq in by_seq]
        if grant == EVERYTHING:
            return events
        return [event for event in events if grant.permits(event)]

    def column(self, expression: str, seqs: Sequence[int]) -> dict[int, Any]:
        """One column of these events, or an SQL expression on a row.

        The chain value at an address stands for everything up to there.
        """
        values: dict[int, Any] = {}
        for part, marks in marked_pages(seqs):
            sql = f"SELECT seq, {expression} FROM event WHERE seq IN ({marks})"
            values.update(self.query(sql, part))
        return values

    def find_source(self, source_key: str) -> Event | None:
        """The event that was recorded under a source key."""
        return next(iter(self._select("source_key = ?", [source_key])), None)

    def span(self, first: int, last: int, grant: Grant = EVERYTHING) -> list[Event]:
        """The events from one seq to another, both included."""
        events = self.iterate(after=first - 1, until=last, grant=grant)
        return list(events)

    def tail(
        self, count: int, *, grant: Grant = EVERYTHING, **fields: Unpack[FilterFields]
    ) -> list[Event]:
        """The newest `count` events that match, oldest first."""
        where, values = conditions(grant, SearchFilters.of(**fields))
        newest_first = self._select(f"{where} ORDER BY seq DESC LIMIT ?", [*values, count])
        return newest_first[::-1]

    def iterate(
        self,
        after: int = 0,
        until: int | None = None,
        *,
        grant: Grant = EVERYTHING,
        filters: SearchFilters = NO_FILTERS,
        **fields: Unpack[FilterFields],
    ) -> Iterator[Event]:
        """Events in order of seq, from behind `after` to `until`, fetched in pages.

        Filters come as one value, or field by field (filters.py).
        """
        filters = filters.narrowed(**fields)
        where, values = conditions(grant, filters.without_range())
        until = self.last_seq() if until is None else until
        if filters.seq_range is not None:
            first, last = filters.seq_range
            after = max(after, first - 1)
            until = min(until, last)
        while True:
            check_work()
            page = self._select(
                f"seq > ? AND seq <= ? AND {where} ORDER BY seq LIMIT ?",
                [after, until, *values, PAGE],
            )
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].seq

    def rows(self, after: int, until: int, limit: int = PAGE) -> list[TableRow]:
        """Complete rows in order of seq, for checks and copies of the log."""
        sql = "SELECT * FROM event WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
        # This does what `_make` does, without its check of the length.
        return [tuple.__new__(TableRow, row) for row in self.query(sql, [after, until, limit])]

    def newest_erasure(self) -> int:
        """The seq of the newest erasure; 0 when there was none.

        Code that holds text of the log in memory asks for it.
        """
        return int(self.query(NEWEST_ERASURE)[0][0])

    def last_seq(self) -> int:
        """The newest address; 0 for an empty log."""
        self._prepare_first_use()
        return self.backend.last_seq()

    def applied_seq(self) -> int:
        """The newest address before which none is missing in the file of this process."""
        self._prepare_first_use()
        return self.backend.applied_seq()

    def awaited_seq(self, patience: float) -> int:
        """The newest address that a reader of this process may insist on (backend.py)."""
        self._prepare_first_use()
        return self.backend.awaited_seq(patience)

    def text(self, event: Event) -> str:
        """The complete text of an event: its content, or its payload if that is text."""
        if event.payload is None or not event.payload.is_text:
            return event.content
        return self.payloads.text(event.payload.digest)

    def text_or_preview(self, event: Event) -> str:
        """The complete text of an event, or the preview in its row if the payload is lost."""
        try:
            return self.text(event)
        except (PayloadMissing, PayloadDamaged):
            return event.content

    def excerpt(self, event: Event, most: int) -> Excerpt:
        """The text of an event if it has at most `most` characters, else its two ends.

        It never needs more memory than those.
        """
        if event.payload is None or not event.payload.is_text:
            return excerpt([event.content], most)
        return excerpt(self.payloads.text_pieces(event.payload.digest), most)

    def sessions(self, grant: Grant = EVERYTHING) -> list[SessionInfo]:
        """Every session within reach, oldest first."""
        where, values = conditions(grant)
        rows = self.query(
            f"""
            SELECT s.session_id, a.agent_id, a.task_id, s.n, s.lo, s.hi, a.created_at, b.created_at
            FROM (
                SELECT session_id, count(*) n, min(seq) lo, max(seq) hi
                FROM event WHERE {where} GROUP BY session_id
            ) s
            JOIN event a ON a.seq = s.lo
            JOIN event b ON b.seq = s.hi
            ORDER BY s.lo
            """,
            values,
        )
        return [SessionInfo(*row) for row in rows]

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Run one of Scroll's own SELECTs. Not for foreign SQL: see sql.py."""
        self._prepare_first_use()
        return self.backend.query(sql, values)

    def close(self) -> None:
        """Close every connection; running appends and queries are finished first."""
        with self.commits.running:
            with self._lock:
                self._closed = True
            self.backend.close()

    def _prepare_first_use(self) -> None:
        if not self.before_first_use:
            return
        # If several threads come at once, only the first of them gets the callbacks.
        with self._lock:
            callbacks, self.before_first_use = self.before_first_use, []
        for callback in callbacks:
            callback()

    def _select(self, condition: str, values: Sequence[Any]) -> list[Event]:
        return [
            event_from_row(row)
            for row in self.query(f"SELECT * FROM event WHERE {condition}", values)
        ]
