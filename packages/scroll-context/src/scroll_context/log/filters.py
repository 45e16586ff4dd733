"""Filters: which events a reader asks for, as one value that every caller hands to log and index.

A caller (`ms`, the command line, the MCP server, the inspector, plain tools) makes `SearchFilters`
once; from there on it travels as it is. `conditions` says what it means in SQL, and
`search/engine_queries.py` says the same to the search engine. A filter narrows: what a reader may
reach at all is the grant, which is a value of its own and holds whatever the filters are.

`FilterFields` are the same fields for Python callers who name them one by one, as in
`log.iterate(role="user")` or `index.search(query, session_id="a")`.
"""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from scroll_context.events import EVERYTHING, Grant
from scroll_context.log import times
from scroll_context.origin import FROM_USER_SQL, LABELS

TextOrTexts = str | Sequence[str] | None


class FilterFields(TypedDict, total=False):
    """The fields of `SearchFilters` as keyword arguments; None stands for no filter."""

    session_id: TextOrTexts
    agent_id: TextOrTexts
    task_id: TextOrTexts
    kind: TextOrTexts
    role: TextOrTexts
    seq_range: tuple[int, int] | None
    created_from: str | None
    created_to: str | None


class SearchFilters(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions that an event must satisfy besides the query and the grant.

    The texts of one field are alternatives; fields are joined by AND. `role="user"` means the user
    of this store (origin.py). `seq_range` and the two dates are inclusive, and a date stands for
    all of its day.
    """

    session_id: tuple[str, ...] | None = None
    agent_id: tuple[str, ...] | None = None
    task_id: tuple[str, ...] | None = None
    kind: tuple[str, ...] | None = None
    role: tuple[str, ...] | None = None
    seq_range: tuple[int, int] | None = None
    created_from: str | None = None
    created_to: str | None = None

    @classmethod
    def of(cls, **fields: Unpack[FilterFields]) -> "SearchFilters":
        """Filters from keyword arguments, each of which may be one text or several."""
        return NO_FILTERS.narrowed(**fields)

    def narrowed(self, **fields: Unpack[FilterFields]) -> "SearchFilters":
        """These filters with some fields set; a field that is None stays as it is."""
        changes: dict[str, Any] = {}
        for name, value in fields.items():
            if value is None:
                continue
            if name in LABELS:
                texts = [value] if isinstance(value, str) else value
                changes[name] = tuple(str(text) for text in texts)  # type: ignore[attr-defined]
            else:
                changes[name] = value
        return msgspec.structs.replace(self, **changes) if changes else self

    def labels(self) -> list[tuple[str, tuple[str, ...]]]:
        """The fields that are compared with texts, by name, without those that do not filter."""
        pairs = ((name, getattr(self, name)) for name in LABELS)
        return [(name, texts) for name, texts in pairs if texts is not None]

    def without_range(self) -> "SearchFilters":
        """The same without the range of seqs, for a reader that goes through it page by page."""
        return self if self.seq_range is None else msgspec.structs.replace(self, seq_range=None)


NO_FILTERS = SearchFilters()


def conditions(
    grant: Grant = EVERYTHING, filters: SearchFilters = NO_FILTERS
) -> tuple[str, list[Any]]:
    """An SQL condition on the table of events that holds within a grant and filters, and its
    values.
    """
    terms: list[str] = ["1"]
    values: list[Any] = []
    labels = [(name, texts) for name, texts in filters.labels() if name != "role"]
    labels += grant.labels()
    for column, texts in labels:
        terms.append(f"{column} IN ({_marks(texts)})")
        values += texts
        if column == "task_id" and "" not in texts:
            # This is what lets SQLite use the partial index.
            terms.append("task_id <> ''")
    if filters.role is not None:
        others = sorted(set(filters.role) - {"user"})
        either = [f"role IN ({_marks(others)})"]
        if "user" in filters.role:
            either.append(FROM_USER_SQL)
        terms.append(f"({' OR '.join(either)})")
        values += others
    if filters.seq_range is not None:
        terms.append("seq BETWEEN ? AND ?")
        values += filters.seq_range
    if filters.created_from is not None:
        terms.append("created_at >= ?")
        values.append(times.bound(filters.created_from, upper=False))
    if filters.created_to is not None:
        last = times.bound(filters.created_to, upper=True)
        terms.append("substr(created_at, 1, ?) <= ?")
        values += [len(last), last]
    return " AND ".join(terms), values


def _marks(texts: Sequence[str]) -> str:
    return ", ".join("?" * len(texts))
