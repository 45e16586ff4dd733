"""From a parsed query to one that the engine runs, and from its candidates to an order.

A word also finds its other grammatical forms (vendor, vendors), by their common stem, and counts more as written (of
a question's words, only the inflected ones). Filters are part of the engine's query and add nothing to the score. The
order is BM25 with three additions, all measured on BEAM: a reply lends part of its score to the user turn that it
answers, user turns weigh more, and user turns close to each other lend a little, since a subject is rarely done with in
one. Nothing here reads the log.

What a search within a grant returns does not tell what lies outside. The engine's statistics are of the whole index,
so each word is weighed anew by how many granted documents hold it; the words of a prefix are those of granted
documents; and the score of a hit within a grant is made from its rank alone. Two things remain of the whole index: the
mean length of a document, which moves the order a little, and time: a common word takes longer than a rare one. A
grant that permits every document is searched without this work.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import msgspec
import tantivy
from tantivy import Occur, Query

from scroll_context.events import EVERYTHING, Grant
from scroll_context.store import tokenize
from scroll_context.store.query import All, AnyOf, Field, Node, Term, Words
from scroll_context.store.tokenize import SCHEMA

AS_WRITTEN = 0.4  # weight of a word as written, beside its stem
RANKED_WORDS = 128  # beyond so many words with a prefix, all weigh the same
MOST_WORDS = 10_000  # beyond so many, a row of words that ends in a prefix finds only the commonest
MOST_PHRASES = 1_000  # the same, within a grant
CANDIDATES = 300
NEAR = 4  # neighbouring user turns at most so many seqs apart
LENT_NEAR = 0.1  # lend so much of their score to each other
MOST_COUNTS = 20_000  # numbers of documents that are remembered
MOST_TIES = 10_000  # candidates looked at when many score the same, so that ties go by seq

_BIGGEST = (1 << 63) - 1


class Filters(msgspec.Struct, frozen=True):
    """What a hit must satisfy besides the query. Values of one field are alternatives; fields are joined by AND."""

    grant: Grant = EVERYTHING
    exact: tuple[tuple[str, tuple[str, ...]], ...] = ()
    seq_range: tuple[int, int] | None = None
    created_from: str | None = None
    created_to: str | None = None

    @classmethod
    def of(
        cls,
        grant: Grant,
        wanted: dict[str, str | Sequence[str] | None],
        seq_range: tuple[int, int] | None,
        created_from: str | None,
        created_to: str | None,
    ) -> "Filters":
        exact = [
            (name, (values,) if isinstance(values, str) else tuple(values))
            for name, values in wanted.items()
            if values is not None
        ]
        return cls(grant, tuple(exact), seq_range, created_from, created_to)

    def clauses(self) -> list[Query]:
        clauses = [
            Query.term_set_query(SCHEMA, name, [tokenize.exact(value) for value in values])
            if len(values) != 1
            else Query.term_query(SCHEMA, name, tokenize.exact(values[0]), "basic")
            for name, values in (*self.exact, *_fields_of(self.grant))
        ]
        if self.seq_range is not None:
            clauses.append(_between("seq", *self.seq_range))
        if self.created_from is not None or self.created_to is not None:
            low = 0 if self.created_from is None else tokenize.created_bound(self.created_from, upper=False)
            high = _BIGGEST if self.created_to is None else tokenize.created_bound(self.created_to, upper=True)
            clauses.append(_between("created", low, high))
        return clauses


def _fields_of(grant: Grant) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, (value,)) for name in grant.__struct_fields__ if (value := getattr(grant, name)) is not None]


def _between(field: str, low: int, high: int) -> Query:
    low, high = max(low, 0), min(high, _BIGGEST)
    if low > high:
        return Query.empty_query()
    return Query.range_query(SCHEMA, field, tantivy.FieldType.Unsigned, low, high)


class Ranking(msgspec.Struct, frozen=True):
    """How candidates become an order."""

    k: int
    exclude: frozenset[int] = frozenset()
    user_weight: float = 2.0
    flow: float = 0.5

    @property
    def candidates(self) -> int:
        """How many documents to look at, so that enough remain without the excluded ones."""
        return max(CANDIDATES, self.k) + len(self.exclude)


class Match(msgspec.Struct, frozen=True):
    """An event that matched, with the document of it that matched best."""

    seq: int
    score: float
    address: tantivy.DocAddress


Counts = dict[tuple[object, ...], int]
"""Numbers of documents, remembered for one committed state of the index."""


def find(
    searcher: tantivy.Searcher, counts: Counts, query: Words | Node, filters: Filters, ranking: Ranking
) -> tuple[list[Match], tuple[int, ...]]:
    """The best matches, and the excluded events among the candidates.

    Events with all of a few words count twice; any of the words will do when those are few.
    """
    return _Run(searcher, counts, filters.grant).find(query, filters, ranking)


class _Run:
    """One search on one committed state of the index."""

    def __init__(self, searcher: tantivy.Searcher, counts: Counts, grant: Grant) -> None:
        self.searcher = searcher
        self._counts = counts
        self._grant = grant
        self._granted = [Query.const_score_query(clause, 0.0) for clause in Filters(grant).clauses()]
        self._documents = self._count(()) if self._granted else searcher.num_docs
        if self._documents == searcher.num_docs:  # every document is granted: the engine's statistics are right
            self._granted = []

    def find(self, query: Words | Node, filters: Filters, ranking: Ranking) -> tuple[list[Match], tuple[int, ...]]:
        clauses = filters.clauses()
        if not isinstance(query, Words):
            return self._ranked(self._candidates(self._node(query, exact=False), clauses, ranking), ranking)
        if len(query.terms) >= 2 and not query.question:
            hits = self._candidates(self._all_words(query), clauses, ranking)
            if len(hits) < ranking.candidates:
                some = self._candidates(self._any_words(query), clauses, ranking)
                hits = sorted([*((2 * score, place) for score, place in hits), *some], key=lambda hit: -hit[0])
        else:
            hits = self._candidates(self._any_words(query), clauses, ranking)
        return self._ranked(hits, ranking)

    def _ranked(
        self, hits: list[tuple[float, tantivy.DocAddress]], ranking: Ranking
    ) -> tuple[list[Match], tuple[int, ...]]:
        if not hits:
            return [], ()
        scores, places = zip(*hits, strict=True)
        if self._granted:  # weighing anew rounds, which must not break ties
            scores = tuple(float(f"{score:.5g}") for score in scores)
        addresses = list(places)
        seqs, turns = self._column("seq", addresses), self._column("answers", addresses)
        found = ranked(seqs, turns, scores, ranking)
        if self._grant != EVERYTHING:
            found = [(place, 1 / rank) for rank, (place, _) in enumerate(found, 1)]
        excluded = tuple(dict.fromkeys(seq for seq in seqs if seq in ranking.exclude))
        return [Match(seqs[place], score, addresses[place]) for place, score in found], excluded

    def _column(self, field: str, addresses: list[tantivy.DocAddress]) -> list[int]:
        return cast(list[int], self.searcher.fast_field_values(field, addresses))

    def _all_words(self, query: Words) -> Query:
        return Query.boolean_query([part for term in (*query.required, *query.terms) for part in self._must(term)])

    def _any_words(self, query: Words) -> Query:
        phrases = [part for term in query.required for part in self._must(term)]
        # not nested, so that the engine can pass over what cannot be among the best
        words = [(Occur.Should, way) for term in query.terms for way in self._ways(term, in_question=query.question)]
        return Query.boolean_query([*phrases, *words])

    def _candidates(
        self, query: Query, clauses: Sequence[Query], ranking: Ranking
    ) -> list[tuple[float, tantivy.DocAddress]]:
        """The best documents by BM25, and all that tie with the last one wanted."""
        if clauses:
            must = [(Occur.Must, Query.const_score_query(clause, 0.0)) for clause in clauses]
            query = Query.boolean_query([(Occur.Must, query), *must])
        limit = ranking.candidates
        last_wanted = ranking.k + len(ranking.exclude) - 1
        while True:
            hits = self.searcher.search(query, limit, count=False).hits
            tied = len(hits) == limit and hits[-1][0] == hits[last_wanted][0]
            if not tied or limit >= MOST_TIES:
                return hits
            limit = min(limit * 4, MOST_TIES)

    def _node(self, node: Node, *, exact: bool) -> Query:
        """`exact` finds words only as they are written: what NOT takes away must be what was named."""
        match node:
            case Term():
                return self._exactly(node) if exact and node.is_word else Query.boolean_query(self._must(node))
            case AnyOf(parts):
                return Query.boolean_query([(Occur.Should, self._node(part, exact=exact)) for part in parts])
            case All(parts, without):
                wanted = [(Occur.Must, self._node(part, exact=exact)) for part in parts]
                unwanted = [(Occur.MustNot, self._node(part, exact=True)) for part in without]
                return Query.boolean_query([*wanted, *unwanted])

    def _ways(self, term: Term, *, in_question: bool = False) -> list[Query]:
        """What finds a term, and what only makes it count more."""
        if term.prefix:
            return [self._prefix(term)]
        if not term.is_word or not tokenize.has_forms(word := term.tokens[0]):
            return [self._exactly(term)]
        stem = tokenize.stem(word)
        any_form = self._weighed(Query.term_query(SCHEMA, "stems", stem, "freq"), "stems", [stem])
        if in_question and stem == word:
            return [any_form]
        return [any_form, Query.boost_query(self._exactly(term), AS_WRITTEN)]

    def _must(self, term: Term) -> list[tuple[Occur, Query]]:
        found, *more = self._ways(term)
        return [(Occur.Must, found), *((Occur.Should, way) for way in more)]

    def _prefix(self, term: Term) -> Query:
        *before, last = term.tokens
        granted = Query.boolean_query([(Occur.Must, clause) for clause in self._granted]) if self._granted else None
        counted = self.searcher.terms_with_prefix(term.field, last, filter_query=granted, limit=MOST_WORDS + 1)
        found = [word for word, count in counted if count]
        if not found:
            return Query.empty_query()
        if len(found) > RANKED_WORDS and not before:
            return Query.regex_query(SCHEMA, term.field, f"{last}.*")
        most = RANKED_WORDS
        if RANKED_WORDS < len(found) <= MOST_WORDS:
            if granted is None:
                return Query.regex_phrase_query(SCHEMA, term.field, [*before, f"{last}.*"])
            most = MOST_PHRASES
        whole = [Term((*before, word), term.field) for word in found[:most]]
        return Query.disjunction_max_query([self._exactly(each) for each in whole])

    def _exactly(self, term: Term) -> Query:
        if len(term.tokens) > 1:
            query = Query.phrase_query(SCHEMA, term.field, list(term.tokens))
        else:
            option = "basic" if term.field is Field.SIGNS else "freq"
            query = Query.term_query(SCHEMA, term.field, term.tokens[0], option)
        return self._weighed(query, term.field, term.tokens)

    def _weighed(self, query: Query, field: str, words: Sequence[str]) -> Query:
        """The same query, its words as rare as they are among the granted documents."""
        if not self._granted:
            return query
        within = sum(_rarity(self._count((field, word)), self._documents) for word in words)
        overall = sum(_rarity(self.searcher.doc_freq(field, word), self.searcher.num_docs) for word in words)
        return Query.boost_query(query, within / overall)

    def _count(self, word: tuple[str, str] | tuple[()]) -> int:
        """How many granted documents there are, or hold a word of a field."""
        key = (self._grant, *word)
        if key not in self._counts:
            clauses = [(Occur.Must, clause) for clause in self._granted]
            if word:
                clauses.append((Occur.Must, Query.term_query(SCHEMA, *word, "basic")))
            if len(self._counts) >= MOST_COUNTS:
                self._counts.clear()
            self._counts[key] = self.searcher.search(Query.boolean_query(clauses), 1).count  # type: ignore[attr-defined]
        return self._counts[key]


def _rarity(holding: int, documents: int) -> float:
    """BM25's weight of a word that so many of the documents hold, as the engine computes it."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def ranked(
    seqs: Sequence[int], answered: Sequence[int], scores: Sequence[float], ranking: Ranking
) -> list[tuple[int, float]]:
    """The k best of the documents found, which come best first: their places and new scores, ties by seq.

    `answered` is the user turn that each event answers, its own seq for a user turn. Of several replies to one turn,
    and of several documents of one event, the best counts.
    """
    own: dict[int, float] = {}  # of the user turns
    rest: dict[int, float] = {}
    lent: dict[int, float] = {}  # by the replies
    for seq, turn, score in zip(reversed(seqs), reversed(answered), reversed(scores), strict=True):
        if turn == seq:
            own[seq] = score
        else:
            rest[seq] = lent[turn] = score
    turns = sorted(own)
    flow, weight = ranking.flow, ranking.user_weight
    for turn in turns:
        own[turn] = (own[turn] + flow * lent.get(turn, 0.0)) * weight
    final = rest | own | _with_neighbours(turns, own)
    for seq in ranking.exclude:
        final.pop(seq, None)
    enough = sorted(final.values(), reverse=True)[: ranking.k][-1:]
    best = sorted([(-score, seq) for seq, score in final.items() if score >= enough[0]])
    return [(seqs.index(seq), -score) for score, seq in best[: ranking.k]]


def _with_neighbours(turns: Sequence[int], scores: Mapping[int, float]) -> dict[int, float]:
    """The scores of those user turns that have another just before or after them, with what that lends."""
    lent: dict[int, float] = {}
    for before, after in pairwise(turns):
        if after - before <= NEAR:
            lent[before] = max(scores[after], lent.get(before, 0.0))
            lent[after] = scores[before]
    return {turn: scores[turn] + LENT_NEAR * score for turn, score in lent.items()}
