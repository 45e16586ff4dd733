"""The text of a query: refused when it is not one SELECT, and rewritten for the worker.

The two views live in another schema inside the worker, so the qualifier `hist.` is dropped from a
query before it runs. When a query has the plain shape `SELECT … FROM one view [WHERE …]
[ORDER BY …] [LIMIT …]`, the seqs of its rows are selected beside its columns. For any other query
that reads events, the events are unknown, and the result says so.
"""

import itertools
import re
from collections.abc import Sequence
from enum import Enum

from scroll_context.errors import QueryRefused

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
    extra, place = _events_of(tokens)
    if extra is RowEvents.SEQ_LAST:
        edits.append((place, place, ', seq AS "seq of the row" '))
    pieces, at = [], 0
    for start, end, text in sorted(edits):
        pieces += [sql[at:start], text]
        at = end
    return "".join(pieces) + sql[at:], extra


def _events_of(tokens: Sequence[re.Match[str]]) -> tuple[RowEvents, int]:
    """The rows of the history that a query returns, and the place of its FROM."""
    texts = [token.group().upper() for token in tokens]
    selects = texts.count("SELECT")
    if "FROM" not in texts and selects <= 1:
        return RowEvents.NO_EVENTS, 0
    if (
        selects != 1
        or texts.count("FROM") != 1
        or texts[0] != "SELECT"
        or not _NOT_PLAIN.isdisjoint(texts)
    ):
        return RowEvents.UNKNOWN, 0
    for word, after in itertools.pairwise(tokens):
        called = word.lastgroup == "word" and after.group() == "("
        if (
            called
            and _name(word) not in _ROW_FUNCTIONS
            and word.group().upper() not in _BEFORE_BRACKETS
        ):
            return RowEvents.UNKNOWN, 0
        if word.group().upper() == "IN" and after.group() != "(":
            return RowEvents.UNKNOWN, 0
    at = texts.index("FROM")
    rest = [_name(token) for token in tokens[at + 1 :]]
    if rest[:2] == ["hist", "."]:
        rest = rest[2:]
    if at < 2 or rest[:1] not in (["events"], ["conversation_history"]):
        return RowEvents.UNKNOWN, 0
    rest = rest[1:]
    if rest[:1] == ["as"]:
        rest = rest[1:]
    if rest and rest[0].upper() not in _AFTER_TABLE and rest[0] != ",":
        # The view has another name here.
        rest = rest[1:]
    plain = not rest or rest[0].upper() in _AFTER_TABLE
    return (RowEvents.SEQ_LAST, tokens[at].start()) if plain else (RowEvents.UNKNOWN, 0)


def _name(token: re.Match[str]) -> str:
    return token.group().strip('"`[]').lower()
