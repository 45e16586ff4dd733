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
PREFIX_TERMS = 128  # beyond this many, the words of a prefix all weigh the same
KEYWORDS = 5  # up to so many words, an event that has them all comes first; a longer query is a question
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
        """The best matches for a query."""
        engine_query = self._words(query) if isinstance(query, Words) else self._node(query, exact=False)
        return self._ranked(engine_query, filters.clauses(), ranking)

    def _ranked(self, query: Query, clauses: list[Query], ranking: Ranking) -> list[Match]:
        if clauses:
            must = [(Occur.Must, Query.const_score_query(clause, 0.0)) for clause in clauses]
            query = Query.boolean_query([(Occur.Must, query), *must])
        hits = self._candidates(query, ranking.k, len(ranking.exclude))
        addresses = [address for _, address in hits]
        seqs = self._column("seq", addresses)
        answers = self._column("answers", addresses)
        best: dict[int, int] = {}  # of several passages of one body, the first and so the best
        for place, seq in enumerate(seqs):
            best.setdefault(seq, place)
        scores = {seq: hits[place][0] for seq, place in best.items()}
        order = ranked(scores, {seq: answers[place] for seq, place in best.items()}, ranking)
        return [Match(seq, score, addresses[best[seq]]) for seq, score in order]

    def _column(self, field: str, addresses: list[tantivy.DocAddress]) -> list[int]:
        return cast(list[int], self.searcher.fast_field_values(field, addresses))

    def _words(self, query: Words) -> Query:
        """All of the phrases and any of the words; an event with all of the words counts twice."""
        phrases = [(Occur.Must, self._term(term)) for term in query.required]
        words = [(Occur.Should, self._term(term)) for term in query.terms]
        if 2 <= len(words) <= KEYWORDS:
            words.append((Occur.Should, Query.boolean_query([(Occur.Must, word) for _, word in words])))
        return Query.boolean_query([*phrases, *words])

    def _candidates(self, query: Query, k: int, spare: int) -> list[tuple[float, tantivy.DocAddress]]:
        """The best documents by BM25: CANDIDATES and some to spare, and all that tie with the k-th."""
        limit = max(CANDIDATES, k) + spare
        while True:
            hits = self.searcher.search(query, limit, count=False).hits
            tied = len(hits) == limit and hits[-1][0] == hits[k + spare - 1][0]
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
        if before:
            return Query.regex_phrase_query(SCHEMA, term.field, [*before, f"{last}.*"])
        found = self.searcher.terms_with_prefix(term.field, last, limit=PREFIX_TERMS + 1)
        if len(found) > PREFIX_TERMS:
            return Query.regex_query(SCHEMA, term.field, f"{last}.*")
        if not found:
            return Query.empty_query()
        return Query.disjunction_max_query([_single(term.field, word) for word, _ in found])


def _exactly(term: Term) -> Query:
    if len(term.tokens) > 1:
        return Query.phrase_query(SCHEMA, term.field, list(term.tokens))
    return _single(term.field, term.tokens[0])


def _single(field: Field, word: str) -> Query:
    return Query.term_query(SCHEMA, field, word, "basic" if field is Field.SIGNS else "freq")


def ranked(scores: dict[int, float], answers: dict[int, int], ranking: Ranking) -> list[tuple[int, float]]:
    """The k best (seq, score) pairs of BM25 scores, ties by seq; `answers` names the user turn behind each seq."""
    final = dict(scores)
    lent: dict[int, float] = {}
    for seq, turn in answers.items():
        if turn != seq and turn in scores:  # one turn may have many replies: the best one counts
            lent[turn] = max(lent.get(turn, 0.0), scores[seq])
    for turn, score in lent.items():
        final[turn] += ranking.flow * score
    for seq, turn in answers.items():
        if turn == seq:
            final[seq] *= ranking.user_weight
    order = sorted((-score, seq) for seq, score in final.items() if seq not in ranking.exclude)
    return [(seq, -score) for score, seq in order[: ranking.k]]
