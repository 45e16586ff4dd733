"""`ms` inside the kernel: search, expand and query the complete history within reach.

Finding:
    ms.search(query, k=10)          ranked hits: all words, else any
    ms.grep(text, regex=False)      every row that contains a text
    ms.timeline(query)              how often a subject came up, by session, day or month
    ms.timeline([terms])            first and last mention of each term
    ms.standing(topic)              standing instructions, decisions and preferences
    ms.sql_query(sql, params)       read-only SQL on hist.conversation_history and hist.events
Reading:
    ms.expand(seq) / ([seqs]) / (lo, hi)   the exact events
    ms.turns(session) / (lo, hi)    what was said there
    ms.outline(query="…")           sessions, all or those with hits
    ms.gist(query="…")              an even extract of a long stretch, all or about a subject
    ms.show(rows)                   print rows, one line each
    ms.index(), ms.days_between(a, b), ms.provenance(name)

Rows of events are dicts with seq, session_id, role, kind, created_at, content. The note about an
answer is in `.note`, and is printed below the output of the cell by itself.

This file is not imported by the host: its source runs inside the jail, where `call` reaches the
host.
"""

import datetime as _dt
import re as _re
from collections.abc import Callable, Iterator
from typing import Any

# The prelude that runs before this one.
import handles

# The kernel puts it here.
call: Callable[..., Any]


class Row(dict[str, Any]):
    """A dict that names its keys when one is missing."""

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"no {key!r} in this row; its keys are {', '.join(map(str, self))}")


class Rows(list[Any]):
    """Rows; `note` has a remark about them."""

    note = ""
    # Whether rows were left out.
    truncated = False


class Lines(Rows):
    """Rows that print as one line each."""

    # Characters of a text that are printed.
    width = 400

    def __str__(self) -> str:
        return "\n".join(_line(row, self.width) for row in self)


def _rows(answer: dict[str, Any]) -> Rows:
    return _filled(Rows(), answer)


def _lines(answer: dict[str, Any], width: int = Lines.width) -> Rows:
    lines = Lines()
    lines.width = width
    return _filled(lines, answer)


def _filled(rows: Rows, answer: dict[str, Any]) -> Rows:
    rows.extend(Row(row) for row in answer["rows"])
    rows.note = answer["note"]
    rows.truncated = answer.get("truncated", False)
    for row in rows:
        for holder in (row, *row.get("media", ())):
            facts = holder.get("payload")
            if isinstance(facts, dict):
                holder["payload"] = handles.handle(facts)
    return rows


def search(query: str, k: int = 10, **filters: Any) -> Rows:
    """Ranked hits; per_session=1 gives the best of each session.

    Filters: scope, kind, role, session_id, agent_id, all_agents, seq_range, created_on/_from/_to.
    """
    return _lines(call("ms.search", query, k, **filters))


def grep(
    text: str,
    regex: bool = False,
    case: bool = False,
    width: int = 120,
    limit: int | None = None,
    **filters: Any,
) -> Rows:
    """Every row that contains a text, in order of seq: len(rows) is the count, up to 5,000 rows.

    Each row has `match`, the text around the first place (`width` characters to each side), and
    `count`, the places in it. A row that nearly repeats an earlier one has its seq in `repeats`.
    Filters: role, kind, session_id, seq_range, created_on/_from/_to. regex=True for a regular
    expression, case=True to respect case.
    """
    return _lines(call("ms.grep", text, regex, case, width, limit, **filters))


def timeline(query: Any, by: str = "session", **filters: Any) -> Rows:
    """How often a subject came up, by "session", "day" or "month".

    For a list of terms: one row per term with first_seq, first_at, first_match, last_seq, last_at,
    last_match, in order of first mention.
    """
    return _lines(call("ms.timeline", query, by, **filters))


def standing(topic: str = "") -> Rows:
    """The user's standing instructions, decisions and preferences, newest last.

    The statement is in `match`, its type in `stance`. Conflicting ones stand together; one that a
    later one replaced has `replaced_by`. With a topic, only those that bear on it.
    """
    return _lines(call("ms.standing", topic))


def sql_query(sql: str, params: Any = ()) -> Rows:
    """Rows of a read-only query on hist.conversation_history or hist.events, at most 1,000."""
    return _rows(call("ms.sql_query", sql, params))


def expand(*places: Any) -> Rows:
    """The exact events at a seq, at a list of seqs, or from lo to hi; always a list."""
    return _rows(call("ms.expand", *places))


def turns(*place: Any, session_id: Any = None, role: Any = None, chars: int | None = None) -> Rows:
    """What was said in a session (its id, or its number in the outline), or from seq lo to hi.

    turns(lo, hi, session_id=3) takes both.
    role="user" takes one side; chars=200 cuts each text to so many characters.
    """
    answer = call("ms.turns", *place, session_id=session_id, role=role, chars=chars)
    return _lines(answer, 4_000)


def outline(created_from: Any = None, created_to: Any = None, query: str | None = None) -> Rows:
    """One row per session: n, session_id, from, to, seqs, turns, terms, title.

    With a query, only sessions with hits.
    """
    return _lines(call("ms.outline", created_from, created_to, query))


def gist(
    session_id: Any = None,
    seq_range: Any = None,
    query: str | None = None,
    chars: int = 6_000,
    role: Any = "user",
    created_from: Any = None,
    created_to: Any = None,
) -> Rows:
    """The most telling sentences of a stretch, spread evenly over it, each as `match` of its row.

    role=["user", "assistant"] takes both sides.
    """
    return _lines(
        call("ms.gist", session_id, seq_range, query, chars, role, created_from, created_to)
    )


def index() -> Rows:
    """The headlines of evicted steps, with the seq spans to expand."""
    return _rows(call("ms.index"))


def provenance(name: str) -> Any:
    """Which cell bound a variable, and the seqs that it was computed from."""
    return call("ms.provenance", name)


def days_between(first: Any, second: Any) -> int:
    """Calendar days from the first date to the second; negative when the second is earlier."""
    return (_day(second) - _day(first)).days


def _day(value: Any) -> _dt.date:
    if isinstance(value, _dt.datetime):
        return value.date()
    if isinstance(value, _dt.date):
        return value
    return _dt.datetime.fromisoformat(str(value).strip()).date()


# printing -----------------------------------------------------------------------------------------


def show(rows: Any, n: int = 20, width: int = 200, around: str | None = None) -> None:
    """Print rows, one line each: the first n, with `width` characters of each text.

    With around="Devin", every place of that word instead, `width` characters around it.
    """
    rows = [rows] if isinstance(rows, dict) else list(rows)
    if around is None:
        for row in rows[:n]:
            print(_line(row, width))
        if len(rows) > n:
            print(f"… {_count(len(rows) - n, 'more row')}")
        return
    word = _re.compile(_re.escape(around), _re.IGNORECASE)
    hits = [row for row in rows if word.search(_text(row))]
    for row in hits[:n]:
        for excerpt in _places(_text(row), word, width):
            print(f"{_head(row)}: {excerpt}")
    if len(hits) > n:
        print(f"… {_count(len(hits) - n, 'more row')} with {around!r}")
    if len(hits) < len(rows):
        print(f"… {_count(len(rows) - len(hits), 'row')} without {around!r}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _text(row: Any) -> str:
    """The complete text of a row; a large one is loaded through its handle."""
    if not isinstance(row, dict):
        return str(row)
    body = row.get("payload")
    if isinstance(body, handles.ToolResultRef):
        return str(body.text())
    return str(row.get("content") or row.get("match") or "")


def _places(text: str, word: Any, width: int) -> Iterator[str]:
    """The places of a word in a text, each with its surroundings; close places share a line."""
    text = " ".join(text.split())
    end = 0
    for place in word.finditer(text):
        if place.start() < end:
            continue
        side = max(0, width - len(place[0])) // 2
        start = max(0, place.start() - side)
        end = min(len(text), place.end() + side)
        yield ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


_FIRST = ("n", "seq", "day", "month", "created_at", "role", "kind", "stance")
_COUNTS = (
    "hits",
    "by_user",
    "first_seq",
    "first_at",
    "last_seq",
    "last_at",
    "count",
    "repeats",
    "repeated",
    "replaced_by",
    "misdated",
)


def _head(row: Any) -> str:
    """The beginning of a row's line: its address, date, role and kind."""
    if not isinstance(row, dict):
        return ""
    parts = []
    for name in _FIRST:
        value = row.get(name)
        if value and value != "conversation":
            parts.append(str(value)[:10] if name == "created_at" else str(value))
    if "first_seq" in row and "n" in row:
        parts[0] = f"session {row['n']}"
    if "seqs" in row and "from" in row:
        since, until = row["from"], row["to"]
        parts.append(since if since == until else f"{since}..{until}")
        parts.append("{}-{}".format(*row["seqs"]))
        parts.append("1 turn" if row["turns"] == 1 else f"{row['turns']} turns")
    for name in _COUNTS:
        value = row.get(name)
        if value and (name, value) != ("count", 1):
            parts.append(f"{name} {value}")
    return " ".join(parts)


def _line(row: Any, width: int) -> str:
    if not isinstance(row, dict):
        return str(row)[:width]
    if "term" in row:
        return _term_line(row)
    head = _head(row)
    texts = [", ".join(row.get("terms") or ()), row.get("title", "")]
    texts.append(row.get("snippet") or row.get("match") or row.get("content") or "")
    text = " | ".join(" ".join(str(part).split()) for part in texts if part)
    if len(text) > width:
        text = text[: width - 1] + "…"
    return head + (": " if head and text else "") + text


def _term_line(row: Any) -> str:
    """First and last mention of a term."""
    parts = [f"{row['term']}: {row['hits']} hit{'' if row['hits'] == 1 else 's'}"]
    for place in ("first", "last") if row["hits"] > 1 else ("first",) * row["hits"]:
        where = f"{place} seq {row[place + '_seq']} ({row[place + '_at']})"
        parts.append(f"{where}: {row[place + '_match']}")
    return " | ".join(parts)
