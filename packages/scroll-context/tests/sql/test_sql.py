"""Model-written SQL: what models use works, and no query gets past the grant, the guard or the
limits.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.errors import QueryLimit, QueryRefused
from scroll_context.events import EVERYTHING, Draft, Grant, Kind
from scroll_context.log.log import EventLog
from scroll_context.sql.guard import GuardedSql
from scroll_context.sql.messages import SqlLimits
from scroll_context.store import Store

SECRET = "the other session's secret"


@pytest.fixture
def history(log: EventLog) -> EventLog:
    log.append_many(
        Draft(
            session_id="mine",
            agent_id="me",
            task_id="trip",
            role="user" if n % 2 else "assistant",
            content=f"[Session {n // 10} | 2024-01-{n // 10 + 1:02}] turn {n}",
            step_index=n // 10,
            msg_index=n,
            metadata={"date": f"2024-01-{n // 10 + 1:02}"},
            created_at=f"2024-01-{n // 10 + 1:02}T10:00:00",
        )
        for n in range(40)
    )
    log.append(
        Draft(
            kind=Kind.REQUEST,
            session_id="mine",
            agent_id="me",
            task_id="trip",
            content="bookkeeping",
        )
    )
    log.append(Draft(session_id="other's", agent_id="you", task_id="else", content=SECRET))
    return log


@pytest.fixture
def sql(history: EventLog) -> Iterator[GuardedSql]:
    guarded = GuardedSql(history.path, Grant(session_id="mine"))
    yield guarded
    guarded.close()


WORKS = {
    "SELECT count(*) AS n FROM hist.conversation_history": [{"n": 40}],
    "SELECT count(*) AS n FROM hist.events": [{"n": 41}],
    "select COUNT(*) as n from HIST.Conversation_History h where h.role = 'user'": [{"n": 20}],
    'SELECT e.seq FROM "hist"."events" AS e ORDER BY seq LIMIT 1': [{"seq": 1}],
    "SELECT [hist].[events].seq FROM hist /* here */ . events LIMIT 1": [{"seq": 1}],
    "SELECT json_extract(metadata, '$.date') AS d, count(*) AS n FROM hist.conversation_history "
    "WHERE json_extract(metadata, '$.date') BETWEEN '2024-01-02' AND '2024-01-03' GROUP BY d": [
        {"d": "2024-01-02", "n": 10},
        {"d": "2024-01-03", "n": 10},
    ],
    "SELECT metadata ->> '$.date' AS d FROM hist.events WHERE seq = 1": [{"d": "2024-01-01"}],
    "SELECT substr(content, 1, 8) AS c, upper(role) AS r FROM hist.events WHERE seq = 2": [
        {"c": "[Session", "r": "USER"}
    ],
    "SELECT julianday('2024-03-01') - julianday('2024-02-01') AS days": [{"days": 29.0}],
    "SELECT strftime('%Y', created_at) AS y, date(created_at, '+1 day') AS d FROM hist.events WHERE seq = 1": [
        {"y": "2024", "d": "2024-01-02"}
    ],
    "WITH RECURSIVE t(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM t WHERE x < 5) SELECT count(*) AS n FROM t": [
        {"n": 5}
    ],
    "WITH u AS (SELECT * FROM hist.conversation_history WHERE role = 'user') SELECT min(seq) AS lo FROM u": [
        {"lo": 2}
    ],
    "SELECT seq, row_number() OVER (PARTITION BY role ORDER BY seq) AS n, lag(seq) OVER (ORDER BY seq) AS p "
    "FROM hist.events WHERE seq IN (3, 4) ORDER BY seq": [
        {"seq": 3, "n": 1, "p": None},
        {"seq": 4, "n": 1, "p": 3},
    ],
    "SELECT group_concat(seq, '+') AS g FROM (SELECT seq FROM hist.events ORDER BY seq LIMIT 3)": [
        {"g": "1+2+3"}
    ],
    "SELECT a.seq AS x FROM hist.events a JOIN hist.events b ON b.seq = a.seq + 1 WHERE a.seq = 7": [
        {"x": 7}
    ],
    "SELECT seq AS s FROM hist.events WHERE seq = 1 UNION SELECT 2": [{"s": 1}, {"s": 2}],
    "SELECT j.value AS v FROM json_each('[3,4]') AS j": [{"v": 3}, {"v": 4}],
    "SELECT 'hist.events' AS s, \"seq\" FROM conversation_history LIMIT 1": [
        {"s": "hist.events", "seq": 1}
    ],
    "VALUES (1, 'a')": [{"column1": 1, "column2": "a"}],
    "-- a comment first\nSELECT content LIKE '%turn 3' AS m FROM hist.events WHERE seq = 4": [
        {"m": 1}
    ],
    "SELECT seq FROM hist.events WHERE seq = 1;": [{"seq": 1}],
}


@pytest.mark.parametrize("query", WORKS)
def test_what_models_write_works(sql: GuardedSql, query: str) -> None:
    assert sql.query(query).rows == WORKS[query]


def test_parameters_by_position_and_by_name(sql: GuardedSql) -> None:
    assert (
        sql.query("SELECT content FROM hist.conversation_history WHERE seq=?", (4,))
        .rows[0]["content"]
        .endswith("3")
    )
    assert sql.query("SELECT seq FROM hist.events WHERE seq = :s", {"s": 9}).rows == [{"seq": 9}]


CROSSINGS = [
    "SELECT content FROM event",
    "SELECT count(*) FROM event",
    "SELECT count(*) FROM EVENT",
    "SELECT 1 FROM event",
    "SELECT * FROM log.event",
    "SELECT * FROM main.event",
    "SELECT * FROM temp.event",
    "SELECT content FROM hist.event",
    "SELECT (SELECT content FROM event WHERE seq = 42)",
    "SELECT seq FROM hist.events WHERE seq IN (SELECT seq FROM event)",
    "SELECT * FROM hist.events UNION ALL SELECT * FROM event",
    "SELECT content FROM hist.events UNION SELECT content FROM log.event",
    "SELECT EXISTS (SELECT 1 FROM log.event WHERE session_id <> 'mine')",
    "SELECT * FROM hist.events NATURAL JOIN log.event",
    "SELECT * FROM hist.events, event",
    "WITH events AS (SELECT * FROM event) SELECT content FROM events",
    "WITH events AS (SELECT * FROM log.event) SELECT content FROM events",
    "WITH conversation_history AS (SELECT content FROM log.event) SELECT * FROM conversation_history",
    "WITH granted AS (SELECT 1 FROM log.event) SELECT count(*) FROM granted",
    "WITH RECURSIVE events(c) AS (SELECT content FROM event UNION ALL SELECT c FROM events) SELECT c FROM events",
    "SELECT content FROM (SELECT * FROM event) AS conversation_history",
    "SELECT * FROM hist.events WHERE content = (SELECT max(content) FROM log.event)",
    "SELECT max(content) OVER () FROM event",
    "SELECT content FROM event AS events",
    "SELECT * FROM sqlite_master",
    "SELECT count(*) FROM sqlite_master",
    "SELECT 1 FROM sqlite_schema, hist.events",
    "SELECT * FROM sqlite_schema",
    "SELECT sql FROM sqlite_temp_master",
    "SELECT sql FROM temp.sqlite_schema",
    "SELECT * FROM log.sqlite_master",
    "SELECT seq FROM sqlite_sequence",
    "SELECT count(*) FROM log.sqlite_sequence",
    "SELECT * FROM sqlite_stat1",
    "SELECT * FROM pragma_table_info('event')",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_function_list",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM bytecode('SELECT 1')",
    "PRAGMA database_list",
    "PRAGMA writable_schema = 1",
    "/**/ PRAGMA table_list",
    "ATTACH DATABASE ':memory:' AS x",
    "DETACH DATABASE log",
    "EXPLAIN SELECT * FROM hist.events",
    "EXPLAIN QUERY PLAN SELECT * FROM hist.events",
    "CREATE TEMP VIEW v AS SELECT * FROM log.event",
    "CREATE TABLE t (x)",
    "CREATE TEMP TRIGGER t AFTER INSERT ON event BEGIN SELECT 1; END",
    "DROP VIEW events",
    "INSERT INTO log.event (seq) VALUES (99)",
    "INSERT OR REPLACE INTO events SELECT * FROM events",
    "UPDATE log.event SET content = ''",
    "DELETE FROM log.event",
    "WITH x AS (SELECT 1) DELETE FROM log.event",
    "WITH x AS (SELECT 1) INSERT INTO log.event (seq) SELECT 99",
    "VACUUM INTO '/tmp/copy.db'",
    "BEGIN IMMEDIATE",
    "SAVEPOINT x",
    "REINDEX",
    "ANALYZE",
    "SELECT 1; SELECT 2",
    "; PRAGMA table_list",
    "SELECT load_extension('x')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('x', 'y')",
    "SELECT edit('x')",
    "SELECT printf('%.*c', 500000000, 'x')",
    "SELECT format('%500000000d', 1)",
    "SELECT randomblob(1000000000)",
    "SELECT zeroblob(1000000000)",
    "SELECT sqlite_source_id()",
    "SELECT fts3_tokenizer('x')",
    "",
    "   -- nothing",
]


@pytest.mark.parametrize("query", CROSSINGS)
def test_nothing_crosses(sql: GuardedSql, history: EventLog, query: str) -> None:
    with pytest.raises(QueryRefused) as refused:
        sql.query(query)
    assert SECRET not in str(refused.value)
    assert history.last_seq() == 42
    assert sql.query("SELECT count(*) AS n FROM hist.events").rows == [{"n": 41}]


def test_the_same_queries_would_succeed_without_the_guard(history: EventLog) -> None:
    """The attacks are real: on an unguarded connection they read the other session."""
    raw = sqlite3.connect(":memory:")
    raw.execute("ATTACH DATABASE ? AS log", (str(history.path),))
    leaks = 0
    for query in CROSSINGS[:24]:
        try:
            leaks += any(SECRET in map(str, row) for row in raw.execute(query).fetchmany(100))
        except sqlite3.Error:
            continue
    raw.close()
    assert leaks >= 10


@pytest.mark.parametrize(
    ("grant", "rows"),
    [
        (EVERYTHING, 42),
        (Grant(session_id="mine"), 41),
        (Grant(session_id="other's"), 1),
        (Grant(task_id="trip"), 41),
        (Grant(agent_id="you"), 1),
        (Grant(task_id="trip", agent_id="you"), 0),
        (Grant(session_id="x' OR '1'='1"), 0),
        (Grant(session_id="mine\0"), 0),
    ],
)
def test_each_grant_has_its_window(history: EventLog, grant: Grant, rows: int) -> None:
    guarded = GuardedSql(history.path, grant)
    assert guarded.query("SELECT count(*) AS n FROM hist.events").rows == [{"n": rows}]
    guarded.close()


def test_new_events_are_seen_and_the_log_is_not_pinned(sql: GuardedSql, history: EventLog) -> None:
    sql.query("SELECT seq FROM hist.events LIMIT 1")
    history.append(Draft(session_id="mine", content="new"))
    assert sql.query("SELECT content FROM hist.events ORDER BY seq DESC LIMIT 1").rows == [
        {"content": "new"}
    ]
    raw = sqlite3.connect(history.path)
    busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    raw.close()
    assert busy == 0


def test_hidden_rows_are_left_out_of_the_query_that_hides_them_and_of_no_other(
    sql: GuardedSql,
) -> None:
    def rows(table: str, hidden: tuple[int, ...] = ()) -> int:
        [row] = sql.query(f"SELECT count(*) AS n FROM hist.{table}", hidden=hidden).rows
        return int(row["n"])

    everything = rows("conversation_history")
    assert rows("conversation_history", hidden=(2, 3)) == everything - 2
    assert rows("conversation_history", hidden=(3,)) == everything - 1
    assert rows("events", hidden=(2, 3)) == rows("events")
    assert rows("conversation_history") == everything


def test_rows_beyond_the_limit_are_announced_beside_the_rows(history: EventLog) -> None:
    guarded = GuardedSql(history.path, limits=SqlLimits(rows=10))
    result = guarded.query("SELECT seq FROM hist.events ORDER BY seq")
    assert [row["seq"] for row in result.rows] == list(range(1, 11))
    assert "first 10 rows" in result.note
    assert guarded.query("SELECT seq FROM hist.events LIMIT 10").note == ""
    guarded.close()


def test_size_and_time_are_limited(history: EventLog) -> None:
    guarded = GuardedSql(
        history.path, limits=SqlLimits(seconds=0.2, result_bytes=100, value_bytes=10_000)
    )
    assert "bytes" in guarded.query("SELECT content FROM hist.events").note
    with pytest.raises(QueryLimit, match="longer than"):
        guarded.query(
            "WITH RECURSIVE t(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM t) SELECT max(x) FROM t"
        )
    with pytest.raises(QueryLimit, match="longer than"):
        guarded.query(
            "SELECT count(*) FROM hist.events a, hist.events b, hist.events c, hist.events d, hist.events e"
        )
    with pytest.raises(QueryLimit, match="value"):
        guarded.query(
            "WITH RECURSIVE t(x) AS (VALUES ('aa') UNION ALL SELECT x || x FROM t) SELECT max(x) FROM t"
        )
    with pytest.raises(QueryLimit, match="value"):
        guarded.query(
            "SELECT replace(hex(replace(quote(quote('a')), '''', '"
            + "b" * 900
            + "')), '6', '"
            + "c" * 900
            + "')"
        )
    started = time.process_time()
    with pytest.raises(QueryRefused):
        guarded.query("SELECT 'x' LIKE '" + "%a" * 5_000 + "'")
    assert time.process_time() - started < 5
    assert guarded.query("SELECT 1 AS one").rows == [{"one": 1}]
    guarded.close()


def test_threads_take_turns(sql: GuardedSql) -> None:
    results: list[int] = []

    def ask() -> None:
        for _ in range(20):
            results.append(sql.query("SELECT count(*) AS n FROM hist.events").rows[0]["n"])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [41] * 120


@pytest.mark.parametrize("params", [(object(),), (1, 2, 3), (1 << 70,), {"wrong": 1}])
def test_bad_parameters_are_refused(sql: GuardedSql, params: object) -> None:
    with pytest.raises(QueryRefused):
        sql.query("SELECT ?", params)  # type: ignore[arg-type]


def test_a_lone_surrogate_is_refused_and_the_next_query_works(tmp_path: Path) -> None:
    with Store(tmp_path / "store", create=True) as store:
        window = store.sql()
        with pytest.raises(QueryRefused, match="surrogate"):
            window.query("SELECT '\ud800'")
        assert window.query("SELECT 1 AS n").rows == [{"n": 1}]
        window.close()
