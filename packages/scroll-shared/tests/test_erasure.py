"""Erasing in a shared store: the words leave the server, the object store and the copy of every
host.
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from scroll_context import Draft, Store
from scroll_context.errors import StoreReadOnly
from scroll_context.upkeep.integrity import verify
from scroll_shared import admin
from scroll_shared.address import parse
from scroll_shared.backend import shared_backend
from scroll_shared.host_snapshot import take_of
from stores import Hosts, hosts_of

WORD = "xylophonist"


@pytest.fixture
def hosts(database: str, bucket: str, tmp_path: Path) -> Iterator[Hosts]:
    with hosts_of(database, tmp_path, payloads=bucket) as opened:
        opened.open("owner", create=True).close()
        yield opened


def fill(store: Store) -> None:
    store.append(Draft(content="before", role="user"))
    store.append(
        Draft(content=f"the {WORD} plays", role="user", source_key="import:f:1", headline=WORD)
    )
    store.append(Draft(content=f"{WORD} " * 20_000, role="user"))
    store.append(Draft(content="after", role="user"))


def holds(folder: Path, word: str) -> list[Path]:
    return [
        file for file in folder.rglob("*") if file.is_file() and word.encode() in file.read_bytes()
    ]


def test_the_words_leave_every_place(hosts: Hosts, database: str, tmp_path: Path) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    fill(first)
    assert shared_backend(second.log).replica.wait_for(4, 60)
    second.index.catch_up()
    assert len(second.index.search(WORD)) == 2 and second.log.text(second.log.get(3)).startswith(
        WORD
    )
    head = first.stats().head
    take_of(hosts.address("a"))
    report = first.erase(seqs=[2, 3], by="test")
    assert report.seq == 5 and report.payloads == 1
    shared_backend(first.log).follower.report()
    assert shared_backend(second.log).replica.wait_for(5, 60)
    second.log.backend.refresh()
    shared_backend(second.log).follower.report()
    for store in (first, second):
        assert [store.log.get(seq).is_erased for seq in range(1, 6)] == [
            False,
            True,
            True,
            False,
            False,
        ]
        assert verify(store.log).bad == ()
        store.index.catch_up()
        assert len(store.index.search(WORD)) == 0 and len(store.index.search("before")) == 1
    assert first.log.get(4).chain.hex() == head  # no address and no link has changed
    with psycopg.connect(database) as server:
        rows = server.execute("SELECT body, payloads FROM scroll.event").fetchall()
        assert not [body for body, _ in rows if WORD.encode() in body]
        assert server.execute("SELECT count(*) FROM scroll.snapshot").fetchone() == (0,)
        copies = [shared_backend(store.log).facts.replica for store in (first, second)]
        purged = server.execute(
            "SELECT purged FROM scroll.replica WHERE replica::text = ANY(%s)", [copies]
        ).fetchall()
        assert purged == [(5,), (5,)]
    assert list(first.payloads.digests()) == []
    first.close()
    second.close()
    assert holds(tmp_path, WORD) == []


def test_an_erased_event_is_known_again_on_every_host(hosts: Hosts) -> None:
    first = hosts.open("a")
    fill(first)
    first.erase(seqs=[2])
    fresh = hosts.open("c")
    assert fresh.log.get(2).is_erased
    assert fresh.append(Draft(content="again", source_key="import:f:1")) == 2


def test_a_host_that_was_away_is_listed_and_purges_when_it_comes_back(
    hosts: Hosts, tmp_path: Path
) -> None:
    away = hosts.open("away")
    fill(away)
    shared_backend(away.log).follower.report()
    away.close()
    first = hosts.open("a")
    report = first.erase(seqs=[2, 3])
    assert "has not confirmed" in report.unfinished
    assert holds(tmp_path / "away", WORD)
    back = hosts.open("away")
    assert back.log.get(2).is_erased and verify(back.log).bad == ()
    back.close()
    assert holds(tmp_path / "away", WORD) == []


def test_only_a_role_that_may_erase_does(hosts: Hosts, database: str) -> None:
    owner = hosts.open("a")
    fill(owner)
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    role = f"appender_{name}"
    with psycopg.connect(database, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'".encode())
        admin.grant(parse(hosts.url), role)
        rest = hosts.address("b").partition("@")[2]
        try:
            with Store(f"postgresql://{role}:pw@{rest}") as store:
                with pytest.raises(StoreReadOnly):
                    store.erase(seqs=[2])
                assert store.log.get(2).headline == WORD
            admin.grant(parse(hosts.url), role, can_erase=True)
            with Store(f"postgresql://{role}:pw@{rest}") as store:
                report = store.erase(seqs=[2])
                assert store.log.get(2).is_erased and "vacuum" in report.unfinished.lower()
        finally:
            server.execute(f"DROP OWNED BY {role}".encode())
            server.execute(f"DROP ROLE {role}".encode())
