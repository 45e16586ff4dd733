"""Read-only SQL for model-written queries, in a separate process with the rows of one grant.

SQLite may run a query's own expressions before a view's condition, and one of its functions may run
for an hour or take all memory. So no query runs in this process. `GuardedSql` starts a worker
(worker.py) at the first query: it has limits on address space, processor time and file size, and
its connection holds nothing but the granted rows. A query that misses its deadline is killed
together with the worker, and the next query gets a new one. A worker without work ends by itself.
`close` kills and never waits for a query.

Everything but one SELECT on `hist.conversation_history` and `hist.events` with the listed functions
is refused. How the text of a query is read and rewritten: statement.py.
"""

import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scroll_context.errors import KernelDied, QueryRefused
from scroll_context.events import BOOKKEEPING, EVERYTHING, Grant, Kind
from scroll_context.log import schema
from scroll_context.log.log import NEWEST_ERASURE
from scroll_context.log.rows import IS_ERASED
from scroll_context.sql.messages import (
    Blob,
    Query,
    SqlAnswer,
    SqlLimits,
    SqlSettings,
    SqlValue,
    from_wire,
)
from scroll_context.sql.statement import COLUMNS, FUNCTIONS, RowEvents, refusal, rewrite
from scroll_context.work import acquire

if TYPE_CHECKING:
    from scroll_context.sql.process import SqlProcess

MAX_SQL = 100_000
"""The longest query, in characters."""
MAX_PARAMS = 16 << 20
"""The most that parameters may take together, in bytes."""
GRACE = 0.5
"""Seconds after its deadline until a query is killed."""


class SqlResult(msgspec.Struct, frozen=True):
    """Rows as dicts, a note when rows were left out, and the events that the rows are."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    note: str = ""
    truncated: bool = False
    total: int | None = None
    """How many rows the query has in all; None when they were not counted."""
    seqs: tuple[int, ...] | None = None
    """The events that the rows are; None when that cannot be known."""


class GuardedSql:
    """One grant's window on the log. Queries from several threads take turns.

    `before` waits until the file has what this process has appended.
    """

    def __init__(
        self,
        path: Path,
        grant: Grant = EVERYTHING,
        limits: SqlLimits | None = None,
        *,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        self.grant = grant
        self.limits = limits or SqlLimits()
        self._before = before
        self._path = path
        # Held while a query runs.
        self._turn = threading.Lock()
        # Guards the next three.
        self._lock = threading.Lock()
        self._closed = False
        self._worker: SqlProcess | None = None
        self._keeper: sqlite3.Connection | None = None
        # This checks identity and format, with errors of our own.
        schema.connect(path, writable=False).close()

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
                f"a query has at most {MAX_SQL:,} characters, not {len(sql):,};"
                " pass values as params"
            )
        statement, events = rewrite(sql)
        query = Query(statement, _bound(params), tuple(sorted(hidden)))
        self._before()
        try:
            acquire(self._turn)
            try:
                answer = self._ask(query)
            finally:
                self._turn.release()
        except UnicodeEncodeError:
            raise QueryRefused("the query has a lone surrogate, which no stored text has") from None
        if answer.error:
            raise refusal(answer, self.limits)
        return self._result(answer, events)

    def close(self) -> None:
        """End the worker at once, whatever it is doing."""
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            worker.process.kill()
        # A thread that waits for an answer sees the end of its worker, and closes it.
        if self._turn.acquire(blocking=False):
            self._drop(worker)
            self._turn.release()

    def _ask(self, query: Query) -> SqlAnswer:
        """The worker's answer.

        A worker that answered before and ended before this query began is replaced: it may have
        ended for want of work. One that misses the deadline is killed.
        """
        while True:
            worker = self._running()
            try:
                answer = worker.ask(query, GRACE)
            except TimeoutError:
                self._drop(worker)
                return SqlAnswer(error="time")
            except KernelDied:
                self._drop(worker)
                if self._closed:
                    raise schema.closed(self._path, "read") from None
                if worker.has_begun or not worker.has_answered:
                    return SqlAnswer(error="killed")
            except ValueError:
                # The query cannot be encoded, and nothing of it was sent.
                raise
            except BaseException:
                # The cell that asked has ended, or the user interrupted: the worker is still busy.
                self._drop(worker)
                raise
            else:
                if answer.error in ("memory", "open"):
                    self._drop(worker)
                return answer

    def _running(self) -> "SqlProcess":
        from scroll_context.sql.process import SqlProcess

        with self._lock:
            if self._closed:
                raise schema.closed(self._path, "read")
            if self._worker is None:
                self._worker = SqlProcess(self._settings())
            return self._worker

    def _drop(self, worker: "SqlProcess | None") -> None:
        with self._lock:
            if self._worker is worker:
                self._worker = None
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        if worker is not None:
            worker.close()

    def _settings(self) -> SqlSettings:
        return SqlSettings(
            uri=self._open(),
            folder=str(self._path.parent.absolute()),
            scratch="",
            columns=COLUMNS,
            granted="" if self.grant == EVERYTHING else _granted(self.grant),
            newest_erasure=NEWEST_ERASURE,
            erasure=Kind.ERASURE,
            bookkeeping=", ".join(f"'{kind}'" for kind in sorted(BOOKKEEPING)),
            is_erased=IS_ERASED,
            functions=FUNCTIONS,
            limits=self.limits,
            sqlite_limits={
                "SQLITE_LIMIT_LENGTH": self.limits.value_bytes,
                "SQLITE_LIMIT_SQL_LENGTH": 2 * MAX_SQL,
                "SQLITE_LIMIT_ATTACHED": 1,
                "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1_000,
            },
        )

    def _open(self) -> str:
        """The address under which the worker can read the log.

        The worker cannot write the folder, and SQLite cannot read a log in WAL mode without its
        shared index. So a connection of this process keeps that file there, as long as the worker
        lives.
        """
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        keeper = sqlite3.connect(uri, uri=True, check_same_thread=False)
        try:
            keeper.execute("SELECT max(seq) FROM event").fetchone()
        except sqlite3.OperationalError as error:
            keeper.close()
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN:
                return schema.frozen_uri(self._path)
        else:
            self._keeper = keeper
        return uri

    def _result(self, answer: SqlAnswer, events: RowEvents) -> SqlResult:
        columns = tuple(answer.columns)
        values: list[list[Any]] = list(answer.rows)
        if answer.has_blobs:
            values = [[from_wire(value) for value in row] for row in values]
        seqs: tuple[int, ...] | None = () if events is RowEvents.NO_EVENTS else None
        if events is RowEvents.SEQ_LAST:
            # SQLite may have been made to misbehave: a seq is an integer in any case.
            last = (row[-1] for row in answer.rows)
            seqs = tuple(dict.fromkeys(seq for seq in last if isinstance(seq, int)))
            columns = columns[:-1]
        rows = [dict(zip(columns, row, strict=False)) for row in values]
        return SqlResult(columns, rows, self._note(answer), bool(answer.cut), answer.total, seqs)

    def _note(self, answer: SqlAnswer) -> str:
        if not answer.cut:
            return ""
        count = len(answer.rows)
        total = "more" if answer.total is None else f"{answer.total:,} in all"
        if answer.cut == "rows":
            return (
                f"only the first {count:,} rows are here: the query matched {total}."
                " Narrow it with WHERE, aggregate, or page with LIMIT and OFFSET."
            )
        return (
            f"only the first {count:,} rows are here ({total}):"
            f" the result is over {self.limits.result_bytes:,} bytes."
            " Select fewer columns, or substr(content, 1, 200)."
        )


def _bound(params: Sequence[Any] | Mapping[str, Any]) -> list[SqlValue] | dict[str, SqlValue]:
    """Parameters as SQLite can bind them."""
    bound: list[SqlValue] | dict[str, SqlValue]
    if isinstance(params, Mapping):
        bound = {str(name): _parameter(value) for name, value in params.items()}
        values = list(bound.values())
    else:
        bound = values = [_parameter(value) for value in params]
    texts = (from_wire(value) for value in values)
    size = sum(len(text) if isinstance(text, str | bytes) else 8 for text in texts)
    if size > MAX_PARAMS:
        raise QueryRefused(
            f"the parameters have {size:,} bytes; at most {MAX_PARAMS:,} can be passed"
        )
    return bound


def _parameter(value: Any) -> SqlValue:
    if value is None:
        return None
    if isinstance(value, str):
        # An instance of a subclass becomes a plain text; no stored text has a lone surrogate.
        return str.__str__(value).encode(errors="replace").decode()
    if isinstance(value, bytes | bytearray | memoryview):
        return Blob(bytes(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    raise QueryRefused(f"a parameter is a text, a number, bytes or None, not {value!r:.80}")


def _granted(grant: Grant) -> str:
    """The condition that a row of the log is within the grant."""
    terms = []
    for column, values in grant.labels():
        terms.append(f"{column} IN ({', '.join(map(_quoted, values))})")
        if column == "task_id" and "" not in values:
            # This lets SQLite use the partial index.
            terms.append("task_id <> ''")
    return " AND ".join(terms)


def _quoted(value: str) -> str:
    """A text of SQL. It would end at a NUL, so a text that has one is written in hexadecimal
    digits.
    """
    if "\0" in value:
        return f"CAST(x'{value.encode().hex()}' AS TEXT)"
    return "'" + value.replace("'", "''") + "'"
