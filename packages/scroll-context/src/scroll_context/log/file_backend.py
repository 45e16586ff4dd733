"""The built-in backend of a log: one SQLite file in a folder (`LogBackend`, backend.py).

Every process of this machine writes the file itself, so whatever was appended can be read at once,
and the questions about freshness have simple answers. A folder that is the local copy of a shared
store can be read with this backend too; only its own backend writes to it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scroll_context.errors import StoreReadOnly
from scroll_context.log import lease, schema
from scroll_context.log.backend import ErasureRecord, LogWatcher, Written
from scroll_context.log.erasing import add_chores, blank_rows, erasure_draft, rewriting
from scroll_context.log.lease import Holder, Lease
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.readers import Readers, Values
from scroll_context.log.rows import PreparedRow, prepare
from scroll_context.log.schema import utc_now
from scroll_context.log.writer import INSERT, FileWriter, StoreLimits, head_of, is_replica

LEASES = "leases"
"""The folder of a store that holds them."""


class FileBackend:
    """The log in a folder of this machine."""

    linger = 0.0

    def __init__(
        self,
        folder: Path,
        *,
        create: bool = False,
        lock_timeout: float = 30.0,
        limits: StoreLimits | None = None,
    ) -> None:
        if create and schema.is_vacant(folder):
            schema.create(folder)
        self.path = schema.locate(folder)
        self.payloads = PayloadStore(folder / "payloads")
        self.lock_timeout = lock_timeout
        self.owns_file = not is_replica(folder)
        self.writer = FileWriter(self.path, self.payloads, lock_timeout, limits or StoreLimits())
        self.readers = Readers(self.path)
        self._watchers: list[LogWatcher] = []

    # writing

    def check_writable(self) -> None:
        if not self.owns_file:
            raise StoreReadOnly(
                f"{self.path.parent} is the local copy of a shared store; nothing was changed. "
                "Open the store by its postgresql:// address."
            )

    def write(self, rows: Sequence[tuple[PreparedRow, int | None]]) -> list[Written]:
        return self.writer.write(rows)

    def resolve_unanswered(self) -> None:
        """SQLite always answers: a transaction that was interrupted is rolled back by the next
        one, and what was committed can be read.
        """

    # reading

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self.readers.query(sql, values)

    # freshness

    def last_seq(self) -> int:
        return int(self.query("SELECT ifnull(max(seq), 0) FROM event")[0][0])

    def applied_seq(self) -> int:
        return self.last_seq()

    def awaited_seq(self, patience: float) -> int:  # noqa: ARG002 - there is nothing to wait for
        return self.last_seq()

    def wait_for_own(self, patience: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True

    def unread(self, seq: int) -> int:  # noqa: ARG002 - readers wait for every event
        return 0

    def refresh(self) -> None:
        """The file is the log: every process appends to it directly."""

    def watch(self, watcher: LogWatcher) -> None:
        self._watchers.append(watcher)

    # leases

    def take_lease(self, session_id: str, wait: float = 0.0) -> Lease:
        return lease.take(self.path.parent / LEASES, session_id, utc_now(), wait)

    def holder(self, session_id: str) -> Holder | None:
        return lease.holder_of(self.path.parent / LEASES, session_id)

    # erasing

    def erase(
        self, seqs: list[int], payloads: list[str], facts: Mapping[str, Any]
    ) -> ErasureRecord:
        with rewriting(self.path, self.lock_timeout) as database:
            last, head = head_of(database, self.path)
            blank_rows(database, seqs)
            if seqs:
                add_chores(database, payloads)
            record = prepare(erasure_draft(seqs, facts), utc_now(), self.payloads)
            database.execute(INSERT, record.at(last + 1, head))
        for watcher in self._watchers:
            watcher.rows_appended()
        return ErasureRecord(last + 1, "")

    def close(self) -> None:
        self.readers.close()
        self.writer.close()
