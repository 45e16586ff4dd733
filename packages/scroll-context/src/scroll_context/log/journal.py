"""The journal: the one writer of a session's events while the session is open.

Everything that happens in a session is appended here and nowhere else: what the user and the model
said, calls and results, cells, snapshots, plans, notices. An append that returned is on disk.
Appends come from any thread. They enter the log's queue (commits.py) under one lock, share a commit
with whoever waits there, and each event is built from the row that was written. The view is given
every event in the order of the log, before anybody else, so a view rebuilt from the log is the live
one. Then come the observers: an error of theirs is logged and changes nothing.

The journal holds the session's lease (lease.py), so no other process and no other journal of this
process writes the same session. It also counts the session's quota: work that would begin above it
is refused, while what has begun may still be recorded in a reserve.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput, QuotaReached, ScrollError, StoreClosed
from scroll_context.events import Draft, Event, Kind, Scope
from scroll_context.log.backend import Written
from scroll_context.log.commits import Ticket
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import TEXT
from scroll_context.log.redact import Redactor
from scroll_context.log.rows import PreparedRow, event_from_row, prepare
from scroll_context.log.schema import utc_now

Observer = Callable[[Event], None]

_logger = logging.getLogger("scroll_context.journal")


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """How much one session may record. The defaults stop a runaway session, not a long one.

    >>> from scroll_context import Quota, Session, SessionOptions, Store
    >>> from scroll_context.errors import QuotaReached
    >>> options = SessionOptions(quota=Quota(events=2))
    >>> with (
    ...     Store("trip.scroll", create=True) as store,
    ...     Session.open(store, options=options) as session,
    ... ):
    ...     try:
    ...         for number in range(3):
    ...             event = session.say(f"message {number}")
    ...     except QuotaReached:
    ...         print(event.content, "was the last")
    message 0 was the last
    """

    events: int = 1_000_000
    # Text and metadata in the log.
    row_bytes: int = 4 << 30
    # Bodies behind handles.
    payload_bytes: int = 16 << 30
    # Saved variables.
    snapshot_bytes: int = 8 << 30

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise BadInput(f"a quota of {name} must be at least 1, not {getattr(self, name)}")


RESERVE = Quota(
    events=2_000,
    row_bytes=64 << 20,
    payload_bytes=512 << 20,
    # A save beyond the quota is not begun (session/variables.py).
    snapshot_bytes=sys.maxsize,
)
"""How far the results of work that has begun may go beyond the quota."""


class Used(msgspec.Struct, kw_only=True):
    """The amounts that a session has recorded so far.

    Each field is a total that only grows, and stops new work when it reaches the quota of the same
    name.
    """

    events: int = 0
    row_bytes: int = 0
    payload_bytes: int = 0
    snapshot_bytes: int = 0

    def add(self, event: Event, row_bytes: int) -> None:
        self.events += 1
        self.row_bytes += row_bytes
        if event.payload is not None:
            self.payload_bytes += event.payload.size
        if event.kind == Kind.SNAPSHOT:
            size = event.metadata.get("bytes")
            self.snapshot_bytes += size if isinstance(size, int) and 0 <= size < 1 << 60 else 0

    def over(self, quota: Quota, reserve: Quota | None = None) -> str:
        """Which limit is reached, in words; "" when none is."""
        for name in self.__struct_fields__:
            used, most = getattr(self, name), getattr(quota, name)
            if reserve is not None:
                most += getattr(reserve, name)
            if used >= most:
                return f"{used:,} of {most:,} {name.replace('_', ' ')}"
        return ""


class _Append:
    """Rows on their way to the disk and then to the view."""

    __slots__ = ("error", "events", "rows", "ticket")

    def __init__(self, rows: list[PreparedRow], ticket: Ticket) -> None:
        self.rows = rows
        self.ticket = ticket
        self.events: list[tuple[Event, bool]] | None = None
        self.error: Exception | None = None


class Journal:
    """The events of one open session.

    Use it from any thread; close it to release the lease of the session.
    """

    def __init__(
        self, log: EventLog, scope: Scope, *, quota: Quota | None = None, wait: float = 0.0
    ) -> None:
        self.log = log
        self.scope = scope
        self.session_id = scope.session_id
        self.quota = quota or Quota()
        self.redact: Redactor | None = None
        """Set it to replace secrets before they are recorded."""
        self.used = Used()
        self._lock = threading.RLock()
        # Appends that the view has not seen, in the order of the log.
        self._unseen: deque[_Append] = deque()
        self._view: Observer | None = None
        # The newest event that the view has seen.
        self._view_seq = 0
        # Whether an append was interrupted between the log and the view.
        self._is_behind = False
        self._observers: tuple[Observer, ...] = ()
        self._untold: deque[Event] = deque()
        self._telling = threading.Lock()
        self._closed = False
        self._lease = log.backend.take_lease(scope.session_id, wait)

    # appending ------------------------------------------------------------------------------------

    def draft(self, kind: str, **fields: Any) -> Draft:
        """A draft that belongs to this session."""
        return self.scope.draft(kind, **fields)

    def append(
        self, draft: Draft, *, body: bytes | str | None = None, media_type: str = TEXT
    ) -> Event:
        """Record one event.

        `body` is what its payload holds; without one, long content becomes its own payload.
        """
        self._check_owner(draft)
        draft = self._redacted(draft)
        if self.redact is not None and body is not None:
            if isinstance(body, str):
                body = self.redact.text(body)
            else:
                body = self.redact.body(body, media_type)
        row = prepare(draft, utc_now(), self.log.payloads, body, media_type)
        [(event, _)] = self._record([row])
        return event

    def append_many(self, drafts: Iterable[Draft]) -> list[Event]:
        """Record all or none, in order, in one commit."""
        return [event for event, _ in self._append_all(drafts)]

    def append_once(self, source_key: str, draft: Draft) -> tuple[Event, bool]:
        """Record an event under a source key, unless the key is taken.

        Returns the event of the key, and whether it is new.
        """
        [recorded] = self._append_all([replace(draft, source_key=source_key)])
        return recorded

    def _append_all(self, drafts: Iterable[Draft]) -> list[tuple[Event, bool]]:
        now = utc_now()
        redacted = [self._redacted(draft) for draft in drafts]
        for draft in redacted:
            self._check_owner(draft)
        if not redacted:
            return []
        return self._record([prepare(draft, now, self.log.payloads) for draft in redacted])

    def _redacted(self, draft: Draft) -> Draft:
        return draft if self.redact is None else self.redact.draft(draft)

    def _check_owner(self, draft: Draft) -> None:
        if draft.session_id != self.session_id:
            raise BadInput(
                f"this journal records session {self.session_id!r}, not {draft.session_id!r}"
            )

    def _record(self, rows: list[PreparedRow]) -> list[tuple[Event, bool]]:
        """Write rows and show them to the view; on disk and shown when this returns."""
        append = _Append(rows, self.log.ticket(rows, {self.session_id: self._lease.epoch}))
        try:
            # The queue is left before the view is shown anything: whoever leads it must not wait
            # for the lock of a session, which `hold` keeps while it waits for the queue.
            self.log.commits.commit(append.ticket, lambda _: self._enqueue(append))
        finally:
            # After an interrupt, the rows may still be on their way. Then the next append shows
            # them.
            if append.ticket.is_over:
                self._show_until(append)
        self._tell()
        if append.events is None or append.ticket.written is None:
            raise append.error or ScrollError(
                f"the append to session {self.session_id!r} was interrupted and may not be "
                "recorded. Look at the end of the session, and repeat it if it is not there."
            )
        for event, _ in append.events:
            if event.session_id != self.session_id:
                raise BadInput(
                    f"the source key {event.source_key[:80]!r} belongs to seq {event.seq} of "
                    f"session {event.session_id[:80]!r}, so nothing was recorded under it in "
                    f"session {self.session_id[:80]!r}. Use another key: a key names one event of "
                    "the complete store."
                )
        self.log.keep_bodies(rows, append.ticket.written)
        return append.events

    def _enqueue(self, append: _Append) -> None:
        with self._lock:
            self._check_open()
            self._catch_up()
            # Both under the lock, so that the order here is that of the log.
            self._unseen.append(append)
            self.log.commits.enqueue(append.ticket)

    def _show_until(self, last: _Append | None = None) -> None:
        """Show the view the written events, in order: up to one append, or all that were begun."""
        with self._lock:
            while self._unseen and (last is None or last in self._unseen):
                append = self._unseen[0]
                append.ticket.wait_until_over()
                self._finish(append)
                self._unseen.popleft()

    def _finish(self, append: _Append) -> None:
        """Show the events of an append whose commit is over."""
        written = append.ticket.written
        if written is None:
            # It failed, or was interrupted and may be recorded.
            self._is_behind = True
            return
        try:
            self._catch_up()
            existing: dict[int, Event] = {}
            old_seqs = [place.seq for place in written if not place.is_new]
            if old_seqs:
                existing = {event.seq: event for event in self.log.get_many(old_seqs)}
            events: list[tuple[Event, bool]] = []
            for row, place in zip(append.rows, written, strict=True):
                event = self._new_event(row, place) if place.is_new else existing.get(place.seq)
                # An event that is not there raises UnknownSeq.
                events.append((event or self.log.get(place.seq), place.is_new))
            append.events = events
        except Exception as error:  # noqa: BLE001 - raised again by the caller whose rows these are
            self._is_behind = True
            append.error = error

    def _new_event(self, row: PreparedRow, place: Written) -> Event:
        event = event_from_row((place.seq, *row.columns, place.chain, row.nonce, None))
        if event.seq > self._view_seq:
            self._show(event, row.bytes)
        return event

    def _show(self, event: Event, row_bytes: int) -> None:
        if self._view is not None:
            self._view(event)
        self._view_seq = event.seq
        self.used.add(event, row_bytes)
        self._untold.append(event)

    def _catch_up(self) -> None:
        """Show the view events whose append was interrupted before the view had them."""
        if self._is_behind:
            self.log.resolve_unanswered()
        if self._is_behind and self._view is not None:
            for event in list(self.log.iterate(after=self._view_seq, session_id=self.session_id)):
                self._show(event, _about_bytes(event))
        self._is_behind = False

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"session {self.session_id!r} was closed; resume it to record more")
        self._lease.check()
        over = self.used.over(self.quota, RESERVE)
        if over:
            raise QuotaReached(
                f"session {self.session_id!r} has recorded {over}, its reserve included; {_REMEDY}"
            )

    # order ----------------------------------------------------------------------------------------

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep all other threads from appending, so that the view does not change meanwhile."""
        with self._lock:
            self._show_until()
            self._catch_up()
            yield

    def follow(self, view: Observer, past: Iterable[Event] = ()) -> None:
        """Give `view` the past events of the session, and every new event before anybody else."""
        with self._lock:
            self._show_until()
            self.used = Used()
            for event in past:
                if event.session_id == self.session_id:
                    self.used.add(event, _about_bytes(event))
                view(event)
            self._view = view
            self._view_seq = self.log.last_seq()

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each new event, in order. Returns a function that unsubscribes.

        The call comes in the thread of some appender, perhaps a little after the append has
        returned. An exception of the observer is logged and has no other effect. While a request is
        being made, the observer must not wait for another thread's append.
        """
        with self._lock:
            self._observers = (*self._observers, observer)

        def unsubscribe() -> None:
            with self._lock:
                self._observers = tuple(
                    subscriber for subscriber in self._observers if subscriber is not observer
                )

        return unsubscribe

    def tell_all(self) -> None:
        """Return when the observers have received every event so far.

        An observer must not call this.
        """
        self._tell(wait=True)

    def _tell(self, wait: bool = False) -> None:
        """Call the observers with the events that they have not seen.

        One thread does this at a time, to keep the order; `wait` waits for that thread.
        """
        while self._untold or wait:
            if not self._telling.acquire(blocking=wait):
                # The thread that is telling sees these events too.
                return
            wait = False
            try:
                while self._untold:
                    event = self._untold.popleft()
                    for observer in self._observers:
                        try:
                            observer(event)
                        except Exception:
                            _logger.exception(
                                "an observer of session %r failed on seq %d",
                                self.session_id,
                                event.seq,
                            )
            finally:
                self._telling.release()

    # quota ----------------------------------------------------------------------------------------

    def require_room(self) -> None:
        """Refuse to begin new work when the session has used up its quota."""
        over = self.used.over(self.quota)
        if over:
            raise QuotaReached(
                f"this session has recorded {over}, so no new work is started; {_REMEDY}"
            )

    # lifetime -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the lease of the session; later appends are refused."""
        with self._lock:
            self._closed = True
            self._show_until()
        self._tell()
        self._lease.release()


_REMEDY = (
    "recorded events stay readable. Continue in a new session, or resume with a larger "
    "SessionOptions.quota."
)


def _about_bytes(event: Event) -> int:
    """The size of a row that was read, about; only a row that is written is measured."""
    return len(event.content) + len(event.headline) + 200
