"""The SQL guard under random queries: what lies outside the grant has no effect on any answer.

Two logs hold the same granted rows and differ in everything else: how many rows there are, whose
they are and what they say. So a query that could count, compare, find or merely notice a hidden row
would tell the two logs apart; none may, in its rows or in the text of its refusal.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import event, example, find, given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.errors import QueryLimit, QueryRefused
from scroll_context.events import Draft, Grant, Kind
from scroll_context.log import log as log_module
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.sql.guard import GuardedSql, SqlResult
from scroll_context.sql.messages import SqlLimits

CANARIES = ("canary-yellow", "canary-green")

# queries ------------------------------------------------------------------------------------------------

ALLOWED = (
    "events",
    "conversation_history",
    "hist.events",
    "hist.conversation_history",
    "t",
    "json_each('[1, 2]')",
)
FORBIDDEN = (
    "event",
    "log.event",
    "main.event",
    "temp.event",
    "hist.event",
    "log.events",
    "sqlite_master",
    "sqlite_schema",
    "log.sqlite_master",
    "temp.sqlite_schema",
    "sqlite_temp_master",
    "sqlite_sequence",
    "log.sqlite_sequence",
    "sqlite_stat1",
    "pragma_table_info('event')",
    "pragma_database_list",
    "dbstat",
    "sqlite_dbpage",
    "granted",
)
COLUMNS = (
    "seq",
    "content",
    "session_id",
    "kind",
    "metadata",
    "recorded_at",
    "source_key",
    "payload",
    "role",
) * 3 + (
    "a.content",
    "b.seq",
    "chain",
    "rowid",
    "oid",
    "value",
    "x",
    "name",
    "sql",
    "event.content",
    "events.content",
)
LITERALS = ("1", "0", "''", "'%canary%'", "'other'", "NULL", "'[1]'", "1e9", "x'00'")
FUNCTIONS = (
    "count",
    "max",
    "min",
    "sum",
    "total",
    "length",
    "upper",
    "hex",
    "quote",
    "typeof",
    "group_concat",
    "abs",
    "json_group_array",
    "json_array",
    "json_quote",
    "likely",
    "load_extension",
    "randomblob",
    "sqlite_version",
)
NAMES = ("t", "events", "conversation_history", "event", "granted", "sqlite_master", "log")


class Grammar:
    """Writes a query from numbers: each picks one of several ways on; without more, it is the first
    and shortest.
    """

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = iter(numbers)

    def pick(self, ways: Sequence[str]) -> str:
        return ways[next(self._numbers, 0) % len(ways)]

    def query(self) -> str:
        match self.pick(["core", "core", "core", "set", "with", "recursive"]):
            case "set":
                return f"{self.core()} {self.pick(['UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'])} {self.core()}"
            case "with":
                return f"WITH {self.pick(NAMES)} AS ({self.core()}) {self.core()}"
            case "recursive":
                return f"WITH RECURSIVE {self.pick(NAMES)}(x) AS ({self.core()} UNION SELECT x FROM t) {self.core()}"
        return self.core()

    def core(self) -> str:
        wanted = self.pick(["*", "count(*)", "{e}", "{e}", "DISTINCT {e}", "{e}, {e} AS x"])
        while "{e}" in wanted:
            wanted = wanted.replace("{e}", self.expression(), 1)
        where = f" WHERE {self.expression()}" if self.pick(["", "where"]) else ""
        end = self.pick(
            ["", "", " GROUP BY 1", " ORDER BY 1 DESC", " LIMIT 3", " LIMIT 1 OFFSET 2"]
        )
        return f"SELECT {wanted} FROM {self.tables()}{where}{end}"

    def tables(self) -> str:
        one = self.table()
        match self.pick(["", "", "as", ",", "JOIN", "LEFT JOIN", "NATURAL JOIN"]):
            case "":
                return one
            case "as":
                return f"{one} AS a"
            case join:
                return f"{one} AS a {join} {self.table()} AS b"

    def table(self) -> str:
        if self.pick(["", "", "", "query"]):
            return f"({self.query()})"
        name = self.pick(ALLOWED * 10 + FORBIDDEN)
        parts = name.split(".") if "(" not in name else [name]
        match self.pick(["", "", "", '"', "[", "upper", "comment"]):
            case '"':
                parts = [part if "(" in part else f'"{part}"' for part in parts]
            case "[":
                parts = [part if "(" in part else f"[{part}]" for part in parts]
            case "upper":
                parts = [part.upper() for part in parts]
            case "comment":
                return " /* . */ . ".join(parts)
        return ".".join(parts)

    def expression(self) -> str:
        match self.pick(
            [
                "column",
                "column",
                "literal",
                "call",
                "pair",
                "case",
                "window",
                "query",
                "exists",
                "in",
            ]
        ):
            case "literal":
                return self.pick(LITERALS)
            case "call":
                return f"{self.pick(FUNCTIONS)}({self.expression()})"
            case "pair":
                operator = self.pick("= < || + AND OR LIKE GLOB IS ->>".split())
                return f"({self.expression()} {operator} {self.expression()})"
            case "case":
                return f"CASE WHEN {self.expression()} THEN {self.expression()} ELSE {self.expression()} END"
            case "window":
                return f"count(*) FILTER (WHERE {self.expression()}) OVER (ORDER BY {self.expression()})"
            case "query":
                return f"({self.query()})"
            case "exists":
                return f"EXISTS ({self.query()})"
            case "in":
                return f"{self.expression()} IN ({self.query()})"
        return self.pick(COLUMNS)


queries = st.lists(st.integers(0, 209), max_size=60).map(lambda numbers: Grammar(numbers).query())
JUNK = [
    "",
    " ",
    ";",
    "--",
    "/*",
    "*/",
    "'",
    '"',
    "`",
    "[",
    "(",
    ")",
    ",",
    ".",
    "hist.",
    "log.",
    "event",
    "\x00",
    "é",
]


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A query with a few of its words lost or replaced."""
    words = draw(queries).split(" ")
    for at in draw(st.lists(st.integers(0, len(words) - 1), max_size=3)):
        words[at] = draw(st.sampled_from(JUNK))
    return " ".join(words)


# the two logs -------------------------------------------------------------------------------------------


class Unguarded:
    """The whole log behind views that are conditions only, and nobody who watches."""

    def __init__(self, path: Path, *_: object) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.execute("ATTACH DATABASE ? AS log", (str(path),))
        for view in ("events", "conversation_history"):
            self._database.execute(
                f"CREATE TEMP VIEW {view} AS SELECT * FROM log.event WHERE session_id = 'mine'"
            )

    def query(self, sql: str) -> SqlResult:
        try:
            return SqlResult(
                (), [{"row": row} for row in self._database.execute(sql).fetchmany(50)]
            )
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise QueryRefused(str(error)) from None

    def close(self) -> None:
        self._database.close()


Worlds = tuple[GuardedSql | Unguarded, GuardedSql | Unguarded]


def _world(folder: Path, canary: str, hidden: int) -> Path:
    """Granted rows around a hidden one, and then as many hidden ones as wanted."""
    log = EventLog(FileBackend(folder, create=True))
    mine = [
        Draft(session_id="mine", agent_id="me", role="user", content=f"turn {n}") for n in "abc"
    ]
    theirs = Draft(
        session_id=canary,
        agent_id=canary,
        task_id=canary,
        name=canary,
        content=canary,
        headline=canary,
        metadata={canary: canary},
        source_key=canary,
    )
    book = Draft(session_id="mine", kind=Kind.REQUEST, content="bookkeeping")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            log_module, "utc_now", lambda: "2024-05-06T07:08:09.000000+00:00"
        )  # granted rows have times too
        log.append_many([mine[0], theirs, *mine[1:], book])
        log.append_many(Draft(session_id=canary, content=f"{canary} {n}") for n in range(hidden))
    log.close()
    return folder / "log.db"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [
        _world(tmp_path_factory.mktemp("world") / "s", canary, 3 + 4 * n)
        for n, canary in enumerate(CANARIES)
    ]


def _opened(kind: type[GuardedSql] | type[Unguarded], logs: list[Path]) -> Worlds:
    limits = SqlLimits(seconds=0.5, rows=50)
    one, other = (kind(path, Grant(session_id="mine"), limits) for path in logs)
    return one, other


@pytest.fixture(scope="module")
def worlds(logs: list[Path]) -> Iterator[Worlds]:
    opened = _opened(GuardedSql, logs)
    yield opened
    for one in opened:
        one.close()


def answers(worlds: Worlds, sql: str) -> tuple[str, str] | None:
    """What the two windows say; None when one of them ran out of time."""
    said = []
    for window in worlds:
        try:
            result = window.query(sql)
            said.append(f"{result.columns} {result.rows} {result.note}")
        except QueryLimit:
            return None
        except QueryRefused as refused:
            said.append(f"refused: {refused}")
    return said[0], said[1]


def tells_apart(worlds: Worlds, sql: str) -> bool:
    said = answers(worlds, sql)
    named = sql.replace("canary", "").lower()
    return said is not None and (
        said[0] != said[1]
        or any(canary in text for canary in CANARIES for text in said if canary not in named)
    )


# the properties -----------------------------------------------------------------------------------------


@settings(max_examples=form(150, 500))
@given(sql=queries | mangled())
@example("SELECT count(*) FROM (SELECT 1 FROM event)")
@example("WITH events AS (SELECT content FROM log.event) SELECT * FROM events")
@example("SELECT a.seq FROM events AS a LEFT JOIN log.event AS b WHERE b.content LIKE '%canary%'")
def test_no_query_tells_two_logs_apart(worlds: Worlds, sql: str) -> None:
    said = answers(worlds, sql)
    event(
        "ran out of time"
        if said is None
        else "refused"
        if said[0].startswith("refused")
        else "answered"
    )
    assert not tells_apart(worlds, sql)


def test_the_queries_would_tell_them_apart_if_nobody_watched(logs: list[Path]) -> None:
    worlds = _opened(Unguarded, logs)
    assert tells_apart(worlds, "SELECT count(*) FROM log.event")
    assert find(
        queries, lambda sql: tells_apart(worlds, sql), settings=settings(max_examples=2_000)
    )
    for one in worlds:
        one.close()


@settings(max_examples=form(60, 200))
@given(sql=queries | mangled())
def test_no_query_leaves_the_log_pinned_or_the_window_broken(worlds: Worlds, sql: str) -> None:
    answers(worlds, sql)
    for window in worlds:
        assert window.query("SELECT group_concat(content) AS c FROM conversation_history").rows == [
            {"c": "turn a,turn b,turn c"}
        ]
