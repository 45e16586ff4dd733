"""Open files of a log: as many as there are threads that read, not as many as there ever were."""

import threading
from pathlib import Path

import pytest

from scroll_context.errors import StoreClosed
from scroll_context.events import Draft
from scroll_context.store.log import EventLog
from scroll_context.store.payloads import PayloadStore

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


def test_closing_waits_for_threads_that_read(log: EventLog) -> None:
    """To close a connection under a running query takes the whole process down, not only the query."""
    log.append_many([Draft(content=f"word {number}") for number in range(200)])
    for _ in range(6):
        other = EventLog(log.path.parent, PayloadStore(log.path.parent / "payloads"))
        begun, ended = threading.Barrier(4), []

        def read_until_closed(other: EventLog = other, begun: threading.Barrier = begun, ended: list = ended) -> None:
            for count in range(1, 101):  # each is a statement to finalize when the connection is closed
                other.get_many(range(1, count))
            begun.wait(30)
            try:
                while other.last_seq() == 200:
                    pass
            except StoreClosed as error:
                ended.append(str(error))

        threads = [threading.Thread(target=read_until_closed) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait(30)
        other.close()
        for thread in threads:
            thread.join(30)
        assert len(ended) == 3
        assert all("open the store again to read" in text for text in ended)
