"""The text of a query: refused when it is not one SELECT, and rewritten for the worker.

The two views live in another schema inside the worker, so the qualifier `hist.` is dropped from a
query before it runs. When a query has the plain shape `SELECT … FROM one view [WHERE …]
[ORDER BY …] [LIMIT …]`, the seqs of its rows are selected beside its columns. For any other query
that reads events, the events are unknown, and the result says so.

`refusal` says why a query has no rows, in words that tell its author what to change.
"""

import itertools
import re
import sqlite3
from collections.abc import Sequence
from enum import Enum

from scroll_context.errors import QueryLimit, QueryRefused, StoreError
from scroll_context.log.rows import EventColumns
from scroll_context.sql.messages import SqlAnswer, SqlLimits

COLUMNS = ("seq", *EventColumns._fields)
"""The columns of both views."""

FUNCTIONS = frozenset(
    """
    abs acos asin atan atan2 avg ceil ceiling char coalesce concat concat_ws cos count cume_dist
    current_date current_time current_timestamp date datetime degrees dense_rank exp first_value
    floor glob group_concat hex ifnull iif instr json json_array json_array_length json_each
    json_extract json_group_array json_group_object json_object json_quote json_tree json_type
    json_valid -> ->> julianday lag last_value lead length like ln log log10 log2 lower ltrim max
    median min mod nth_value ntile nullif octet_length percent_rank pi pow power quote radians
    random rank replace round row_number rtrim sign sin sqrt strftime string_agg substr substring
    sum tan time timediff total trim trunc typeof unicode unixepoch upper
    """.split()
)

_ROW_FUNCTIONS = FUNCTIONS - frozenset(
    """
    avg count cume_dist dense_rank first_value group_concat json_each json_group_array
    json_group_object json_tree lag last_value lead max median min nth_value ntile percent_rank
    rank row_number string_agg sum total
    """.split()
)
"""Functions of one row: a query that uses no others, and is plain otherwise, returns rows of the
view.
"""

_NOT_PLAIN = frozenset(
    "WITH VALUES UNION INTERSECT EXCEPT JOIN GROUP HAVING WINDOW OVER DISTINCT".split()
)
_AFTER_TABLE = frozenset({"WHERE", "ORDER", "LIMIT", ";"})
_BEFORE_BRACKETS = frozenset(
    """
    SELECT WHERE AND OR NOT IN LIKE GLOB IS BETWEEN CASE WHEN THEN ELSE BY LIMIT OFFSET CAST AS
    """.split()
)

# Each alternative takes an unclosed quote or comment up to the end of the text, and none gives
# anything back: linear.
_TOKEN = re.compile(
    r"""(?P<skip>\s++|--[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?+)
    |(?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*+|"(?:[^"]++|"")*+"?+|`(?:[^`]++|``)*+`?+|\[[^\]]*+\]?+)
    |(?P<other>'(?:[^']++|'')*+'?+|.)""",
    re.VERBOSE | re.DOTALL,
)


class RowEvents(Enum):
    """How the rows of a query relate to events.

    With NO_EVENTS the query reads no table. With SEQ_LAST the seqs of the events are in the last
    column, which was added to the query.
    """

    UNKNOWN = 0
    NO_EVENTS = 1
    SEQ_LAST = 2


def rewrite(sql: str) -> tuple[str, RowEvents]:
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
    events = RowEvents.UNKNOWN
    words = [token.group().upper() for token in tokens]
    if "FROM" not in words and words.count("SELECT") <= 1:
        events = RowEvents.NO_EVENTS
    elif _is_plain(tokens, words):
        events = RowEvents.SEQ_LAST
        place = tokens[words.index("FROM")].start()
        edits.append((place, place, ', seq AS "seq of the row" '))
    pieces: list[str] = []
    at = 0
    for start, end, text in sorted(edits):
        pieces += [sql[at:start], text]
        at = end
    return "".join(pieces) + sql[at:], events


def _is_plain(tokens: Sequence[re.Match[str]], words: Sequence[str]) -> bool:
    """Whether each row of a query is one row of a view."""
    is_one_select = words[0] == "SELECT" and words.count("SELECT") == words.count("FROM") == 1
    if not is_one_select or not _NOT_PLAIN.isdisjoint(words):
        return False
    for token, following in itertools.pairwise(tokens):
        word = token.group().upper()
        is_called = token.lastgroup == "word" and following.group() == "("
        is_of_one_row = word in _BEFORE_BRACKETS or _name(token) in _ROW_FUNCTIONS
        if is_called and not is_of_one_row:
            return False
        if word == "IN" and following.group() != "(":
            return False
    place = words.index("FROM")
    return place >= 2 and _is_one_view([_name(token) for token in tokens[place + 1 :]])


def _is_one_view(names: list[str]) -> bool:
    """Whether what follows FROM is one of the views, perhaps under another name, and no more."""
    if names[:2] == ["hist", "."]:
        names = names[2:]
    if names[:1] not in (["events"], ["conversation_history"]):
        return False
    names = names[1:]
    if names[:1] == ["as"]:
        names = names[1:]
    if names and names[0].upper() not in _AFTER_TABLE and names[0] != ",":
        # The view has another name here.
        names = names[1:]
    return not names or names[0].upper() in _AFTER_TABLE


def _name(token: re.Match[str]) -> str:
    return token.group().strip('"`[]').lower()


# refusals -----------------------------------------------------------------------------------------

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
