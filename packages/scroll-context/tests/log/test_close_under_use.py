"""A store that is closed while threads use it: each of them ends with the named error, and none
takes the process down.

The threads run in a process of their own, so that a crash of the engine or of SQLite is a failure
and not an end.
"""

import fcntl
import multiprocessing
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scroll_context.errors import StoreClosed
from scroll_context.events import Draft
from scroll_context.sql.guard import GuardedSql
from scroll_context.store import Store

PROCESSES = multiprocessing.get_context("spawn")
ROUNDS = 6
LARGE = "harbour " * 8_000


def append(store: Store, _window: GuardedSql) -> None:
    store.log.append_many([Draft(content=f"harbour {number}") for number in range(5)])


def search(store: Store, _window: GuardedSql) -> None:
    store.index.search("harbour lighthouse", k=5)


def catch_up(store: Store, _window: GuardedSql) -> None:
    store.append(Draft(content="lighthouse"))
    store.index.catch_up()


def iterate(store: Store, _window: GuardedSql) -> None:
    for event in store.log.iterate():
        assert event.content.startswith(("harbour", "lighthouse"))


def read_payload(store: Store, _window: GuardedSql) -> None:
    assert store.log.text(store.log.get(1)) == LARGE


def query(_store: Store, window: GuardedSql) -> None:
    window.query("SELECT count(*), sum(length(content)) FROM hist.events")


def count(store: Store, _window: GuardedSql) -> None:
    store.stats()


def close_under_use(folder: Path, report: "multiprocessing.Queue[list[str]]") -> None:
    sys.setswitchinterval(1e-4)
    uses: list[Callable[[Store, GuardedSql], None]] = [
        append,
        search,
        catch_up,
        iterate,
        read_payload,
        query,
        count,
    ]
    said: list[str] = []
    for _ in range(ROUNDS):
        store = Store(folder)
        window = store.sql()
        begun = threading.Barrier(len(uses) + 1)

        def run(
            use: Callable[[Store, GuardedSql], None], store=store, window=window, begun=begun
        ) -> None:
            try:
                use(store, window)
                begun.wait(60)
                while True:
                    use(store, window)
            except Exception as error:
                said.append(f"{use.__name__}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=run, args=(use,)) for use in uses]
        for thread in threads:
            thread.start()
        begun.wait(60)
        store.close()
        window.close()
        for thread in threads:
            thread.join()
    report.put(said)


def test_threads_that_use_a_closed_store_are_told(folder: Path) -> None:
    with Store(folder, create=True) as store:
        store.append(Draft(content=LARGE))
        store.log.append_many([Draft(content=f"harbour {number}") for number in range(400)])
        store.index.catch_up()
    report = PROCESSES.Queue()
    process = PROCESSES.Process(target=close_under_use, args=(folder, report))
    process.start()
    said = report.get(timeout=120)
    process.join(60)
    assert process.exitcode == 0
    assert len(said) == 7 * ROUNDS
    assert [text for text in said if ": StoreClosed: " not in text] == []


def test_a_search_that_waits_for_the_index_is_told_at_once(folder: Path) -> None:
    store = Store(folder, create=True)
    store.append(Draft(content="harbour"))
    told: list[str] = []

    def wait_long() -> None:
        try:
            store.index.search("harbour", patience=3_600)
        except StoreClosed as error:
            told.append(str(error))

    (folder / "index").mkdir()
    with (folder / "index" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as another process that writes the index for long
        searcher = threading.Thread(target=wait_long, daemon=True)
        searcher.start()
        while store.index._indexer._thread is None:
            searcher.join(0.01)
        store.close()
        searcher.join(60)
    assert len(told) == 1
    assert "open the store again to search" in told[0]


def test_a_closed_window_says_so(folder: Path) -> None:
    with Store(folder, create=True) as store:
        window = store.sql()
        window.close()
        window.close()
        with pytest.raises(StoreClosed, match="open the store again"):
            window.query("SELECT 1")
