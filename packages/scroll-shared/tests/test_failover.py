"""A standby takes over and nothing is lost; a server from an older backup is noticed, and not
merged with.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forms import form
from scroll_context import Draft, Store
from scroll_context.errors import StoreDamaged, StoreReadOnly, StoreUnreachable
from scroll_context.upkeep.integrity import verify
from scroll_shared.backend import shared_backend
from servers import Postgres
from stores import Hosts


class Writers:
    """Threads that append on several hosts until they are stopped, through whatever happens to the
    server.
    """

    def __init__(self, stores: list[Store], threads: int = 2) -> None:
        self.acknowledged: dict[int, str] = {}
        self.attempted: set[str] = set()
        self.faults: list[BaseException] = []
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._write, args=(store, f"{host}-{number}"))
            for host, store in enumerate(stores)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, store: Store, name: str) -> None:
        count = 0
        while not self._stopped.is_set():
            content = f"{name}: {count}"
            count += 1
            self.attempted.add(content)
            try:
                seq = store.append(Draft(content=content))
            except StoreUnreachable:
                continue  # this one may or may not be recorded
            except BaseException as fault:
                self.faults.append(fault)
                return
            with self._lock:
                self.acknowledged[seq] = content

    def wait_for(self, more: int) -> None:
        """Until so many more appends were acknowledged."""
        target = len(self.acknowledged) + more
        while len(self.acknowledged) < target:
            assert not self.faults, self.faults
            self._stopped.wait(0.01)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        assert not self.faults, self.faults


def test_nothing_is_lost_when_a_synchronous_standby_is_promoted(
    own_postgres: Callable[..., Postgres], servers: Path, tmp_path: Path
) -> None:
    first = own_postgres()
    database = first.database()
    second = first.standby(servers / "second")
    try:
        either = database.replace(
            f"127.0.0.1:{first.port}", f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        )
        hosts = Hosts(f"{either}&target_session_attrs=read-write", tmp_path, timeout=3)
        stores = [hosts.open("a", create=True), hosts.open("b")]
        writers = Writers(stores)
        writers.wait_for(form(40, 200))
        first.kill()
        second.promote()
        writers.wait_for(form(40, 200))
        writers.stop()
        fresh = hosts.open("c")
        recorded = {event.seq: event.content for event in fresh.log.iterate()}
        assert {seq: recorded.get(seq) for seq in writers.acknowledged} == writers.acknowledged
        assert len(set(recorded.values())) == len(recorded), "nothing is there twice"
        assert set(recorded.values()) <= writers.attempted
        for store in (*stores, fresh):
            assert shared_backend(store.log).replica.wait_for(fresh.log.last_seq(), 60)
            assert verify(store.log).ok
        assert len({store.stats().head for store in (*stores, fresh)}) == 1
        hosts.close()
    finally:
        second.stop()


def test_a_server_from_an_older_backup_is_noticed_and_nothing_is_merged(
    own_postgres: Callable[..., Postgres], servers: Path, tmp_path: Path
) -> None:
    server = own_postgres()
    database = server.database()
    hosts = Hosts(database, tmp_path, timeout=3)
    store = hosts.open("a", create=True)
    store.append(Draft(content="before the backup"))
    restored = server.backup(servers / "backup")
    store.append(Draft(content="after the backup"))
    head = store.stats().head
    server.stop()
    restored.port = server.port
    restored.start()
    try:
        with pytest.raises(StoreDamaged, match="older backup"):
            store.append(Draft(content="must not be written"))
        name = database.rpartition("/")[2].partition("?")[0]
        assert restored.execute("SELECT last_seq FROM scroll.head", name) == [(1,)]
        assert [event.content for event in store.log.iterate()] == [
            "before the backup",
            "after the backup",
        ]
        assert store.stats().head == head and verify(store.log).ok
        hosts.close()
        with pytest.raises(StoreDamaged, match="older backup"):
            Store(hosts.address("a"))
        with Store(tmp_path / "a") as copy:  # it can still be read, as a folder
            assert copy.stats().head == head and verify(copy.log).ok
            with pytest.raises(StoreReadOnly):
                copy.append(Draft(content="nor here"))
        with Store(
            hosts.address("b")
        ) as other:  # a host without newer events goes on with the restored history
            assert other.append(Draft(content="another history")) == 2
        with pytest.raises(
            StoreDamaged, match="older backup"
        ):  # nor when the server has caught up with it
            Store(hosts.address("a"))
    finally:
        restored.stop()
