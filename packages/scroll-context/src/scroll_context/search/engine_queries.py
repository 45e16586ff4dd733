"""From a parsed query to queries that the engine runs.

A word also finds its other grammatical forms (vendor, vendors), by their common stem, and counts
more as written (of a question's words, only the inflected ones). A keyword comes before words that
only share its stem (serialization before serial). Filters are part of the engine's query and add
nothing to the score. Nothing here reads the log.

The answer to a search within a grant does not reveal what lies outside. The engine's statistics are
those of the complete index, so each word is weighed again by how many granted documents hold it;
the words of a prefix are those of granted documents; and search.py makes the score of a hit within
a grant from its rank alone. Two things still depend on the complete index: the mean length of a
document, which moves the order a little, and time: a common word takes longer than a rare one. A
grant that permits every document is searched without this work.

Looking for word forms at query time instead of indexing stems was tried, because the engine then
indexes three times as fast. If each form is weighed by its own rarity, less evidence is found (at
10, .569 instead of .584 on BEAM, .631 instead of .636 on LoCoMo). If all forms of a word are
weighed by their common rarity and only the best one counts, as much is found (.585 and .638), but a
question takes 1.4 times as long.
"""

import math
from collections.abc import Sequence

import tantivy
from tantivy import Occur, Query

from scroll_context.events import EVERYTHING, Grant
from scroll_context.log.filters import NO_FILTERS, SearchFilters
from scroll_context.search import tokenize
from scroll_context.search.documents import created_bound
from scroll_context.search.query import All, AnyOf, Field, Node, Term, Words
from scroll_context.search.tokenize import SCHEMA

# The weight of a word as written, beside its stem: in a question, and as a keyword (integrate is
# not integral).
AS_WRITTEN = 0.4
AS_KEYWORD = 1.0
# If more words than this have a prefix, all of them weigh the same.
RANKED_WORDS = 128
# If more words than this have a prefix, a phrase that ends in it matches only the commonest.
MOST_WORDS = 10_000
# The same limit within a grant.
MOST_PHRASES = 1_000
# Letters that the forms of a word share. Fewer letters begin too many words.
SHORTEST_BEGINNING = 3
# Document counts that are remembered.
MOST_COUNTS = 20_000

_BIGGEST = (1 << 63) - 1

Counts = dict[tuple[object, ...], int]
"""Numbers of documents, remembered for one committed state of the index."""

KnownForms = dict[str, tuple[str, ...] | None]
"""The inflections of query words, remembered in the same way."""

Clause = tuple[Occur, Query]


def clauses(grant: Grant, filters: SearchFilters = NO_FILTERS) -> list[Query]:
    """The conditions of a grant and of filters, as queries of the engine."""
    labels = [*filters.labels(), *grant.labels()]
    queries = [_label_query(name, texts) for name, texts in labels]
    if filters.seq_range is not None:
        queries.append(_between("seq", *filters.seq_range))
    if filters.created_from is not None or filters.created_to is not None:
        low, high = 0, _BIGGEST
        if filters.created_from is not None:
            low = created_bound(filters.created_from, upper=False)
        if filters.created_to is not None:
            high = created_bound(filters.created_to, upper=True)
        queries.append(_between("created", low, high))
    return queries


def _label_query(name: str, texts: Sequence[str]) -> Query:
    if len(texts) == 1:
        return Query.term_query(SCHEMA, name, tokenize.exact(texts[0]), "basic")
    return Query.term_set_query(SCHEMA, name, [tokenize.exact(text) for text in texts])


def _between(field: str, low: int, high: int) -> Query:
    low, high = max(low, 0), min(high, _BIGGEST)
    if low > high:
        return Query.empty_query()
    return Query.range_query(SCHEMA, field, tantivy.FieldType.Unsigned, low, high)


def required(queries: Sequence[Query]) -> Query:
    """The documents that satisfy all of these queries."""
    return Query.boolean_query([(Occur.Must, query) for query in queries])


def unscored(query: Query) -> Query:
    """The same documents, which get nothing for it."""
    return Query.const_score_query(query, 0.0)


def _either(first: Query, second: Query) -> Query:
    return Query.boolean_query([(Occur.Should, first), (Occur.Should, second)])


def _rarity(holding: int, documents: int) -> float:
    """BM25's weight of a word that so many of the documents hold, as the engine computes it."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


class EngineQueries:
    """Queries for one committed state of the index and one grant."""

    def __init__(
        self,
        searcher: tantivy.Searcher,
        counts: Counts,
        known_forms: KnownForms,
        grant: Grant = EVERYTHING,
    ) -> None:
        self.searcher = searcher
        self._counts = counts
        self._known_forms = known_forms
        self._grant = grant
        self.granted = [unscored(clause) for clause in clauses(grant)]
        """The conditions of the grant; none if it permits every document."""
        self._documents = self._count(()) if self.granted else searcher.num_docs
        if self._documents == searcher.num_docs:
            # Every document is granted, so the engine's statistics are right.
            self.granted = []

    # bare words -----------------------------------------------------------------------------------

    def all_words(self, query: Words) -> Query:
        """All words, in one of their own forms: a word that only shares the stem is another one.

        In a question, any form will do.
        """
        parts: list[Clause] = []
        for term in (*query.required, *query.terms):
            parts += self._scored_clauses(term)
        if query.question:
            return Query.boolean_query(parts)
        for term in query.terms:
            own_forms = self.own_forms(term)
            if own_forms:
                has_form = Query.term_set_query(SCHEMA, "text", list(own_forms))
                parts.append((Occur.Must, unscored(has_form)))
        return Query.boolean_query(parts)

    def any_words(self, query: Words) -> Query:
        """Any of the words; quoted ones are required."""
        parts: list[Clause] = []
        for term in query.required:
            parts += self._scored_clauses(term)
        # These are not nested, so the engine can skip documents that cannot be among the best.
        for term in query.terms:
            ways = self.ways(term, in_question=query.question)
            parts += [(Occur.Should, way) for way in ways]
        return Query.boolean_query(parts)

    def own_forms(self, term: Term) -> tuple[str, ...] | None:
        """The inflections of a word that the index has; None where nothing else shares its stem."""
        stem = term.stem
        # The stem of "study" and "studies" is "studi", and only "stud" begins all three.
        beginning = stem[:-1] if stem.endswith("i") else stem
        if len(beginning) < SHORTEST_BEGINNING or term.parts:
            return None
        word = term.tokens[0]
        if word not in self._known_forms:
            counted = self.searcher.terms_with_prefix("text", beginning)
            forms = [form for form, _ in counted if tokenize.stem(form) == stem]
            own = tuple(form for form in forms if tokenize.is_inflection(form, word))
            self._known_forms[word] = own if 0 < len(own) < len(forms) else None
        return self._known_forms[word]

    # expressions ----------------------------------------------------------------------------------

    def expression(self, node: Node, *, exact: bool = False) -> Query:
        """The query of an expression.

        `exact` matches words only as written, because NOT must exclude exactly the named words.
        """
        match node:
            case Term():
                if exact and node.is_word:
                    return self._exactly(node)
                return Query.boolean_query(self._scored_clauses(node))
            case AnyOf(parts):
                return Query.boolean_query(
                    [(Occur.Should, self.expression(part, exact=exact)) for part in parts]
                )
            case All(parts, without):
                wanted = [(Occur.Must, self.expression(part, exact=exact)) for part in parts]
                forbidden = [(Occur.MustNot, self.expression(part, exact=True)) for part in without]
                return Query.boolean_query([*wanted, *forbidden])

    # terms ----------------------------------------------------------------------------------------

    def ways(self, term: Term, *, in_question: bool = False) -> list[Query]:
        """The query that matches a term, and queries that only make it count more."""
        if term.prefix:
            return [self._prefix(term)]
        stem = term.stem
        if not stem:
            return [self._without_forms(term)]
        any_form = self._weighed(Query.term_query(SCHEMA, "stems", stem, "freq"), "stems", [stem])
        if term.parts:
            # InternalError also matches internal_error and "internal error".
            any_form = _either(any_form, self._exactly(Term(term.parts, term.field)))
        if in_question and stem == term.tokens[0]:
            return [any_form]
        weight = AS_WRITTEN if in_question else AS_KEYWORD
        return [any_form, Query.boost_query(self._exactly(term), weight)]

    def _scored_clauses(self, term: Term) -> list[Clause]:
        """A term that is required, and what makes it count more."""
        match_query, *more = self.ways(term)
        return [(Occur.Must, match_query), *((Occur.Should, way) for way in more)]

    def _without_forms(self, term: Term) -> Query:
        """A term that has no other grammatical forms: an id, a number, a phrase."""
        units = tokenize.quantities(term.tokens[0])[0] if term.is_word else []
        if not units:
            return self._exactly(term)
        # 16gb also matches 16 gb.
        apart = Term(tuple(units[0].split()), term.field)
        return _either(self._exactly(term), self._exactly(apart))

    def _prefix(self, term: Term) -> Query:
        *before, last = term.tokens
        granted = required(self.granted) if self.granted else None
        counted = self.searcher.terms_with_prefix(
            term.field, last, filter_query=granted, limit=MOST_WORDS + 1
        )
        words = [word for word, count in counted if count]
        if not words:
            return Query.empty_query()
        if len(words) > RANKED_WORDS and not before:
            return Query.regex_query(SCHEMA, term.field, f"{last}.*")
        most = RANKED_WORDS
        if RANKED_WORDS < len(words) <= MOST_WORDS:
            if granted is None:
                return Query.regex_phrase_query(SCHEMA, term.field, [*before, f"{last}.*"])
            most = MOST_PHRASES
        phrases = [Term((*before, word), term.field) for word in words[:most]]
        return Query.disjunction_max_query([self._exactly(phrase) for phrase in phrases])

    def _exactly(self, term: Term) -> Query:
        if len(term.tokens) > 1:
            query = Query.phrase_query(SCHEMA, term.field, list(term.tokens))
        else:
            option = "basic" if term.field is Field.SIGNS else "freq"
            query = Query.term_query(SCHEMA, term.field, term.tokens[0], option)
        return self._weighed(query, term.field, term.tokens)

    def _weighed(self, query: Query, field: str, words: Sequence[str]) -> Query:
        """The same query, its words as rare as they are among the granted documents."""
        if not self.granted:
            return query
        within = sum(_rarity(self._count((field, word)), self._documents) for word in words)
        overall = sum(
            _rarity(self.searcher.doc_freq(field, word), self.searcher.num_docs) for word in words
        )
        return Query.boost_query(query, within / overall)

    # numbers of documents -------------------------------------------------------------------------

    def holding(self, field: str, word: str) -> int:
        """How many granted documents hold a word."""
        if self.granted:
            return self._count((field, word))
        return self.searcher.doc_freq(field, word)

    def _count(self, word: tuple[str, str] | tuple[()]) -> int:
        """How many granted documents there are, or hold a word of a field."""
        key = (self._grant, *word)
        if key not in self._counts:
            must = list(self.granted)
            if word:
                must.append(Query.term_query(SCHEMA, *word, "basic"))
            if len(self._counts) >= MOST_COUNTS:
                self._counts.clear()
            result = self.searcher.search(required(must), 1)
            self._counts[key] = result.count  # type: ignore[attr-defined]
        return self._counts[key]
