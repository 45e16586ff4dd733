"""Connections that read the SQLite file of a log: as many as there were ever queries at once."""

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from scroll_context.log import schema
from scroll_context.work import current as current_work

# For ? and for :name; newer versions of sqlite3 refuse ?1.
Values = Sequence[Any] | Mapping[str, Any]

# How many steps SQLite's virtual machine takes, some 0.3 ms, between two checks whether a query
# is still wanted.
_STEPS = 20_000

PAGE = 500
"""How many rows a query fetches or names at once."""

T = TypeVar("T")


def marked_pages(values: Sequence[T]) -> Iterator[tuple[Sequence[T], str]]:
    """The values in pages, each with as many question marks for a condition with IN."""
    for start in range(0, len(values), PAGE):
        page = values[start : start + PAGE]
        yield page, ", ".join("?" * len(page))


class Readers:
    """Runs queries on one file from any number of threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_closed = False
        self._all: list[_Reader] = []
        # The last one has the freshest cache. Opening one now finds out whether the file is a log.
        self._idle: list[_Reader] = [self._new_reader()]

    def query(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._new_reader()
        try:
            return reader.query(sql, values)
        finally:
            self._idle.append(reader)

    def close(self) -> None:
        """Close every connection; running queries are finished first."""
        with self._lock:
            self._is_closed = True
            readers, self._all = self._all, []
        for reader in readers:
            reader.close()

    def __len__(self) -> int:
        return len(self._all)

    def _new_reader(self) -> "_Reader":
        reader = _Reader(self._path)
        with self._lock:
            if self._is_closed:
                reader.close()
                raise schema.closed(self._path, "read")
            self._all.append(reader)
        return reader


class _Reader:
    """A connection to read with.

    Closing waits for a running query: to close under it crashes the process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = schema.connect(path, writable=False)
        self._in_use = threading.Lock()

    def query(self, sql: str, values: Values) -> list[tuple[Any, ...]]:
        with self._in_use, schema.Translated(self._path):
            if self._connection is None:
                raise schema.closed(self._path, "read")
            work = current_work()
            if work is None:
                return self._rows(self._connection, sql, values)
            self._connection.set_progress_handler(lambda: work.is_over, _STEPS)
            try:
                return self._rows(self._connection, sql, values)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    work.check()
                raise
            finally:
                self._connection.set_progress_handler(None, 0)

    def _rows(
        self, connection: sqlite3.Connection, sql: str, values: Values
    ) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if not schema.tolerates(connection, error):
                raise
            return connection.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._in_use:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
