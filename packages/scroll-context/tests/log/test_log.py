"""The Event Log: appending, reading, append-only by the engine, processes and threads, formats and
faults.
"""

import multiprocessing
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.errors import (
    BadInput,
    NotAStore,
    StoreClosed,
    StoreDamaged,
    StoreLocked,
    StoreTooNew,
    StoreTooOld,
    UnknownSeq,
)
from scroll_context.events import Draft, Grant, Kind, Payload
from scroll_context.log import schema
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.filters import SearchFilters, conditions
from scroll_context.log.log import EventLog
from scroll_context.log.rows import COLUMNS
from scroll_context.sql.guard import _granted
from scroll_context.upkeep.integrity import verify
from waiting import join, wait_for


def reopen(folder: Path, **options: float) -> EventLog:
    return EventLog(FileBackend(folder, **options))


def test_an_event_comes_back_as_it_was_written(log: EventLog) -> None:
    draft = Draft(
        kind=Kind.TOOL_RESULT,
        session_id="s",
        agent_id="a",
        task_id="t",
        role="tool",
        name="flights",
        content="é\0漢",
        tool_call_id="call_1",
        tool_state="done",
        headline="h",
        reply_to=7,
        step_index=-1,
        msg_index=0,
        metadata={"n": 1.5, "deep": {"list": [None, True, "x"]}},
        created_at="2024-11-05",
        source_key="k",
    )
    event = log.get(log.append(draft))
    assert {field: getattr(event, field) for field in Draft.__struct_fields__} == {
        field: getattr(draft, field) for field in Draft.__struct_fields__
    }
    assert event.seq == 1 and len(event.chain) == 32 and event.recorded_at.endswith("+00:00")


def test_addresses_grow_by_one_and_survive_reopening(log: EventLog, folder: Path) -> None:
    assert log.append_many(Draft(content=str(n)) for n in range(5)) == [1, 2, 3, 4, 5]
    log.close()
    again = reopen(folder)
    assert again.last_seq() == 5
    assert again.append(Draft(content="next")) == 6
    assert [event.content for event in again.span(4, 6)] == ["3", "4", "next"]


def test_a_source_key_is_recorded_once(log: EventLog) -> None:
    first = log.append_many(
        [Draft(content="a", source_key="1"), Draft(content="b", source_key="1"), Draft()]
    )
    assert first == [1, 1, 2]
    assert log.append(Draft(content="again", source_key="1")) == 1
    assert log.get(1).content == "a"
    assert log.last_seq() == 2


def test_selections(log: EventLog) -> None:
    for n in range(20):
        log.append(
            Draft(
                session_id=f"s{n % 2}",
                agent_id=f"a{n % 3}",
                task_id=f"t{n % 4}",
                content=str(n),
                kind="conversation" if n % 5 else "note",
                role="user" if n % 2 else "assistant",
                created_at=f"2024-01-{n + 1:02}T12:00:00",
            )
        )

    def seqs(**filters: object) -> list[int]:
        return [event.seq for event in log.iterate(**filters)]

    assert seqs(session_id="s1") == [s for s in range(1, 21) if (s - 1) % 2]
    assert seqs(agent_id=["a0", "a1"], kind="note") == [
        s for s in range(1, 21) if (s - 1) % 3 < 2 and not (s - 1) % 5
    ]
    # Seq 16 is a note: nobody speaks in it, so it is not the user's.
    assert seqs(role="user", after=10) == [12, 14, 18, 20]
    assert seqs(created_from="2024-01-05", created_to="2024-01-07") == [5, 6, 7]
    assert seqs(created_to="2024-01-02T11:00:00") == [1]
    assert seqs(grant=Grant(task_id="t1"), until=9) == [2, 6]
    assert [event.seq for event in log.tail(2, session_id="s0")] == [17, 19]
    assert [event.seq for event in log.get_many([9, 3, 99, 9])] == [9, 3, 9]


def test_a_task_is_read_by_its_index_and_no_task_is_one_too(log: EventLog) -> None:
    log.append_many([Draft(task_id="t"), Draft(), Draft(task_id="u")])
    assert [event.seq for event in log.iterate(task_id=["", "u"])] == [2, 3]
    assert [event.seq for event in log.iterate(grant=Grant(task_id=""))] == [2]
    for where, values in (
        conditions(filters=SearchFilters.of(task_id="t")),
        (_granted(Grant(task_id="t")), []),
    ):
        (plan,) = log.query(f"EXPLAIN QUERY PLAN SELECT * FROM event WHERE {where}", values)
        assert "event_task" in plan[3]


def test_iteration_pages_through_everything_once(log: EventLog) -> None:
    log.append_many(Draft(content=str(n)) for n in range(1_203))
    seen = []
    for event in log.iterate():
        seen.append(event.seq)
        if event.seq == 700:
            log.append(Draft(content="written while reading"))
    assert seen == list(range(1, 1_204))


def test_a_grant_hides_what_it_does_not_reach(log: EventLog) -> None:
    log.append(Draft(session_id="mine"))
    log.append(Draft(session_id="other"))
    assert log.get(1, Grant(session_id="mine")).seq == 1
    with pytest.raises(UnknownSeq, match="2"):
        log.get(2, Grant(session_id="mine"))
    assert [e.seq for e in log.span(1, 2, Grant(session_id="mine"))] == [1]
    assert [s.session_id for s in log.sessions(Grant(session_id="mine"))] == ["mine"]


def test_large_text_moves_to_a_payload_and_reads_back_whole(log: EventLog) -> None:
    text = "漢字 and words " * 10_000
    event = log.get(log.append(Draft(content=text)))
    assert event.payload is not None and event.payload.size == len(text.encode())
    assert text.startswith(event.content) and len(event.content) == 2_000
    assert log.text(event) == text


def test_lone_surrogates_are_replaced_and_the_row_says_so(log: EventLog) -> None:
    event = log.get(
        log.append(Draft(content="bad \ud800 half, whole \U0001f600", metadata={"k": 1}))
    )
    assert event.content == "bad \ufffd half, whole \U0001f600"
    assert event.metadata == {"k": 1, "replaced_surrogates": True}


@pytest.mark.parametrize(
    "draft",
    [
        Draft(content=5),  # type: ignore[arg-type]
        Draft(kind=""),
        Draft(reply_to="7"),  # type: ignore[arg-type]
        Draft(step_index=1 << 63),
        Draft(created_at="yesterday"),
        Draft(metadata={"x": object()}),
        Draft(metadata=[1]),  # type: ignore[arg-type]
        Draft(session_id="\ud800"),
        Draft(payload=Payload("../../etc/passwd", 9)),
    ],
)
def test_bad_drafts_are_refused_before_anything_is_written(log: EventLog, draft: Draft) -> None:
    with pytest.raises(BadInput):
        log.append_many([Draft(content="good"), draft])
    assert log.last_seq() == 0


@settings(max_examples=form(25, 60))
@given(
    st.lists(st.tuples(st.text(max_size=60), st.sampled_from(["", "a", "b", "c"])), max_size=12),
    st.integers(1, 5),
)
def test_random_appends_read_back_and_verify(items: list[tuple[str, str]], size: int) -> None:
    expected: list[str] = []
    places: list[int] = []  # of each item in the log
    known: dict[str, int] = {}
    for text, key in items:
        if key not in known:
            expected.append(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        places.append(known.get(key, len(expected)))
        if key:
            known[key] = places[-1]
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(FileBackend(Path(folder) / "store", create=True))
        drafts = [Draft(content=text, source_key=key) for text, key in items]
        seqs = [
            seq
            for at in range(0, len(drafts), size)
            for seq in log.append_many(drafts[at : at + size])
        ]
        assert seqs == places, "a source key that is known gives the address that it has"
        assert [event.content for event in log.iterate()] == expected
        assert verify(log).ok
        log.close()


RAW_CHANGES = [
    "UPDATE event SET content = 'forged' WHERE seq = 1",
    "UPDATE OR REPLACE event SET seq = 2 WHERE seq = 1",
    "DELETE FROM event WHERE seq = 1",
    "DELETE FROM event",
    "INSERT OR REPLACE INTO event SELECT * FROM event WHERE seq = 1",
    "REPLACE INTO event SELECT * FROM event WHERE seq = 1",
    "INSERT OR IGNORE INTO event SELECT * FROM event WHERE seq = 1",
    "INSERT INTO event SELECT * FROM event WHERE seq = 1 ON CONFLICT (seq) DO UPDATE SET content = 'forged'",
]


@pytest.mark.parametrize("statement", RAW_CHANGES)
@pytest.mark.parametrize("recursive", [0, 1])
def test_the_file_refuses_every_change(log: EventLog, statement: str, recursive: int) -> None:
    log.append_many([Draft(content="one", source_key="k"), Draft(content="two")])
    raw = sqlite3.connect(log.path, isolation_level=None)
    raw.execute(f"PRAGMA recursive_triggers = {recursive}")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw.execute(statement)
    raw.close()
    assert [event.content for event in log.iterate()] == ["one", "two"]


def test_replacing_by_source_key_is_refused_too(log: EventLog) -> None:
    log.append(Draft(content="one", source_key="k"))
    raw = sqlite3.connect(log.path, isolation_level=None)
    columns = ", ".join(c for c in COLUMNS if c != "seq")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw.execute(f"INSERT OR REPLACE INTO event (seq, {columns}) SELECT 9, {columns} FROM event")
    raw.close()
    assert log.get(1).content == "one"


def tamper(path: Path, *statements: str) -> None:
    """What only somebody with the file and a will can do: take the guards away first."""
    raw = sqlite3.connect(path, isolation_level=None)
    for (trigger,) in raw.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
        raw.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        raw.execute(statement)
    raw.close()


@pytest.mark.parametrize(
    ("statement", "first_bad", "what"),
    [
        ("UPDATE event SET content = 'forged' WHERE seq = 4", 4, "altered"),
        ("UPDATE event SET chain = zeroblob(32) WHERE seq = 6", 6, "altered"),
        ("DELETE FROM event WHERE seq BETWEEN 3 AND 5", 3, "missing"),
        ("DELETE FROM event WHERE seq > 8", 9, "missing from the end"),
    ],
)
def test_verify_names_the_first_bad_seq(
    log: EventLog, statement: str, first_bad: int, what: str
) -> None:
    log.append_many(Draft(content=str(n)) for n in range(10))
    assert verify(log).ok
    tamper(log.path, statement)
    verdict = verify(log)
    assert not verdict.ok
    assert verdict.bad[0][0] == first_bad and what in verdict.bad[0][1]


def test_nothing_is_chained_to_a_missing_tail(log: EventLog, folder: Path) -> None:
    log.append_many(Draft(content=str(n)) for n in range(3))
    tamper(log.path, "DELETE FROM event WHERE seq = 3")
    with pytest.raises(StoreDamaged, match="seq 3"):
        reopen(folder).append(Draft(content="next"))


def test_verify_finds_missing_and_altered_payloads(log: EventLog) -> None:
    first = log.get(log.append(Draft(content="x" * 100_000)))
    second = log.get(log.append(Draft(content="y" * 100_000)))
    assert first.payload and second.payload
    log.payloads.path(first.payload.digest).unlink()
    log.payloads.path(second.payload.digest).write_bytes(b"z" * 100_000)
    assert [(seq, text.split(" ")[0]) for seq, text in verify(log).bad] == [
        (1, "payload"),
        (2, "payload"),
    ]


def test_threads_share_commits_and_lose_nothing(log: EventLog) -> None:
    seqs: list[int] = []

    def write(name: int) -> None:
        for n in range(50):
            seqs.extend(
                log.append_many([Draft(content=f"{name}-{n}-a"), Draft(content=f"{name}-{n}-b")])
            )

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(1, 801))
    contents = [event.content for event in log.iterate()]
    for at in range(0, 800, 2):
        assert contents[at][:-1] == contents[at + 1][:-1]  # a caller's events stay together
    assert verify(log).ok


def appending(log: EventLog, content: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: log.append(Draft(content=content)), daemon=True)
    thread.start()
    return thread


def test_all_who_wait_are_written_in_one_commit(log: EventLog) -> None:
    log.append(Draft(content="opens the writer"))
    statements: list[str] = []
    assert isinstance(log.backend, FileBackend) and log.backend.writer.connection is not None
    log.backend.writer.connection.set_trace_callback(statements.append)
    holder = sqlite3.connect(log.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    threads = [appending(log, "waits for the file")]
    wait_for(lambda: log.commits.running.locked() and not log.commits.waiting)
    threads += [appending(log, f"waits for the first, {n}") for n in range(7)]
    wait_for(lambda: log.commits.waiting == 7)
    holder.execute("ROLLBACK")
    join(*threads)
    holder.close()
    assert log.last_seq() == 9
    assert statements.count("COMMIT") == 2


Interrupt = Callable[[Callable[[], bool]], threading.Thread]


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """Raises KeyboardInterrupt in the main thread once a condition holds."""

    def on_signal(*_: object) -> None:
        raise KeyboardInterrupt

    def when(condition: Callable[[], bool]) -> threading.Thread:
        def wait_and_signal() -> None:
            wait_for(condition)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        thread = threading.Thread(target=wait_and_signal, daemon=True)
        thread.start()
        return thread

    before = signal.signal(signal.SIGUSR1, on_signal)
    yield when
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_caller_leaves_the_queue_and_keeps_nobody_waiting(
    log: EventLog, interrupt: Interrupt
) -> None:
    holder = sqlite3.connect(log.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    threads = [appending(log, "first")]
    wait_for(lambda: log.commits.running.locked() and not log.commits.waiting)
    threads.append(interrupt(lambda: log.commits.waiting == 1))
    with pytest.raises(KeyboardInterrupt):
        log.append(Draft(content="interrupted while waiting for the first"))
    threads.append(appending(log, "later"))
    holder.execute("ROLLBACK")
    join(*threads)
    holder.close()
    assert [event.content for event in log.iterate()] == ["first", "later"]


def test_an_interrupted_writer_hands_the_pen_on(log: EventLog, interrupt: Interrupt) -> None:
    holder = sqlite3.connect(log.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    threads: list[threading.Thread] = []

    def other_waits() -> bool:
        if log.commits.running.locked() and not log.commits.waiting and not threads:
            threads.append(appending(log, "waits for the writer"))
        return bool(threads) and log.commits.waiting == 1

    interrupting = interrupt(other_waits)
    with pytest.raises(KeyboardInterrupt):
        log.append(Draft(content="interrupted while waiting for the file"))
    holder.execute("ROLLBACK")
    join(interrupting, *threads)
    holder.close()
    assert [event.content for event in log.iterate()] == ["waits for the writer"]


def _write_in_process(folder: str, name: int, count: int) -> None:
    log = EventLog(FileBackend(Path(folder), create=True))
    for n in range(count):
        log.append(Draft(session_id=str(name), content=str(n)))
    log.close()


def test_processes_create_and_write_one_log_at_once(folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=_write_in_process, args=(str(folder), name, 60)) for name in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    log = reopen(folder)
    for name in range(4):
        assert [event.content for event in log.iterate(session_id=str(name))] == [
            str(n) for n in range(60)
        ]
    assert verify(log).ok


def test_a_held_lock_is_an_error_after_the_deadline_and_reading_goes_on(
    log: EventLog, folder: Path
) -> None:
    log.append(Draft(content="there"))
    holder = sqlite3.connect(log.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    other = reopen(folder, lock_timeout=0.05)
    with pytest.raises(StoreLocked, match="nothing was written"):
        other.append(Draft(content="waits"))
    assert other.get(1).content == "there"
    holder.execute("ROLLBACK")
    assert other.append(Draft(content="now")) == 2
    holder.close()
    other.close()


def test_opening_needs_no_lock(log: EventLog, folder: Path) -> None:
    log.append(Draft(content="there"))
    holder = sqlite3.connect(log.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    again = reopen(folder)
    assert again.last_seq() == 1
    again.close()
    holder.close()


def test_a_closed_log_says_so(log: EventLog) -> None:
    log.append(Draft())
    log.close()
    with pytest.raises(StoreClosed):
        log.append(Draft())
    with pytest.raises(StoreClosed):
        log.get(1)


def test_what_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "foreign").mkdir()
    sqlite3.connect(tmp_path / "foreign" / "log.db").execute(
        "CREATE TABLE t (x)"
    ).connection.close()
    for name in ("file", "full", "foreign", "absent"):
        with pytest.raises(NotAStore):
            reopen(tmp_path / name)
    with pytest.raises(NotAStore):
        EventLog(FileBackend(tmp_path / "full", create=True))
    assert not (tmp_path / "absent").exists()
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_an_empty_log_never_replaces_a_lost_one(folder: Path) -> None:
    (folder / "payloads").mkdir(parents=True)
    with pytest.raises(StoreDamaged, match="backup"):
        EventLog(FileBackend(folder, create=True))
    assert not (folder / "log.db").exists()


@pytest.mark.parametrize(
    ("version", "error", "remedy"),
    [
        (99, StoreTooNew, "Upgrade scroll-context"),
        (schema.FORMAT_VERSION + 1, StoreTooNew, "Upgrade scroll-context"),
        (schema.FORMAT_VERSION - 1, StoreTooOld, "Export the store with the older version"),
        (0, StoreTooOld, "Export the store with the older version"),
    ],
)
@pytest.mark.parametrize("writable", [False, True])
def test_another_format_is_refused_and_left_alone(
    log: EventLog, folder: Path, version: int, error: type[Exception], remedy: str, writable: bool
) -> None:
    log.append(Draft(content="x"))
    log.close()
    raw = sqlite3.connect(folder / "log.db")
    raw.execute(f"PRAGMA user_version = {version}")
    raw.close()
    before = (folder / "log.db").read_bytes()
    with pytest.raises(error, match=rf"format {version}; .*{remedy}"):
        schema.connect(folder / "log.db", writable=writable)
    with pytest.raises(error):
        reopen(folder)
    assert (folder / "log.db").read_bytes() == before


def test_garbage_is_damage_not_an_empty_store(folder: Path) -> None:
    folder.mkdir()
    (folder / "log.db").write_bytes(b"not a database at all" * 500)
    with pytest.raises(StoreDamaged):
        reopen(folder)
