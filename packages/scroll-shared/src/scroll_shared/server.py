"""A connection to the Postgres server: opened when needed, dropped when it fails, with a deadline
on every call.

A call without an answer in time raises StoreUnreachable, and so does a call to a server that is
away, starting, stopping, full of connections or no longer the primary; until its deadline it is
repeated. So every statement here can be repeated without harm: it only reads, or carries a number
by which the server recognises it. A refusal of the server itself is raised at once. No error text
contains a password.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, TypeVar

import psycopg
from psycopg.types.array import ListBinaryDumper

from scroll_context.errors import (
    BadInput,
    NotAStore,
    ScrollError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
    StoreUnreachable,
)
from scroll_shared.address import Address

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

# SQLSTATEs of a server that may answer the next time.
_AWAY = ("08", "57P", "57014", "53300", "25006")
_LOGIN_REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
)
_UNSAFE = ("certificate", "does not support SSL", "does not match host name")
# The seconds between two attempts, doubled each time.
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


class Server:
    """A connection that several threads may use, one at a time."""

    def __init__(self, address: Address, purpose: str = "scroll") -> None:
        self.address = address
        self._purpose = purpose
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._deadline = math.inf
        # How often a connection was opened.
        self._connected = 0
        self._interrupted = False
        # How many notifications came. Without a handler, the driver would keep them for ever.
        self.notified = 0

    def call(
        self, statement: str, values: Sequence[Any] = (), *, timeout: float | None = None
    ) -> Rows:
        """Run one statement. While the server is away, it is repeated until the deadline."""
        deadline = time.monotonic() + (self.address.timeout if timeout is None else timeout)
        pause = _FIRST_PAUSE
        while True:
            try:
                return self.once(statement, values, deadline=deadline)
            except StoreUnreachable:
                if self._interrupted or time.monotonic() + pause >= deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def once(self, statement: str, values: Sequence[Any] = (), *, deadline: float) -> Rows:
        """Run one statement, in binary.

        A connection that failed is closed, and the next call opens another.
        """
        self.check_process()
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self.unreachable("other calls wait for it too")
        try:
            self._deadline = deadline
            was_connected = False
            connection = self._open()
            was_connected = True
            # A script of several statements has no values, and cannot be sent in binary.
            cursor = connection.cursor(binary=bool(values))
            cursor.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if self._connection is not None and (self._connection.closed or _is_away(error)):
                self.drop()
            # The original error may quote the connection string.
            raise self._explain(error, was_connected) from None
        except BaseException:
            # This may be in the middle of an answer.
            self.drop()
            raise
        finally:
            self._deadline = math.inf
            self._lock.release()

    def check_process(self) -> None:
        """Refuse to work in a forked process: two processes cannot use one connection."""
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.address} was opened by process {self._process}, from which this one was "
                "forked. A connection cannot be shared: nothing was written. "
                "Open the store in this process."
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Callable[..., Rows]]:
        """Several statements in one transaction, for administration. It is not repeated."""
        with self._lock:
            deadline = time.monotonic() + 60 * self.address.timeout
            run = partial(self.once, deadline=deadline)
            run("BEGIN")
            try:
                yield run
                run("COMMIT")
            except BaseException:
                self.drop()
                raise

    def _open(self) -> psycopg.Connection[Any]:
        if self._interrupted:
            raise self.unreachable("it is being closed here")
        if self._connection is None:
            connection = self._connect()
            connection.remaining = lambda: (
                -1.0 if self._interrupted else self._deadline - time.monotonic()
            )
            connection.add_notify_handler(self._count)
            for kind, dumper in _array_dumpers():
                connection.adapters.register_dumper(kind, dumper)
            self._connection = connection
            self._connected += 1
        return self._connection

    def _connect(self) -> Any:
        """A new connection within the deadline. A thread opens it, since libpq and the name
        resolver keep no deadline.
        """
        opening: Future[Any] = Future()

        def connect() -> None:
            seconds = min(self._deadline - time.monotonic(), 60)
            try:
                connection = _Connection.connect(
                    self.address.conninfo,
                    autocommit=True,
                    # libpq accepts no less than 2 seconds.
                    connect_timeout=max(2, math.ceil(seconds)),
                    application_name=self._purpose,
                    tcp_user_timeout=round(1000 * self.address.timeout),
                )
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                if opening.set_running_or_notify_cancel():
                    opening.set_exception(error)
            else:
                if opening.set_running_or_notify_cancel():
                    opening.set_result(connection)
                else:
                    connection.close()

        threading.Thread(target=connect, name="scroll-connect", daemon=True).start()
        while True:
            with contextlib.suppress(TimeoutError):
                return opening.result(min(0.1, max(0.0, self._deadline - time.monotonic())))
            if (self._interrupted or time.monotonic() > self._deadline) and opening.cancel():
                raise self.unreachable("no connection in time")

    def _count(self, _: object) -> None:
        self.notified += 1

    def fileno(self) -> int | None:
        """The handle that becomes readable when the server sends something by itself."""
        connection = self._connection
        return None if connection is None or connection.closed else connection.fileno()

    @property
    def connected(self) -> int:
        """How often a connection was opened. A new one must be told again what to listen to."""
        return self._connected

    def interrupt(self) -> None:
        """End a running call soon, and every later one: its user is being closed."""
        self._interrupted = True

    def drop(self) -> None:
        """Close the connection; the next call opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # After a fork, the other process still uses the connection.
        if os.getpid() == self._process:
            with self._lock:
                self.drop()

    def unreachable(self, why: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"the server of {self.address} does not answer ({why}). The local copy can still be "
            "read and searched; appends work again when the server is back."
        )

    def _explain(self, error: psycopg.Error, was_connected: bool) -> ScrollError:
        text = self.address.clean(" ".join(str(error).split("CONTEXT:")[0].split()))[:500]
        state = error.sqlstate or ""
        match state:
            case "SC001":
                return StoreReadOnly(
                    f"{text}. Ask its owner for `scroll shared grant`. Nothing was written."
                )
            case "SC003":
                return StoreFull(f"{text}: this append was refused, all earlier ones are safe.")
            case "SC004":
                return StoreDamaged(
                    f"the history on the server of {self.address} is not the one that this host "
                    f"has ({text}). It may have been restored from an older backup. "
                    "Nothing was written."
                )
            case "SC005":
                return BadInput(f"{text}. Nothing was written.")
            case "55P03":
                return StoreLocked(
                    f"another login holds a lock on the server of {self.address} ({text}). "
                    "Nothing was written. Try again; if it lasts, the server's owner finds the "
                    "login in pg_stat_activity and can end it."
                )
            case "42501":
                return StoreReadOnly(
                    f"the server refuses that: {text}. Ask its owner for `scroll shared grant`."
                )
            case "3F000" | "42P01" | "42883":
                return NotAStore(
                    f"there is no shared store at {self.address}: "
                    f"`scroll shared init URL` makes one ({text})"
                )
            case "28P01" | "28000" | "3D000":
                return StoreReadOnly(f"the server of {self.address} refuses the login: {text}")
        # A failed attempt to connect has no SQLSTATE, only a text.
        if not state and not was_connected:
            if any(phrase in text for phrase in _LOGIN_REFUSED):
                return StoreReadOnly(f"the server of {self.address} refuses the login: {text}")
            if any(phrase in text for phrase in _UNSAFE):
                return StoreReadOnly(
                    f"no safe connection to {self.address}: {text}. sslrootcert=FILE names the "
                    "authority of the server's certificate."
                )
        if _is_away(error):
            return self.unreachable(text)
        return StoreError(
            f"the server of {self.address} failed: {text} ({state}). Nothing was written."
        )


def _is_away(error: psycopg.Error) -> bool:
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_AWAY)


def require_version(schema: int, oldest: int, newest: int, address: Address) -> None:
    """Refuse a server whose schema this Scroll does not know.

    `oldest` is the oldest schema that it can update.
    """
    if schema > newest:
        raise StoreTooNew(
            f"the server of {address} has schema {schema}; this Scroll knows {newest}. Nothing was "
            "changed. Upgrade scroll-context."
        )
    if 0 < schema < oldest:
        raise NotAStore(
            f"the server of {address} has schema {schema}, from a Scroll before {oldest}, which "
            "this one does not read. Nothing was changed. With the Scroll that made it, copy each "
            "store to a folder (`scroll shared pull URL DIR`); then push the folders to a new "
            "database."
        )
    if schema < newest:
        raise NotAStore(
            f"the server of {address} has schema {schema}, and this Scroll needs {newest}. Nothing "
            "was changed. Its owner updates it with `scroll shared migrate URL`."
        )


class _Connection(psycopg.Connection[Any]):
    """A connection on which nothing waits longer than `remaining()` says."""

    remaining: Any = None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        limited = _limited(gen, self.remaining) if self.remaining else gen
        return super().wait(limited, *args, **kwargs)


def _limited(gen: Generator[Any, Any, T], remaining: Any) -> Generator[Any, Any, T]:
    """The same generator, ended by an error when no time remains.

    The driver resumes it ten times a second.
    """
    try:
        event = next(gen)
        while True:
            ready = yield event
            if not ready and remaining() <= 0:
                gen.close()
                raise psycopg.OperationalError("no answer in time")
            event = gen.send(ready)
    except StopIteration as done:
        value: T = done.value
        return value


# arrays -----------------------------------------------------------------------------------------
#
# A batch of rows goes to the server as one array for each column. The driver walks a plain list
# several times to find its type, which measurably cost processor time in appends. The type of these
# lists states it.


class Bytes(list[bytes | None]):
    """bytea[]"""


class Texts(list[str | None]):
    """text[]"""


class Numbers(list[int | None]):
    """bigint[]"""


@cache
def _array_dumpers() -> tuple[tuple[type, Any], ...]:
    """The driver's own dumper of arrays, with the type set."""
    types = psycopg.adapters.types

    def dumper(element: str) -> Any:
        info = types[element]
        return type(element, (ListBinaryDumper,), {"oid": info.array_oid, "element_oid": info.oid})

    return ((Bytes, dumper("bytea")), (Texts, dumper("text")), (Numbers, dumper("int8")))
