"""Open files of a log: as many as there are queries at once, whichever threads ask, and none after
close.
"""

import threading
from pathlib import Path

import pytest

from scroll_context.errors import StoreClosed
from scroll_context.events import Draft
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog

FILES = Path("/proc/self/fd")


def open_files(log: EventLog) -> int:
    return sum(
        str(link.readlink()).startswith(str(log.path))
        for link in FILES.iterdir()
        if link.is_symlink()
    )


needs_list = pytest.mark.skipif(not FILES.is_dir(), reason="this system does not list open files")


def test_the_connection_that_writes_waits_for_the_disk(log: EventLog) -> None:
    """In WAL mode, anything below FULL lets a power cut take back the newest commits."""
    log.append(Draft(content="x"))
    assert isinstance(log.backend, FileBackend) and log.backend.writer.connection is not None
    pragmas = [
        log.backend.writer.connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("synchronous", "journal_mode")
    ]
    assert pragmas == [2, "wal"]


@needs_list
def test_threads_that_take_turns_share_a_connection(log: EventLog) -> None:
    log.append(Draft(content="x"))
    log.last_seq()
    before = open_files(log)
    barriers = [threading.Barrier(2) for _ in range(20)]

    def read_in_turn(barrier: threading.Barrier) -> None:
        log.last_seq()
        barrier.wait(60)
        barrier.wait(60)  # stays alive, as a thread of a pool does

    threads = [threading.Thread(target=read_in_turn, args=(barrier,)) for barrier in barriers]
    for thread, barrier in zip(threads, barriers, strict=True):
        thread.start()
        barrier.wait(60)
    assert open_files(log) == before
    for thread, barrier in zip(threads, barriers, strict=True):
        barrier.wait(60)
        thread.join()


@needs_list
def test_queries_at_once_have_a_connection_each_until_close(log: EventLog) -> None:
    log.append_many([Draft(content="x") for _ in range(50)])
    said: list[list[int]] = []

    def read_often() -> None:
        said.append([log.last_seq() for _ in range(300)])

    threads = [threading.Thread(target=read_often) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [[50] * 300] * 6
    assert isinstance(log.backend, FileBackend) and len(log.backend.readers) <= 6
    log.close()
    assert open_files(log) == 0


def test_closing_waits_for_threads_that_read(log: EventLog) -> None:
    """To close a connection under a running query takes the whole process down, not only the query."""
    log.append_many([Draft(content=f"word {number}") for number in range(200)])
    for _ in range(6):
        other = EventLog(FileBackend(log.path.parent))
        begun, ended = threading.Barrier(4), []

        def read_until_closed(
            other: EventLog = other, begun: threading.Barrier = begun, ended: list = ended
        ) -> None:
            for count in range(
                1, 101
            ):  # each is a statement to finalize when the connection is closed
                other.get_many(range(1, count))
            begun.wait(60)
            try:
                while other.last_seq() == 200:
                    pass
            except StoreClosed as error:
                ended.append(str(error))

        threads = [threading.Thread(target=read_until_closed) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        other.close()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 3
        assert all("open the store again to read" in text for text in ended)
