"""Keeps the copy of this host close to the server: one thread in each process, and one active
process per host.

A file lock elects the process. It listens for the server's notifications, reads new rows a page at
a time, and applies the page. It applies no row that a crash of the server could take back: an
acknowledged append of this process is on the server's disk with everything before it, and for later
rows the thread asks for a barrier. The server notifies at most every 20 ms, so after a page the
thread looks again, at growing intervals. Between two looks the thread rests, unless somebody waits
for rows, so that a busy store is read in few large pages. Processes that were not elected read only
when their own rows do not arrive. When the server is away the thread tries again, and `trouble`
says why.

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
from scroll_context.files import try_lock
from scroll_context.log.rows import TableRow, is_unreadable
from scroll_shared.erasure import Purge
from scroll_shared.received import SENT, table_row
from scroll_shared.replica import Replica, StoreFacts
from scroll_shared.server import Server

PAGE_ROWS = 2_000
PAGE_BYTES = 32 << 20
# While nobody waits, the thread rests _WORK_SHARE times the duration of its last look, but at most
# _REST seconds.
_REST = 0.06
_WORK_SHARE = 4
# The seconds until another look after new rows: longer than the server's pause between
# notifications.
_ONE_MORE_LOOK = 0.022
# The seconds between two looks without a notification.
_IDLE = 1.0
# The seconds between two attempts to be elected.
_ELECTION = 0.5
# The seconds between two reports of the position of this copy.
_REPORT = 5.0

# No seq is larger.
_NEWEST = (1 << 63) - 1

_PAGE = f"""SELECT {SENT} FROM (
    SELECT *, sum(length(body)) OVER (ORDER BY seq) - length(body) AS before FROM scroll.event
    WHERE store_id = %s AND seq BETWEEN %s AND %s ORDER BY seq LIMIT %s) page
    WHERE before < %s ORDER BY seq"""

_logger = logging.getLogger("scroll_context.store")


class Follower:
    """Pulls rows that the copy lacks from the server."""

    def __init__(self, server: Server, facts: StoreFacts, replica: Replica, purge: Purge) -> None:
        # The reason why the server cannot be followed; empty while all is well.
        self.trouble = ""
        # The newest seq that this process has seen on the server.
        self.seen = 0
        self.server = server
        self._facts = facts
        self._replica = replica
        self._purge = purge
        self._pulling = threading.Lock()
        self._stopped = threading.Event()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        # The number of the connection that listens.
        self._listening = -1
        # The seconds until the next look, if there is no reason for an earlier one.
        self._pause = _IDLE
        # The end of the rest, and the time of the next look.
        self._rested = 0.0
        self._next_look = 0.0
        # The thread waits for a reason to look.
        self._is_idle = False
        # There is a reason to look, or even one that allows no rest.
        self._is_wanted = False
        self._is_urgent = False
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
        # The bell may be ringing already, or be closed.
        with contextlib.suppress(OSError):
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
        """Read everything that the server has now. Returns False if time ran out first.

        Raises StoreUnreachable if the server does not answer.
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
        """Read and apply one page. Returns whether there may be more."""
        self._replica.check()
        seq, chain = self._replica.head()
        if self._replica.has_own:
            # Another process may have applied them.
            self._replica.forget_own(seq)
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
                "seq %d%s of %s cannot be read and is shown as [unreadable]: a member of the store "
                "appended a row that is not an event. All other events are intact.",
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
                elected = elected or try_lock(lock)
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
        """Read new rows. Returns the seconds to wait afterwards."""
        before = self._replica.head()[0]
        durable = self._replica.durable
        notified = self.server.notified
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
        # A notification may be about rows after the page.
        if self._replica.head()[0] > before or self.server.notified > notified:
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
        """Report the position of this copy to the server."""
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
        """Rest, then wait for a reason to look: the bell, a message of the server, or the time."""
        self._sleep(self._rested - time.monotonic(), [self._bell])
        if not (self._is_urgent or self._is_wanted):
            handle = self.server.fileno() if elected else None
            self._is_idle = True
            if not self._is_wanted:
                watched = [self._bell] if handle is None else [self._bell, handle]
                self._sleep(self._next_look - time.monotonic(), watched)
            self._is_idle = False
            if not (elected or self._is_urgent):
                # The elected process may apply the rows meanwhile.
                self._sleep(_REST, [self._bell])
        self._is_urgent = self._is_wanted = False

    def _sleep(self, seconds: float, watched: list[Any]) -> None:
        """Sleep until one of these has something to read."""
        # The connection may be closed meanwhile.
        with contextlib.suppress(OSError, ValueError):
            select.select(watched, [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
