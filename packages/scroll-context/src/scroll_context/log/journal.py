"""The journal: the one writer of a session's events while the session is open.

Everything that happens in a session is appended here and nowhere else: what the user and the model
said, calls and results, cells, snapshots, plans, notices. An append that returned is on disk.
Appends come from any thread; they are ordered under one lock, threads that wait share a commit, and
each event is built from the row that was written. The view is given every event in that order,
before anybody else, so a view rebuilt from the log is the live one. Then come the observers: what
one of them raises is logged and changes nothing. The journal orders the threads of one session; the
log below it lets several sessions of a process share a commit.

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
from scroll_context.log.columns import TableRow
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import TEXT
from scroll_context.log.redact import Redactor
from scroll_context.log.rows import PreparedRow, event_from_row, prepare, put_again
from scroll_context.log.schema import utc_now

Observer = Callable[[Event], None]

_logger = logging.getLogger("scroll_context.journal")


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What one session may record. The defaults stop a runaway, not a long life.

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
    row_bytes: int = 4 << 30  # text and metadata in the log
    payload_bytes: int = 16 << 30  # bodies behind handles
    snapshot_bytes: int = 8 << 30  # saved variables

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise BadInput(f"a quota of {name} must be at least 1, not {getattr(self, name)}")

    @property
    def with_reserve(self) -> "Quota":
        """How far the results of work that has begun may go beyond the quota."""
        return Quota(
            events=self.events + 2_000,
            row_bytes=self.row_bytes + (64 << 20),
            payload_bytes=self.payload_bytes + (512 << 20),
            # a save beyond the quota is not begun (session/environment.py)
            snapshot_bytes=sys.maxsize,
        )


class Used(msgspec.Struct, kw_only=True):
    """What a session has recorded so far."""

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

    def over(self, quota: Quota) -> str:
        """Which limit is reached, in words; "" when none is."""
        for name in quota.__struct_fields__:
            used, most = getattr(self, name), getattr(quota, name)
            if used >= most:
                return f"{used:,} of {most:,} {name.replace('_', ' ')}"
        return ""


class _Waiting:
    """One caller's rows, until they are written or have failed."""

    __slots__ = ("error", "events", "rows")

    def __init__(self, rows: list[PreparedRow]) -> None:
        self.rows = rows
        self.events: list[tuple[Event, bool]] | None = None
        self.error: BaseException | None = None


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
        self.redact: Redactor | None = (
            None  # set it, and secrets are replaced before they are recorded
        )
        self.used = Used()
        self._lock = threading.RLock()
        self._waiting: deque[_Waiting] = deque()
        self._view: Observer | None = None
        self._shown = 0  # the newest event that the view was given
        self._is_behind = False  # an append was interrupted between the log and the view
        self._observers: tuple[Observer, ...] = ()
        self._untold: deque[Event] = deque()
        self._telling = threading.Lock()
        self._closed = False
        self._lease = log.backend.take_lease(scope.session_id, wait)

    # appending ------------------------------------------------------------------------------------------

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
            body = self.redact.body(body, media_type)
        row = prepare(draft, utc_now(), self.log.payloads, body, media_type)
        recorded = self._record([row])[0][0]
        put_again(row, draft, self.log.payloads, body, media_type=media_type)
        return recorded

    def append_many(self, drafts: Iterable[Draft]) -> list[Event]:
        """Record all or none, in order."""
        now, drafts = utc_now(), [self._redacted(draft) for draft in drafts]
        for draft in drafts:
            self._check_owner(draft)
        rows = [prepare(draft, now, self.log.payloads) for draft in drafts]
        recorded = self._record(rows) if rows else []
        for row, draft in zip(rows, drafts, strict=True):
            put_again(row, draft, self.log.payloads)
        return [event for event, _ in recorded]

    def append_once(self, source_key: str, draft: Draft) -> tuple[Event, bool]:
        """Record an event under a key of its source, unless that is known: the event, and whether
        it is new.
        """
        self._check_owner(draft)
        draft = self._redacted(draft)
        row = prepare(replace(draft, source_key=source_key), utc_now(), self.log.payloads)
        recorded = self._record([row])[0]
        put_again(row, draft, self.log.payloads)
        digest = row.columns.payload
        if digest is not None and not recorded[1]:
            self.log.remove_erased({recorded[0].seq: digest})
        return recorded

    def _redacted(self, draft: Draft) -> Draft:
        return draft if self.redact is None else self.redact.draft(draft)

    def _check_owner(self, draft: Draft) -> None:
        if draft.session_id != self.session_id:
            raise BadInput(
                f"this journal records session {self.session_id!r}, not {draft.session_id!r}"
            )

    def _record(self, rows: list[PreparedRow]) -> list[tuple[Event, bool]]:
        """Wait for the lock, then write the rows of all who wait; whoever finds its rows written is
        done.
        """
        mine = _Waiting(rows)
        self._waiting.append(mine)
        with self._lock:
            if mine.events is None and mine.error is None:
                self._write_waiting()
        self._tell()
        if mine.events is None:
            raise mine.error or ScrollError(
                f"the append to session {self.session_id!r} was interrupted and may not be recorded. Look at the end "
                "of the session, and repeat it if it is not there."
            )
        for event, _ in mine.events:
            if event.session_id != self.session_id:
                raise BadInput(
                    f"the source key {event.source_key[:80]!r} belongs to seq {event.seq} of session "
                    f"{event.session_id[:80]!r}, so nothing was recorded under it in session {self.session_id[:80]!r}. "
                    "Use another key: each names one event of the whole store."
                )
        return mine.events

    def _write_waiting(self) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            self._check_open()
            self._catch_up()
            self._is_behind = True
            epochs = {self.session_id: self._lease.epoch}
            written = iter(self.log.write([row for one in batch for row in one.rows], epochs))
            for one in batch:
                one.events = [self._written(row, *next(written)) for row in one.rows]
            self._is_behind = False
        except Exception as error:  # noqa: BLE001 - raised again by each caller whose rows these are
            for one in batch:
                one.error = error

    def _written(
        self, row: PreparedRow, seq: int, chain: bytes, is_new: bool
    ) -> tuple[Event, bool]:
        if not is_new:
            return self.log.get(seq), False
        event = event_from_row(TableRow(seq, *row.columns, chain, row.nonce, None))
        self._show(event, row.bytes)
        return event, True

    def _show(self, event: Event, row_bytes: int) -> None:
        if self._view is not None:
            self._view(event)
        self._shown = event.seq
        self.used.add(event, row_bytes)
        self._untold.append(event)

    def _catch_up(self) -> None:
        """Show what an append recorded that was interrupted before the view had it."""
        if self._is_behind:
            self.log.resolve_unanswered()
        if self._is_behind and self._view is not None:
            for event in list(self.log.iterate(after=self._shown, session_id=self.session_id)):
                self._show(event, _about_bytes(event))
        self._is_behind = False

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"session {self.session_id!r} was closed; resume it to record more")
        self._lease.check()
        if over := self.used.over(self.quota.with_reserve):
            raise QuotaReached(
                f"session {self.session_id!r} has recorded {over}, its reserve included; {_REMEDY}"
            )

    # order ----------------------------------------------------------------------------------------------

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep all other threads from appending: what is read of the view here is of one moment."""
        with self._lock:
            self._catch_up()
            yield

    def follow(self, view: Observer, past: Iterable[Event] = ()) -> None:
        """Give `view` the past events of the session, and from now on every event before anybody
        else has it.
        """
        with self._lock:
            self.used = Used()
            for event in past:
                if event.session_id == self.session_id:
                    self.used.add(event, _about_bytes(event))
                view(event)
            self._view = view
            self._shown = self.log.last_seq()

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Tell `observer` of each event from now on, in order; returns a function that
        unsubscribes.

        It is called in the thread of some appender, perhaps a little after the append has returned.
        What it raises is logged and has no other effect. While a request is being made it must not
        wait for another thread's append.
        """
        with self._lock:
            self._observers = (*self._observers, observer)

        def unsubscribe() -> None:
            with self._lock:
                self._observers = tuple(one for one in self._observers if one is not observer)

        return unsubscribe

    def tell_all(self) -> None:
        """Return when the observers have been told of every event so far.

        An observer must not call this.
        """
        self._tell(wait=True)

    def _tell(self, wait: bool = False) -> None:
        """Tell the observers.

        One thread tells at a time, so that the order holds; `wait` waits for that thread.
        """
        while self._untold or wait:
            if not self._telling.acquire(blocking=wait):
                return  # the thread that is telling sees these events too
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

    # quota ----------------------------------------------------------------------------------------------

    def require_room(self) -> None:
        """Refuse to begin new work when the session has used up its quota."""
        if over := self.used.over(self.quota):
            raise QuotaReached(
                f"this session has recorded {over}, so nothing new is begun; {_REMEDY}"
            )

    # lifetime -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the lease of the session; what is appended later is refused."""
        with self._lock:
            self._closed = True
        self._tell()
        self._lease.release()


_REMEDY = "what is recorded stays readable. Go on in a new session, or resume with a larger SessionOptions.quota."


def _about_bytes(event: Event) -> int:
    """The size of a row that was read, about; only a row that is written is measured."""
    return len(event.content) + len(event.headline) + 200
