"""`ms` inside the kernel: search, expand and query the whole history of this session and its
neighbours.

    ms.search(query, k=10, ...)   ranked hits, each with its seq, snippet and whole text
    ms.expand(seq) / ([seqs]) / (lo, hi)   the exact events
    ms.sql_query(sql, params)     read-only SQL on hist.conversation_history and hist.events
    ms.index(), ms.days_between(a, b), ms.provenance(name)
    ms.grep(text), ms.outline(), ms.timeline(query), ms.turns(session), ms.gist(), ms.standing()

This file is not imported by the host: its source runs inside the jail, where `call` reaches the
host.
"""

import datetime as _dt
from collections.abc import Callable
from typing import Any

import handles  # the prelude beside this one

call: Callable[..., Any]  # put here by the kernel


class Rows(list[Any]):
    """Rows as dicts; `note` says what there is to know about them, for example that there were
    more.
    """

    note = ""
    truncated = False  # whether rows were left out

    def __repr__(self) -> str:
        return list.__repr__(self) + (f"\n[note] {self.note}" if self.note else "")


def _rows(answer: dict[str, Any]) -> Rows:
    rows = Rows(answer["rows"])
    rows.note = answer["note"]
    rows.truncated = answer.get("truncated", False)
    for row in rows:
        facts = row.get("payload")
        if isinstance(facts, dict):
            row["payload"] = handles.handle(facts)
    return rows


def search(query: str, k: int = 10, **filters: Any) -> Rows:
    """Ranked hits; per_session=1 gives the best of each session.

    Filters: scope, kind, role, session_id, agent_id, all_agents, seq_range, created_on/_from/_to.
    """
    return _rows(call("ms.search", query, k, **filters))


def expand(*places: Any) -> Rows:
    """The exact events at a seq, at a list of seqs, or from lo to hi."""
    return _rows(call("ms.expand", *places))


def sql_query(sql: str, params: Any = ()) -> Rows:
    """Rows of a read-only query on hist.conversation_history or hist.events."""
    return _rows(call("ms.sql_query", sql, params))


def index() -> Rows:
    """The headlines of what has left the view, with the seq spans to expand."""
    return _rows(call("ms.index"))


def provenance(name: str) -> Any:
    """Which cell bound a variable, and from which events it derives."""
    return call("ms.provenance", name)


def days_between(first: Any, second: Any) -> int:
    """Whole calendar days from the first date to the second; negative when the second is earlier."""
    return (_day(second) - _day(first)).days


def _day(value: Any) -> _dt.date:
    if isinstance(value, _dt.datetime):
        return value.date()
    if isinstance(value, _dt.date):
        return value
    return _dt.datetime.fromisoformat(str(value).strip()).date()


# covering instead of ranking -----------------------------------------------------------------------------------


class Lines(Rows):
    """Rows that print as one line each."""

    width = 400  # characters of a text that are printed

    def __str__(self) -> str:
        return "\n".join(_line(row, self.width) for row in self) + (
            f"\n[note] {self.note}" if self.note else ""
        )


def _lines(answer: dict[str, Any], width: int = Lines.width) -> Lines:
    rows = Lines(answer["rows"])
    rows.note, rows.width = answer["note"], width
    return rows


def grep(
    text: str,
    regex: bool = False,
    case: bool = False,
    width: int = 120,
    limit: int = 50,
    **filters: Any,
) -> Lines:
    """Every row that holds a text, in order of seq; the note has the total. Filters: role, kind,
    session_id, seq_range, created_on/_from/_to. regex=True for a regular expression, case=True to
    mind the case."""
    return _lines(call("ms.grep", text, regex, case, width, limit, **filters))


def outline(created_from: Any = None, created_to: Any = None, query: str | None = None) -> Lines:
    """One row a session: n, session_id, from, to, seqs, turns, terms, title; with a query only
    those with hits.
    """
    return _lines(call("ms.outline", created_from, created_to, query))


def timeline(query: str, by: str = "session", **filters: Any) -> Lines:
    """How often a subject came up, by "session", "day" or "month", with the first and the last
    mention.
    """
    return _lines(call("ms.timeline", query, by, **filters))


def turns(*place: Any, session_id: Any = None, role: Any = None) -> Lines:
    """What was said in a session (its id, or its number in the outline), or from seq lo to hi:
    turns(lo, hi).
    """
    return _lines(call("ms.turns", *place, session_id=session_id, role=role), 4_000)


def gist(
    session_id: Any = None,
    seq_range: Any = None,
    query: str | None = None,
    chars: int = 6_000,
    role: Any = "user",
    created_from: Any = None,
    created_to: Any = None,
) -> Lines:
    """The most telling sentences of a stretch, spread evenly over it, each with its seq.
    role=["user", "assistant"] takes both sides."""
    return _lines(
        call("ms.gist", session_id, seq_range, query, chars, role, created_from, created_to)
    )


def standing(topic: str = "") -> Lines:
    """The user's standing instructions and preferences, newest last; with a topic, those that bear
    on it.
    """
    return _lines(call("ms.standing", topic))


def show(rows: Any, n: int = 20, width: int = 200) -> None:
    """Print rows compactly, one line each: the first n, so many characters of each text."""
    rows = [rows] if isinstance(rows, dict) else rows
    for row in rows[:n]:
        print(_line(row, width))
    if len(rows) > n:
        print(f"… {len(rows) - n} more rows")
    if note := getattr(rows, "note", ""):
        print(f"[note] {note}")


def _line(row: Any, width: int) -> str:
    if not isinstance(row, dict):
        return str(row)[:width]
    facts = [
        str(row[name])[: _CUT.get(name)]
        for name in _FIRST
        if row.get(name) and row[name] != "conversation"
    ]
    if "first_seq" in row and "n" in row:
        facts[0] = f"session {row['n']}"
    if "seqs" in row:
        since, until = row["from"], row["to"]
        facts += [
            since if since == until else f"{since}..{until}",
            "{}-{}".format(*row["seqs"]),
            f"{row['turns']} turns",
        ]
    facts += [
        f"{name} {row[name]}"
        for name in _NAMED
        if row.get(name) and (name, row[name]) != ("count", 1)
    ]
    terms = ", ".join(row.get("terms", ()))
    texts = (
        terms,
        row.get("title", ""),
        row.get("snippet") or row.get("text") or row.get("content") or "",
    )
    text = " | ".join(" ".join(str(one).split()) for one in texts if one)
    return (
        " ".join(facts)
        + (": " if facts and text else "")
        + (text if len(text) <= width else text[: width - 1] + "…")
    )


_FIRST = ("n", "seq", "day", "month", "date", "created_at", "role", "kind", "when")
_NAMED = (
    "hits",
    "by_user",
    "first",
    "last",
    "first_seq",
    "last_seq",
    "closeness",
    "count",
    "repeats",
    "misdated",
)
_CUT = {"created_at": 10}
