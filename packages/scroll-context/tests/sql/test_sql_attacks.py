"""Guarded SQL under attack: foreign rows cannot be reached by any expression, and no query harms
the host.
"""

import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.errors import KernelDied, QueryLimit, QueryRefused, StoreClosed
from scroll_context.events import EVERYTHING, Draft, Grant
from scroll_context.jail.linux import available_abi
from scroll_context.kernel.broker import Connection
from scroll_context.log.log import EventLog
from scroll_context.sql.guard import MAX_SQL, GuardedSql
from scroll_context.sql.messages import SqlLimits, ToHost
from scroll_context.sql.statement import rewrite
from scroll_context.store import Store

SECRET = "zanzibar"
QUICK = SqlLimits(seconds=1.0)
HAS_LANDLOCK = sys.platform == "linux" and available_abi() > 0


@pytest.fixture
def history(log: EventLog) -> EventLog:
    """Five rows of one's own behind a foreign one; theirs can be paths of JSON, the foreign one
    cannot.
    """
    log.append(Draft(session_id="other", role="user", content=SECRET))
    log.append_many([Draft(session_id="mine", role="user", content=f".turn{n}") for n in range(5)])
    return log


@pytest.fixture
def sql(history: EventLog) -> Iterator[GuardedSql]:
    window = GuardedSql(history.path, Grant(session_id="mine"), QUICK)
    yield window
    window.close()


# grants -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        # run on the foreign row, the path is malformed and the error carries the row's content
        "SELECT seq FROM hist.events WHERE (seq = 1 AND json_extract('{}', '$' || content) IS 1) OR (seq = 6 AND 1)",
        "SELECT seq FROM hist.events WHERE json_extract('{}', '$' || content) IS 1 AND seq = 1",
        "SELECT seq FROM hist.events WHERE seq < 3 AND json_extract('{}', '$' || content) IS 1",
        "SELECT seq FROM hist.events WHERE seq = 1 AND abs(-9223372036854775807 - (content LIKE 'zan%'))",
        "SELECT seq FROM events WHERE (seq = 1 AND CASE WHEN content>'z' THEN abs(-9223372036854775808) END) OR 0",
        "SELECT (SELECT json_extract('{}', '$' || b.content) FROM events b WHERE b.seq = a.seq - 1) FROM events a",
        "SELECT max(json_extract('{}', '$' || content)) FROM hist.events WHERE seq = 1",
    ],
)
def test_an_expression_of_the_query_never_runs_on_a_foreign_row(
    sql: GuardedSql, query: str
) -> None:
    try:
        said = f"{sql.query(query).rows}"
    except QueryRefused as refused:
        pytest.fail(f"something ran on a row that is not there: {refused}")
    assert SECRET not in said


def test_errors_on_values_have_fixed_texts(sql: GuardedSql) -> None:
    for query in (
        "SELECT json_extract('{}', content) FROM hist.events",
        "SELECT json(content) FROM hist.events",
        "SELECT content -> '$[' FROM hist.events",
    ):
        with pytest.raises(QueryRefused) as refused:
            sql.query(query)
        assert "turn" not in str(refused.value)
    with pytest.raises(QueryRefused, match="no such column: nosuch"):
        sql.query("SELECT nosuch FROM hist.events")


def test_rows_appended_later_are_seen_in_copied_and_in_whole_grants(history: EventLog) -> None:
    window = GuardedSql(history.path, Grant(session_id="fresh"))
    count = "SELECT count(*) AS n, max(content) AS c FROM hist.events"
    assert window.query(count).rows == [{"n": 0, "c": None}]
    history.append(Draft(session_id="fresh", content="one"))
    history.append(Draft(session_id="other", content=SECRET))
    history.append(Draft(session_id="fresh", content="two"))
    assert window.query(count).rows == [{"n": 2, "c": "two"}]
    window.close()


def test_a_grant_of_every_row_is_read_in_place_until_a_foreign_row_appears(log: EventLog) -> None:
    log.append_many([Draft(session_id="mine", content=f"turn {n}") for n in range(5)])
    window = GuardedSql(log.path, Grant(session_id="mine"))
    everything = "SELECT group_concat(content) AS c FROM hist.events"
    assert window.query(everything).rows == [{"c": "turn 0,turn 1,turn 2,turn 3,turn 4"}]
    log.append(Draft(session_id="other", content=SECRET))
    assert window.query(everything).rows == [{"c": "turn 0,turn 1,turn 2,turn 3,turn 4"}]
    with pytest.raises(QueryRefused, match="no such table"):
        window.query("SELECT content FROM log.event")
    window.close()


def test_rows_that_are_erased_leave_the_copy_too(folder: Path) -> None:
    with Store(folder, create=True) as store:
        seqs = [
            store.append(Draft(session_id="mine", content=text))
            for text in ("keep this", "forget heron_4711")
        ]
        store.append(Draft(session_id="other", content="foreign"))
        window = store.sql(Grant(session_id="mine"))
        asked = "SELECT group_concat(content, '|') AS c FROM hist.events"
        assert window.query(asked).rows == [{"c": "keep this|forget heron_4711"}]
        store.erase(seqs=seqs[1:])
        assert "heron" not in f"{window.query(asked).rows}"
        window.close()


# the host ---------------------------------------------------------------------------------------------------

DOUBLED = "WITH " + ", ".join(
    f"t{n} AS (SELECT * FROM t{n - 1} UNION ALL SELECT * FROM t{n - 1})"
    if n
    else "t0 AS (SELECT 1 AS x)"
    for n in range(23)
)
LARGE = (
    "WITH t AS (SELECT replace(replace('aaaaaaaaaaaaaaaa', 'a', '{}'), 'b', '{}') AS x) ".format(
        "b" * 1_000, "c" * 900
    )
)
HEAVY = {
    "doubling common table expressions": DOUBLED + " SELECT count(*) FROM t22",
    "a hundred large columns": f"{LARGE} SELECT {', '.join(['x || 1'] * 100)} FROM t",
    "a quadratic instr": f"{LARGE} SELECT instr(x, substr(x, 1, 7000000) || 'd') FROM t",
    "a recursion that spills": f"""WITH RECURSIVE t(x, y) AS (
        SELECT 1, hex(replace('{"a" * 2_000}', 'a', 'bcde')) UNION SELECT x + 1, y || x FROM t
    ) SELECT count(*) FROM t""",
    "an endless join": f"SELECT count(*) FROM {', '.join(f'hist.events {name}' for name in 'abcdefghijklm')}",
}


@pytest.mark.parametrize("attack", HEAVY)
def test_heavy_queries_end_as_clear_errors_and_the_host_is_unharmed(
    sql: GuardedSql, attack: str
) -> None:
    sql.query("SELECT 1")
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.monotonic()
    with pytest.raises(QueryLimit):
        sql.query(HEAVY[attack])
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert time.monotonic() - started < 30
    assert after.ru_utime - before.ru_utime < 1, "the host itself computed"
    assert after.ru_maxrss - before.ru_maxrss < 100_000, "the host itself took the memory"
    assert sql.query("SELECT count(*) AS n FROM hist.events").rows == [{"n": 5}]


def test_temporary_files_of_a_query_have_a_largest_size(history: EventLog) -> None:
    limits = SqlLimits(seconds=60.0, file_bytes=8 << 20)
    window = GuardedSql(history.path, Grant(session_id="mine"), limits)
    distinct = f"""WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 40000)
        SELECT count(*) FROM (SELECT DISTINCT n || '{"x" * 2_000}' FROM t)"""
    with pytest.raises(QueryLimit, match="8 MB of temporary space"):
        window.query(distinct)
    assert window.query("SELECT count(*) AS n FROM hist.events").rows == [{"n": 5}]
    window.close()


def _nanoseconds(process: int) -> int:
    """Processor time of a process."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0])


def test_closing_kills_a_running_query_and_does_not_wait(history: EventLog) -> None:
    window = GuardedSql(history.path, Grant(session_id="mine"), SqlLimits(seconds=600.0))
    window.query("SELECT 1")
    worker = window._worker
    assert worker is not None
    told: list[BaseException] = []

    def run() -> None:
        try:
            window.query(HEAVY["a quadratic instr"])
        except BaseException as error:
            told.append(error)

    process = worker.process.pid
    before = _nanoseconds(process)
    thread = threading.Thread(target=run)
    thread.start()
    while _nanoseconds(process) < before + 50_000_000:  # the worker is at the query
        thread.join(0.01)
    window.close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(told[0], StoreClosed)
    assert not Path(f"/proc/{process}").exists()


def test_a_killed_worker_is_replaced(sql: GuardedSql) -> None:
    sql.query("SELECT 1")
    assert sql._worker is not None
    os.kill(sql._worker.process.pid, 9)
    assert sql.query("SELECT 2 AS two").rows == [{"two": 2}]


def test_an_idle_worker_ends_and_the_next_query_gets_another(history: EventLog) -> None:
    window = GuardedSql(history.path, Grant(session_id="mine"), SqlLimits(idle=0.05))
    assert window._worker is None, "none is started before the first query"
    for _ in range(2):
        assert window.query("SELECT count(*) AS n FROM hist.events").rows == [{"n": 5}]
        assert window._worker is not None
        assert window._worker.process.has_ended(within=60)
    window.close()


def test_the_worker_ends_with_the_window_and_holds_nothing_of_the_host(
    sql: GuardedSql, tmp_path: Path
) -> None:
    secret = (tmp_path / "secret").open("w")
    sql.query("SELECT 1")
    assert sql._worker is not None
    process = sql._worker.process.pid
    held = [file.readlink().name for file in Path(f"/proc/{process}/fd").iterdir()]
    assert "secret" not in held
    limits = Path(f"/proc/{process}/limits").read_text()
    assert (
        f"{SqlLimits().memory_bytes}" in limits.partition("Max address space")[2].partition("\n")[0]
    )
    sql.close()
    assert not Path(f"/proc/{process}").exists()
    secret.close()


def test_the_worker_does_not_have_the_environment_of_the_host(
    sql: GuardedSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    sql.query("SELECT 1")
    assert sql._worker is not None
    environment = Path(f"/proc/{sql._worker.process.pid}/environ").read_bytes()
    assert SECRET.encode() not in environment


_HOST = """
import sys
from pathlib import Path
from scroll_context.events import Grant
from scroll_context.sql.guard import GuardedSql
from scroll_context.sql.messages import SqlLimits
window = GuardedSql(Path(sys.argv[1]), Grant(session_id="mine"), SqlLimits(seconds=1.0))
window.query("SELECT 1")
print(window._worker.process.pid, flush=True)
window.query(sys.argv[2])
"""


def test_a_query_ends_by_itself_when_its_host_was_killed(history: EventLog) -> None:
    arguments = [sys.executable, "-c", _HOST, str(history.path), HEAVY["a quadratic instr"]]
    host = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    worker = int(host.stdout.readline())
    handle = os.pidfd_open(worker)
    try:
        before, deadline = _nanoseconds(worker), time.monotonic() + 60
        while _nanoseconds(worker) < before + 50_000_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        host.kill()
        has_ended = bool(select.select([handle], [], [], 60)[0])
        if not has_ended:
            os.kill(worker, 9)
        assert has_ended, "the query went on without its host"
    finally:
        os.close(handle)
        host.communicate()


def test_an_answer_that_is_longer_than_any_result_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    limit = SqlLimits().frame_bytes
    connection = Connection(ours, ToHost, limit)
    theirs.sendall((limit + 1).to_bytes(4, "big"))
    with pytest.raises(KernelDied, match="malformed"):
        connection.receive(1.0)
    connection.close()
    theirs.close()


_WRITES = """
import os, sys
from pathlib import Path
import msgspec
from scroll_context.sql.window import confine
from scroll_context.sql.messages import SqlSettings

folder, scratch = sys.argv[1:]
blank = dict.fromkeys(("uri", "granted", "newest_erasure", "erasure", "bookkeeping", "is_erased"), "")
settings = {**blank, "folder": folder, "scratch": scratch, "columns": [], "functions": [],
            "limits": {}, "sqlite_limits": {}}
confine(msgspec.convert(settings, SqlSettings))
Path(scratch, "temporary").write_text("allowed")
Path(folder, "log.db").read_bytes()
for path in (Path(folder, "log.db"), Path(folder, "log.db-shm"), Path(folder, "new"), Path("/etc/passwd")):
    try:
        os.open(path, os.O_RDWR | os.O_CREAT)
    except PermissionError:
        print("refused", path.name)
"""


@pytest.mark.skipif(not HAS_LANDLOCK, reason="needs a system with landlock")
def test_the_worker_can_read_the_store_and_never_write_it(
    history: EventLog, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch of the worker"
    scratch.mkdir()
    arguments = [sys.executable, "-c", _WRITES, str(history.path.parent), str(scratch)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    refused = ["log.db", "log.db-shm", "new", "passwd"]
    assert done.stdout.split("\n")[:-1] == [f"refused {name}" for name in refused], done.stderr


@pytest.mark.skipif(not HAS_LANDLOCK, reason="needs a system with landlock")
def test_a_running_worker_is_confined_and_leaves_no_folder_behind(sql: GuardedSql) -> None:
    sql.query("SELECT 1")
    assert sql._worker is not None
    status = Path(f"/proc/{sql._worker.process.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    scratch = Path(sql._worker._scratch.path)
    assert scratch.is_dir()
    sql.close()
    assert not scratch.exists()


def test_a_closed_log_that_nobody_else_has_open_can_be_read(folder: Path) -> None:
    with Store(folder, create=True) as store:
        store.append(Draft(session_id="mine", content="alone"))
        path = store.log.path
    for grant in (Grant(session_id="mine"), Grant(session_id="other"), EVERYTHING):
        window = GuardedSql(path, grant)
        count = len(window.query("SELECT content FROM hist.events").rows)
        assert count == (grant.session_id != "other")
        window.close()


@pytest.mark.parametrize("unit", ["'", '"', "[", "`", "/*", "-", "(", "a.", "/* * ", "'a"])
def test_reading_a_query_takes_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text = "SELECT " + unit * (size // len(unit))
        started = time.process_time()
        rewrite(text)
        return time.process_time() - started

    seconds(1_000)
    assert seconds(MAX_SQL) < 2  # quadratic: minutes


def test_an_overlong_query_is_refused_before_it_is_read(sql: GuardedSql) -> None:
    with pytest.raises(QueryRefused, match="at most 100,000 characters"):
        sql.query("SELECT '" + "x" * 50_000_000)
    with pytest.raises(QueryRefused, match="parameters"):
        sql.query("SELECT ?", ["x" * 50_000_000])


# which events the rows are ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("SELECT content FROM hist.events WHERE seq < 4", (2, 3)),
        ("SELECT 4 AS seq, 'made up' FROM hist.events WHERE seq = 3", (3,)),
        ("SELECT * FROM hist.conversation_history ORDER BY seq DESC LIMIT 2", (6, 5)),
        ("SELECT e.role, substr(content, 1, 3) FROM hist.events AS e WHERE e.seq IN (1, 3)", (3,)),
        ("SELECT content FROM conversation_history ORDER BY 1 DESC LIMIT 1;", (6,)),
        ("SELECT content -- from\n FROM hist.events LIMIT 1", (2,)),
        ("SELECT 4 AS seq", ()),
        ("VALUES (4)", ()),
        ("SELECT count(*) FROM hist.events", None),
        ("SELECT max(content) FROM hist.events", None),
        ("SELECT DISTINCT role FROM hist.events", None),
        ("SELECT role, seq FROM hist.events GROUP BY role", None),
        ("SELECT a.seq FROM hist.events a JOIN hist.events b ON a.seq = b.seq", None),
        ("SELECT a.seq FROM hist.events a, hist.events b", None),
        (
            "SELECT seq, (SELECT content FROM hist.events WHERE seq = 2) FROM hist.events WHERE seq = 1",
            None,
        ),
        ("SELECT seq FROM hist.events WHERE seq IN events", None),
        ("WITH events AS (SELECT 4 AS seq) SELECT seq FROM events", None),
        ("SELECT seq, lag(content) OVER (ORDER BY seq) FROM hist.events", None),
        ("SELECT 4 AS seq UNION SELECT length(content) FROM hist.events", None),
        ("SELECT value FROM json_each('[1]')", None),
    ],
)
def test_the_events_of_a_result_are_known_or_said_to_be_unknown(
    sql: GuardedSql, query: str, seqs: tuple[int, ...] | None
) -> None:
    try:
        result = sql.query(query)
    except QueryRefused:
        assert " IN events" in query  # a sub-select of many columns
        return
    assert result.seqs == seqs
    assert "seq of the row" not in result.columns and all(
        "seq of the row" not in row for row in result.rows
    )


def test_a_column_with_a_long_name_is_refused(sql: GuardedSql) -> None:
    """The host repeats names in each row: 10 KB of SQL took 1 GB there."""
    with pytest.raises(QueryLimit, match="more than 256 characters; give it a short one with AS"):
        sql.query(f'SELECT 1 AS "{"n" * 257}"')
    assert sql.query(f'SELECT 1 AS "{"n" * 256}"').rows == [{"n" * 256: 1}]


def test_the_names_of_columns_count_in_every_row(history: EventLog) -> None:
    window = GuardedSql(history.path, Grant(session_id="mine"), SqlLimits(result_bytes=10_000))
    names = ", ".join(f'{n} AS "{"n" * 250}{n:03}"' for n in range(20))
    try:
        result = window.query(f"SELECT {names} FROM hist.events")
    finally:
        window.close()
    assert result.truncated and len(result.rows) == 1
