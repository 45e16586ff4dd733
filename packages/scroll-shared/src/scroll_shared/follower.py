"""Keeps the copy of this host close to the server: one thread in each process, one process of a
host at work.

A file lock elects the process. It listens for the server's notifications, reads what is new a page
at a time, and applies the page. Nothing is believed that a crash of the server could take back: an
append of this process that was acknowledged is on the server's disk with all that is before it, and
for later rows the thread asks for a barrier. The server notifies at most every 20 ms, so after a
page there are more looks, at growing intervals. Between two looks the thread rests, unless somebody
waits for rows, so that a busy store is read in few large pages. Processes that were not elected
read by themselves only when rows of their own do not arrive. When the server is away the thread
tries again, and says so in `trouble`.

A row that does not continue the chain means another history, and quarantines the copy. A row that
continues it and cannot be read is only somebody's bad row: it becomes a placeholder (received.py),
with a warning.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from typing import Any

from scroll_context.errors import ScrollError, StoreDamaged, StoreUnreachable
from scroll_context.log import schema
from scroll_context.log.columns import TableRow
from scroll_context.log.rows import is_unreadable
from scroll_shared.erasure import Purge
from scroll_shared.received import SENT, table_row
from scroll_shared.replica import Replica, StoreFacts
from scroll_shared.server import Server

PAGE_ROWS = 2_000
PAGE_BYTES = 32 << 20
_REST = 0.06  # seconds between two looks while nobody waits, at most,
_WORK_SHARE = 4  # and otherwise so many times what the last look took
_ONE_MORE_LOOK = 0.022  # seconds after a look: longer than the server's pause between notifications
_IDLE = 1.0  # seconds between two looks without a notification
_ELECTION = 0.5  # seconds between two attempts to be the elected one
_REPORT = 5.0  # seconds between two reports of how far this copy is

_NEWEST = (1 << 63) - 1  # no seq is behind it

_PAGE = f"""SELECT {SENT} FROM (
    SELECT *, sum(length(body)) OVER (ORDER BY seq) - length(body) AS before FROM scroll.event
    WHERE store_id = %s AND seq BETWEEN %s AND %s ORDER BY seq LIMIT %s) page WHERE before < %s ORDER BY seq"""

_logger = logging.getLogger("scroll_context.store")


class Follower:
    """Pulls what the server has and the copy lacks."""

    def __init__(self, server: Server, facts: StoreFacts, replica: Replica, purge: Purge) -> None:
        self.trouble = ""  # why the server cannot be followed; empty while all is well
        self.seen = 0  # the newest seq that the server is known to have
        self.server = server
        self._facts = facts
        self._replica = replica
        self._purge = purge
        self._pulling = threading.Lock()
        self._stopped = threading.Event()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._listening = -1  # the connection that listens
        self._pause = (
            _IDLE  # between the last look and the next, if there is no reason for an earlier one
        )
        self._rested = 0.0  # the moment until which the thread rests,
        self._next_look = 0.0  # and the moment of the next look
        self._is_idle = False  # the thread waits for a reason to look
        self._is_wanted = False  # such a reason,
        self._is_urgent = False  # and one that allows no rest
        self._reported = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._follow, name="scroll-follower", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Look soon."""
        self._is_wanted = True
        if self._is_idle:
            self._wake()

    def ring(self) -> None:
        """Look now: somebody waits."""
        self._is_urgent = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it rings already, or is gone
            self._ringer.send(b".")

    def close(self) -> None:
        self._stopped.set()
        self.server.interrupt()
        self.ring()
        if self._thread is not None:
            self._thread.join()
        self.server.close()
        self._bell.close()
        self._ringer.close()

    def catch_up(self, timeout: float, upto: int = _NEWEST) -> bool:
        """Read what the server has now; False when time ran out first.

        Raises when the server does not answer.
        """
        deadline = time.monotonic() + timeout
        if not self._pulling.acquire(timeout=timeout):
            return False
        try:
            while not self._stopped.is_set():
                if not self._pull(deadline, upto):
                    self.trouble = ""
                    if self._purge.run():
                        self.report()
                    return True
                if time.monotonic() > deadline:
                    return False
        finally:
            self._pulling.release()
        return False

    def _pull(self, deadline: float, upto: int) -> bool:
        """Read and apply one page; whether there may be more."""
        self._replica.check()
        seq, chain = self._replica.head()
        if self._replica.has_own:
            self._replica.forget_own(seq)  # another process may have applied them
        values = [self._facts.store_id, max(seq, 1), max(seq, upto), PAGE_ROWS, PAGE_BYTES]
        page = self.server.once(_PAGE, values, deadline=deadline)
        is_full = len(page) == PAGE_ROWS or sum(len(sent[5]) for sent in page) >= PAGE_BYTES
        if seq:
            if not page or page[0][0] != seq or page[0][7] != chain:
                raise self._replica.quarantined(f"seq {seq} is not on the server as it is here")
            page = page[1:]
        if not page:
            self.seen = max(self.seen, seq)
            return False
        newest = page[-1][0]
        if newest > self._replica.durable:
            self.server.once("CALL scroll.barrier()", deadline=deadline)
            self._replica.durable = newest
        self.seen = max(self.seen, newest)
        rows = [table_row(sent) for sent in page]
        self._replica.apply(rows)
        self._warn_of_unreadable(rows)
        return is_full

    def _warn_of_unreadable(self, rows: list[TableRow]) -> None:
        seqs = [row.seq for row in rows if is_unreadable(row)]
        if seqs:
            more = f" and {len(seqs) - 1:,} more" if len(seqs) > 1 else ""
            _logger.warning(
                "seq %d%s of %s cannot be read and is shown as [unreadable]: a member of the store appended a row "
                "that is not an event. All other events are intact.",
                seqs[0],
                more,
                self._facts.address,
            )

    # the thread -----------------------------------------------------------------------------------

    def _follow(self) -> None:
        lock = os.open(
            self._replica.folder / "follow.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            elected = False
            while not self._stopped.is_set():
                elected = elected or schema.try_lock(lock)
                self._wait(elected)
                if self._stopped.is_set():
                    return
                begun = time.monotonic()
                self._pause = self._look(elected) if elected or self._replica.has_own else _ELECTION
                ended = time.monotonic()
                self._rested = ended + min(_REST, _WORK_SHARE * (ended - begun))
                self._next_look = begun + self._pause
        finally:
            os.close(lock)

    def _look(self, elected: bool) -> float:
        """Read what is new; how long to wait afterwards."""
        before, durable, notified = (
            self._replica.head()[0],
            self._replica.durable,
            self.server.notified,
        )
        if not elected:
            self._replica.forget_own(before)
            if not self._replica.has_own:
                return _ELECTION
        try:
            if elected and self._listening != self.server.connected:
                self.server.once(
                    "LISTEN scroll", deadline=time.monotonic() + self.server.address.timeout
                )
                self._listening = self.server.connected
            self.catch_up(self.server.address.timeout, durable if durable > before else _NEWEST)
            if elected and time.monotonic() - self._reported > _REPORT:
                self.report()
        except StoreDamaged as error:
            self._note(error)
            return 60.0
        except ScrollError as error:
            if not self._stopped.is_set():
                self._note(error)
            return _IDLE / 4
        if (
            self._replica.head()[0] > before or self.server.notified > notified
        ):  # perhaps of rows behind the page
            return _ONE_MORE_LOOK
        return min(_IDLE, 4 * self._pause) if elected else _ELECTION

    def _note(self, error: ScrollError) -> None:
        if str(error) != self.trouble:
            level = logging.INFO if isinstance(error, StoreUnreachable) else logging.WARNING
            _logger.log(
                level, "the copy in %s cannot follow its server: %s", self._replica.folder, error
            )
        self.trouble = str(error)

    def report(self) -> None:
        """Tell the server how far this copy is."""
        facts = self._facts
        applied = self._replica.head()[0]
        values = [
            facts.store_id,
            facts.secret.encode(),
            socket.gethostname(),
            applied,
            self._purge.done_until(),
        ]
        self.server.once(
            "SELECT scroll.report(%s, %b, %s, %s, %s)",
            values,
            deadline=time.monotonic() + self.server.address.timeout,
        )
        self._reported = time.monotonic()

    def _wait(self, elected: bool) -> None:
        """Rest, then wait for a reason to look: the bell, something that the server sends, or the
        time.
        """
        self._sleep(self._rested - time.monotonic(), [self._bell])
        if not (self._is_urgent or self._is_wanted):
            handle = self.server.fileno() if elected else None
            self._is_idle = True
            if not self._is_wanted:
                watched = [self._bell] if handle is None else [self._bell, handle]
                self._sleep(self._next_look - time.monotonic(), watched)
            self._is_idle = False
            if not (elected or self._is_urgent):
                self._sleep(_REST, [self._bell])  # the elected process may bring the rows meanwhile
        self._is_urgent = self._is_wanted = False

    def _sleep(self, seconds: float, watched: list[Any]) -> None:
        """Sleep until one of these has something to read."""
        with contextlib.suppress(OSError, ValueError):  # the connection was closed meanwhile
            select.select(watched, [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
