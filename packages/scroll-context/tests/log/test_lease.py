"""Leases: one holder per session, whatever happens to the file between two system calls."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driven import next_line
from scroll_context.errors import SessionBusy
from scroll_context.events import Scope
from scroll_context.log import lease
from scroll_context.log.journal import Journal
from scroll_context.store import Store

DRIVER = Path(__file__).with_name("lease_driver.py")
SINCE = "2026-01-01T00:00:00+00:00"

Driver = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def driver(store: Store) -> Iterator[Driver]:
    """Starts lease_driver.py on the store; what still runs at the end of the test is ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*what: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(DRIVER), str(store.folder), *what]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        with process:  # which closes its pipes and waits
            pass


def test_another_process_is_refused_until_the_holder_is_dead(store: Store, driver: Driver) -> None:
    holder = driver("hold")
    assert next_line(holder) == "held"
    with pytest.raises(SessionBusy, match=f"process {holder.pid} on"):
        Journal(store.log, Scope("held"), wait=0.05)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    Journal(store.log, Scope("held")).close()
    assert list((store.folder / "leases").iterdir()) == []


def test_a_forked_child_has_no_lease_and_keeps_none(store: Store, driver: Driver) -> None:
    holder = driver("fork")
    assert {next_line(holder), next_line(holder)} == {"held", "fenced"}
    holder.send_signal(signal.SIGKILL)  # its child lives on
    holder.wait()
    journal = Journal(store.log, Scope("held"))
    assert [event.content for event in store.log.iterate()] == []
    journal.close()
    assert holder.stdin is not None
    holder.stdin.close()  # which ends the child


def test_two_processes_race_for_one_session_two_hundred_times(store: Store, driver: Driver) -> None:
    racers = [driver("race", "100") for _ in range(2)]
    assert [racer.wait(timeout=120) for racer in racers] == [0, 0]
    events = list(store.log.iterate())
    assert len(events) == 400
    for begin, end in zip(events[::2], events[1::2], strict=True):
        assert end.reply_to == begin.seq and end.content.split()[1] == begin.content.split()[1]
    assert len({event.content for event in events}) == 4


def test_a_lease_file_removed_between_open_and_lock_is_made_again(
    store: Store, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last holder removes its file while it is locked: an opener of that moment locks a file
    without a name.
    """
    leases = store.folder / "leases"
    lock = fcntl.lockf
    removed: list[str] = []

    def lock_after_the_holder_left(handle: int, command: int) -> None:
        if len(removed) < 3:
            removed.extend(file.name for file in leases.iterdir())
            shutil.rmtree(leases)
            leases.mkdir()
        lock(handle, command)

    monkeypatch.setattr(fcntl, "lockf", lock_after_the_holder_left)
    journal = Journal(store.log, Scope("held"))  # not SessionBusy: nobody has it
    monkeypatch.undo()
    assert len(removed) == 3
    assert [file.name for file in leases.iterdir()] == removed[:1]
    second = driver("hold")
    assert next_line(second) == f"busy {os.getpid()}"
    journal.close()
    assert list(leases.iterdir()) == []


LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


def test_the_holder_is_named_before_it_has_written_its_name(tmp_path: Path) -> None:
    before = lease.take(tmp_path, "s", SINCE)
    file = next(tmp_path.iterdir())
    before.release()
    command = [sys.executable, "-c", LOCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as locker:
        assert next_line(locker) == "held"
        with pytest.raises(SessionBusy, match=f"process {locker.pid} on"):
            lease.take(tmp_path, "s", SINCE)
        holder = lease.holder_of(tmp_path, "s")
        assert holder is not None and holder.process == locker.pid
        locker.communicate(b"\n")


def test_who_has_a_session_open_can_be_seen_without_taking_it(tmp_path: Path) -> None:
    leases = tmp_path / "leases"
    assert lease.holder_of(leases, "s") is None
    taken = lease.take(leases, "s", SINCE)
    assert lease.holder_of(leases, "s") == taken.holder
    code = (
        "import sys; from pathlib import Path; from scroll_context.log import lease; "
        "print(lease.holder_of(Path(sys.argv[1]), 's'))"
    )
    for _ in range(2):  # looking from another process takes nothing away
        seen = subprocess.run(
            [sys.executable, "-c", code, str(leases)], capture_output=True, text=True, check=True
        )
        assert seen.stdout.strip() == str(taken.holder)
    file = next(leases.iterdir())
    taken.release()
    assert lease.holder_of(leases, "s") is None
    file.write_text("{}")  # a file without a lock means nothing
    assert lease.holder_of(leases, "s") is None
