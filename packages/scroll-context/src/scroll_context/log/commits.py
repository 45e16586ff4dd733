"""Group commit: callers that append at the same moment share one transaction.

This is the only queue between an append and the disk. The first caller in it is the leader: it
writes the rows of everybody who waits, in the order in which they came, and hands the lead to the
next caller. Journals (journal.py) and direct appends (log.py) stand in the same queue, so all
sessions of a process share commits.

A caller holds a ticket and leaves the queue whatever happens: an interrupt at any moment keeps
nobody waiting for a caller that has ended.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scroll_context.errors import ScrollError, StoreError
from scroll_context.log import schema
from scroll_context.log.backend import Written
from scroll_context.log.rows import PreparedRow

Batch = list[tuple[PreparedRow, int | None]]
"""Rows to write, each with the epoch of its session's lease if it has one."""


class Ticket:
    """One caller's rows, to be written all or none and in order, and its place in the queue.

    `is_over` says that nobody will write these rows any more: they are written, or have failed, or
    their caller has left the queue before a commit took them.
    """

    __slots__ = ("_over", "_turn", "error", "is_over", "rows", "written")

    def __init__(self, rows: list[PreparedRow], epochs: Mapping[str, int | None]) -> None:
        self.rows: Batch = [(row, epochs.get(row.columns.session_id)) for row in rows]
        self.written: list[Written] | None = None
        self.error: Exception | None = None
        self.is_over = False
        # Released when the rows are over, or when it is up to this caller to write.
        self._turn = _taken_lock()
        # Released when the rows are over.
        self._over = _taken_lock()

    def wait_for_turn(self) -> None:
        self._turn.acquire()

    def wait_until_over(self) -> None:
        """Wait for the end of these rows, in a thread that does not own the ticket."""
        if self.is_over:
            return
        try:
            self._over.acquire()
        finally:
            # The lock stays open, also when an interrupt comes as soon as it is taken.
            self._open_if_over()

    def _open_if_over(self) -> None:
        if self.is_over:
            _release(self._over)

    def wake(self) -> None:
        """Let the owner continue. A second call does nothing."""
        _release(self._turn)

    def finish(self) -> None:
        """Nobody will write these rows any more. A second call does nothing."""
        self.is_over = True
        _release(self._over)
        _release(self._turn)


class GroupCommit:
    """The queue of everybody who appends to one log."""

    def __init__(
        self,
        path: Path,
        write: Callable[[Batch], Sequence[Written | ScrollError]],
        linger: float,
        appended: Callable[[], None],
    ) -> None:
        self.path = path
        self.running = threading.Lock()
        """Held during a commit."""
        self._write = write
        self._appended = appended
        # Seconds to wait for callers whom the last commit has woken, so that they share the next.
        self._linger = linger
        # It guards the queue, the batch and the lead.
        self._lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._batch: list[Ticket] = []
        self._leader: Ticket | None = None
        self._was_shared = False

    @property
    def waiting(self) -> int:
        """How many callers wait for the next commit."""
        return len(self._queue)

    def commit(
        self, ticket: Ticket, enqueue: Callable[[Ticket], None] | None = None
    ) -> list[Written]:
        """Stand in the queue until the rows are on disk. Raises what kept them from being written.

        `enqueue` calls the method of that name; a journal does it under a lock of its own.
        """
        if enqueue is None:
            enqueue = self.enqueue
        # Not a context manager: an interrupt can come at the beginning of its `__exit__`, and then
        # everybody would wait for a leader that has ended.
        try:
            enqueue(ticket)
            self._wait(ticket)
        finally:
            try:
                self._leave(ticket)
            except BaseException:
                # An interrupt came just there. Leaving twice is the same as leaving once.
                self._leave(ticket)
                raise
        if ticket.written is None:
            raise ticket.error or StoreError(
                f"the commit to {self.path} was interrupted, so this event may not be recorded. "
                "Look at the end of the log, and append it again if it is not there."
            )
        self._appended()
        return ticket.written

    def enqueue(self, ticket: Ticket) -> None:
        """Fix the place of a ticket in the order of the log."""
        with self._lock:
            self._queue.append(ticket)
            if self._leader is None:
                self._leader = ticket

    def _wait(self, ticket: Ticket) -> None:
        """Wait until the rows are over, or write all that is queued if that is up to the caller."""
        if ticket is not self._leader:
            ticket.wait_for_turn()
        if ticket is self._leader:
            self._write_queue()

    def _leave(self, ticket: Ticket) -> None:
        """Give up the place in the queue, and hand on the lead."""
        with self._lock:
            if ticket in self._queue:
                self._queue.remove(ticket)
            if ticket is self._leader:
                # After an interrupt, the others of the batch still wait.
                for other in self._batch:
                    other.finish()
                self._batch = []
                self._leader = self._queue[0] if self._queue else None
            if ticket not in self._batch:
                ticket.finish()
            if self._leader is not None:
                self._leader.wake()

    def _write_queue(self) -> None:
        """Write the rows of all who wait. A ticket that ends without an answer was interrupted."""
        if self._was_shared:
            time.sleep(self._linger)
        batch: list[Ticket] = []
        try:
            with self.running, schema.Translated(self.path):
                with self._lock:
                    batch, self._queue = self._queue, []
                    self._batch = batch
                self._was_shared = len(batch) > 1
                rows: Batch = []
                for ticket in batch:
                    rows += ticket.rows
                answers = iter(self._write(rows))
            for ticket in batch:
                _answer(ticket, [next(answers) for _ in ticket.rows])
        except (ScrollError, OSError) as error:
            for ticket in batch:
                ticket.error = error
        finally:
            for ticket in batch:
                ticket.finish()


def _answer(ticket: Ticket, answers: list[Written | ScrollError]) -> None:
    for answer in answers:
        if isinstance(answer, ScrollError):
            # Another host has taken the session.
            ticket.error = answer
            return
    ticket.written = [answer for answer in answers if isinstance(answer, Written)]


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _release(lock: threading.Lock) -> None:
    try:
        lock.release()
    except RuntimeError:
        # It was released before.
        return
