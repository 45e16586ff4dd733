"""Read-only SQL for model-written queries, on two views that end where the grant ends.

The log is attached read-only to a private in-memory database. A temporary view with an unguessable name selects
the granted rows; `hist.conversation_history` and `hist.events` are views on that one. The authorizer lets the event
table be read only from inside the unguessable view. (The view's name is what SQLite tells the authorizer, and a
common table expression can take any name, so a name that a query could spell would be no protection.) Whatever is
not a SELECT, a read of those views or a listed function is refused, and a deadline, a row limit and a size limit
bound what remains.

Temporary views live in the schema `temp`, so the qualifier `hist.` is dropped from a query before it runs. That
rewriting is convenience; no guarantee rests on it.
"""

import itertools
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import QueryLimit, QueryRefused, StoreError
from scroll_context.events import BOOKKEEPING, EVERYTHING, Grant
from scroll_context.store import schema

VIEWS = frozenset({"conversation_history", "events"})
COLUMNS = tuple(column for column in schema.COLUMNS if column != "chain")

FUNCTIONS = frozenset(
    """abs acos asin atan atan2 avg ceil ceiling char coalesce concat concat_ws cos count cume_dist current_date
    current_time current_timestamp date datetime degrees dense_rank exp first_value floor glob group_concat hex
    ifnull iif instr json json_array json_array_length json_each json_extract json_group_array json_group_object
    json_object json_quote json_tree json_type json_valid -> ->> julianday lag last_value lead length like ln log
    log10 log2 lower ltrim max median min mod nth_value ntile nullif octet_length percent_rank pi pow power quote
    radians random rank replace round row_number rtrim sign sin sqrt strftime string_agg substr substring sum tan
    time timediff total trim trunc typeof unicode unixepoch upper""".split()
)

_TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
    |(?P<other>'(?:[^']|'')*'|.)""",
    re.VERBOSE | re.DOTALL,
)


class SqlLimits(msgspec.Struct, frozen=True):
    """What one query may use."""

    seconds: float = 5.0
    rows: int = 1_000
    result_bytes: int = 8 << 20
    value_bytes: int = 16 << 20  # the largest text or blob that may exist while the query runs


class Rows(msgspec.Struct, frozen=True):
    """A result: rows as dicts, and beside them a note when there was more."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    note: str = ""


class GuardedSql:
    """One grant's window on the log. Queries from several threads take turns."""

    def __init__(self, path: Path, grant: Grant = EVERYTHING, limits: SqlLimits | None = None) -> None:
        self.grant = grant
        self.limits = limits or SqlLimits()
        self._path = path
        self._closed = False
        self._secret = f"granted_{secrets.token_hex(16)}"
        self._turn = threading.Lock()
        self._deadline = 0.0
        schema.connect(path, writable=False).close()  # checks identity and format, with errors of our own
        with schema.Translated(path):
            try:
                self._database = self._open(f"{path.absolute().as_uri()}?mode=ro")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN:
                    raise
                self._database = self._open(schema.frozen_uri(path))

    def query(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> Rows:
        """Run one SELECT. Rows beyond the limits are left out and announced in the note."""
        statement = self._rewrite(sql)
        with self._turn:
            if self._closed:
                raise schema.closed(self._path, "read")
            self._deadline = time.monotonic() + self.limits.seconds
            try:
                try:
                    return self._run(statement, params)
                except sqlite3.OperationalError as error:
                    if not schema.tolerates(self._database, error):
                        raise
                    return self._run(statement, params)
            except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
                raise self._refusal(error) from None

    def close(self) -> None:
        """Close the connection; a running query is finished first."""
        with self._turn:
            self._closed = True
            self._database.close()

    def _open(self, uri: str) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", uri=True, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA busy_timeout = 2000")
        database.execute("ATTACH DATABASE ? AS log", (uri,))
        columns = ", ".join(COLUMNS)
        hidden = ", ".join(f"'{kind}'" for kind in sorted(BOOKKEEPING))
        database.executescript(
            f"""CREATE TEMP VIEW {self._secret} AS SELECT {columns} FROM log.event WHERE {_granted(self.grant)};
            CREATE TEMP VIEW events AS SELECT * FROM {self._secret};
            CREATE TEMP VIEW conversation_history AS SELECT * FROM {self._secret} WHERE kind NOT IN ({hidden});"""
        )
        for table in sorted(_TABLE_FUNCTIONS):  # declares them, which the authorizer would not allow later
            database.execute(f"SELECT 1 FROM {table}('[]')").fetchall()
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self.limits.value_bytes)
        database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)
        database.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000)
        database.set_progress_handler(lambda: int(time.monotonic() > self._deadline), 10_000)
        database.set_authorizer(self._authorize)
        return database

    def _authorize(self, action: int, one: str | None, two: str | None, base: str | None, view: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT or action == sqlite3.SQLITE_RECURSIVE:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in FUNCTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and (
            (base == "temp" and (one in VIEWS or one == self._secret))
            or (base == "log" and one == "event" and view == self._secret)
            or (base == "main" and one in _TABLE_FUNCTIONS)
            or (base is None and two == "" and not _is_stored(one))
        ):
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _run(self, statement: str, params: Sequence[Any] | Mapping[str, Any]) -> Rows:
        cursor = self._database.execute(statement, params)
        try:
            return self._fetch(cursor)
        finally:
            cursor.close()  # ends the read transaction, so that the WAL can be checkpointed

    def _fetch(self, cursor: sqlite3.Cursor) -> Rows:
        columns = tuple(column[0] for column in cursor.description or ())
        rows: list[dict[str, Any]] = []
        size = 0
        for row in cursor:
            if len(rows) == self.limits.rows:
                note = (
                    f"only the first {self.limits.rows:,} rows are here: the query matched more. Narrow it with "
                    "WHERE, aggregate, or page with LIMIT and OFFSET."
                )
                return Rows(columns, rows, note)
            size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
            if size > self.limits.result_bytes:
                note = (
                    f"only the first {len(rows):,} rows are here: the result is over {self.limits.result_bytes:,} "
                    "bytes. Select fewer columns, or substr(content, 1, 200)."
                )
                return Rows(columns, rows, note)
            rows.append(dict(zip(columns, row, strict=True)))
        return Rows(columns, rows)

    def _rewrite(self, sql: str) -> str:
        """Refuse what is not a query, and drop the qualifier `hist.`."""
        tokens = [match for match in _TOKEN.finditer(sql) if match.lastgroup != "skip"]
        if not tokens or tokens[0].group().upper() not in ("SELECT", "WITH", "VALUES"):
            raise QueryRefused("only one SELECT (or WITH … SELECT) can run here; the history is read-only")
        pieces, at = [], 0
        for word, dot in itertools.pairwise(tokens):
            if word.lastgroup == "word" and word.group().strip('"`[]').lower() == "hist" and dot.group() == ".":
                pieces.append(sql[at : word.start()])
                at = dot.end()
        return "".join(pieces) + sql[at:]

    def _refusal(self, error: Exception) -> QueryRefused | StoreError:
        text = str(error).replace(self._secret, "the granted rows")
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            return QueryLimit(
                f"the query ran longer than {self.limits.seconds:g} s and was stopped. Narrow it: filter by seq, "
                "session_id or step_index, or use ms.search to find the rows first."
            )
        if code == sqlite3.SQLITE_TOOBIG:
            return QueryLimit(f"the query built a value over {self.limits.value_bytes:,} bytes and was stopped")
        if "not authorized" in text or "prohibited" in text:
            return QueryRefused(
                f"not allowed here: {text}. You can SELECT from hist.conversation_history and hist.events, with "
                "SQLite's string, date, JSON, aggregate and window functions (not printf, randomblob or pragmas)."
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY):
            return StoreError(f"the log could not be read: {text}")
        return QueryRefused(f"{text}. Tables: hist.conversation_history and hist.events. Columns: {', '.join(COLUMNS)}")


def _is_stored(table: str | None) -> bool:
    """Whether a name without a schema may be a stored table; else it is a subquery's, of which no column is read."""
    return table is None or table.lower() == "event" or table.lower().startswith("sqlite_")


def _granted(grant: Grant) -> str:
    terms = ["+kind <> ''"]  # always true; a view that reads no column at all reaches the authorizer without its name
    for column in ("session_id", "task_id", "agent_id"):
        value: str | None = getattr(grant, column)
        if value is not None:
            quoted = value.replace("'", "''")
            terms.append(f"{column} = '{quoted}'")
    if grant.task_id:
        terms.append("task_id <> ''")  # what lets SQLite use the partial index
    return " AND ".join(terms)
