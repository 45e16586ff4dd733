"""After close nothing of the index is left running, and nothing in its folder changes any more."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scroll_context.errors import StoreClosed
from scroll_context.events import Draft
from scroll_context.store import Store

TASKS = Path("/proc/self/task")
needs_tasks = pytest.mark.skipif(not TASKS.is_dir(), reason="this system does not list threads")

MERGED = 8  # small segments that the engine merges into one


def drafts(count: int) -> list[Draft]:
    return [
        Draft(content=" ".join(f"word{number * 7 % (step + 11)}" for step in range(60)))
        for number in range(count)
    ]


@pytest.fixture
def ripe(folder: Path) -> Path:
    """A store whose next commit makes the engine begin a merge."""
    with Store(folder, create=True) as store:
        for _ in range(MERGED - 1):
            store.log.append_many(drafts(400))
            store.index.catch_up()
        assert store.index.stats().segments == MERGED - 1
        store.log.append_many(drafts(400))
    return folder


def files(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for file in (folder / "index").rglob("*"):
        status = file.stat()
        found[file.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def engine_threads() -> list[str]:
    """The threads that the engine started, by name; its watcher of meta.json has no more to do than
    to end.
    """
    names = []
    for task in TASKS.iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    return [
        name
        for name in names
        if name.startswith(("merge_thread", "segment_updater", "thrd-tantivy"))
    ]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(6_000):
        if holds():
            return
        deadline.wait(0.01)
    raise AssertionError("it did not come to pass within a minute")


@needs_tasks
def test_a_merge_is_over_when_the_store_is_closed(ripe: Path) -> None:
    store = Store(ripe)

    def stop(upto: int, target: int) -> None:  # just after the commit: the merge has begun
        store.index._indexer.stop()

    assert store.index.catch_up(progress=stop)
    store.close()
    before = files(ripe)
    wait_until(lambda: not engine_threads())
    assert files(ripe) == before
    with Store(ripe) as store:
        assert store.index.stats().segments == 1
        assert store.index.indexed_seq == 400 * MERGED


@needs_tasks
def test_closing_waits_for_whoever_writes_the_index(ripe: Path) -> None:
    store = Store(ripe)
    committed, ended = threading.Event(), []

    def write() -> None:
        ended.append(store.index.catch_up(progress=lambda *_: committed.set()))

    writer = threading.Thread(target=write)
    writer.start()
    assert committed.wait(60)
    store.close()
    before = files(ripe)
    writer.join()
    wait_until(lambda: not engine_threads())
    assert (ended, files(ripe)) == ([True], before)


def test_a_store_can_be_closed_by_whoever_is_told_of_progress(ripe: Path) -> None:
    store = Store(ripe)
    ended: list[bool] = []
    caller = threading.Thread(
        target=lambda: ended.append(store.index.catch_up(progress=lambda *_: store.close())),
        daemon=True,
    )
    caller.start()
    caller.join(60)
    assert ended == [True]
    with Store(ripe) as again:
        assert again.index.stats().segments == 1


@needs_tasks
def test_a_merge_is_over_when_the_caller_was_interrupted(ripe: Path) -> None:
    with Store(ripe) as store:

        def interrupt(upto: int, target: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.index.catch_up(progress=interrupt)
        before = files(ripe)
        wait_until(lambda: not engine_threads())
        assert files(ripe) == before
        assert store.index.stats().segments == 1


@needs_tasks
def test_a_closed_index_holds_no_file(ripe: Path) -> None:
    """A file that is mapped and then cut short by somebody ends the process that touches it."""
    maps = Path("/proc/self/maps")
    with Store(ripe) as store:
        assert store.index.search("word1")
        assert str(ripe) in maps.read_text()
    wait_until(lambda: str(ripe) not in maps.read_text())
    with pytest.raises(StoreClosed):
        store.index.search("word1")
    with pytest.raises(StoreClosed):
        _ = store.index.indexed_seq


def test_what_a_killed_writer_left_half_written_is_removed(ripe: Path) -> None:
    (folder,) = (ripe / "index").glob("v*")
    left = folder / ".tmpQzC5r5"
    left.write_bytes(b'{"segments"')
    with Store(ripe) as store:
        store.index.catch_up()
    assert not left.exists()


def test_an_index_file_is_only_ever_replaced(ripe: Path) -> None:
    """Whoever has a file open reads the same bytes for ever, whatever becomes of the index."""
    held = {file: file.open("rb") for file in (ripe / "index").rglob("*.*") if file.is_file()}
    before = {file: handle.read() for file, handle in held.items()}
    with Store(ripe) as store:
        store.index.catch_up()
        store.index.rebuild()
    for file, handle in held.items():
        handle.seek(0)
        assert handle.read() == before[file], file.name
        handle.close()
