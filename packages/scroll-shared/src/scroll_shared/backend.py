"""The backend of a shared log: appends go to the server, reads come from the replica on this host.

The replica is the same kind of file as a local log, so reading code does not know the difference
(`LogBackend` in the core states the contract). What differs: an append needs the server and raises
StoreUnreachable without it, while reads still work; events of other hosts arrive a little later;
events that this process has appended can be read at once.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scroll_context.errors import BadInput, NotAStore, ScrollError, StoreUnreachable
from scroll_context.log.backend import ErasureRecord, LogWatcher, Written
from scroll_context.log.erasing import erasure_draft
from scroll_context.log.file_backend import Readers
from scroll_context.log.lease import Holder
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import PreparedRow, TableRow, prepare
from scroll_context.log.schema import PAGE, Values, utc_now
from scroll_shared import admin
from scroll_shared.address import Address
from scroll_shared.erasure import (
    LOCK_TIMEOUT,
    Purge,
    erase_on_server,
    remove_payloads,
    unconfirmed,
    vacuum,
)
from scroll_shared.follower import Follower
from scroll_shared.leases import Leases, SharedLease
from scroll_shared.objects import SCHEMES, Bucket, ObjectPlace, SharedPayloads
from scroll_shared.replica import Replica, StoreFacts, make_replica, read_facts
from scroll_shared.server import Server
from scroll_shared.snapshots import begin_from_snapshot
from scroll_shared.writer import ServerWriter


class SharedBackend:
    """The log on a server, and its replica on this host."""

    linger = ServerWriter.linger
    lock_timeout = LOCK_TIMEOUT
    owns_file = False

    def __init__(self, address: Address, facts: StoreFacts, payloads: PayloadStore) -> None:
        self.address = address
        self.facts = facts
        self.payloads = payloads
        self.replica = Replica(address.folder, address)
        self.path = self.replica.path
        self.server = Server(address, "scroll append")
        self._readers = Readers(self.path)
        self._watchers: list[LogWatcher] = []
        self._writer = ServerWriter(
            self.server, facts.store_id, self.replica, payloads, self._fetch, facts.secret
        )
        self._seq_at_start = 0
        following = Server(address, "scroll follow")
        purge = Purge(following, facts.store_id, self._readers, self.path, payloads)
        purge.on_purged = self._report_erased
        self.follower = Follower(following, facts, self.replica, purge)
        self._leases = Leases(Server(address, "scroll lease"), facts.store_id, self._reach)
        self.replica.on_applied = self._report_appended

    def start(self, *, fresh: bool) -> None:
        """Follow the server. With `fresh`, first read its events, as far as time allows."""
        if fresh:
            self.refresh()
        self._seq_at_start = self.applied_seq()
        self.follower.start()

    # writing

    def check_writable(self) -> None:
        self.server.check_process()

    def write(self, rows: Sequence[tuple[PreparedRow, int | None]]) -> list[Written | ScrollError]:
        return self._writer.write(rows)

    def resolve_unanswered(self) -> None:
        self._writer.resolve_unanswered(time.monotonic() + self.address.timeout)

    # reading

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        if self.replica.has_own:
            return self.replica.query(sql, values)
        return self._readers.query(sql, values)

    # freshness

    def last_seq(self) -> int:
        return max(self.replica.newest_own(), self.applied_seq())

    def applied_seq(self) -> int:
        return int(self._readers.query("SELECT ifnull(max(seq), 0) FROM event", ())[0][0])

    def awaited_seq(self, patience: float) -> int:
        self.wait_for_own(patience)
        return min(max(self._writer.newest, self._seq_at_start), self.applied_seq())

    def wait_for_own(self, patience: float) -> bool:
        if not self.replica.has_own:
            return True
        self.follower.ring()
        return self.replica.wait_for(self.replica.newest_own(), patience)

    def unread(self, seq: int) -> int:
        return max(0, self.follower.seen - seq, self.last_seq() - seq)

    def refresh(self) -> None:
        try:
            self.follower.catch_up(self.address.timeout)
        except StoreUnreachable as error:
            self.follower.trouble = str(error)

    def watch(self, watcher: LogWatcher) -> None:
        self._watchers.append(watcher)

    def _report_appended(self) -> None:
        for watcher in self._watchers:
            watcher.rows_appended()

    def _report_erased(self) -> None:
        for watcher in self._watchers:
            watcher.rows_erased()

    def _fetch(self, seq: int) -> None:
        """Have the follower look for new rows. With a seq of another host's event, wait for it."""
        if seq:
            self.refresh()
        else:
            self.follower.nudge()

    # leases

    def take_lease(self, session_id: str, wait: float = 0.0) -> SharedLease:
        self.replica.check()
        return self._leases.take(session_id, utc_now(), wait)

    def holder(self, session_id: str) -> Holder | None:
        return self._leases.holder(session_id)

    def _reach(self, seq: int) -> None:
        """Make sure that the copy has everything up to a seq, or raise."""
        if self.replica.head()[0] < seq and not self.follower.catch_up(self.address.timeout):
            raise self.server.unreachable(f"the copy of this host is still behind seq {seq}")

    # erasing

    def erase(
        self, seqs: list[int], payloads: list[str], facts: Mapping[str, Any]
    ) -> ErasureRecord:
        rows: list[TableRow] = []
        for at in range(0, len(seqs), PAGE):
            part = seqs[at : at + PAGE]
            marks = ", ".join("?" * len(part))
            page = self.query(f"SELECT * FROM event WHERE seq IN ({marks})", part)
            rows += map(TableRow._make, page)
        record = prepare(erasure_draft(seqs, facts), utc_now(), self.payloads)
        seq = erase_on_server(self.server, self.facts.store_id, rows, record)
        # This carries out the erasure in the copy of this host.
        self.refresh()
        unfinished = [
            *remove_payloads(self.server, self.facts.store_id, self.payloads, payloads, seq),
            *unconfirmed(self.server, self.facts.store_id, seq),
            *vacuum(self.server),
        ]
        return ErasureRecord(seq, "; ".join(unfinished))

    def close(self) -> None:
        self._leases.close()
        self.follower.close()
        self._readers.close()
        self._writer.close()
        self.replica.close()


def shared_backend(log: EventLog) -> SharedBackend:
    """The backend of a log that is on a server."""
    if not isinstance(log.backend, SharedBackend):
        raise BadInput(f"{log.path.parent} is a folder; name the postgresql:// address of a store")
    return log.backend


def open_shared(address: Address, *, create: bool = False) -> SharedBackend:
    """Open a shared store. Without its server, an existing copy can still be read."""
    server = Server(address, "scroll open")
    here = read_facts(address.folder)
    away = ""
    try:
        facts = _find(server, address)
        if facts is None and create:
            admin.init(address)
            facts = _find(server, address)
        if facts is None:
            raise NotAStore(
                f"there is no store {address.store!r:.80} at {address}, or this login is not a "
                "member of it. `scroll shared init URL` creates one, "
                "`scroll shared grant URL ROLE` admits a role."
            )
    except StoreUnreachable as error:
        if here is None:
            raise
        facts, away = here, str(error)
    except NotAStore:
        if not create:
            raise
        admin.init(address)
        facts = _find(server, address)
        assert facts is not None
    finally:
        server.close()
    payloads = open_payloads(address, facts)
    store_id = facts.store_id
    facts = make_replica(
        address.folder, facts, lambda: begin_from_snapshot(address, store_id, payloads)
    )
    backend = SharedBackend(address, facts, payloads)
    backend.follower.trouble = away
    try:
        backend.start(fresh=not away)
    except BaseException:
        backend.close()
        raise
    return backend


def _find(server: Server, address: Address) -> StoreFacts | None:
    admin.require_current(server)
    rows = server.call(
        "SELECT uid::text, store_id, payloads FROM scroll.store WHERE name = %s", [address.store]
    )
    if not rows:
        return None
    uid, store_id, payloads = rows[0]
    return StoreFacts(uid, store_id, payloads, address.shown, secrets.token_hex(32))


def open_payloads(address: Address, facts: StoreFacts) -> PayloadStore:
    """The payloads of a shared store: a folder that all hosts mount, or an object store with a
    cache on this host.
    """
    place = address.payloads or facts.payloads
    if place.partition("://")[0] in SCHEMES:
        return SharedPayloads(ObjectPlace(Bucket(place, facts.uid), address.folder / "payloads"))
    return PayloadStore(Path(place).expanduser())
