"""A network that cuts, swallows answers, keeps silent or refuses: no call outlives its deadline,
nothing is doubled.
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from forms import form
from proxy import Mode, Proxy
from scroll_context import Draft, Store
from scroll_context.errors import SessionBusy, StoreUnreachable
from scroll_context.events import Kind, Scope
from scroll_context.log.journal import Journal
from scroll_shared.address import parse
from scroll_shared.server import Server
from servers import Postgres
from stores import Hosts, hosts_of

TIMEOUT = 2.0
SLACK = 20.0  # seconds that a busy machine may add


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    between = Proxy(postgres.port)
    yield between
    between.close()


@pytest.fixture
def hosts(postgres: Postgres, database: str, proxy: Proxy, tmp_path: Path) -> Iterator[Hosts]:
    through = database.replace(f":{postgres.port}/", f":{proxy.port}/")
    with hosts_of(through, tmp_path, timeout=TIMEOUT, lease=60) as opened:
        opened.open("owner", create=True)
        yield opened
        proxy.mode = "pass"
        proxy.cut()


def contents(hosts: Hosts) -> Counter[str]:
    return Counter(event.content for event in hosts.open("reader").log.iterate())


@pytest.mark.parametrize("mode", form(["swallow", "refuse"], ["swallow", "blackhole", "refuse"]))
def test_without_the_server_appends_fail_in_time_and_reading_goes_on(
    hosts: Hosts, proxy: Proxy, mode: Mode
) -> None:
    store = hosts.open("a")
    store.append(Draft(content="the otter sleeps", role="user"))
    assert len(store.index.search("otter")) == 1
    proxy.mode = mode
    if mode == "refuse":
        proxy.cut()
    begun = time.monotonic()
    with ThreadPoolExecutor() as threads:  # at once, since each takes as long as it may
        append = threads.submit(store.append, Draft(content="lost in the net"))
        journal = threads.submit(Journal, store.log, Scope("s"))
        new = threads.submit(hosts.open, "new")
        copy = threads.submit(
            Store, hosts.address("a")
        )  # an existing copy opens without the server
        assert store.log.get(1).content == "the otter sleeps"
        assert len(store.index.search("otter")) == 1
        assert store.sql().query("SELECT count(*) AS n FROM hist.events").rows == [{"n": 1}]
    assert "may or may not be recorded" in str(append.exception())
    assert [type(one.exception()) for one in (append, journal, new)] == [StoreUnreachable] * 3
    with copy.result() as offline:
        assert offline.log.get(1).content == "the otter sleeps"
    assert time.monotonic() - begun < TIMEOUT + SLACK
    proxy.mode = "pass"
    proxy.cut()
    seq = store.append(Draft(content="back again"))
    assert seq in (2, 3) and store.log.get(seq).content == "back again"
    found = contents(hosts)
    assert found["back again"] == 1 and found["lost in the net"] in (0, 1)
    assert store.log.last_seq() == seq  # what became of the lost one is known by now
    assert found["lost in the net"] == seq - 2


def test_a_name_that_is_never_resolved_ends_no_later_than_the_deadline(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: answered.wait(60)
    )  # a resolver that keeps silent
    server = Server(
        parse(f"{database.replace('127.0.0.1', 'database.example')}&store=main&timeout=0.5")
    )
    with pytest.raises(StoreUnreachable, match="no connection in time"):
        server.call("SELECT 1")
    assert not answered.is_set()
    answered.set()


def test_an_answer_that_is_lost_is_asked_for_again(
    hosts: Hosts, proxy: Proxy, database: str
) -> None:
    store = hosts.open("a")
    store.append(Draft(content="first"))
    proxy.mode = "swallow"
    done = threading.Event()
    seqs: list[int] = []

    def append() -> None:
        seqs.append(store.append(Draft(content="once")))
        done.set()

    thread = threading.Thread(target=append)
    thread.start()
    with psycopg.connect(database, autocommit=True) as admin:
        while admin.execute("SELECT last_seq FROM scroll.head").fetchone() != (2,):
            assert not done.is_set()  # it is recorded, and nobody here knows
    proxy.mode = "pass"
    proxy.cut()
    thread.join(60)
    assert seqs == [2]
    assert contents(hosts) == Counter({"first": 1, "once": 1})


def test_nothing_is_doubled_while_the_network_fails_in_turns(hosts: Hosts, proxy: Proxy) -> None:
    store = hosts.open("a")
    journal = Journal(store.log, Scope("s"))
    over = threading.Event()
    known: list[str] = []

    def work(name: str) -> None:
        number = 0
        while not over.is_set():
            content = f"{name} {number}"
            number += 1
            try:
                journal.append(journal.draft(Kind.NOTICE, content=content))
            except StoreUnreachable:
                continue
            known.append(content)

    threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for n in range(form(6, 40)):
        before = len(known)
        deadline = time.monotonic() + 60
        while len(known) < before + 5:
            assert time.monotonic() < deadline, "appends do not go on"
            time.sleep(0.01)
        proxy.mode = ("swallow", "blackhole", "refuse")[n % 3]  # type: ignore[assignment]
        time.sleep(0.3)  # how long the fault lasts
        proxy.mode = "pass"
        proxy.cut()
    over.set()
    for thread in threads:
        thread.join()
    found = contents(hosts)
    assert max(found.values()) == 1
    assert not set(known) - set(found)
    shown = [event.content for event in store.log.iterate(session_id="s")]
    assert Counter(shown) == found
    with pytest.raises(SessionBusy):
        Journal(hosts.open("b").log, Scope("s"))
    journal.close()


def test_an_append_without_an_answer_is_in_the_view_as_it_is_in_the_log(
    hosts: Hosts, proxy: Proxy, database: str
) -> None:
    store = hosts.open("a")
    journal = Journal(store.log, Scope("s"))
    seen: list[str] = []
    journal.follow(lambda event: seen.append(event.content))
    journal.append(journal.draft(Kind.NOTICE, content="first"))
    proxy.mode = "swallow"
    with pytest.raises(StoreUnreachable):
        journal.append(journal.draft(Kind.NOTICE, content="recorded, unanswered"))
    with psycopg.connect(database) as admin:
        assert admin.execute("SELECT last_seq FROM scroll.head").fetchone() == (2,)
    proxy.mode = "blackhole"
    proxy.cut()
    with pytest.raises(StoreUnreachable):
        journal.append(journal.draft(Kind.NOTICE, content="never sent"))
    proxy.mode = "pass"
    proxy.cut()
    journal.append(journal.draft(Kind.NOTICE, content="last"))
    assert seen == ["first", "recorded, unanswered", "last"]
    assert [event.content for event in store.log.iterate()] == seen
    journal.close()
