"""From a parsed query to one that the engine runs, and from its candidates to an order.

A word also finds its other grammatical forms (vendor, vendors): the forms that the index really holds are looked up
in its dictionary, and an event counts the best of them once. Filters are part of the engine's query and add nothing
to the score. The order is BM25 with two additions, both measured on BEAM: a reply lends part of its score to the user
turn that it answers, and user turns weigh more. Nothing here reads the log.
"""

from collections.abc import Sequence
from typing import cast

import msgspec
import tantivy
from tantivy import Occur, Query

from scroll_context.events import Grant
from scroll_context.store import analysis
from scroll_context.store.analysis import SCHEMA
from scroll_context.store.query import All, AnyOf, Field, Node, Term, Words

OTHER_FORM = 0.7  # weight of a grammatical form other than the one asked for
MAX_FORMS = 6
RANKED_WORDS = 128  # beyond so many words with a prefix, all weigh the same
MOST_WORDS = 10_000  # beyond so many, a row of words that ends in a prefix finds only the commonest
KEYWORDS = 5  # up to so many words are asked for together first; a longer query is a question
CANDIDATES = 300
MOST_TIES = 10_000  # candidates looked at when many score the same, so that ties go by seq

_BIGGEST = (1 << 63) - 1


class Filters(msgspec.Struct, frozen=True):
    """What a hit must satisfy besides the query. Values of one field are alternatives; fields are joined by AND."""

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
        exact += [(name, (value,)) for name in grant.__struct_fields__ if (value := getattr(grant, name)) is not None]
        return cls(tuple(exact), seq_range, created_from, created_to)

    def clauses(self) -> list[Query]:
        clauses = [
            Query.term_set_query(SCHEMA, name, [analysis.exact(value) for value in values])
            if len(values) != 1
            else Query.term_query(SCHEMA, name, analysis.exact(values[0]), "basic")
            for name, values in self.exact
        ]
        if self.seq_range is not None:
            clauses.append(_between("seq", *self.seq_range))
        if self.created_from is not None or self.created_to is not None:
            low = 0 if self.created_from is None else analysis.created_bound(self.created_from, upper=False)
            high = _BIGGEST if self.created_to is None else analysis.created_bound(self.created_to, upper=True)
            clauses.append(_between("created", low, high))
        return clauses


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


class Matcher:
    """Builds and runs engine queries on one state of the index."""

    def __init__(self, searcher: tantivy.Searcher) -> None:
        self.searcher = searcher
        self._forms: dict[str, list[str]] = {}

    def find(self, query: Words | Node, filters: Filters, ranking: Ranking) -> list[Match]:
        """The best matches. Events with all of a few words count twice; any of the words will do when those are few."""
        clauses = filters.clauses()
        if not isinstance(query, Words):
            return self._ranked(self._candidates(self._node(query, exact=False), clauses, ranking), ranking)
        if 2 <= len(query.terms) <= KEYWORDS:
            hits = self._candidates(self._all_words(query), clauses, ranking)
            if len(hits) < ranking.candidates:
                some = self._candidates(self._any_words(query), clauses, ranking)
                hits = sorted([*((2 * score, place) for score, place in hits), *some], key=lambda hit: -hit[0])
        else:
            hits = self._candidates(self._any_words(query), clauses, ranking)
        return self._ranked(hits, ranking)

    def _ranked(self, hits: list[tuple[float, tantivy.DocAddress]], ranking: Ranking) -> list[Match]:
        addresses = [address for _, address in hits]
        scores = [score for score, _ in hits]
        found = list(zip(self._column("seq", addresses), self._column("answers", addresses), scores, strict=True))
        return [Match(found[place][0], score, addresses[place]) for place, score in ranked(found, ranking)]

    def _column(self, field: str, addresses: list[tantivy.DocAddress]) -> list[int]:
        return cast(list[int], self.searcher.fast_field_values(field, addresses))

    def _all_words(self, query: Words) -> Query:
        return Query.boolean_query([(Occur.Must, self._term(term)) for term in (*query.required, *query.terms)])

    def _any_words(self, query: Words) -> Query:
        phrases = [(Occur.Must, self._term(term)) for term in query.required]
        return Query.boolean_query([*phrases, *((Occur.Should, self._term(term)) for term in query.terms)])

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

    def forms(self, word: str) -> list[str]:
        """The word first, then the other forms of it that the index holds, the commonest first."""
        known = self._forms.get(word)
        if known is None:
            known = self._forms[word] = self._look_up_forms(word)
        return known

    def _look_up_forms(self, word: str) -> list[str]:
        if len(word) < 4 or not (word.isascii() and word.isalpha()):
            return [word]
        stem = analysis.stem(word)
        shared = stem[:-1] if len(stem) > 4 else stem  # study and studies share "stud", not the stem "studi"
        near = self.searcher.terms_with_prefix(Field.TEXT, shared, limit=64)
        others = [term for term, _ in near if term != word and analysis.stem(term) == stem]
        return [word, *others[: MAX_FORMS - 1]]

    def _node(self, node: Node, *, exact: bool) -> Query:
        """`exact` finds words only as they are written: what NOT takes away must be what was named."""
        match node:
            case Term():
                return _exactly(node) if exact and node.is_word else self._term(node)
            case AnyOf(parts):
                return Query.boolean_query([(Occur.Should, self._node(part, exact=exact)) for part in parts])
            case All(parts, without):
                wanted = [(Occur.Must, self._node(part, exact=exact)) for part in parts]
                unwanted = [(Occur.MustNot, self._node(part, exact=True)) for part in without]
                return Query.boolean_query([*wanted, *unwanted])

    def _term(self, term: Term) -> Query:
        if term.prefix:
            return self._prefix(term)
        if not term.is_word:
            return _exactly(term)
        word, *others = [_single(term.field, form) for form in self.forms(term.tokens[0])]
        if not others:
            return word
        return Query.disjunction_max_query([word, *(Query.boost_query(other, OTHER_FORM) for other in others)])

    def _prefix(self, term: Term) -> Query:
        *before, last = term.tokens
        found = [word for word, _ in self.searcher.terms_with_prefix(term.field, last, limit=MOST_WORDS + 1)]
        if not found:
            return Query.empty_query()
        if len(found) > RANKED_WORDS and not before:
            return Query.regex_query(SCHEMA, term.field, f"{last}.*")
        if RANKED_WORDS < len(found) <= MOST_WORDS:
            return Query.regex_phrase_query(SCHEMA, term.field, [*before, f"{last}.*"])
        whole = [Term((*before, word), term.field) for word in found[:RANKED_WORDS]]
        return Query.disjunction_max_query([_exactly(each) for each in whole])


def _exactly(term: Term) -> Query:
    if len(term.tokens) > 1:
        return Query.phrase_query(SCHEMA, term.field, list(term.tokens))
    return _single(term.field, term.tokens[0])


def _single(field: Field, word: str) -> Query:
    return Query.term_query(SCHEMA, field, word, "basic" if field is Field.SIGNS else "freq")


def ranked(found: Sequence[tuple[int, int, float]], ranking: Ranking) -> list[tuple[int, float]]:
    """The k best of (seq, user turn, BM25 score), which come best first: their places and new scores, ties by seq.

    The user turn is the one that the event answers, itself for a user turn. Of several replies to one turn, and of
    several documents of one event, the best counts.
    """
    lent = {turn: score for seq, turn, score in reversed(found) if turn != seq}
    flow, weight = ranking.flow, ranking.user_weight
    final = [
        (-(score + flow * lent.get(seq, 0.0)) * weight if turn == seq else -score, seq, place)
        for place, (seq, turn, score) in enumerate(found)
        if seq not in ranking.exclude
    ]
    final.sort()
    best: dict[int, tuple[int, float]] = {}
    for score, seq, place in final:
        if len(best) == ranking.k:
            break
        best.setdefault(seq, (place, -score))
    return list(best.values())
