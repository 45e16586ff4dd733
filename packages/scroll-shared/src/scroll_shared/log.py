"""The event log of a shared store: appends go to the server, reads come from the copy on this host.

Everything that reads the log works as on a local store, the copy being the same kind of file. What
differs: an append needs the server and raises StoreUnreachable without it, while reads go on; what
other hosts have appended arrives a little later; what this process has appended can be read at
once. `applied_seq` is the end of the copy, below which nothing is missing.
"""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scroll_context.errors import NotAStore, StoreUnreachable
from scroll_context.log.lease import AnyLease, Holder
from scroll_context.log.log import EventLog, Values
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import PreparedRow
from scroll_context.log.schema import utc_now
from scroll_context.log.writer import Written
from scroll_shared import admin
from scroll_shared.address import Address
from scroll_shared.erasure import erase_on_server, purge, purged_until
from scroll_shared.follower import Follower
from scroll_shared.leases import Leases
from scroll_shared.objects import SCHEMES, Bucket, ObjectPlace, SharedPayloads
from scroll_shared.replica import Replica, StoreFacts, make_replica, read_facts
from scroll_shared.server import Server
from scroll_shared.snapshots import begin_from_snapshot
from scroll_shared.writer import ServerWriter


class SharedLog(EventLog):
    """Append to and read one shared log. Share one instance between threads."""

    def __init__(self, address: Address, facts: StoreFacts, payloads: PayloadStore) -> None:
        self.address = address
        self.facts = facts
        self.replica = Replica(address.folder, address)
        self.server = Server(address, "scroll append")
        writer = ServerWriter(
            self.server, facts.store_id, self.replica, payloads, self._fetch, facts.secret
        )
        super().__init__(address.folder, payloads, writer=writer)
        self._own_writer = writer
        self._at_start = 0  # the end of the copy when it was opened
        self.follower = Follower(Server(address, "scroll follow"), facts, self.replica)
        self._leases = Leases(Server(address, "scroll lease"), facts.store_id, self._reach)
        self.follower.purge = partial(purge, self, self.follower.server)
        self.follower.purged = partial(purged_until, self)
        self.erase_on_server = partial(erase_on_server, self)
        self.replica.on_applied = self._applied

    def start(self, *, fresh: bool) -> None:
        """Follow the server from now on; with `fresh`, first read what it has, as far as that is
        possible in time.
        """
        if fresh:
            self.refresh()
        self._at_start = self.applied_seq()
        self.follower.start()

    def refresh(self) -> None:
        try:
            self.follower.catch_up(self.address.timeout)
        except StoreUnreachable as error:
            self.follower.trouble = str(error)

    def write(
        self, rows: list[PreparedRow], epochs: Mapping[str, int | None] | None = None
    ) -> list[Written]:
        # before any lock, which a thread of the other process may have held at the fork
        self.server.check_process()
        return super().write(rows, epochs)

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return (
            self.replica.query(sql, values) if self.replica.has_own else super().query(sql, values)
        )

    def last_seq(self) -> int:
        return max(self.replica.newest_own(), self.applied_seq())

    def applied_seq(self) -> int:
        return int(super().query("SELECT ifnull(max(seq), 0) FROM event")[0][0])

    def awaited_seq(self, patience: float) -> int:
        self.wait_for_own(patience)
        return min(max(self._own_writer.newest, self._at_start), self.applied_seq())

    def wait_for_own(self, patience: float) -> bool:
        if not self.replica.has_own:
            return True
        self.follower.ring()
        return self.replica.wait_for(self.replica.newest_own(), patience)

    def unread(self, seq: int) -> int:
        return max(0, self.follower.seen - seq, self.last_seq() - seq)

    def take_lease(self, session_id: str, wait: float = 0.0) -> AnyLease:
        self.replica.check()
        return self._leases.take(session_id, utc_now(), wait)

    def holder(self, session_id: str) -> Holder | None:
        return self._leases.holder(session_id)

    def settle(self) -> None:
        with self._write_lock:
            self._own_writer.settle(time.monotonic() + self.address.timeout)

    def _fetch(self, seq: int) -> None:
        """Have the follower look; for an event of another host, which no memory holds, wait until
        it is here.
        """
        if seq:
            self.refresh()
        else:
            self.follower.nudge()

    def _reach(self, seq: int) -> None:
        """Have everything up to a seq in the copy, or raise."""
        if self.replica.head()[0] < seq and not self.follower.catch_up(self.address.timeout):
            raise self.server.unreachable(f"the copy of this host is still behind seq {seq}")

    def _applied(self) -> None:
        if self.on_append is not None:
            self.on_append()

    def close(self) -> None:
        self._leases.close()
        self.follower.close()
        super().close()
        self.replica.close()


def open_shared(address: Address, *, create: bool = False) -> SharedLog:
    """Open the log of a shared store. Without its server, an existing copy can still be read."""
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
                f"there is no store {address.store!r:.80} at {address}, or this login is no member of it. "
                "`scroll admin init URL` makes one, `scroll admin grant URL ROLE` admits a role."
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
    log = SharedLog(address, facts, payloads)
    log.follower.trouble = away
    try:
        log.start(fresh=not away)
    except BaseException:
        log.close()
        raise
    return log


def _find(server: Server, address: Address) -> StoreFacts | None:
    admin.require_current(server)
    found = server.call(
        "SELECT uid::text, store_id, payloads FROM scroll.store WHERE name = %s", [address.store]
    )
    if not found:
        return None
    uid, store_id, payloads = found[0]
    return StoreFacts(uid, store_id, payloads, address.shown, secrets.token_hex(32))


def open_payloads(address: Address, facts: StoreFacts) -> PayloadStore:
    """The payloads of a shared store: a folder that all hosts mount, or an object store with a
    cache on this host.
    """
    place = address.payloads or facts.payloads
    if place.partition("://")[0] in SCHEMES:
        return SharedPayloads(ObjectPlace(Bucket(place, facts.uid), address.folder / "payloads"))
    return PayloadStore(Path(place).expanduser())
