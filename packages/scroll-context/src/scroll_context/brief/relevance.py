"""The part of the history that is relevant to a text, if any.

Every word of the text weighs as much as it is rare in the history; a word that the history does not
have weighs most. An event bears on the text if one passage of it holds enough of that weight: a
share of all, and the more weight the smaller the share is. So a prompt about something new finds
nothing, however many of its ordinary words were said before, and a long document is not relevant
because it contains every word somewhere.

The history is read from a `Source`: one committed state of the search index, and SELECTs on the
log. An open store gives both, after its index has caught up. A hook opens them by itself, because
importing the store would take longer than everything else that the hook does; it reads the index as
the last capture left it.

In a history of a few dozen events every word of its subject is frequent, and a count of 0 or 1 says
little. So rarity is counted as if the history had BACKGROUND more events without the word. That
changes much in a small history and nothing in a large one.

The two thresholds and the background were chosen by cross-validation on the chats of BEAM and the
conversations of LoCoMo, complete and cut to 40 and 12 turns; benchmarks/brief.py states the aim,
chooses, and prints the figures of the conversations that were left out. Only speech is looked at
here; what was done is the subject of deeds.py.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import tantivy
from tantivy import Occur, Query

from scroll_context.origin import FROM_USER_SQL, NOT_IMPORTED_SQL, NOT_SPOKEN
from scroll_context.search import tokenize
from scroll_context.search.engine import check_files, open_engine, version_folder, watermark
from scroll_context.search.tokenize import SCHEMA, exact
from scroll_context.text.words import sentences

if TYPE_CHECKING:
    from scroll_context.events import Grant
    from scroll_context.store import Store


# sources ------------------------------------------------------------------------------------------

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


# relevance ----------------------------------------------------------------------------------------

# The least share of the text's weight that a passage must hold, and the least product of that share
# and the weight, in words that occur nowhere else.
LEAST_SHARE = 0.25
LEAST_STRENGTH = 1.0
# Events without any of the words that are added to the history when the rarity of words is counted.
BACKGROUND = 50
# Characters of a text that are read, of a prompt and of an event.
READ_PROMPT = 4_000
READ_EVENT = 20_000
# The rarest words of a text that count.
MOST_TERMS = 24
# Events that are looked at.
CANDIDATES = 40
# Characters of a passage.
PASSAGE = 320
# A text with fewer words says too little to find anything by.
FEWEST_TERMS = 2

Term = tuple[str, str]
"""A field of the index and a word in it."""

Part = tuple[str, set[Term]]
"""A sentence of a text and the words in it."""

# What a person or a model says, and notes; everything else has its own place.
_UNSPOKEN = tuple(kind for kind in NOT_SPOKEN if kind not in ("note", "document"))

COLUMNS = (
    "seq, created_at, session_id, task_id, kind, role, name, "
    f"substr(content, 1, {READ_EVENT}), {FROM_USER_SQL}, {NOT_IMPORTED_SQL}, metadata"
)
HAS_TEXT = "content NOT IN ('', '[erased]') AND metadata NOT LIKE '%\"echo\":t%'"


class Row(NamedTuple):
    """The columns of an event that a brief uses."""

    seq: int
    at: str
    session: str
    task: str
    kind: str
    role: str
    name: str
    text: str
    is_from_user: int
    is_own: int
    metadata: str

    @property
    def day(self) -> str:
        return self.at[:10]


class Match(NamedTuple):
    """An event that bears on a text, with the passage that does."""

    row: Row
    passage: str
    # The part of the text's weight that the passage holds, and the weight.
    share: float
    weight: float

    @property
    def strength(self) -> float:
        return self.share * self.weight


class Statistics(Protocol):
    """How many documents there are, and how many of them hold a word: a searcher of the engine."""

    @property
    def num_docs(self) -> int: ...

    def doc_freq(self, field_name: str, field_value: str) -> int: ...


def relevant(source: Source, text: str, reach: Reach, most: int) -> list[Match]:
    """The events that bear on a text, best first; mostly none."""
    matches = candidates(source, text, reach)
    return [match for match in matches if is_relevant(match)][:most]


def is_relevant(match: Match) -> bool:
    return match.share >= LEAST_SHARE and match.strength >= LEAST_STRENGTH


def candidates(source: Source, text: str, reach: Reach) -> list[Match]:
    """The events that share rare words with a text, best first, relevant or not."""
    weights = term_weights(source.searcher, text)
    total = sum(weights.values())
    matches = []
    for row in rows_sharing(source, weights, reach):
        passage, weight = best_passage(parts_of(row.text), weights)
        matches.append(Match(row, passage, weight / total, weight))
    return sorted(matches, key=_order)


def rows_sharing(source: Source, weights: dict[Term, float], reach: Reach) -> list[Row]:
    """The events that the engine ranks highest for the words of a text."""
    if len(weights) < FEWEST_TERMS:
        return []
    words = [
        (Occur.Should, Query.term_query(SCHEMA, field, word, "freq")) for field, word in weights
    ]
    clauses = [
        (Occur.Must, Query.boolean_query(words)),
        (Occur.MustNot, labelled("kind", *_UNSPOKEN)),
        *reach.clauses(),
    ]
    if reach.asking and not reach.until:
        clauses.append((Occur.MustNot, labelled("session_id", reach.asking)))
    query = Query.boolean_query(clauses)
    limit = CANDIDATES + len(reach.exclude)
    seqs = found_seqs(source, source.searcher.search(query, limit, count=False).hits)
    return [row for row in rows(source, seqs) if reach.permits(row.seq, row.session)]


def _order(match: Match) -> tuple[float, bool, int]:
    """The heaviest first; among equals the user's own words, and then the newest."""
    return -round(match.weight, 6), not match.row.is_from_user, -match.row.seq


def found_seqs(source: Source, hits: Iterable[tuple[object, "tantivy.DocAddress"]]) -> list[int]:
    """The seqs of the documents that the engine found, in its order, each once."""
    addresses = [address for _, address in hits]
    if not addresses:
        return []
    seqs = cast(list[int], source.searcher.fast_field_values("seq", addresses))
    return list(dict.fromkeys(seqs))


def rows(source: Source, seqs: list[int]) -> list[Row]:
    """The events at seqs that still have a text, in that order."""
    if not seqs:
        return []
    places = ", ".join("?" * len(seqs))
    found = source.select(
        f"SELECT {COLUMNS} FROM event WHERE seq IN ({places}) AND {HAS_TEXT}", seqs
    )
    by_seq = {row[0]: Row(*row) for row in found}
    return [by_seq[seq] for seq in seqs if seq in by_seq]


def term_weights(
    statistics: Statistics, text: str, background: int = BACKGROUND
) -> dict[Term, float]:
    """The words of a text that say something, with their weights, the rarest first.

    A word that the history does not have weighs 1, whatever the size of the history.
    """
    weights = {}
    documents = statistics.num_docs + background
    unknown = _rarity(0, documents)
    for term in dict.fromkeys(terms(text[:READ_PROMPT])):
        weights[term] = _rarity(statistics.doc_freq(*term), documents) / unknown
    heaviest = sorted(weights, key=lambda term: -weights[term])[:MOST_TERMS]
    return {term: weights[term] for term in heaviest}


def _rarity(holding: int, documents: int) -> float:
    """The weight that BM25 gives to a word that so many of the documents hold."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def terms(text: str) -> Iterator[Term]:
    """The words of a text by their stems, without those that say nothing about its subject."""
    text = tokenize.normal(text.encode(errors="replace").decode())
    for word, stem in zip(tokenize.words(text), tokenize.stems(text), strict=True):
        if len(word) > 1 and word not in tokenize.WEAK_WORDS:
            yield "stems", stem
    for run in tokenize.runs(text):
        for pair in tokenize.pairs(run)[:-1]:
            yield "pairs", pair


def parts_of(text: str) -> list[Part]:
    return [(part, set(terms(part))) for part in sentences(text)]


def best_passage(parts: Sequence[Part], weights: dict[Term, float]) -> tuple[str, float]:
    """The passage of a text that holds the most weight, and that weight."""
    best, most = "", 0.0
    for start, (_, first_terms) in enumerate(parts):
        if weights.keys().isdisjoint(first_terms):
            continue
        found: set[Term] = set()
        size = 0
        for end in range(start, len(parts)):
            part, part_terms = parts[end]
            size += len(part) + 1
            if size > PASSAGE and end > start:
                break
            found |= weights.keys() & part_terms
            weight = sum(weights[term] for term in found)
            # A longer passage must hold more.
            if weight > most:
                most = weight
                best = " ".join(part for part, _ in parts[start : end + 1])
    return best, most
