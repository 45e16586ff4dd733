"""Read-only SQL for model-written queries, in a process of its own that holds the rows of one
grant.

SQLite may run a query's own expressions before a view's condition, and one of its functions may run
for an hour or take all memory. So no query runs in this process. `GuardedSql` starts a worker
(worker.py) at the first query: it has limits on address space, processor time and file size,
and its connection holds nothing but the granted rows. A query that misses its deadline is killed
together with the worker, and the next query gets a new one. A worker without work ends by itself.
`close` kills and never waits.

Whatever is not one SELECT on `hist.conversation_history` and `hist.events` with the listed
functions is refused. The views live in another schema inside the worker, so the qualifier `hist.`
is dropped from a query before it runs.

Of the rows that come back this module knows which events they are when the query has the plain
shape `SELECT … FROM one view [WHERE …] [ORDER BY …] [LIMIT …]`: their seqs are then selected beside
the wanted columns. Of any other query that reads events, the events are unknown, and the result
says so.
"""

import base64
import contextlib
import itertools
import math
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import QueryLimit, QueryRefused, StoreError, WorkStopped
from scroll_context.events import BOOKKEEPING, EVERYTHING, Grant, Kind
from scroll_context.log import schema
from scroll_context.log.log import NEWEST_ERASURE
from scroll_context.log.rows import IS_ERASED
from scroll_context.work import acquire
from scroll_context.work import check as check_work

COLUMNS = tuple(column for column in schema.COLUMNS if column != "chain")
MAX_SQL = 100_000  # characters
MAX_PARAMS = 16 << 20  # bytes
START_SECONDS = 60.0  # for a worker to start and to copy the rows of its grant, on a busy machine
IDLE = 300.0  # seconds without a query after which a worker ends
GRACE = 0.5  # seconds after its deadline until a query is killed
LOOK_SECONDS = 0.1  # between two looks at whether the cell that asked still waits

FUNCTIONS = frozenset(
    """abs acos asin atan atan2 avg ceil ceiling char coalesce concat concat_ws cos count cume_dist current_date
    current_time current_timestamp date datetime degrees dense_rank exp first_value floor glob group_concat hex
    ifnull iif instr json json_array json_array_length json_each json_extract json_group_array json_group_object
    json_object json_quote json_tree json_type json_valid -> ->> julianday lag last_value lead length like ln log
    log10 log2 lower ltrim max median min mod nth_value ntile nullif octet_length percent_rank pi pow power quote
    radians random rank replace round row_number rtrim sign sin sqrt strftime string_agg substr substring sum tan
    time timediff total trim trunc typeof unicode unixepoch upper""".split()
)

_ROW_FUNCTIONS = FUNCTIONS - frozenset(
    """avg count cume_dist dense_rank first_value group_concat json_each json_group_array json_group_object json_tree
    lag last_value lead max median min nth_value ntile percent_rank rank row_number string_agg sum total""".split()
)
"""Functions of one row: a query that uses no others, and is plain otherwise, returns rows of the
view.
"""

_NOT_PLAIN = frozenset(
    "WITH VALUES UNION INTERSECT EXCEPT JOIN GROUP HAVING WINDOW OVER DISTINCT".split()
)
_AFTER_TABLE = frozenset({"WHERE", "ORDER", "LIMIT", ";"})
_BEFORE_BRACKETS = frozenset(
    "SELECT WHERE AND OR NOT IN LIKE GLOB IS BETWEEN CASE WHEN THEN ELSE BY LIMIT OFFSET CAST AS".split()
)

# Each alternative takes an unclosed quote or comment up to the end of the text, and none gives
# anything back: linear.
_TOKEN = re.compile(
    r"""(?P<skip>\s++|--[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?+)
    |(?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*+|"(?:[^"]++|"")*+"?+|`(?:[^`]++|``)*+`?+|\[[^\]]*+\]?+)
    |(?P<other>'(?:[^']++|'')*+'?+|.)""",
    re.VERBOSE | re.DOTALL,
)

# Errors of a running query may hold what it computed, so these texts stand for them.
_FIXED = {
    "malformed JSON": "a value given to a JSON function is not JSON",
    "JSON path": "a JSON path is malformed",
    "bad JSON path": "a JSON path is malformed",
    "integer overflow": "integer overflow",
    "JSON cannot hold BLOB": "JSON cannot hold BLOB values",
    "ESCAPE expression": "ESCAPE takes a single character",
    "LIKE or GLOB pattern too complex": "a LIKE or GLOB pattern is too complex",
}


class SqlLimits(msgspec.Struct, frozen=True):
    """What one query may use."""

    seconds: float = 5.0
    rows: int = 1_000
    result_bytes: int = 8 << 20
    value_bytes: int = 16 << 20  # the largest text or blob that may exist while the query runs
    memory_bytes: int = 512 << 20  # address space of the worker
    file_bytes: int = 256 << 20  # of a temporary file, beyond the granted rows
    idle: float = IDLE


class SqlResult(msgspec.Struct, frozen=True):
    """Rows as dicts, and beside them what there is to know: a note when there was more, and which
    events they are.
    """

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    note: str = ""
    truncated: bool = False
    total: int | None = None  # rows that the query has in all; None when they were not counted
    seqs: tuple[int, ...] | None = (
        None  # the events that the rows are; None when that cannot be known
    )


class _Answer(msgspec.Struct):
    """A frame of the worker. It is checked: SQLite may have been made to misbehave."""

    ready: bool = False
    error: str = ""
    code: int = 0
    text: str = ""
    about_query: bool = False  # whether the text is about the query's own words
    columns: list[str] = []
    rows: list[list[str | int | float | dict[str, str] | None]] = []
    cut: str = ""
    total: int | None = None


_decode = msgspec.json.Decoder(_Answer).decode


class _Gone(Exception):
    """The worker ended before it answered; never leaves this module."""


class GuardedSql:
    """One grant's window on the log. Queries from several threads take turns."""

    def __init__(
        self,
        path: Path,
        grant: Grant = EVERYTHING,
        limits: SqlLimits | None = None,
        *,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.grant = grant
        self._before = before  # waits until the file has what this process has appended
        self.limits = limits or SqlLimits()
        self._path = path
        self._turn = threading.Lock()  # held while a query runs
        self._lock = threading.Lock()  # guards the next two
        self._closed = False
        self._worker: _Worker | None = None
        schema.connect(
            path, writable=False
        ).close()  # checks identity and format, with errors of our own

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        hidden: Collection[int] = (),
    ) -> SqlResult:
        """Run one SELECT. Rows beyond the limits are left out and announced in the note.

        `hidden` are seqs that `hist.conversation_history` leaves out.
        """
        if len(sql) > MAX_SQL:
            raise QueryRefused(
                f"a query has at most {MAX_SQL:,} characters, not {len(sql):,}; pass values as params"
            )
        statement, extra = _rewrite(sql)
        values = _bound(params)
        self._before()
        try:
            acquire(self._turn)
            try:
                answer = self._ask(statement, values, tuple(sorted(hidden)))
            finally:
                self._turn.release()
        except UnicodeEncodeError:
            raise QueryRefused("the query has a lone surrogate, which no stored text has") from None
        if answer.error:
            raise self._refusal(answer)
        return self._result(answer, extra)

    def close(self) -> None:
        """End the worker at once, whatever it is doing."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            if self._turn.acquire(
                blocking=False
            ):  # else the thread that waits for an answer does it
                worker.release()
                self._turn.release()

    def _ask(self, statement: str, values: Any, hidden: tuple[int, ...]) -> _Answer:
        """The worker's answer.

        One that ended while it was idle is replaced; one that missed the deadline is killed.
        """
        seconds = self.limits.seconds + GRACE
        while True:
            worker, fresh = self._running()
            try:
                worker.ask(statement, values, hidden)
                says_ready = (
                    fresh or self.grant != EVERYTHING
                )  # when it has rows to bring up to date first
                answer = worker.read(time.monotonic() + (START_SECONDS if says_ready else seconds))
                if answer.ready:
                    answer = worker.read(time.monotonic() + seconds)
                if answer.error in ("memory", "open"):
                    self._drop(worker)
                return answer
            except TimeoutError:
                self._drop(worker)
                return _Answer(error="time")
            except WorkStopped:
                self._drop(worker)
                raise
            except _Gone as gone:
                self._drop(worker)
                if self._closed:
                    raise schema.closed(self._path, "read") from None
                if fresh or worker.broke_down:
                    return _Answer(error="killed", text=str(gone))

    def _running(self) -> tuple["_Worker", bool]:
        """The worker, and whether it was started just now."""
        with self._lock:
            if self._closed:
                raise schema.closed(self._path, "read")
            if self._worker is not None:
                return self._worker, False
            self._worker = _Worker(self._config(), 1_000_000 + 8 * self.limits.result_bytes)
            return self._worker, True

    def _drop(self, worker: "_Worker") -> None:
        with self._lock:
            if self._worker is worker:
                self._worker = None
        worker.kill()
        worker.release()

    def _config(self) -> dict[str, Any]:
        return {
            "uri": self._uri(),
            "columns": COLUMNS,
            "granted": "" if self.grant == EVERYTHING else _granted(self.grant),
            "newest_erasure": NEWEST_ERASURE,
            "erasure": Kind.ERASURE,
            "bookkeeping": ", ".join(f"'{kind}'" for kind in sorted(BOOKKEEPING)),
            "is_erased": IS_ERASED,
            "functions": sorted(FUNCTIONS),
            "limits": self.limits,
            "sqlite_limits": {
                "SQLITE_LIMIT_LENGTH": self.limits.value_bytes,
                "SQLITE_LIMIT_SQL_LENGTH": 2 * MAX_SQL,
                "SQLITE_LIMIT_ATTACHED": 1,
                "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1_000,
            },
        }

    def _uri(self) -> str:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
                database.execute("SELECT max(seq) FROM event").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN:
                return schema.frozen_uri(self._path)
        return uri

    def _result(self, answer: _Answer, extra: "_Extra") -> SqlResult:
        columns = tuple(answer.columns)
        rows = [[_value(one) for one in row] for row in answer.rows]
        seqs: tuple[int, ...] | None = () if extra is _Extra.NO_EVENTS else None
        if extra is _Extra.SEQ_LAST:
            seqs = tuple(dict.fromkeys(row[-1] for row in rows))
            columns = columns[:-1]
        named = [dict(zip(columns, row, strict=False)) for row in rows]
        return SqlResult(columns, named, self._note(answer), bool(answer.cut), answer.total, seqs)

    def _note(self, answer: _Answer) -> str:
        if not answer.cut:
            return ""
        got = len(answer.rows)
        of = "more" if answer.total is None else f"{answer.total:,} in all"
        if answer.cut == "rows":
            return (
                f"only the first {got:,} rows are here: the query matched {of}. Narrow it with WHERE, aggregate, or "
                "page with LIMIT and OFFSET."
            )
        return (
            f"only the first {got:,} rows are here ({of}): the result is over {self.limits.result_bytes:,} bytes. "
            "Select fewer columns, or substr(content, 1, 200)."
        )

    def _refusal(self, answer: _Answer) -> QueryRefused | StoreError:
        code, text = answer.code & 0xFF, answer.text
        if answer.error == "time" or code == sqlite3.SQLITE_INTERRUPT:
            return QueryLimit(
                f"the query ran longer than {self.limits.seconds:g} s and was stopped. Narrow it: filter by seq, "
                "session_id or step_index, or use ms.search to find the rows first."
            )
        if answer.error == "LongName":
            return QueryLimit(text)
        if answer.error == "killed":
            return QueryLimit(
                "the process that ran the query was ended by a limit on its time, memory or files. Narrow the query."
            )
        if answer.error == "memory" or code == sqlite3.SQLITE_NOMEM:
            return QueryLimit(
                f"the query needed more than {self.limits.memory_bytes >> 20:,} MB of memory and was stopped. Select "
                "fewer or shorter columns, or aggregate."
            )
        if code == sqlite3.SQLITE_TOOBIG:
            return QueryLimit(
                f"the query built a value over {self.limits.value_bytes:,} bytes and was stopped"
            )
        if code == sqlite3.SQLITE_FULL or answer.code == sqlite3.SQLITE_IOERR_WRITE:
            return QueryLimit(
                f"the query needed more than {self.limits.file_bytes >> 20:,} MB of temporary space and was stopped. "
                "Sort, join or deduplicate fewer rows."
            )
        if code in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_BUSY,
        ):
            return StoreError(
                "the log could not be read; `scroll verify` tells whether it is damaged"
            )
        if answer.error == "open":
            return StoreError(
                "the log could not be opened for a query; `scroll verify` tells whether it is damaged"
            )
        if "not authorized" in text or "prohibited" in text:
            return QueryRefused(
                f"not allowed here: {text}. You can SELECT from hist.conversation_history and hist.events, with "
                "SQLite's string, date, JSON, aggregate and window functions (not printf, randomblob or pragmas)."
            )
        if not answer.about_query:
            text = next(
                (said for start, said in _FIXED.items() if text.startswith(start)),
                "the query failed on a value while it ran",
            )
        return QueryRefused(
            f"{text}. Tables: hist.conversation_history and hist.events. Columns: {', '.join(COLUMNS)}"
        )


class _Worker:
    """A running worker process and the socket to it."""

    def __init__(self, config: Mapping[str, Any], most_bytes: int) -> None:
        self._most_bytes = most_bytes  # of an answer
        ours, theirs = socket.socketpair()
        self._channel = ours
        self._received = bytearray()  # the beginning of the next frame
        self._hidden: tuple[int, ...] = ()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(Path(__file__).with_name("worker.py")),
                    str(theirs.fileno()),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # it ended already: the first answer says so
            self._send(config)

    @property
    def broke_down(self) -> bool:
        """Whether it ended otherwise than for want of work or by a kill, which may both have come
        before a query.
        """
        return self._process.returncode not in (0, -signal.SIGKILL)

    def ask(self, sql: str, params: Any, hidden: tuple[int, ...]) -> None:
        request: dict[str, Any] = {"sql": sql, "params": params}
        if hidden != self._hidden:
            request["hidden"] = hidden
        try:
            self._send(request)
        except OSError:
            raise _Gone("it had ended") from None
        self._hidden = hidden

    def read(self, deadline: float) -> _Answer:
        """The next frame; TimeoutError when there is none in time."""
        self._receive(4, deadline)
        end = 4 + int.from_bytes(self._received[:4], "big")
        if end > self._most_bytes:
            raise _Gone("it sent too much")
        self._receive(end, deadline)
        body, self._received = self._received[4:end], self._received[end:]
        try:
            return _decode(body)
        except msgspec.MsgspecError:
            raise _Gone("it sent nonsense") from None

    def kill(self) -> None:
        """End the process and forget it.

        SIGKILL is not to be waited for; the process is reaped when it is gone.
        """
        self._process.kill()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads from it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def release(self) -> None:
        """Close the socket. For the one thread that may read from it."""
        self._channel.close()

    def _send(self, value: Any) -> None:
        body = msgspec.json.encode(value)
        self._channel.settimeout(START_SECONDS)
        self._channel.sendall(len(body).to_bytes(4, "big") + body)

    def _receive(self, size: int, deadline: float) -> None:
        """Have at least so many bytes of the next frame."""
        while len(self._received) < size:
            check_work()
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(min(left, LOOK_SECONDS))
            try:
                piece = self._channel.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                raise _Gone("the connection to it failed") from None
            if not piece:
                raise _Gone("it ended")
            self._received += piece


# queries --------------------------------------------------------------------------------------------------


class _Extra(Enum):
    """What is known of the events that a query's rows are."""

    UNKNOWN = 0
    NO_EVENTS = 1  # it reads no table
    SEQ_LAST = 2  # their seqs are the last column, which was added


def _rewrite(sql: str) -> tuple[str, _Extra]:
    """Refuse what is not a query, drop the qualifier `hist.`, and select the seqs too where that
    changes nothing.
    """
    tokens = [match for match in _TOKEN.finditer(sql) if match.lastgroup != "skip"]
    if not tokens or tokens[0].group().upper() not in ("SELECT", "WITH", "VALUES"):
        raise QueryRefused(
            "only one SELECT (or WITH … SELECT) can run here; the history is read-only"
        )
    edits = [
        (word.start(), dot.end(), "")
        for word, dot in itertools.pairwise(tokens)
        if word.lastgroup == "word" and _name(word) == "hist" and dot.group() == "."
    ]
    extra, place = _events_of(tokens)
    if extra is _Extra.SEQ_LAST:
        edits.append((place, place, ', seq AS "seq of the row" '))
    pieces, at = [], 0
    for start, end, text in sorted(edits):
        pieces += [sql[at:start], text]
        at = end
    return "".join(pieces) + sql[at:], extra


def _events_of(tokens: Sequence[re.Match[str]]) -> tuple[_Extra, int]:
    """Which rows of the history a query returns, and where its FROM stands."""
    texts = [token.group().upper() for token in tokens]
    selects = texts.count("SELECT")
    if "FROM" not in texts and selects <= 1:
        return _Extra.NO_EVENTS, 0
    if (
        selects != 1
        or texts.count("FROM") != 1
        or texts[0] != "SELECT"
        or not _NOT_PLAIN.isdisjoint(texts)
    ):
        return _Extra.UNKNOWN, 0
    for word, after in itertools.pairwise(tokens):
        called = word.lastgroup == "word" and after.group() == "("
        if (
            called
            and _name(word) not in _ROW_FUNCTIONS
            and word.group().upper() not in _BEFORE_BRACKETS
        ):
            return _Extra.UNKNOWN, 0
        if word.group().upper() == "IN" and after.group() != "(":
            return _Extra.UNKNOWN, 0
    at = texts.index("FROM")
    rest = [_name(token) for token in tokens[at + 1 :]]
    if rest[:2] == ["hist", "."]:
        rest = rest[2:]
    if at < 2 or rest[:1] not in (["events"], ["conversation_history"]):
        return _Extra.UNKNOWN, 0
    rest = rest[1:]
    if rest[:1] == ["as"]:
        rest = rest[1:]
    if rest and rest[0].upper() not in _AFTER_TABLE and rest[0] != ",":
        rest = rest[1:]  # another name for the view
    plain = not rest or rest[0].upper() in _AFTER_TABLE
    return (_Extra.SEQ_LAST, tokens[at].start()) if plain else (_Extra.UNKNOWN, 0)


def _name(token: re.Match[str]) -> str:
    return token.group().strip('"`[]').lower()


def _bound(params: Sequence[Any] | Mapping[str, Any]) -> Any:
    """Parameters as the worker reads them: what JSON cannot say is tagged."""
    size = 0

    def plain(value: Any) -> Any:
        nonlocal size
        size += len(value) if isinstance(value, str | bytes) else 8
        if isinstance(value, bytes | bytearray | memoryview):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if (
            value is None
            or isinstance(value, float)
            or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
        ):
            return value
        if isinstance(value, str):
            return str.__str__(value).encode(errors="replace").decode()
        raise QueryRefused(f"a parameter is a text, a number, bytes or None, not {value!r:.80}")

    if isinstance(params, Mapping):
        bound: Any = {str(name): plain(value) for name, value in params.items()}
    else:
        bound = [plain(value) for value in params]
    if size > MAX_PARAMS:
        raise QueryRefused(
            f"the parameters have {size:,} bytes; at most {MAX_PARAMS:,} can be passed"
        )
    return bound


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return (
            float(value["float"]) if "float" in value else base64.b64decode(value.get("bytes", ""))
        )
    return value


def _granted(grant: Grant) -> str:
    """The condition that a row of the log is within the grant."""
    terms = []
    for column in ("session_id", "task_id", "agent_id"):
        value: str | None = getattr(grant, column)
        if value is not None:
            quoted = value.replace("'", "''")
            # SQL ends at a NUL; a name that has one is written in hexadecimal digits
            text = f"CAST(x'{value.encode().hex()}' AS TEXT)" if "\0" in value else f"'{quoted}'"
            terms.append(f"{column} = {text}")
    if grant.task_id:
        terms.append("task_id <> ''")  # what lets SQLite use the partial index
    return " AND ".join(terms)
