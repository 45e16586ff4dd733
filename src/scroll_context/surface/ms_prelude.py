"""`ms` inside the kernel: search, expand and query the whole history of this session and its neighbours.

    ms.search(query, k=10, ...)   ranked hits, each with its seq, snippet and whole text
    ms.expand(seq) / ([seqs]) / (lo, hi)   the exact events
    ms.sql_query(sql, params)     read-only SQL on hist.conversation_history and hist.events
    ms.sessions(), ms.index(), ms.days_between(a, b), ms.provenance(name)

This file is not imported by the host: its source runs inside the jail, where `call` reaches the host.
"""

import datetime as _dt
from collections.abc import Callable
from typing import Any

import handles  # the prelude beside this one

call: Callable[..., Any]  # put here by the kernel


class Rows(list[Any]):
    """Rows as dicts; `note` says what there is to know about them, for example that there were more."""

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
    """Ranked hits. Filters: scope, kind, role, session_id, agent_id, all_agents, seq_range, created_on/_from/_to."""
    return _rows(call("ms.search", query, k, **filters))


def expand(*places: Any) -> Rows:
    """The exact events at a seq, at a list of seqs, or from lo to hi."""
    return _rows(call("ms.expand", *places))


def sql_query(sql: str, params: Any = ()) -> Rows:
    """Rows of a read-only query on hist.conversation_history or hist.events."""
    return _rows(call("ms.sql_query", sql, params))


def sessions() -> Rows:
    """Every session within reach, oldest first."""
    return _rows(call("ms.sessions"))


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
