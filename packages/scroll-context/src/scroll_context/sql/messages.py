"""Messages between the host and the worker of guarded SQL, in the frames of the kernel's wire.

The host sends `Query`. The worker answers with `Ready` when its rows are up to date and the query
begins, and then with one `SqlAnswer`. The host checks every answer against its type: SQLite may
have been made to misbehave.
"""

import msgspec

IDLE_SECONDS = 300.0


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Bytes on the wire: a type that is checked cannot be text or bytes."""

    data: bytes


SqlValue = int | float | str | Blob | None


class SqlLimits(msgspec.Struct, frozen=True):
    """The resources of one query."""

    seconds: float = 5.0
    rows: int = 1_000
    result_bytes: int = 8 << 20
    # The largest text or blob that may exist while the query runs.
    value_bytes: int = 16 << 20
    # The address space of the worker.
    memory_bytes: int = 512 << 20
    # The size of a temporary file, beyond the granted rows.
    file_bytes: int = 256 << 20
    # A worker without a query for this many seconds ends by itself.
    idle: float = IDLE_SECONDS

    @property
    def frame_bytes(self) -> int:
        """The largest frame of an answer: four bytes for a character, and room for numbers."""
        return 1_000_000 + 8 * self.result_bytes


class SqlSettings(msgspec.Struct, frozen=True):
    """The settings of a worker: the files it may read, and the resources of its queries."""

    uri: str
    folder: str
    """The folder of the log, which the worker may read."""
    scratch: str
    """The folder for temporary files, which the worker may write."""
    columns: tuple[str, ...]
    granted: str
    """The condition that a row is within the grant; empty when every row is."""
    newest_erasure: str
    erasure: str
    bookkeeping: str
    is_erased: str
    functions: frozenset[str]
    limits: SqlLimits
    sqlite_limits: dict[str, int]


class Query(msgspec.Struct, frozen=True, array_like=True):
    """One SELECT. `hidden` is None when it is the same as for the query before."""

    sql: str
    params: list[SqlValue] | dict[str, SqlValue]
    hidden: tuple[int, ...] | None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The rows are up to date, and the query begins."""


class SqlAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The rows of a query, or why there are none."""

    columns: list[str] = []
    rows: list[list[SqlValue]] = []
    cut: str = ""
    """The limit that left rows out: `rows`, `bytes` or none."""
    total: int | None = None
    has_blobs: bool = False
    error: str = ""
    code: int = 0
    text: str = ""
    is_about_query: bool = False
    """Whether the text is about the query's own words."""


ToHost = Ready | SqlAnswer


def from_wire(value: SqlValue) -> int | float | str | bytes | None:
    """A value as SQLite and Python have it."""
    return value.data if isinstance(value, Blob) else value
