"""One queue for journals and direct appends: who shares a commit, who sees what, and interrupts."""

import contextlib
import ctypes
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scroll_context.errors import BadInput, ScrollError, SessionFenced, StoreError
from scroll_context.events import Draft, Event, Kind, Scope
from scroll_context.log.backend import Written
from scroll_context.log.commits import Batch, GroupCommit, Ticket
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.journal import Journal
from scroll_context.log.rows import prepare
from scroll_context.store import Store
from waiting import join, wait_for


@pytest.fixture
def journal(store: Store) -> Iterator[Journal]:
    journal = Journal(store.log, Scope("first"))
    yield journal
    journal.close()


@pytest.fixture
def other(store: Store) -> Iterator[Journal]:
    journal = Journal(store.log, Scope("second"))
    yield journal
    journal.close()


def record(journal: Journal, text: str) -> Event:
    return journal.append(journal.draft(Kind.CONVERSATION, role="user", content=text))


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def locked_file(store: Store) -> Iterator[None]:
    """Keeps every commit waiting."""
    holder = sqlite3.connect(store.log.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield
    holder.execute("ROLLBACK")
    holder.close()


def commits_of(store: Store) -> list[str]:
    """A list that grows with the statements of the writer."""
    statements: list[str] = []
    backend = store.log.backend
    assert isinstance(backend, FileBackend) and backend.writer.connection is not None
    backend.writer.connection.set_trace_callback(statements.append)
    return statements


def leads(store: Store) -> bool:
    """Whether a caller has taken the queue and waits for the file."""
    return store.log.commits.running.locked() and not store.log.commits.waiting


def test_sessions_and_direct_appends_share_one_commit(
    store: Store, journal: Journal, other: Journal
) -> None:
    record(journal, "opens the writer")
    statements = commits_of(store)
    with locked_file(store):
        threads = [started(lambda: record(journal, "leads"))]
        wait_for(lambda: leads(store))
        threads += [started(lambda: record(journal, "same session")) for _ in range(3)]
        threads += [started(lambda: record(other, "other session")) for _ in range(2)]
        threads += [started(lambda: store.log.append(Draft(content="no session")))]
        wait_for(lambda: store.log.commits.waiting == 6)
    join(*threads)
    assert store.log.last_seq() == 8
    assert statements.count("COMMIT") == 2


def test_a_batch_is_one_commit_and_reaches_view_and_observers_in_order(
    store: Store, journal: Journal
) -> None:
    record(journal, "opens the writer")
    statements = commits_of(store)
    viewed: list[int] = []
    observed: list[int] = []
    journal.follow(lambda event: viewed.append(event.seq))
    journal.subscribe(lambda event: observed.append(event.seq))
    drafts = [journal.draft("note", content="word " * 400) for _ in range(2_000)]
    events = journal.append_many(drafts)
    assert statements.count("COMMIT") == 1
    assert viewed == observed == [event.seq for event in events] == list(range(2, 2_002))
    assert journal.append_many([]) == [] and statements.count("COMMIT") == 1


def test_a_batch_under_source_keys_records_each_key_once(store: Store, journal: Journal) -> None:
    first, _ = journal.append_once("b", journal.draft("note", content="known"))
    statements = commits_of(store)
    viewed: list[str] = []
    journal.follow(lambda event: viewed.append(event.content))
    drafts = [journal.draft("note", content=f"new {key}", source_key=key) for key in "abca"]
    recorded = journal.append_many(drafts)
    assert statements.count("COMMIT") == 1
    assert [event.content for event in recorded] == ["new a", "known", "new c", "new a"]
    assert recorded[1] == first and recorded[3] == recorded[0]
    assert viewed == ["new a", "new c"]
    assert journal.append_many(drafts) == recorded and viewed == ["new a", "new c"]


def test_a_batch_with_a_key_of_another_session_is_refused_loudly(
    journal: Journal, other: Journal
) -> None:
    other.append_once("theirs", other.draft("note", content="theirs"))
    with pytest.raises(BadInput, match="belongs to seq 1 of session 'second'"):
        journal.append_many([journal.draft("note", content="mine", source_key="theirs")])


def test_hold_shows_what_is_under_way_and_keeps_later_appends_out(
    store: Store, journal: Journal, other: Journal
) -> None:
    viewed: list[str] = []
    journal.follow(lambda event: viewed.append(event.content))
    seen: list[list[str]] = []

    def hold_and_append() -> None:
        with journal.hold():
            seen.append(list(viewed))
            started(lambda: record(journal, "later"))
            record(journal, "inside")
            seen.append(list(viewed))

    with locked_file(store):
        threads = [started(lambda: record(journal, "first"))]
        wait_for(lambda: leads(store))
        # These wait for the lead, which the first must hand on before it shows its own event.
        threads.append(started(lambda: record(journal, "second")))
        wait_for(lambda: store.log.commits.waiting == 1)
        threads.append(started(lambda: record(other, "other session")))
        wait_for(lambda: store.log.commits.waiting == 2)
        threads.append(started(hold_and_append))
        wait_for(lambda: not _is_free(journal))
    join(*threads)
    wait_for(lambda: len(viewed) == 4)
    assert seen == [["first", "second"], ["first", "second", "inside"]]
    assert viewed == ["first", "second", "inside", "later"]


def _is_free(journal: Journal) -> bool:
    if not journal._lock.acquire(blocking=False):
        return False
    journal._lock.release()
    return True


def test_an_error_reaches_the_callers_whose_rows_failed_and_nobody_else(
    tmp_path: Path, store: Store
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def write(batch: Batch) -> list[Written | ScrollError]:
        entered.set()
        assert go_on.wait(60)
        return [
            SessionFenced("taken over")
            if row.columns.session_id == "taken"
            else Written(number, b"", True)
            for number, (row, _) in enumerate(batch, 1)
        ]

    commits = GroupCommit(tmp_path, write, 0.0, lambda: None)
    outcomes: dict[str, object] = {}

    def append(session_id: str) -> None:
        rows = [prepare(Draft(kind="note", session_id=session_id), "", store.payloads)] * 2
        try:
            outcomes[session_id] = len(commits.commit(Ticket(rows, {})))
        except ScrollError as error:
            outcomes[session_id] = type(error)

    threads = [started(lambda: append("leads"))]
    assert entered.wait(60)
    for number, session_id in enumerate(("before", "taken", "after"), 1):
        threads.append(started(lambda session_id=session_id: append(session_id)))
        wait_for(lambda number=number: commits.waiting == number)
    go_on.set()
    join(*threads)
    assert outcomes == {"leads": 2, "before": 2, "taken": SessionFenced, "after": 2}


class Poke(BaseException):
    """Stands for Ctrl-C in threads that are not the main one."""


def test_interrupts_at_any_moment_hold_no_session_up_and_views_keep_the_order_of_the_log(
    store: Store, journal: Journal, other: Journal
) -> None:
    views: dict[str, list[int]] = {"first": [], "second": []}
    acknowledged: dict[int, str] = {}
    done = threading.Event()

    def write(own: Journal, name: str) -> None:
        number = 0
        while not done.is_set():
            number += 1
            with contextlib.suppress(Poke, ScrollError), contextlib.suppress(Poke, ScrollError):
                content = f"{name}, {number}"
                if number % 7 == 0:
                    with own.hold():
                        acknowledged[record(own, content).seq] = content
                else:
                    acknowledged[record(own, content).seq] = content

    for own in (journal, other):
        own.follow(lambda event, seqs=views[own.session_id]: seqs.append(event.seq))
    writers = [
        started(lambda own=own, name=name: write(own, name))
        for own, name in ((journal, "a"), (journal, "b"), (other, "c"), (other, "d"))
    ]
    for round_ in range(150):
        before = len(acknowledged)
        poke = ctypes.c_ulong(writers[round_ % 4].ident or 0), ctypes.py_object(Poke)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(*poke) == 1
        wait_for(lambda before=before: len(acknowledged) >= before + 2)
    done.set()
    join(*writers)
    events = list(store.log.iterate())
    assert {event.seq: event.content for event in events}.items() >= acknowledged.items()
    for own in (journal, other):
        with own.hold():
            viewed = views[own.session_id]
        # An interrupt inside the view itself may show an event again, never out of order.
        assert viewed == sorted(viewed)
        assert set(viewed) == {event.seq for event in events if event.session_id == own.session_id}


def test_an_append_after_a_failed_one_shows_all_that_was_recorded(
    store: Store, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed: list[str] = []
    journal.follow(lambda event: viewed.append(event.content))
    write = store.log.backend.write

    def without_answer(rows: Batch) -> None:
        write(rows)
        raise StoreError("recorded, but the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(store.log.backend, "write", without_answer)
        with pytest.raises(StoreError, match="the answer was lost"):
            record(journal, "no answer")
    assert viewed == []
    record(journal, "next")
    assert viewed == ["no answer", "next"]
