"""Why a query has no rows, in words that tell its author what to change."""

import sqlite3

from scroll_context.errors import QueryLimit, QueryRefused, StoreError
from scroll_context.sql.messages import SqlAnswer, SqlLimits
from scroll_context.sql.statement import COLUMNS

# Errors of a running query may hold values that it computed, so these texts replace them.
_FIXED = {
    "malformed JSON": "a value given to a JSON function is not JSON",
    "JSON path": "a JSON path is malformed",
    "bad JSON path": "a JSON path is malformed",
    "integer overflow": "integer overflow",
    "JSON cannot hold BLOB": "JSON cannot hold BLOB values",
    "ESCAPE expression": "ESCAPE takes a single character",
    "LIKE or GLOB pattern too complex": "a LIKE or GLOB pattern is too complex",
}


def refusal(answer: SqlAnswer, limits: SqlLimits) -> QueryRefused | StoreError:
    """The error for an answer without rows."""
    code = answer.code & 0xFF
    text = answer.text
    if answer.error == "time" or code == sqlite3.SQLITE_INTERRUPT:
        return QueryLimit(
            f"the query ran longer than {limits.seconds:g} s and was stopped. Narrow it: "
            "filter by seq, session_id or step_index, or use ms.search to find the rows first."
        )
    if answer.error == "LongName":
        return QueryLimit(text)
    if answer.error == "killed":
        return QueryLimit(
            "the process that ran the query was ended by a limit on its time, memory or files. "
            "Narrow the query."
        )
    if answer.error == "memory" or code == sqlite3.SQLITE_NOMEM:
        megabytes = limits.memory_bytes >> 20
        return QueryLimit(
            f"the query needed more than {megabytes:,} MB of memory and was stopped. "
            "Select fewer or shorter columns, or aggregate."
        )
    if code == sqlite3.SQLITE_TOOBIG:
        return QueryLimit(
            f"the query built a value over {limits.value_bytes:,} bytes and was stopped"
        )
    if code == sqlite3.SQLITE_FULL or answer.code == sqlite3.SQLITE_IOERR_WRITE:
        megabytes = limits.file_bytes >> 20
        return QueryLimit(
            f"the query needed more than {megabytes:,} MB of temporary space and was stopped. "
            "Sort, join or deduplicate fewer rows."
        )
    if code in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_BUSY,
    ):
        return StoreError("the log could not be read; `scroll verify` tells whether it is damaged")
    if answer.error == "open":
        return StoreError(
            "the log could not be opened for a query; `scroll verify` tells whether it is damaged"
        )
    if "not authorized" in text or "prohibited" in text:
        return QueryRefused(
            f"not allowed here: {text}. You can SELECT from hist.conversation_history and "
            "hist.events, with SQLite's string, date, JSON, aggregate and window functions "
            "(not printf, randomblob or pragmas)."
        )
    if not answer.is_about_query:
        text = next(
            (fixed for start, fixed in _FIXED.items() if text.startswith(start)),
            "the query failed on a value while it ran",
        )
    return QueryRefused(
        f"{text}. Tables: hist.conversation_history and hist.events. Columns: {', '.join(COLUMNS)}"
    )
