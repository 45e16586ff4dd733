"""The shared log: what is appended on one host is on all, byte for byte, in one order and one
chain.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from scroll_context import Draft, Store
from scroll_context.errors import (
    BadInput,
    NotAStore,
    SessionBusy,
    StoreDamaged,
    StoreError,
    StoreReadOnly,
)
from scroll_context.events import Kind, Scope
from scroll_context.log.journal import Journal
from scroll_context.log.rows import METADATA_LIMIT
from scroll_context.upkeep.integrity import verify
from scroll_shared.backend import shared_backend
from servers import CannotStart, Pooler, Postgres
from stores import Hosts, hosts_of


@pytest.fixture
def hosts(database: str, tmp_path: Path) -> Iterator[Hosts]:
    with hosts_of(database, tmp_path) as opened:
        opened.open("first", create=True)
        yield opened


def reach(store: Store, seq: int) -> None:
    assert shared_backend(store.log).replica.wait_for(seq, 60)


STRANGE = [
    Draft(
        content="a\0b", metadata={"k\0": "v\0"}, session_id="s\0", agent_id="\0", source_key="key\0"
    ),
    Draft(content="lone \ud800 surrogate", name="\U0001f600"),
    Draft(content="", metadata={"n": 1.5, "deep": [{"x": None}]}, reply_to=1, step_index=-(2**62)),
    Draft(content="x" * 100_000, kind="tool_result", role="tool"),
    Draft(content="large", metadata={"m": "é" * (METADATA_LIMIT // 2 - 10)}),
]


def test_events_are_the_same_on_every_host_and_as_on_a_local_store(
    hosts: Hosts, tmp_path: Path
) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    with Store(tmp_path / "local", create=True) as local:
        for draft in STRANGE:
            assert first.append(draft) == local.append(draft)
        reach(second, len(STRANGE))
        for seq in range(1, len(STRANGE) + 1):
            here, there, alone = first.log.get(seq), second.log.get(seq), local.log.get(seq)
            assert here == there and here.chain == there.chain
            shown = [
                (e.content, e.metadata, e.session_id, e.payload, e.name, e.source_key)
                for e in (here, alone)
            ]
            assert shown[0] == shown[1]
            assert second.log.text(there) == local.log.text(alone)
        assert verify(first.log).bad == verify(second.log).bad == ()


def test_a_look_that_asks_for_less_than_the_copy_has_finds_nothing_wrong(hosts: Hosts) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    first.log.append_many([Draft(content=str(n)) for n in range(5)])
    reach(second, 5)
    assert shared_backend(second.log).follower.catch_up(60, upto=3)
    assert second.append(Draft(content="goes on")) == 6


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # newer versions of Python warn of every fork
def test_a_forked_process_must_open_the_store_itself(hosts: Hosts) -> None:
    store = hosts.open("a")
    assert store.append(Draft(content="before")) == 1
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            store.append(Draft(content="over the connection of another process"))
        except StoreError as error:
            os.write(writing, str(error).encode())
        finally:
            with contextlib.suppress(BaseException):
                shared_backend(store.log).server.close()
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as told:
        assert "Open the store in this process" in told.read()
    assert store.append(Draft(content="after")) == 2


def test_what_a_process_appends_it_reads_at_once_whatever_others_append(hosts: Hosts) -> None:
    stores = [hosts.open(name) for name in "abc"]
    failures: list[str] = []

    def work(store: Store, name: str) -> None:
        for n in range(30):
            seq = store.append(
                Draft(content=f"{name} {n}", session_id=name, source_key=f"{name}-{n}")
            )
            if store.log.get(seq).content != f"{name} {n}" or store.log.last_seq() < seq:
                failures.append(f"{name} {n}")
            newest = store.log.tail(1, session_id=name)[0]
            found = store.log.find_source(f"{name}-{n}")
            if newest.seq != seq or found is None or found.seq != seq:
                failures.append(f"{name} {n} in a query")

    threads = [
        threading.Thread(target=work, args=(store, f"{host}-{thread}"))
        for host, store in enumerate(stores)
        for thread in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    newest = max(store.log.last_seq() for store in stores)
    assert newest == 180
    for store in stores:
        reach(store, newest)
    assert len({store.stats().head for store in stores}) == 1
    assert [event.seq for event in stores[0].log.iterate()] == list(range(1, 181))


def test_a_source_key_is_recorded_once_on_all_hosts(hosts: Hosts) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    keyed = Draft(content="once", source_key="import:x:1")
    assert first.append(keyed) == second.append(keyed) == 1
    fresh = Draft(content="new", source_key="k", session_id="s")
    assert second.log.append_many([keyed, fresh, keyed]) == [1, 2, 1]
    journal = Journal(first.log, Scope("s"))
    event, is_new = journal.append_once("k", journal.draft(Kind.NOTICE, content="other words"))
    assert event.content == "new" and not is_new  # although this host may not have met it yet
    journal.close()


def test_a_search_finds_what_its_own_host_wrote_and_later_what_others_did(hosts: Hosts) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    first.append(Draft(content="the heron waits", role="user"))
    assert [hit.event.seq for hit in first.index.search("heron")] == [1]
    reach(second, 1)
    early = second.index.search(
        "heron"
    )  # it waits for its own host only, and says what it may lack
    assert early.behind <= 1 and (early.behind == 1) == ("not searchable yet" in early.note)
    second.append(Draft(content="a kingfisher dives", role="user"))
    assert [hit.event.seq for hit in second.index.search("kingfisher")] == [2]
    assert [hit.event.seq for hit in second.index.search("heron")] == [1]
    assert second.sql().query("SELECT max(seq) AS n FROM hist.events").rows == [{"n": 2}]


def test_hosts_behind_a_pooler_append_follow_and_take_turns(
    postgres: Postgres, database: str, servers: Path, tmp_path: Path
) -> None:
    try:
        pooler = Pooler(servers / "pooler", postgres)
    except CannotStart as error:
        pytest.skip(str(error))
    try:
        with hosts_of(
            database.replace(f":{postgres.port}/", f":{pooler.port}/"), tmp_path
        ) as hosts:
            first, second = hosts.open("a", create=True), hosts.open("b")
            journal = Journal(first.log, Scope("s"))
            for n in range(1, 21):  # more often than it takes for a statement to be prepared
                assert journal.append(journal.draft(Kind.NOTICE, content=f"event {n}")).seq == n
            with pytest.raises(SessionBusy):
                Journal(second.log, Scope("s"))
            journal.close()
            reach(second, 20)
            assert second.append(Draft(content="by the other host")) == 21
            assert verify(first.log).bad == verify(second.log).bad == ()
    finally:
        pooler.stop()


def test_a_copy_is_opened_again_and_refuses_appends_as_a_folder(hosts: Hosts) -> None:
    first = hosts.open("a")
    first.append(Draft(content="one"))
    first.close()
    with Store(hosts.folder / "a") as folder:
        assert folder.log.get(1).content == "one"
        with pytest.raises(StoreReadOnly, match="postgresql://"):
            folder.append(Draft(content="astray"))
    again = hosts.open("a")
    assert again.append(Draft(content="two")) == 2


def test_partitions_are_made_ahead_of_the_events(database: str, tmp_path: Path) -> None:
    with hosts_of(database, tmp_path) as hosts:
        store = hosts.open("a", create=True)
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(
                """CREATE OR REPLACE FUNCTION scroll.partition_events() RETURNS bigint LANGUAGE sql IMMUTABLE
                AS 'SELECT 10::bigint'; DROP TABLE scroll.event_0; SELECT scroll.ensure_partition(0)"""
            )
            for size in (1, 3, 1, 6, 40, 2):
                store.log.append_many([Draft(content="filler")] * size)
            parts = admin.execute(
                "SELECT tableoid::regclass::text, count(*) FROM scroll.event GROUP BY 1"
            ).fetchall()
        assert dict(parts) == {
            f"scroll.event_{n}": 9 if n == 0 else 4 if n == 5 else 10 for n in range(6)
        }
        assert verify(store.log).events == 53


def test_a_server_with_an_older_history_is_refused_and_nothing_is_merged(
    hosts: Hosts, database: str
) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    for n in range(5):
        first.append(Draft(content=f"event {n}"))
    reach(second, 5)
    second.close()
    with psycopg.connect(database, autocommit=True) as admin:  # as a restored backup would have it
        admin.execute("DELETE FROM scroll.event WHERE seq > 3")
        admin.execute(
            "UPDATE scroll.head SET last_seq = 3, chain = (SELECT chain FROM scroll.event WHERE seq = 3)"
        )
    with pytest.raises(StoreDamaged, match="older backup"):
        first.append(Draft(content="onto another history"))
    with pytest.raises(StoreDamaged, match="older backup"):
        hosts.open("b")
    assert first.log.last_seq() == 5 and first.log.get(5).content == "event 4"
    fresh = hosts.open("c")
    assert fresh.log.last_seq() == 3 and fresh.append(Draft(content="on the restored history")) == 4


def test_a_server_with_as_many_events_of_another_history_is_refused(
    hosts: Hosts, database: str
) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    for n in range(5):
        first.append(Draft(content=f"event {n}"))
    reach(second, 5)
    first.close()
    second.close()
    with psycopg.connect(database, autocommit=True) as admin:  # as a restored backup would have it
        admin.execute("DELETE FROM scroll.event WHERE seq > 3")
        admin.execute(
            "UPDATE scroll.head SET last_seq = 3, chain = (SELECT chain FROM scroll.event WHERE seq = 3)"
        )
    with hosts_of(
        database, hosts.folder / "restored", payloads=hosts.folder / "payloads"
    ) as restored:
        other = restored.open("c")
        assert [other.append(Draft(content=f"another {n}")) for n in range(2)] == [4, 5]
    with pytest.raises(StoreDamaged, match="seq 5 is not on the server as it is here"):
        hosts.open("b")
    with Store(hosts.folder / "b") as untouched:
        assert untouched.log.get(5).content == "event 4"


def test_a_row_that_breaks_the_chain_is_not_written(hosts: Hosts, database: str) -> None:
    first = hosts.open("a")
    for n in range(3):
        first.append(Draft(content=f"event {n}"))
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("UPDATE scroll.event SET body = body || 'x'::bytea WHERE seq = 2")
    with pytest.raises(StoreDamaged, match="seq 2"):
        hosts.open("b")


def test_addresses_that_cannot_be_used_are_refused_in_words(database: str, tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="scroll shared init"):
        Store(f"{database}&store=none")
    with pytest.raises(BadInput, match="names no store"):
        Store(database)
    with pytest.raises(BadInput, match="payloads"):
        Store(f"{database}&store=x", create=True)
    with pytest.raises(BadInput, match="plaintext"):
        Store(database.replace("sslmode=disable", "sslmode=prefer") + "&store=x")
