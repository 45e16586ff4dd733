"""The rows of one grant as a query sees them, and the limits of a query. Only in the SQL worker.

A query runs on a connection that holds nothing but what the grant permits. For a grant that is the
whole log, the log is attached read-only. For any other grant its rows are copied, with what was
appended since the last query, to a private temporary database, and the log is detached before the
query begins: whatever the query's expressions do, and whatever SQLite's planner makes of them,
there are no other rows. A grant that happens to permit every row of the log is read in place too,
as long as a check within the same read transaction finds no other row.

SQLite's own limits, an authorizer, a progress handler and counters of rows and bytes bound a query.
The operating system's limits stand around them. Where it has landlock, the worker can read the
folder of the log, write a scratch folder of its own, and reach no other file: it can never write
the store. The rest of the kernel's jail is not entered, because that jail must never hold a
database, and because a query's limits on file size and processor time are moved from inside, which
the jail's filter of system calls refuses.
"""

import math
import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from scroll_context.jail.linux import (
    available_abi,
    forbid_new_privileges,
    lower_limit,
    restrict_paths,
)
from scroll_context.sql.messages import Blob, Query, SqlAnswer, SqlSettings, from_wire

# limits of the operating system -------------------------------------------------------------------

_READABLE = ("/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom")


def confine(settings: SqlSettings) -> None:
    """Let this process write its scratch folder only, where the system has landlock.

    As root it keeps its capabilities: a store may belong to another user.
    """
    abi = available_abi() if sys.platform == "linux" else 0
    if abi:
        forbid_new_privileges()
        system = (path for path in _READABLE if os.access(path, os.R_OK))
        restrict_paths((settings.folder, *system), settings.scratch, abi)


def limit_process(memory_bytes: int) -> None:
    """No core files, few descriptors, a bounded address space. SIGALRM and SIGXCPU kill it."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        # Not every system has these limits.
        with suppress(ValueError, OSError):
            lower_limit(kind, most)
    # Ctrl-C is for the host.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Without the signal, SQLite reports a write error.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _soft(kind: int, most: float) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (hard if math.isinf(most) else int(most), hard))


@contextmanager
def bounded(seconds: float, file_bytes: float) -> Iterator[None]:
    """End this process a second after its time is up, and limit the size of its files."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _soft(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds + 1))
    _soft(resource.RLIMIT_FSIZE, file_bytes)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _soft(resource.RLIMIT_FSIZE, math.inf)


# rows and queries ---------------------------------------------------------------------------------

SYNC_SECONDS = 120.0
"""How long copying the rows of a grant may take."""
COUNT_SECONDS = 0.5
"""How long rows beyond the limit are counted."""
NAME_CHARS = 256
"""The longest name of a column in a result."""
CACHE = 16 << 20
"""Bytes of pages that SQLite keeps in memory."""

VIEWS = frozenset({"conversation_history", "events"})
_TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
_INNER = frozenset({"granted_rows", "hidden_rows", "event"})


class LongName(ValueError):
    """A column of the result has a name that is too long: the host repeats it in every row."""


class Window:
    """The connection of one grant."""

    def __init__(self, settings: SqlSettings) -> None:
        self.settings = settings
        self._limits = settings.limits
        self._functions = settings.functions
        self._columns = ", ".join(settings.columns)
        self._deadline = math.inf
        # Statements of our own run while this is set.
        self._trusted = True
        # The seq up to which granted rows were copied, and the newest erasure that the copy knows.
        self._copied_to = 0
        self._erasure = 0
        # The seq up to which the log has no rows outside the grant.
        self._checked_to = 0
        # Bytes of the private database.
        self.size = 0
        self._in_place = True
        # Without a cache of statements, none of our own can run again on behalf of a query.
        self._database = sqlite3.connect("", uri=True, isolation_level=None, cached_statements=0)
        self._log = sqlite3.connect(settings.uri, uri=True, isolation_level=None)
        self._database.set_authorizer(self._authorize)
        self._set_up()

    def _set_up(self) -> None:
        run = self._database.execute
        run("PRAGMA busy_timeout = 2000")
        run("PRAGMA journal_mode = OFF")
        run("PRAGMA synchronous = OFF")
        run("PRAGMA secure_delete = ON")
        run(f"PRAGMA cache_size = -{CACHE >> 10}")
        run("CREATE TEMP TABLE hidden_rows (seq INTEGER PRIMARY KEY)")
        # This declares the table functions, which the authorizer would not allow later.
        for table in sorted(_TABLE_FUNCTIONS):
            run(f"SELECT 1 FROM {table}('[]')").fetchall()
        self._attach()
        self._make_views("log.event")
        for name, value in self.settings.sqlite_limits.items():
            self._database.setlimit(getattr(sqlite3, name), value)
        self._database.set_progress_handler(lambda: int(time.monotonic() > self._deadline), 10_000)

    def _attach(self) -> None:
        self._database.execute("ATTACH DATABASE ? AS log", (self.settings.uri,))

    def _make_views(self, table: str) -> None:
        """The two tables that a query may name. Views on an attached database live in `temp`."""
        settings, columns = self.settings, self._columns
        visible = (
            f"kind NOT IN ({settings.bookkeeping}) AND NOT ({settings.is_erased})"
            " AND seq NOT IN (SELECT seq FROM hidden_rows)"
        )
        self._database.executescript(
            f"""DROP VIEW IF EXISTS temp.events;
            DROP VIEW IF EXISTS temp.conversation_history;
            CREATE TEMP VIEW events AS SELECT {columns} FROM {table};
            CREATE TEMP VIEW conversation_history AS
                SELECT {columns} FROM {table} WHERE {visible};"""
        )

    @contextmanager
    def current(self, hidden: tuple[int, ...] | None) -> Iterator[None]:
        """Bring the rows up to date; a query inside sees exactly the grant."""
        self._trusted = True
        if hidden is not None:
            self._database.execute("DELETE FROM hidden_rows")
            self._database.executemany(
                "INSERT OR IGNORE INTO hidden_rows VALUES (?)", ((seq,) for seq in hidden)
            )
        if not self.settings.granted:
            yield
            return
        if self._in_place:
            # One read transaction holds both the check and the query.
            self._database.execute("BEGIN")
            try:
                if self._only_granted():
                    yield
                    return
            finally:
                self._trusted = True
                self._database.execute("ROLLBACK")
            self._begin_copy()
        (erasure,) = self._log.execute(self.settings.newest_erasure).fetchone()
        if erasure > self._erasure:
            # A copied row may be one that was erased.
            self._database.execute("DELETE FROM main.granted_rows")
            self._copied_to, self._erasure = 0, erasure
        (last,) = self._log.execute("SELECT ifnull(max(seq), 0) FROM event").fetchone()
        if last > self._copied_to:
            self._copy(last)
        yield

    def _only_granted(self) -> bool:
        """Whether the log has no row outside the grant."""
        (last,) = self._database.execute("SELECT ifnull(max(seq), 0) FROM log.event").fetchone()
        other = self._database.execute(
            f"SELECT 1 FROM log.event WHERE seq > ? AND NOT ({self.settings.granted}) LIMIT 1",
            (self._checked_to,),
        ).fetchone()
        self._checked_to = last
        return other is None

    def _begin_copy(self) -> None:
        self._in_place = False
        columns = ", ".join(
            "seq INTEGER PRIMARY KEY" if column == "seq" else column
            for column in self.settings.columns
        )
        self._database.execute(f"CREATE TABLE main.granted_rows ({columns}, nonce, leaf)")
        if "session_id = " not in self.settings.granted:
            self._database.execute("CREATE INDEX main.by_session ON granted_rows (session_id, seq)")
        self._make_views("main.granted_rows")
        self._database.execute("DETACH DATABASE log")

    def _copy(self, last: int) -> None:
        self._attach()
        try:
            erasures = "SELECT 1 FROM log.event WHERE seq > ? AND kind = ? LIMIT 1"
            since = (self._copied_to, self.settings.erasure)
            if self._database.execute(erasures, since).fetchone():
                # A copied row may be one that was erased.
                self._database.execute("DELETE FROM main.granted_rows")
                self._copied_to = 0
            self._database.execute(
                f"INSERT INTO main.granted_rows SELECT {self._columns}, nonce, leaf FROM log.event "
                f"WHERE seq > ? AND seq <= ? AND {self.settings.granted} ORDER BY seq",
                (self._copied_to, last),
            )
            self._copied_to = last
        finally:
            self._database.execute("DETACH DATABASE log")
        (pages,) = self._database.execute("PRAGMA main.page_count").fetchone()
        (page,) = self._database.execute("PRAGMA main.page_size").fetchone()
        self.size = pages * page

    def run(self, sql: str, params: Any, deadline: float) -> SqlAnswer:
        """The answer to one query; SQLite's errors go to the caller."""
        self._trusted = False
        self._deadline = deadline
        try:
            try:
                return self._fetch(sql, params)
            except sqlite3.OperationalError as error:
                if not str(error).startswith("Could not decode to UTF-8"):
                    raise
                # A bit was flipped. The bad bytes read as U+FFFD from here on and hide nothing
                # but themselves.
                self._database.text_factory = lambda raw: raw.decode(errors="replace")
                return self._fetch(sql, params)
        finally:
            self._deadline = math.inf
            self._trusted = True

    def refuses(self, sql: str, params: Any) -> str:
        """Why SQLite cannot even prepare a query: a text about its words, not about what it
        computed. "" if it can.
        """
        self._trusted = False
        try:
            self._database.execute("EXPLAIN " + sql, params).close()
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            return str(error)
        finally:
            self._trusted = True
        return ""

    def _fetch(self, sql: str, params: Any) -> SqlAnswer:
        cursor = self._database.execute(sql, params)
        try:
            columns = [column[0] for column in cursor.description or ()]
            if any(len(name) > NAME_CHARS for name in columns):
                raise LongName(
                    f"a column of the result has a name of more than {NAME_CHARS} characters;"
                    " give it a short one with AS"
                )
            most_rows, most_bytes = self._limits.rows, self._limits.result_bytes
            names_size = sum(map(len, columns))
            rows: list[Any] = []
            size = 0
            has_blobs = False
            for row in cursor:
                if bytes in map(type, row):
                    has_blobs = True
                    row = [Blob(value) if isinstance(value, bytes) else value for value in row]
                size += names_size
                size += sum(map(_size, row))
                if len(rows) == most_rows or size > most_bytes:
                    cut = "rows" if len(rows) == most_rows else "bytes"
                    return SqlAnswer(
                        columns, rows, cut, self._count(cursor, len(rows) + 1), has_blobs
                    )
                rows.append(row)
            return SqlAnswer(columns, rows, "", len(rows), has_blobs)
        finally:
            # This ends the read transaction, so that the WAL can be checkpointed.
            cursor.close()

    def _count(self, cursor: sqlite3.Cursor, seen: int) -> int | None:
        """How many rows the query has in all; None when counting them takes too long."""
        self._deadline = min(self._deadline, time.monotonic() + COUNT_SECONDS)
        try:
            return seen + sum(1 for _ in cursor)
        except sqlite3.Error:
            return None

    def _authorize(
        self, action: int, table: str | None, name: str | None, base: str | None, _view: str | None
    ) -> int:
        """SQLite's question; `name` is a column of the table, or a function."""
        allowed = (
            self._trusted
            or (action == sqlite3.SQLITE_READ and _is_readable(table, name, base))
            or action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in self._functions)
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@lru_cache(maxsize=1_000)
def _is_readable(table: str | None, column: str | None, base: str | None) -> bool:
    """The two views, the granted rows that they show, and what the query itself makes; never
    SQLite's own tables.
    """
    if base == "temp" and table in VIEWS:
        return True
    if base in ("main", "temp", "log") and table in _INNER | _TABLE_FUNCTIONS:
        return True
    # The last case is a subquery or common table expression of which no column is read.
    return (
        base is None
        and column == ""
        and table not in _INNER
        and not (table or "sqlite_").startswith("sqlite_")
    )


def _size(value: object) -> int:
    """The share of a value in the size of a result."""
    if isinstance(value, str):
        return len(value)
    return len(value.data) if isinstance(value, Blob) else 8


def answer(window: Window, query: Query, begin: Callable[[], None]) -> SqlAnswer:
    """Bring the rows up to date, call `begin`, and run the query.

    An error becomes its name, code and text.
    """
    limits = window.settings.limits
    params: Any
    if isinstance(query.params, dict):
        params = {name: from_wire(value) for name, value in query.params.items()}
    else:
        params = [from_wire(value) for value in query.params]
    try:
        signal.setitimer(signal.ITIMER_REAL, SYNC_SECONDS)
        with window.current(query.hidden):
            begin()
            with bounded(limits.seconds, window.size + limits.file_bytes):
                return window.run(query.sql, params, time.monotonic() + limits.seconds)
    except MemoryError:
        return SqlAnswer(error="memory")
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        reason = window.refuses(query.sql, params)
        return SqlAnswer(
            error=type(error).__name__,
            code=getattr(error, "sqlite_errorcode", 0) or 0,
            text=reason or str(error),
            is_about_query=bool(reason),
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def failed_to_open(error: Exception) -> SqlAnswer:
    """The answer when there is no window."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    return SqlAnswer(error="open", code=code, text=str(error))
