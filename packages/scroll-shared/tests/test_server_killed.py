"""Kill -9 of the whole server under writers on several hosts: nothing that was acknowledged is lost
or doubled.

The control takes the flush out of the procedure, and must lose acknowledged events: else this test
would prove nothing.
"""

import os
import re
import selectors
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg

from forms import form
from members import Member, body
from scroll_context import Draft
from scroll_shared.admin import migrations
from servers import Postgres
from stores import Hosts, hosts_of

DRIVER = Path(__file__).with_name("append_driver.py")


class Writers:
    """Hosts that append, and what they have been told is recorded."""

    def __init__(self, hosts: Hosts, count: int, threads: int) -> None:
        self.acknowledged: dict[str, int] = {}  # content: seq
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}
        self._processes = []
        for n in range(count):
            command = [sys.executable, str(DRIVER), hosts.address(f"w{n}"), f"w{n}", str(threads)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdout is not None
            self._processes.append(process)
            self._selector.register(process.stdout, selectors.EVENT_READ)

    def read(self, more: int) -> None:
        """Wait until this many more events are acknowledged."""
        wanted, deadline = len(self.acknowledged) + more, time.monotonic() + 120
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, "the writers do not go on"
            self._take(1.0)

    def _take(self, timeout: float) -> bool:
        found = self._selector.select(timeout)
        for key, _ in found:
            sent = os.read(key.fd, 1 << 16)
            if not sent:
                self._selector.unregister(key.fileobj)
            *lines, self._rest[key.fd] = (self._rest.get(key.fd, b"") + sent).split(b"\n")
            for line in lines:
                seq, content = line.decode().split(" ", 1)
                self.acknowledged[content] = int(seq)
        return bool(found)

    def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        self.drain()
        assert [process.wait(120) for process in self._processes] == [0] * len(self._processes)

    def drain(self) -> None:
        """Read what is left in the pipes of processes that end."""
        while self._selector.get_map():
            self._take(1.0)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def without_flush(database: str) -> None:
    """Take away the commit that flushes, from appends and from followers."""
    script = migrations()[0].script
    flush = "PERFORM pg_logical_emit_message(true, 'scroll', '');"
    found = re.search(r"CREATE PROCEDURE barrier\(.*?END \$\$;", script, re.S)
    assert found is not None and flush in found[0] and script.count(flush) == 1
    procedure = found[0].replace(
        "CREATE PROCEDURE barrier", "CREATE OR REPLACE PROCEDURE scroll.barrier"
    )
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(procedure.replace(flush, "").encode())


def lost(hosts: Hosts, host: str, acknowledged: dict[str, int]) -> list[str]:
    """Acknowledged events that the log does not have at their address, read by a host that begins
    anew.
    """
    store = hosts.open(host)
    there = {event.seq: event.content for event in store.log.iterate()}
    return [content for content, seq in acknowledged.items() if there.get(seq) != content]


def run_kills(server: Postgres, tmp_path: Path, kills: int, count: int, threads: int) -> None:
    with hosts_of(server.database(), tmp_path, timeout=60) as hosts:
        hosts.open("owner", create=True).close()
        writers = Writers(hosts, count, threads)
        try:
            for _ in range(kills):
                writers.read(form(20, 60))
                server.kill()
                server.start()
            writers.read(form(20, 60))
            writers.stop()
        finally:
            writers.kill()
        fresh = hosts.open("fresh")
        assert lost(hosts, "other", writers.acknowledged) == []
        contents = Counter(event.content for event in fresh.log.iterate())
        assert not [content for content, times in contents.items() if times > 1]
        heads = {fresh.stats().head} | {hosts.open(f"w{n}").stats().head for n in range(count)}
        assert len(heads) == 1  # the copies of the writers followed through every kill


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    killed_postgres: Postgres, tmp_path: Path
) -> None:
    kills, count, threads = form((1, 2, 3), (20, 3, 4))
    run_kills(killed_postgres, tmp_path, kills, count, threads)


def test_without_the_flush_acknowledged_events_are_lost(
    killed_postgres: Postgres, tmp_path: Path
) -> None:
    server = killed_postgres
    for attempt in range(
        5
    ):  # another commit that waits for the disk may save the events at the last moment
        database = server.database()
        (tmp_path / str(attempt)).mkdir()
        with hosts_of(database, tmp_path / str(attempt)) as hosts:
            hosts.open("owner", create=True).close()
            without_flush(database)
            writers = Writers(hosts, 2, 3)
            try:
                writers.read(30)
                server.kill()
            finally:
                writers.kill()
            writers.drain()
            server.start()
            if lost(hosts, "fresh", writers.acknowledged):
                return
    raise AssertionError("nothing was lost without the flush, so the test above proves nothing")


def test_a_replica_believes_no_row_that_the_server_can_still_lose(
    killed_postgres: Postgres, tmp_path: Path
) -> None:
    server = killed_postgres
    database = server.database()
    with hosts_of(database, tmp_path, timeout=60) as hosts:
        hosts.open("owner", create=True).close()
        reading = hosts.open("reading")
        member = Member(database)
        seq = member.append(
            body(content="committed, and not flushed")
        )  # the function alone, not the procedure
        reading.log.backend.refresh()
        assert reading.log.get(seq).content == "committed, and not flushed"
        server.kill()
        server.start()
        fresh = hosts.open("fresh")
        assert fresh.log.last_seq() == seq, "the server has lost a row that a replica has"
        assert fresh.append(Draft(content="after")) == seq + 1
        reading.log.backend.refresh()
        assert reading.log.get(seq + 1).content == "after"


def test_a_row_that_no_replica_has_read_can_be_lost(
    killed_postgres: Postgres, tmp_path: Path
) -> None:
    """The control for the test above: without a reader nothing flushes the row."""
    server = killed_postgres
    for attempt in range(
        5
    ):  # another commit that waits for the disk may save the row at the last moment
        database = server.database()
        with hosts_of(database, tmp_path / str(attempt)) as hosts:
            hosts.open("owner", create=True).close()
            Member(database).append(body(content="committed, and not flushed"))
            server.kill()
            server.start()
            if hosts.open("fresh").log.last_seq() == 0:
                return
    raise AssertionError("nothing was lost without a barrier, so the test above proves nothing")
