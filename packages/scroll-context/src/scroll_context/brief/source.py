"""The sources of a brief: one committed state of the search index, and SELECTs on the log.

An open store gives both, after its index has caught up. A hook opens them by itself, because
importing the store would take longer than everything else that the hook does; it reads the index
as the last capture left it.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tantivy
from tantivy import Occur, Query

from scroll_context.search.engine import check_files, open_engine, version_folder, watermark
from scroll_context.search.tokenize import SCHEMA, exact

if TYPE_CHECKING:
    from scroll_context.events import Grant
    from scroll_context.store import Store

Select = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
"""Runs one SELECT on the log."""

Clause = tuple[Occur, Query]
Labels = Sequence[tuple[str, Sequence[str]]]


class Source(NamedTuple):
    """The data that a brief reads."""

    searcher: tantivy.Searcher
    select: Select


class Reach(NamedTuple):
    """Which events a brief may offer."""

    # The texts that an event may have as its session, agent or task, as of a grant.
    labels: Labels = ()
    # The session that asks: its events are in its window already, unless they are at most this old.
    asking: str = ""
    until: int = 0
    # Events that were offered before.
    exclude: frozenset[int] = frozenset()
    # Files, commands and errors that were reported before.
    subjects: frozenset[str] = frozenset()

    def clauses(self) -> list[Clause]:
        """The conditions on a document, for the engine."""
        return [(Occur.Must, labelled(name, *texts)) for name, texts in self.labels]

    def permits(self, seq: int, session: str) -> bool:
        if seq in self.exclude:
            return False
        return not self.asking or session != self.asking or seq <= self.until


def labelled(name: str, *values: str) -> Query:
    """A query for the documents with one of these labels. It adds nothing to a score."""
    texts = [exact(value) for value in values]
    return Query.const_score_query(Query.term_set_query(SCHEMA, name, texts), 0.0)


def source_of(store: "Store") -> Source | None:
    """The source of an open store, whose index catches up first; None if nothing is indexed."""
    searcher = store.index.searcher()
    return None if searcher is None else Source(searcher, store.log.query)


def reach_of(grant: "Grant") -> Reach:
    return Reach(grant.labels())


def open_source(folder: str, select: Select) -> Source | None:
    """The source of the store in a folder; None if it has no index yet, or that of another log."""
    index_folder = version_folder(os.path.join(folder, "index"))
    if not os.path.isfile(os.path.join(index_folder, "meta.json")):
        return None
    check_files(index_folder)
    index = open_engine(index_folder)
    index.reload()
    searcher = index.searcher()
    upto, chain = watermark(searcher)
    rows = list(select("SELECT chain FROM event WHERE seq = ?", [upto]))
    is_of_this_log = bool(rows) and bytes(rows[0][0]) == chain
    return Source(searcher, select) if is_of_this_log else None
