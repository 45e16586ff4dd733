"""Open files of a log: as many as there are threads that read, not as many as there ever were."""

import threading
from pathlib import Path

import pytest

from scroll_context.events import Draft
from scroll_context.store.log import EventLog

FILES = Path("/proc/self/fd")


def open_files(log: EventLog) -> int:
    return sum(str(link.readlink()).startswith(str(log.path)) for link in FILES.iterdir() if link.is_symlink())


@pytest.mark.skipif(not FILES.is_dir(), reason="this system does not list open files")
def test_threads_that_ended_leave_no_file_open(log: EventLog) -> None:
    log.append(Draft(content="x"))
    counts = []
    for _ in range(20):
        thread = threading.Thread(target=log.last_seq)
        thread.start()
        thread.join()
        counts.append(open_files(log))
    assert len(set(counts[1:])) == 1, counts


def test_threads_that_live_keep_theirs(log: EventLog) -> None:
    log.append(Draft(content="x"))
    barrier, said = threading.Barrier(6), []

    def read_twice() -> None:
        log.last_seq()
        barrier.wait(30)  # all have a connection, and have seen the others open theirs
        said.append(log.last_seq())

    threads = [threading.Thread(target=read_twice) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [1] * 6
