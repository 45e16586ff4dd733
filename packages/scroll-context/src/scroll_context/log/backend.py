"""The contract of a backend, the place where a log keeps its rows.

`EventLog` (log.py) has one backend. The built-in one is a SQLite file in a folder
(file_backend.py); installed packages register others by the scheme of an address (schemes.py).
Whatever the backend, this process reads a SQLite file: the log itself, or a copy that follows the
log elsewhere. Reading code therefore works on every backend, and only freshness differs.

Every method may be called from any thread, except where it says otherwise.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from scroll_context.errors import ScrollError
from scroll_context.log.lease import AnyLease, Holder
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import PreparedRow
from scroll_context.log.schema import Values


class Written(NamedTuple):
    """Where a row stands in the log.

    A row whose source key was known is not new, and has no chain value here.
    """

    seq: int
    chain: bytes
    is_new: bool


class ErasureRecord(NamedTuple):
    """The seq of the event that records an erasure, and what the backend has not done yet in words.

    `unfinished` is "" if nothing remains to do.
    """

    seq: int
    unfinished: str


class LogWatcher(Protocol):
    """Learns of rows that did not come through `LogBackend.write`."""

    def rows_appended(self) -> None:
        """The file has new rows: of another host, or the record of an erasure."""

    def rows_erased(self) -> None:
        """Rows of the file were erased elsewhere; other files of the store may still have their
        content.
        """


class LogBackend(Protocol):
    """Where the rows of a log are kept."""

    path: Path
    """The SQLite file that this process reads. The store's other files are in the same folder."""

    payloads: PayloadStore

    lock_timeout: float
    """How many seconds to wait for another process that writes the file."""

    owns_file: bool
    """Whether the file is the log itself, so that upkeep may write rows to it. A copy may not."""

    linger: float
    """How many seconds to wait after a shared commit for the callers whom it has woken, so that
    they share the next one.
    """

    # writing

    def check_writable(self) -> None:
        """Raise if this process may not append at all. Called before any lock is taken, since a
        forked process inherits the locks of its parent.
        """

    def write(
        self, rows: Sequence[tuple[PreparedRow, int | None]]
    ) -> Sequence[Written | ScrollError]:
        """Record rows in order, each with the epoch of its session's lease if it has one. They are
        durable, and can be read, when this returns. One thread calls it at a time.

        The answer has an error for each row of a session that somebody else has taken; all other
        rows are recorded. A failure of the whole batch raises, and records nothing or, with
        StoreUnreachable, leaves open whether it did.
        """

    def resolve_unanswered(self) -> None:
        """Find out what became of a batch that `write` left open: afterwards its rows can be read,
        or will never be recorded. Raises StoreUnreachable if nobody can say. Not during a `write`.
        """

    # reading

    def query(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        """Run one of Scroll's own SELECTs on all rows that this process may expect to see: those
        of the file, and its own appends even before the file has them.
        """

    # freshness

    def last_seq(self) -> int:
        """The newest seq that `query` returns; 0 for an empty log."""

    def applied_seq(self) -> int:
        """The newest seq of the file. No seq before it is missing."""

    def awaited_seq(self, patience: float) -> int:
        """The newest seq that a reader of this process may insist on, present in the file: own
        appends, and what was there when the log was opened. Waits up to `patience` seconds.
        """

    def wait_for_own(self, patience: float) -> bool:
        """Wait until the file has what this process has appended; False if that takes longer."""

    def unread(self, seq: int) -> int:
        """How many events behind this seq are known to exist and need not be waited for."""

    def refresh(self) -> None:
        """Bring the file up to date with other hosts. If they cannot be reached, leave it."""

    def watch(self, watcher: LogWatcher) -> None:
        """Report to the watcher from now on, in any thread."""

    # leases

    def take_lease(self, session_id: str, wait: float = 0.0) -> AnyLease:
        """Make this process the only writer of a session, among all that use the log.

        Waits up to `wait` seconds, then raises SessionBusy. The file has everything that the last
        holder recorded when this returns.
        """

    def holder(self, session_id: str) -> Holder | None:
        """The holder of an open session; None if there is none or it is unknown."""

    # erasing

    def erase(
        self, seqs: list[int], payloads: list[str], facts: Mapping[str, Any]
    ) -> ErasureRecord:
        """Replace rows by erased ones and append the event that records it, all or nothing.

        `payloads` are the bodies that only these events name; `facts` go into the record. The file
        is changed when this returns. Its free pages and the other files of the store are cleaned
        by upkeep/erase.py.
        """

    # lifetime

    def close(self) -> None:
        """Finish what runs, and let go of files and connections. No method is called afterwards,
        except `query`, which raises StoreClosed.
        """
