"""The process that runs model-written SQL: a program of its own, not imported by the host (see
sql.py).

It uses the standard library only, so that it starts in milliseconds under `python -I -S`. It reads
one request at a time from a socket and writes one answer; frames are JSON behind a length of four
bytes. The limits are of three kinds: the operating system's (address space, processor time, file
size, and an alarm that ends the process some time after a query's deadline, whatever becomes of the
host), SQLite's own, and counters of rows and bytes.

A query runs on a connection that holds nothing but what the grant permits. For a grant that is the
whole log, the log is attached read-only. For any other grant its rows are copied, with what was
appended since the last query, to a private temporary database, and the log is detached before the
query begins: whatever the query's expressions do, and whatever SQLite's planner makes of them,
there are no other rows. A grant that happens to permit every row of the log is read in place too,
as long as a check within the same read transaction finds no other row.
"""

import base64
import json
import math
import resource
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, Any

SYNC_SECONDS = 120.0  # for copying the rows of a grant
COUNT_SECONDS = 0.5  # spent on counting the rows beyond the limit
NAME_CHARS = 256  # of a column of the result
CACHE = 16 << 20  # bytes of pages that SQLite keeps in memory

VIEWS = frozenset({"conversation_history", "events"})
_TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
_INNER = frozenset({"granted_rows", "hidden_rows", "event"})


class LongName(ValueError):
    """A column of the result has a name that is too long: the host repeats it in every row."""


class Window:
    """The connection of one grant.

    `config` comes from the host: paths, columns, the grant as SQL, and limits.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._limits = config["limits"]
        self._functions = frozenset(config["functions"])
        self._deadline = math.inf
        self._trusted = True  # while statements of our own run
        self._copied_to = 0  # the seq up to which granted rows were copied
        self._erasure = 0  # the newest erasure that the copy knows of
        self._checked_to = 0  # the seq up to which the log has no other rows
        self.size = 0  # bytes of the private database
        self._in_place = True
        # no cache of statements: one of our own must never be run again on behalf of a query
        self._database = sqlite3.connect("", uri=True, isolation_level=None, cached_statements=0)
        self._log = sqlite3.connect(config["uri"], uri=True, isolation_level=None)
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
        for table in sorted(
            _TABLE_FUNCTIONS
        ):  # declares them, which the authorizer would not allow later
            run(f"SELECT 1 FROM {table}('[]')").fetchall()
        self._attach()
        self._make_views("log.event")
        for name, value in self._config["sqlite_limits"].items():
            self._database.setlimit(getattr(sqlite3, name), value)
        self._database.set_progress_handler(lambda: int(time.monotonic() > self._deadline), 10_000)

    def _attach(self) -> None:
        self._database.execute("ATTACH DATABASE ? AS log", (self._config["uri"],))

    def _make_views(self, table: str) -> None:
        """The two tables that a query may name. Views on an attached database live in `temp`."""
        columns = ", ".join(self._config["columns"])
        shown = (
            f"kind NOT IN ({self._config['bookkeeping']}) AND NOT ({self._config['is_erased']})"
            " AND seq NOT IN (SELECT seq FROM hidden_rows)"
        )
        self._database.executescript(
            f"""DROP VIEW IF EXISTS temp.events;
            DROP VIEW IF EXISTS temp.conversation_history;
            CREATE TEMP VIEW events AS SELECT {columns} FROM {table};
            CREATE TEMP VIEW conversation_history AS SELECT {columns} FROM {table} WHERE {shown};"""
        )

    # what a query may see -------------------------------------------------------------------------------

    @contextmanager
    def current(self, hidden: list[int] | None) -> Iterator[None]:
        """Bring the rows up to date; what runs inside sees exactly the grant."""
        self._trusted = True
        if hidden is not None:
            self._database.execute("DELETE FROM hidden_rows")
            self._database.executemany(
                "INSERT OR IGNORE INTO hidden_rows VALUES (?)", ((seq,) for seq in hidden)
            )
        if not self._config["granted"]:
            yield
            return
        if self._in_place:
            self._database.execute("BEGIN")  # one read transaction for the check and the query
            try:
                if self._only_granted():
                    yield
                    return
            finally:
                self._trusted = True
                self._database.execute("ROLLBACK")
            self._begin_copy()
        (erasure,) = self._log.execute(self._config["newest_erasure"]).fetchone()
        if erasure > self._erasure:  # what was copied may be what was erased
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
            f"SELECT 1 FROM log.event WHERE seq > ? AND NOT ({self._config['granted']}) LIMIT 1",
            (self._checked_to,),
        ).fetchone()
        self._checked_to = last
        return other is None

    def _begin_copy(self) -> None:
        self._in_place = False
        columns = ", ".join(
            "seq INTEGER PRIMARY KEY" if one == "seq" else one for one in self._config["columns"]
        )
        self._database.execute(f"CREATE TABLE main.granted_rows ({columns}, nonce, leaf)")
        if "session_id = " not in self._config["granted"]:
            self._database.execute("CREATE INDEX main.by_session ON granted_rows (session_id, seq)")
        self._make_views("main.granted_rows")
        self._database.execute("DETACH DATABASE log")

    def _copy(self, last: int) -> None:
        columns = ", ".join(self._config["columns"])
        self._attach()
        try:
            erased = "SELECT 1 FROM log.event WHERE seq > ? AND kind = ? LIMIT 1"
            if self._database.execute(
                erased, (self._copied_to, self._config["erasure"])
            ).fetchone():
                self._database.execute(
                    "DELETE FROM main.granted_rows"
                )  # what was copied may have been erased
                self._copied_to = 0
            self._database.execute(
                f"INSERT INTO main.granted_rows SELECT {columns}, nonce, leaf FROM log.event "
                f"WHERE seq > ? AND seq <= ? AND {self._config['granted']} ORDER BY seq",
                (self._copied_to, last),
            )
            self._copied_to = last
        finally:
            self._database.execute("DETACH DATABASE log")
        (pages,) = self._database.execute("PRAGMA main.page_count").fetchone()
        (page,) = self._database.execute("PRAGMA main.page_size").fetchone()
        self.size = pages * page

    # running --------------------------------------------------------------------------------------------

    def run(self, sql: str, params: Any, deadline: float) -> dict[str, Any]:
        """The answer to one query; SQLite's errors go to the caller."""
        self._trusted = False
        self._deadline = deadline
        try:
            try:
                return self._fetch(sql, params)
            except sqlite3.OperationalError as error:
                if not str(error).startswith("Could not decode to UTF-8"):
                    raise
                # a flipped bit: the bad bytes read as U+FFFD from here on and hide nothing but
                # themselves
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

    def _fetch(self, sql: str, params: Any) -> dict[str, Any]:
        cursor = self._database.execute(sql, params)
        try:
            columns = [column[0] for column in cursor.description or ()]
            if any(len(name) > NAME_CHARS for name in columns):
                raise LongName(
                    f"a column of the result has a name of more than {NAME_CHARS} characters;"
                    " give it a short one with AS"
                )
            rows: list[tuple[Any, ...]] = []
            size = 0
            names_size = sum(map(len, columns))
            for row in cursor:
                size += names_size
                size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
                if len(rows) == self._limits["rows"] or size > self._limits["result_bytes"]:
                    cut = "rows" if len(rows) == self._limits["rows"] else "bytes"
                    return {
                        "columns": columns,
                        "rows": rows,
                        "cut": cut,
                        "total": self._count(cursor, len(rows) + 1),
                    }
                rows.append(row)
            return {"columns": columns, "rows": rows, "cut": "", "total": len(rows)}
        finally:
            cursor.close()  # ends the read transaction, so that the WAL can be checkpointed

    def _count(self, cursor: sqlite3.Cursor, seen: int) -> int | None:
        """How many rows the query has in all; None when counting them takes too long."""
        self._deadline = min(self._deadline, time.monotonic() + COUNT_SECONDS)
        try:
            return seen + sum(1 for _ in cursor)
        except sqlite3.Error:
            return None

    def _authorize(
        self, action: int, one: str | None, two: str | None, base: str | None, _view: str | None
    ) -> int:
        allowed = (
            self._trusted
            or (action == sqlite3.SQLITE_READ and _is_readable(one, two, base))
            or action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in self._functions)
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
    # a subquery or common table expression of which no column is read
    return (
        base is None
        and column == ""
        and table not in _INNER
        and not (table or "sqlite_").startswith("sqlite_")
    )


# limits of the operating system ---------------------------------------------------------------------------


def limit_process(memory_bytes: int) -> None:
    """No core files, few descriptors, a bounded address space; SIGALRM and SIGXCPU end the process."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        try:
            _, hard = resource.getrlimit(kind)
            if hard != resource.RLIM_INFINITY:
                most = min(most, hard)
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # not on this system
            continue
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # SQLite then reports a write error


def _soft(kind: int, most: float) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (hard if math.isinf(most) else int(most), hard))


@contextmanager
def bounded(seconds: float, file_bytes: float = math.inf) -> Iterator[None]:
    """End this process a second after its time is up, and let no file grow beyond a size meanwhile."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _soft(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds + 1))
    _soft(resource.RLIMIT_FSIZE, file_bytes)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _soft(resource.RLIMIT_FSIZE, math.inf)


# frames -------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """What JSON cannot say is tagged; no SQL value is an object otherwise."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else base64.b64decode(value["bytes"])
    return value


def _receive(frames: IO[bytes]) -> dict[str, Any] | None:
    """The next request; None when the host is gone, or nothing came for as long as the channel
    waits.
    """
    try:
        length = int.from_bytes(frames.read(4), "big")
        body = frames.read(length)
    except OSError:
        return None
    return json.loads(body) if length and len(body) == length else None


def _send(channel: socket.socket, answer: Mapping[str, Any]) -> None:
    body = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        errors="replace"
    )
    channel.sendall(len(body).to_bytes(4, "big") + body)


def answer(
    window: Window,
    request: Mapping[str, Any],
    config: Mapping[str, Any],
    told: socket.socket | None,
) -> Any:
    """Bring the rows up to date, say so to `told`, and run the query; an error becomes its name,
    code and text.
    """
    params = request["params"]
    params = (
        {name: _value(one) for name, one in params.items()}
        if isinstance(params, dict)
        else [_value(one) for one in params]
    )
    limits = config["limits"]
    sql = request["sql"]
    try:
        signal.setitimer(signal.ITIMER_REAL, SYNC_SECONDS)
        with window.current(request.get("hidden")):
            if told is not None:
                _send(told, {"ready": True})
            with bounded(limits["seconds"], window.size + limits["file_bytes"]):
                found = window.run(sql, params, time.monotonic() + limits["seconds"])
        found["rows"] = [[_plain(value) for value in row] for row in found["rows"]]
        return found
    except MemoryError:
        return {"error": "memory", "code": 0, "text": ""}
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        why = window.refuses(sql, params)
        code = getattr(error, "sqlite_errorcode", 0) or 0
        return {
            "error": type(error).__name__,
            "code": code,
            "text": why or str(error),
            "about_query": bool(why),
        }
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.settimeout(SYNC_SECONDS)
    frames = channel.makefile("rb")
    config = _receive(frames)
    if config is None:
        return
    channel.settimeout(config["limits"]["idle"])
    limit_process(config["limits"]["memory_bytes"])
    window: Window | None = None
    while (request := _receive(frames)) is not None:
        told = (
            channel if window is None or config["granted"] else None
        )  # the whole log is always up to date
        try:
            if window is None:
                window = Window(config)
        except sqlite3.Error as error:
            _send(
                channel,
                {
                    "error": "open",
                    "code": getattr(error, "sqlite_errorcode", 0) or 0,
                    "text": str(error),
                },
            )
            return
        found = answer(window, request, config, told)
        try:
            _send(channel, found)
        except MemoryError:
            found = {"error": "memory", "code": 0, "text": ""}
            _send(channel, found)
        if found.get("error") == "memory":
            return  # what is left of this process is not worth keeping


if __name__ == "__main__":
    main()
