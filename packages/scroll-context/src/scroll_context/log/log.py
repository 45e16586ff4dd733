"""The Event Log: append-only, the ground truth of every session, on one backend (backend.py).

Once an append returns, the event is on disk. Appends come from any number of threads and processes:
threads of one process share a commit (the first in the queue writes what all have queued), and the
backend orders processes. Reads never hold a transaction open across a yield. Nothing here updates or deletes, and
the file itself refuses both (see schema.py). The events of an open session come through its journal
(journal.py). Imports and merges append here directly; erase, merge and salvage also write rows
themselves, each under the write lock or into a file of its own.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import msgspec

from scroll_context.errors import (
    PayloadDamaged,
    PayloadMissing,
    ScrollError,
    StoreError,
    StoreReadOnly,
    UnknownSeq,
)
from scroll_context.events import EVERYTHING, STORE_SESSION, Draft, Event, Excerpt, Grant, Kind
from scroll_context.log import schema
from scroll_context.log.backend import LogBackend, Written
from scroll_context.log.columns import TableRow
from scroll_context.log.filters import NO_FILTERS, FilterFields, SearchFilters, conditions
from scroll_context.log.payloads import excerpt
from scroll_context.log.readers import PAGE, Values
from scroll_context.log.references import remove_unnamed
from scroll_context.log.rows import PreparedRow, event_from_row, prepare, put_again
from scroll_context.log.schema import utc_now
from scroll_context.work import check as check_work

NEWEST_ERASURE = f"SELECT ifnull(max(seq), 0) FROM event WHERE session_id = '{STORE_SESSION}' AND kind = '{Kind.ERASURE}'"


class SessionInfo(msgspec.Struct, frozen=True):
    """One session at a glance."""

    session_id: str
    agent_id: str
    task_id: str
    events: int
    first_seq: int
    last_seq: int
    first_at: str
    last_at: str


class _Ticket:
    """One caller's rows, waiting to share a commit."""

    __slots__ = ("error", "rows", "turn", "written")

    def __init__(self, rows: list[PreparedRow], epochs: Mapping[str, int | None]) -> None:
        self.rows = [(row, epochs.get(row.columns.session_id)) for row in rows]
        self.written: list[Written] | None = None
        self.error: Exception | None = None
        self.turn = (
            threading.Lock()
        )  # released when the rows are written, or when it is up to this caller to write
        self.turn.acquire()

    def wake(self) -> None:
        """Let the caller go on; once more does no harm."""
        try:
            self.turn.release()
        except RuntimeError:  # it was released before
            return


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
        # It guards the queue, the leader and what is called before the first use.
        self._queue_lock = threading.Lock()
        self._write_lock = threading.Lock()  # held during a commit
        self._queue: list[_Ticket] = []
        self._leader: _Ticket | None = None  # whose caller writes, now or next
        self._was_shared = False  # whether the last commit was shared
        backend.watch(self)

    # appending ------------------------------------------------------------------------------------------

    def append(self, draft: Draft) -> int:
        """Record one event and return its address; durable when this returns."""
        return self.append_many((draft,))[0]

    def append_many(
        self, drafts: Iterable[Draft], epochs: Mapping[str, int | None] | None = None
    ) -> list[int]:
        """Record all or none, in order. A draft whose source key is already recorded yields the
        existing seq.

        `epochs` are those of the leases under which sessions of a shared log are added to, by
        session.
        """
        now, drafts = utc_now(), list(drafts)
        rows = [prepare(draft, now, self.payloads) for draft in drafts]
        written = self.write(rows, epochs)
        if large := {
            number: row.columns.payload
            for number, row in enumerate(rows)
            if row.columns.payload is not None
        }:
            for number in large:
                put_again(rows[number], drafts[number], self.payloads)
            self.remove_erased(
                {
                    written[number].seq: digest
                    for number, digest in large.items()
                    if not written[number].is_new
                }
            )
        return [one.seq for one in written]

    def remove_erased(self, bodies: dict[int, str]) -> None:
        """Remove bodies that were stored again for events that were erased; nothing else of these
        was recorded.
        """
        if bodies:
            erased = [event for event in self.get_many(list(bodies)) if event.is_erased]
            remove_unnamed(self.backend, [bodies[event.seq] for event in erased])

    def write(
        self, rows: list[PreparedRow], epochs: Mapping[str, int | None] | None = None
    ) -> list[Written]:
        """Record checked rows, all or none, in order; durable when this returns.

        `epochs` are those of the leases under which sessions of a shared log are written, by
        session.
        """
        if not rows:
            return []
        self.backend.check_writable()
        self._prepare_first_use()
        ticket = _Ticket(rows, epochs or {})
        try:
            self._join(ticket)
            if ticket is self._leader:
                self._commit_queue()
        finally:
            try:
                self._leave(ticket)
            except BaseException:  # Ctrl-C just there: others wait for the lead
                self._leave(ticket)
                raise
        if ticket.written is None:
            raise ticket.error or StoreError(
                f"the commit to {self.path} was interrupted, so this event may not be recorded. "
                "Look at the end of the log, and append it again if it is not there."
            )
        self.rows_appended()
        return ticket.written

    def rows_appended(self) -> None:
        """Report new rows to those who follow the log."""
        for callback in self.on_append:
            callback()

    def rows_erased(self) -> None:
        """Report that another host has erased rows."""
        for callback in self.on_erased:
            callback()

    def _join(self, ticket: _Ticket) -> None:
        """Wait until the rows are written, or until it is up to this caller to write all that is
        queued.
        """
        with self._queue_lock:
            self._queue.append(ticket)
            if self._leader is None:
                self._leader = ticket
                return
        # released by the leader that wrote our rows, or that made us the leader
        ticket.turn.acquire()

    def _leave(self, ticket: _Ticket) -> None:
        """Hand the lead to the next caller. Nobody waits for a caller that an interrupt has taken
        away.

        Doing it twice is the same as once, so that it can be done again when it was itself
        interrupted.
        """
        with self._queue_lock:
            if ticket in self._queue:
                self._queue.remove(ticket)
            if ticket is self._leader:
                self._leader = self._queue[0] if self._queue else None
            if self._leader is not None:
                self._leader.wake()

    def _commit_queue(self) -> None:
        """Write the rows of all who wait, and wake them.

        One that is woken without an answer was interrupted.
        """
        batch: list[_Ticket] = []
        if self._was_shared:
            time.sleep(
                self.backend.linger
            )  # those whom the last commit woke are on their way back: let them in
        try:
            with self._write_lock, schema.Translated(self.path):
                with self._queue_lock:
                    batch, self._queue = self._queue, []
                self._was_shared = len(batch) > 1
                if self._closed:
                    raise schema.closed(self.path, "append")
                if self.read_only:
                    raise StoreReadOnly(f"{self.path} was opened to be read; nothing was written")
                answers = self.backend.write([row for ticket in batch for row in ticket.rows])
            at = 0
            for ticket in batch:
                own = answers[at : at + len(ticket.rows)]
                at += len(own)
                ticket.written = [one for one in own if isinstance(one, Written)]
                if len(ticket.written) < len(own):  # another host has taken the session
                    ticket.written, ticket.error = (
                        None,
                        next(one for one in own if isinstance(one, ScrollError)),
                    )
        except (ScrollError, OSError) as error:
            for ticket in batch:
                ticket.error = error
        finally:
            for ticket in batch:
                ticket.wake()

    def resolve_unanswered(self) -> None:
        """Find out what became of an append that had no answer."""
        with self._write_lock:
            self.backend.resolve_unanswered()

    # reading --------------------------------------------------------------------------------------------

    def get(self, seq: int, grant: Grant = EVERYTHING) -> Event:
        """The event at an address, if it exists and the grant reaches it."""
        found = self.get_many([seq], grant)
        if not found:
            newest = self.tail(1, grant=grant)
            end = f"; the newest has seq {newest[0].seq}" if newest else ""
            raise UnknownSeq(f"no event has seq {seq} within reach{end}")
        return found[0]

    def get_many(self, seqs: Sequence[int], grant: Grant = EVERYTHING) -> list[Event]:
        """The events at these addresses that exist and are in reach, in the order asked for."""
        found: dict[int, Event] = {}
        for at in range(0, len(seqs), PAGE):
            part = seqs[at : at + PAGE]
            marks = ", ".join("?" * len(part))
            found |= {event.seq: event for event in self._select(f"seq IN ({marks})", part)}
        if grant == EVERYTHING:
            return [found[seq] for seq in seqs if seq in found]
        return [
            event for seq in seqs if (event := found.get(seq)) is not None and grant.permits(event)
        ]

    def column(self, name: str, seqs: Sequence[int]) -> dict[int, Any]:
        """One column of these events.

        The chain value at an address stands for everything up to there.
        """
        found: dict[int, Any] = {}
        for at in range(0, len(seqs), PAGE):
            part = seqs[at : at + PAGE]
            marks = ", ".join("?" * len(part))
            found.update(self.query(f"SELECT seq, {name} FROM event WHERE seq IN ({marks})", part))
        return found

    def find_source(self, source_key: str) -> Event | None:
        """The event that was recorded under a source key."""
        return next(iter(self._select("source_key = ?", [source_key])), None)

    def span(self, lo: int, hi: int, grant: Grant = EVERYTHING) -> list[Event]:
        """The events with lo <= seq <= hi."""
        return list(self.iterate(after=lo - 1, until=hi, grant=grant))

    def tail(
        self, count: int, *, grant: Grant = EVERYTHING, **fields: Unpack[FilterFields]
    ) -> list[Event]:
        """The newest `count` events that match, oldest first."""
        where, values = conditions(grant, SearchFilters.of(**fields))
        return list(reversed(self._select(f"{where} ORDER BY seq DESC LIMIT ?", [*values, count])))

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
        return [TableRow._make(row) for row in self.query(sql, [after, until, limit])]

    def newest_erasure(self) -> int:
        """The seq of the newest erasure; 0 when there was none.

        Who holds text of the log in memory asks for it.
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
        """The whole text of an event: its content, or its payload when that holds the body as text."""
        if event.payload is None or not event.payload.is_text:
            return event.content
        return self.payloads.text(event.payload.digest)

    def text_or_preview(self, event: Event) -> str:
        """The whole text of an event, or what its row has of it where the payload is lost."""
        try:
            return self.text(event)
        except (PayloadMissing, PayloadDamaged):
            return event.content

    def excerpt(self, event: Event, most: int) -> Excerpt:
        """The whole text of an event if it has at most `most` characters, else its two ends in the
        memory of those.
        """
        if event.payload is None or not event.payload.is_text:
            return excerpt([event.content], most)
        return excerpt(self.payloads.text_pieces(event.payload.digest), most)

    def sessions(self, grant: Grant = EVERYTHING) -> list[SessionInfo]:
        """Every session within reach, oldest first."""
        where, values = conditions(grant)
        rows = self.query(
            f"""SELECT s.session_id, a.agent_id, a.task_id, s.n, s.lo, s.hi, a.created_at, b.created_at
            FROM (SELECT session_id, count(*) n, min(seq) lo, max(seq) hi FROM event WHERE {where}
                  GROUP BY session_id) s JOIN event a ON a.seq = s.lo JOIN event b ON b.seq = s.hi ORDER BY s.lo""",
            values,
        )
        return [SessionInfo(*row) for row in rows]

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Run one of Scroll's own SELECTs. Not for foreign SQL: see sql.py."""
        self._prepare_first_use()
        return self.backend.query(sql, values)

    def close(self) -> None:
        """Close every connection; running appends and queries are finished first."""
        with self._write_lock:
            with self._queue_lock:
                self._closed = True
            self.backend.close()

    def _prepare_first_use(self) -> None:
        if not self.before_first_use:
            return
        # Of several threads that come at once, one finds the list filled.
        with self._queue_lock:
            callbacks, self.before_first_use = self.before_first_use, []
        for callback in callbacks:
            callback()

    def _select(self, condition: str, values: Sequence[Any]) -> list[Event]:
        return [
            event_from_row(row)
            for row in self.query(f"SELECT * FROM event WHERE {condition}", values)
        ]
