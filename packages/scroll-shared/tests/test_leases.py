"""Leases in a shared store: one writer a session on all hosts, and a holder that was replaced
writes nothing more.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from scroll_context import Draft, Store
from scroll_context.errors import SessionBusy, SessionFenced
from scroll_context.events import Kind, Scope
from scroll_context.log.file_backend import Written
from scroll_context.log.journal import Journal
from scroll_context.log.rows import prepare
from scroll_context.log.schema import utc_now
from scroll_context.session.session import Session
from stores import Hosts, hosts_of

LEASE = 2.0
DRIVER = Path(__file__).with_name("session_driver.py")
NOTE_TAKEOVERS = """
CREATE TABLE takeover AS SELECT clock_timestamp() AS at, lease_until FROM scroll.session WHERE false;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.takeover VALUES (clock_timestamp(), OLD.lease_until); RETURN NULL; END $$;
CREATE TRIGGER note AFTER UPDATE ON scroll.session FOR EACH ROW WHEN (NEW.epoch > OLD.epoch AND NEW.owner IS NOT NULL)
EXECUTE FUNCTION note();
"""  # when a session was claimed, and when the lease before had run out, both by the server's clock


@pytest.fixture
def hosts(database: str, tmp_path: Path) -> Iterator[Hosts]:
    with hosts_of(database, tmp_path, lease=LEASE) as opened:
        opened.open("owner", create=True)
        yield opened


@pytest.fixture
def driver(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(host: str, *what: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(DRIVER), hosts.address(host), *what]
        environment = {**os.environ, "EFFECTS": str(tmp_path / "effects")}
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(
                command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def said(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def lease_until(database: str) -> float:
    """When the one lease runs out, by the server's clock."""
    with psycopg.connect(database) as admin:
        found = admin.execute(
            "SELECT extract(epoch FROM lease_until)::float8 FROM scroll.session"
        ).fetchone()
        assert found is not None
        return float(found[0])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_host_is_refused_by_name_until_the_first_closes(
    hosts: Hosts, database: str
) -> None:
    first, second = hosts.open("a"), hosts.open("b")
    journal = Journal(first.log, Scope("s"))
    journal.append(journal.draft(Kind.NOTICE, content="mine"))
    with pytest.raises(SessionBusy, match=f"process {os.getpid()}") as refused:
        Journal(second.log, Scope("s"))
    assert refused.value.holder == second.log.backend.holder("s")
    until = lease_until(database)
    wait_for(lambda: lease_until(database) > until + LEASE / 2)  # it is renewed
    with pytest.raises(SessionBusy):
        Journal(second.log, Scope("s"))
    journal.close()
    assert second.log.backend.holder("s") is None
    other = Journal(second.log, Scope("s"))
    assert [event.content for event in second.log.iterate(session_id="s")] == ["mine"]
    other.close()


def test_a_host_that_takes_a_session_first_reads_what_its_last_holder_recorded(
    hosts: Hosts, tmp_path: Path
) -> None:
    first = hosts.open("a")
    hosts.open("b").close()
    with (tmp_path / "b" / "follow.lock").open(
        "w"
    ) as held:  # no process of this host can be the one that follows
        fcntl.flock(held, fcntl.LOCK_EX)
        frozen = hosts.open("b")
        journal = Journal(first.log, Scope("s"))
        for n in range(3):
            journal.append(journal.draft(Kind.NOTICE, content=f"by the first host {n}"))
        journal.close()
        assert frozen.log.applied_seq() == 0
        taken = Journal(frozen.log, Scope("s"))
        contents = [event.content for event in frozen.log.iterate(session_id="s")]
        assert contents == [f"by the first host {n}" for n in range(3)]
        taken.close()


def test_waiting_for_a_session_gets_it_when_it_is_released(
    hosts: Hosts, driver: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    holder = driver("a", "hold", "s")
    assert said(holder) == "held"
    store = hosts.open("b")
    assert holder.stdin is not None
    holder.stdin.close()
    journal = Journal(store.log, Scope("s"), wait=60)
    journal.close()


def test_a_fenced_session_fails_none_but_its_own_rows(hosts: Hosts, database: str) -> None:
    store = hosts.open("a")
    fenced, sound = Journal(store.log, Scope("fenced")), Journal(store.log, Scope("sound"))
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(
            "UPDATE scroll.session SET epoch = epoch + 1 WHERE session_id = 'fenced'::bytea"
        )
    rows = [
        (
            prepare(Draft(session_id=journal.session_id, content="row"), utc_now(), store.payloads),
            lease.epoch,
        )
        for journal in (sound, fenced, sound)
        for lease in [journal._lease]
    ]
    answers = store.log.backend.write(rows)
    assert [type(answer) for answer in answers] == [Written, SessionFenced, Written]
    assert [event.session_id for event in store.log.iterate()] == ["sound", "sound"]
    with pytest.raises(SessionFenced, match="taken over"):
        fenced.append(fenced.draft(Kind.NOTICE, content="late"))
    assert sound.append(sound.draft(Kind.NOTICE, content="on")).seq == 3
    fenced.close()
    sound.close()


def test_another_host_resumes_a_session_whose_host_was_killed_inside_a_tool(
    hosts: Hosts, driver: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path, database: str
) -> None:
    first = driver("a", "stuck")
    assert said(first) == "inside"
    store = hosts.open("b")
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(NOTE_TAKEOVERS)
    with pytest.raises(SessionBusy, match=str(first.pid)):
        Session.resume(store, "work")
    os.killpg(first.pid, signal.SIGKILL)
    with Session.resume(store, "work", wait=60) as session:
        told = store.log.tail(1, session_id="work", kind=Kind.NOTICE)[0].content
        assert "launch" in told and "had not returned" in told and "effects" in told
        assert "'answer': 42" in session.run("print(found)", "d1").content
    assert (tmp_path / "effects").read_text() == "first\n"
    with psycopg.connect(database) as admin:
        ((waited,),) = admin.execute(
            "SELECT extract(epoch FROM at - lease_until)::float8 FROM takeover"
        ).fetchall()
    assert (
        0 <= waited < 2
    )  # what follows takes as long as any resume; benchmarks/shared.py measures the whole


def test_a_host_that_comes_back_is_fenced_and_starts_no_tool(
    hosts: Hosts, driver: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    first = driver("a", "again")
    assert said(first) == "inside"
    os.kill(first.pid, signal.SIGSTOP)
    store: Store = hosts.open("b")
    journal = Journal(store.log, Scope("work"), wait=60)
    journal.append(journal.draft(Kind.NOTICE, content="by the second host"))
    os.kill(first.pid, signal.SIGCONT)
    assert first.stdin is not None
    first.stdin.write(b"\n")
    first.stdin.flush()
    assert said(first) == "fenced"
    first.communicate(timeout=60)
    assert (tmp_path / "effects").read_text() == "first\n"
    newest = store.log.tail(1, session_id="work")[0]
    assert newest.content == "by the second host"
    journal.close()
