"""The index under fire: several processes, kill -9, damage, a folder that cannot be written."""

import contextlib
import fcntl
import multiprocessing
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tantivy import Query

from damage import replace_with
from scroll_context.errors import IndexUnavailable
from scroll_context.events import Draft, Grant, Kind
from scroll_context.search import tokenize
from scroll_context.store import Store

PROCESSES = multiprocessing.get_context("spawn")
QUERIES = (
    "common",
    "number7 OR number11",
    "turn* common",
    "common number5 reply",
    '"common words"',
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store(tmp_path / "store", create=True) as store:
        store.log.append_many(drafts(0, 60))
    return tmp_path / "store"


def drafts(start: int, count: int) -> list[Draft]:
    return [
        Draft(
            role=("user", "assistant", "tool")[number % 3],
            session_id=f"s{number % 4}",
            kind=Kind.TOOL_RESULT if number % 3 == 2 else Kind.CONVERSATION,
            content=f"turn{number} common words number{number % 13}" + " padding" * (number % 50),
        )
        for number in range(start, start + count)
    ]


def answers(store: Store) -> list[list[tuple[int, float, str]]]:
    return [
        [(h.seq, round(h.score, 4), h.snippet) for h in store.index.search(query, k=20)]
        for query in QUERIES
    ]


def everything(store: Store) -> list[int]:
    """Every indexed seq, once for each time that it is indexed."""
    commit = store.index._indexer.newest()
    assert commit is not None
    hits = commit.searcher.search(
        Query.regex_query(tokenize.SCHEMA, "text", "turn.*"), 100_000
    ).hits
    return sorted(commit.searcher.fast_field_values("seq", [address for _, address in hits]))


def test_rebuild_gives_the_same_answers(folder: Path) -> None:
    with Store(folder) as store:
        for start in range(60, 360, 30):  # many small commits
            store.log.append_many(drafts(start, 30))
            store.index.search("common")
        before = answers(store)
        store.index.rebuild()
        assert answers(store) == before
        shutil.rmtree(folder / "index")
        assert answers(store) == before
    with Store(folder) as store:
        assert answers(store) == before
        assert everything(store) == list(range(1, 361))


def test_progress_of_a_rebuild_ends_at_the_end(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    with Store(folder) as store:
        store.index.rebuild(lambda upto, target: seen.append((upto, target)))
        assert seen[-1] == (60, 60)
        assert store.index.indexed_seq == 60


def test_the_background_thread_keeps_up(folder: Path) -> None:
    with Store(folder) as store:
        store.index.start()
        store.log.append_many(drafts(60, 40))
        assert eventually(lambda: store.index.indexed_seq == 100)
        assert len(store.index.search("common", k=200)) == 100


def test_a_search_does_not_commit_for_what_it_would_not_return(folder: Path) -> None:
    with Store(folder) as store:
        store.index.catch_up()
        documents = store.index.stats().documents
        echo = store.append(Draft(content="common", kind=Kind.CELL, metadata={"echo": True}))
        assert store.index.search("common").behind == 0
        assert store.index.indexed_seq == echo
        visible = store.append(Draft(content="common", session_id="mine"))
        assert store.index.search("common", exclude=[visible]).behind == 0
        assert store.index.search("common", grant=Grant(session_id="s1")).behind == 0
        assert store.index.stats().documents == documents
        assert visible in [hit.seq for hit in store.index.search("common", k=100)]


# several processes ----------------------------------------------------------------------------------------


def write(folder: Path, start: int, batches: int) -> None:
    with Store(folder) as store:
        for batch in range(batches):
            store.log.append_many(drafts(start + batch * 5, 5))
            store.index.search("common")


def read(folder: Path, until: int) -> None:
    with Store(folder) as store:
        store.index.start()
        last = 0
        while last < until:
            hits = store.index.search("common", k=10_000)
            seqs = [hit.seq for hit in hits]
            assert len(seqs) == len(set(seqs)) >= last, "an event was lost or doubled"
            last = len(seqs)


def test_writers_and_readers_of_several_processes(folder: Path) -> None:
    crew = [PROCESSES.Process(target=write, args=(folder, 1_000 * number, 12)) for number in (1, 2)]
    crew += [PROCESSES.Process(target=read, args=(folder, 180)) for _ in range(2)]
    for process in crew:
        process.start()
    for process in crew:
        process.join(120)
    assert [process.exitcode for process in crew] == [0, 0, 0, 0]
    with Store(folder) as store:
        assert len(store.index.search("common", k=10_000)) == 180
        assert everything(store) == list(range(1, 181))


def index_for_ever(folder: Path) -> None:
    with Store(folder) as store:
        number = 1_000
        while True:
            store.log.append_many(drafts(number, 3))
            store.index.catch_up()
            number += 3


def test_kill_nine_while_indexing(folder: Path) -> None:
    chance = random.Random(7)
    for _ in range(6):
        process = PROCESSES.Process(target=index_for_ever, args=(folder,))
        process.start()
        with Store(folder) as store:
            start = store.log.last_seq()
            assert eventually(lambda store=store, start=start: store.log.last_seq() > start + 6)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with Store(folder) as store:
            assert store.index.search("common").behind == 0
            assert everything(store) == list(range(1, store.log.last_seq() + 1))


def rebuild_for_ever(folder: Path) -> None:
    with Store(folder) as store:
        while True:
            store.index.rebuild()


def test_kill_nine_while_rebuilding(folder: Path) -> None:
    chance = random.Random(8)
    for _ in range(4):
        process = PROCESSES.Process(target=rebuild_for_ever, args=(folder,))
        process.start()
        assert eventually(lambda: any((folder / "index").glob("v*/*.idx")))
        time.sleep(chance.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with Store(folder) as store:
            assert store.index.search("common").behind == 0
            assert everything(store) == list(range(1, 61))


@contextlib.contextmanager
def index_locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock as another process would: a second open file is a second holder.

    Gives what releases it.
    """
    (folder / "index").mkdir(exist_ok=True)
    with (folder / "index" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


def test_a_search_does_not_wait_for_ever_and_says_what_is_missing(folder: Path) -> None:
    with Store(folder) as store:
        store.index.catch_up()
        store.log.append_many(drafts(60, 7))
        with index_locked(folder):
            hits = store.index.search("common", k=100, patience=0.05)
            assert (len(hits), hits.behind) == (60, 7)
            assert "newest 7 events" in hits.note
            assert store.index.catch_up(0.05) is False
        hits = store.index.search("common", k=100)
        assert (len(hits), hits.behind, hits.note) == (67, 0, "")


def test_a_short_backlog_is_waited_for_longer_than_a_long_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scroll_context.search.search.PATIENCE", 0.05)
    monkeypatch.setattr("scroll_context.search.search.SHORT_EVENTS", 7)
    with Store(folder) as store:
        store.index.catch_up()
        store.log.append_many(drafts(60, 7))
        with index_locked(folder) as release:
            threading.Timer(0.5, release).start()
            assert len(store.index.search("common", k=100)) == 67
        store.log.append_many(drafts(67, 8))
        with index_locked(folder):
            hits = store.index.search("common", k=100)
            assert (len(hits), hits.behind) == (67, 8)
        assert store.index.catch_up(60)
        store.append(Draft(content="common and long: " + "word " * 2_000_000))
        with index_locked(folder):
            assert store.index.search("common", k=100).behind == 1


def test_an_index_that_somebody_else_is_building_is_not_an_error(folder: Path) -> None:
    with Store(folder) as store, index_locked(folder):
        hits = store.index.search("common", patience=0.05)
        assert (list(hits), hits.behind) == ([], 60)


# damage ---------------------------------------------------------------------------------------------------


def _each(folder: Path, pattern: str, act: Callable[[Path], object]) -> None:
    files = list((folder / "index").glob(f"v*/{pattern}"))
    assert files
    for file in files:
        act(file)


def _overwrite(file: Path) -> None:
    body = file.read_bytes()
    size = len(body)
    noise = random.Random(1).randbytes(size // 2)
    replace_with(file, body[: size // 5] + noise + body[size // 5 + size // 2 :])


def _halve(file: Path) -> None:
    body = file.read_bytes()
    replace_with(file, body[: len(body) // 2])


def index_of(folder: Path) -> Path:
    return folder / "index" / f"v{tokenize.VERSION}"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no meta": lambda folder: _each(folder, "meta.json", Path.unlink),
    "bad meta": lambda folder: _each(folder, "meta.json", lambda file: file.write_text("{")),
    "empty meta": lambda folder: _each(folder, "meta.json", lambda file: file.write_bytes(b"")),
    "other schema": lambda folder: _each(
        folder,
        "meta.json",
        lambda file: file.write_text(file.read_text().replace('"pairs"', '"pears"')),
    ),
    "bad managed": lambda folder: _each(folder, ".managed.json", lambda file: file.write_text("[")),
    "terms cut": lambda folder: _each(folder, "*.term", _halve),
    "postings gone": lambda folder: _each(folder, "*.idx", Path.unlink),
    "columns overwritten": lambda folder: _each(folder, "*.fast", _overwrite),
    "terms overwritten": lambda folder: _each(folder, "*.term", _overwrite),
    "store empty": lambda folder: _each(folder, "*.store", lambda file: replace_with(file, b"")),
    "folder gone": lambda folder: shutil.rmtree(folder / "index"),
    "a file in its place": lambda folder: (
        shutil.rmtree(index_of(folder)),
        index_of(folder).touch(),
    ),
    "older version": lambda folder: index_of(folder).rename(folder / "index" / "v0"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_built_anew(folder: Path, damage: str) -> None:
    with Store(folder) as store:
        expected = answers(store)
    DAMAGE[damage](folder)
    with Store(folder) as store:
        assert answers(store) == expected
        assert everything(store) == list(range(1, 61))
        assert not (folder / "index" / "v0").exists()


@pytest.mark.parametrize("damage", ["no meta", "folder gone", "postings gone"])
def test_damage_under_a_running_process_is_survived(folder: Path, damage: str) -> None:
    with Store(folder) as store:
        store.index.catch_up()
        DAMAGE[damage](folder)
        store.log.append_many(drafts(60, 5))
        assert len(store.index.search("common", k=100)) == 65
    with Store(folder) as store:
        assert len(store.index.search("common", k=100)) == 65
        assert everything(store) == list(range(1, 66))


def test_an_index_that_cannot_be_reached_is_named_and_the_log_still_counted(folder: Path) -> None:
    (folder / "index").touch()  # as unreachable as a folder of somebody else, for root too
    with Store(folder) as store:
        with pytest.raises(IndexUnavailable, match="The log is not affected"):
            store.index.search("harbour", patience=0.5)
        stats = store.stats()
        assert stats.events > 0
        assert "Not a directory" in store.index.stats().trouble


def test_trouble_is_over_when_the_next_attempt_begins(folder: Path) -> None:
    (folder / "index").touch()
    with Store(folder) as store:
        with pytest.raises(IndexUnavailable):
            store.index.search("common", patience=30)
        (folder / "index").unlink()
        with index_locked(folder):  # the attempt takes as long as a large log would
            store.index.start()
            assert eventually(lambda: store.index.stats().trouble == "")
            hits = store.index.search("common", patience=0.05)
            assert (list(hits), hits.behind, hits.trouble) == ([], 60, "")
        assert len(store.index.search("common", k=100)) == 60


def test_an_index_of_another_log_does_not_answer(folder: Path, tmp_path: Path) -> None:
    with Store(folder) as store:
        store.index.catch_up()
    with Store(tmp_path / "other", create=True) as other:
        other.log.append_many([Draft(content=f"different {number}") for number in range(80)])
    shutil.copytree(folder / "index", tmp_path / "other" / "index")
    with Store(tmp_path / "other") as other:
        assert other.index.search("common") == []
        assert len(other.index.search("different", k=100)) == 80


def search_without_room(
    folder: Path, report: "multiprocessing.Queue[tuple[int, int, str]]"
) -> None:
    with Store(folder) as store:
        store.index.catch_up()
        store.log.append_many(drafts(60, 5))
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        )
        hits = store.index.search("common", k=100)
        report.put((len(hits), hits.behind, hits.note))
        shutil.rmtree(folder / "index")
        with pytest.raises(IndexUnavailable):
            store.index.search("common", k=100)


def test_an_index_that_cannot_be_written_still_answers(folder: Path) -> None:
    report = PROCESSES.Queue()
    process = PROCESSES.Process(target=search_without_room, args=(folder, report))
    process.start()
    found, behind, note = report.get(timeout=120)
    process.join(120)
    assert process.exitcode == 0
    assert (found, behind) == (60, 5)
    assert "not searchable yet" in note and "log is not affected" in note
    with Store(folder) as store:
        assert len(store.index.search("common", k=100)) == 65


def eventually(holds: Callable[[], bool], within: float = 60.0) -> bool:
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
