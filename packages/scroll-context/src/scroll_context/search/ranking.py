"""From a parsed query to one that the engine runs, and from its candidates to an order.

A word also finds its other grammatical forms (vendor, vendors), by their common stem, and counts
more as written (of a question's words, only the inflected ones). A keyword comes before words that
only share its stem (serialization before serial). Filters are part of the engine's query and add
nothing to the score. Nothing here reads the log.

The order is BM25 with four additions: a reply lends part of its score to the turn that it answers,
turns weigh more, those that state a preference or a standing instruction more still, and turns
close to each other lend a little, since a subject is rarely done with in one. A turn is what a
person says; a short reply that makes no calls is one too (indexer.py), because in a conversation
between people, or recorded as one with an assistant, both say what is asked for later. Most
constants were chosen on 39 chats of BEAM (692 questions with evidence, asked whole and as their
five rarest words), by five folds of chats and 23 settings: recall of evidence at 10 went from .548
to .584. Weights of turns, replies and neighbours were then chosen again on these chats and five
conversations of LoCoMo (1,017 questions, the second speaker recorded as a person and as the
assistant): of 36 settings the same one won, whichever of the 44 was left out. With short replies as
turns, the right session comes first for .689 of LoCoMo's questions instead of .627 where the second
speaker is the assistant, and BEAM stays at .583. Keywords as written weigh as much as their stem,
which costs .002 to .005 of recall.

Looking for word forms at query time instead of indexing stems was tried, because the engine then
indexes three times as fast. If each form is weighed by its own rarity, less evidence is found (at
10, .569 instead of .584 on BEAM, .631 instead of .636 on LoCoMo). If all forms of a word are
weighed by their common rarity and only the best one counts, as much is found (.585 and .638), but a
question takes 1.4 times as long.

The answer to a search within a grant does not reveal what lies outside. The engine's statistics are
those of the complete index, so each word is weighed again by how many granted documents hold it;
the words of a prefix are those of granted documents; and search.py makes the score of a hit within
a grant from its rank alone. Two things still depend on the complete index: the mean length of a
document, which moves the order a little, and time: a common word takes longer than a rare one. A
grant that permits every document is searched without this work.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from operator import itemgetter
from typing import NamedTuple, cast

import msgspec
import tantivy
from tantivy import Occur, Query

from scroll_context.events import EVERYTHING, Grant
from scroll_context.log.filters import NO_FILTERS, SearchFilters
from scroll_context.search import query as language
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
# Documents that are read at least.
CANDIDATES = 600
# The weight of an event that has all of a few words.
ALL_WORDS = 1.3
# The weight of an event that has the only word itself, not just one with the same stem.
OWN_WORD = 8.0
# Letters that the forms of a word share. Fewer letters begin too many words.
SHORTEST_BEGINNING = 3
# The weights of a user turn, of a preference and of a standing instruction.
STANCE = (1.0, 1.2, 2.0)
# User turns that are at most `NEAR` seqs apart lend each other this part of their score.
NEAR = 4
LENT_NEAR = 0.1
# Document counts that are remembered.
MOST_COUNTS = 20_000
# Candidates that are read when many score the same, so that ties are broken by seq.
MOST_TIES = 10_000

_BIGGEST = (1 << 63) - 1


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


class Ranking(msgspec.Struct, frozen=True):
    """How candidates become an order."""

    k: int
    # With this many matches, words that stand side by side are not searched for one by one.
    enough: int = 10
    exclude: frozenset[int] = frozenset()
    user_weight: float = 2.0
    flow: float = 0.25

    @property
    def candidates(self) -> int:
        """How many documents to look at, so that enough remain without the excluded ones."""
        return max(CANDIDATES, self.k) + len(self.exclude)


class Match(msgspec.Struct, frozen=True):
    """An event that matched, with the document of it that matched best."""

    seq: int
    score: float
    documents: "_Documents"

    @property
    def address(self) -> tantivy.DocAddress:
        return self.documents.addresses[self.documents.seqs.index(self.seq)]


class _Documents(NamedTuple):
    """Matching documents, best first, and the events that they belong to."""

    addresses: list[tantivy.DocAddress]
    seqs: list[int]


class Ranked(msgspec.Struct, frozen=True):
    """The best matches, and facts about them for the reader."""

    matches: list[Match]
    # Matching events that the caller excludes.
    excluded: tuple[int, ...] = ()
    # Events with all of the words, where some of them would do; None if that is all of them.
    with_all: frozenset[int] | None = None
    # Whether more events than these have all words.
    capped: bool = False
    # Words that no event within the grant has.
    missing: tuple[str, ...] = ()
    # Words that only excluded events have.
    only_excluded: tuple[str, ...] = ()


Counts = dict[tuple[object, ...], int]
"""Numbers of documents, remembered for one committed state of the index."""

KnownForms = dict[str, tuple[str, ...] | None]
"""The inflections of query words, remembered in the same way."""

_Scored = list[tuple[float, tantivy.DocAddress]]


class _Candidates(NamedTuple):
    """The best documents for a query, best first."""

    hits: _Scored
    # Whether more documents match.
    is_cut: bool


class RankedSearch:
    """One search on one committed state of the index."""

    def __init__(
        self,
        searcher: tantivy.Searcher,
        counts: Counts,
        known_forms: KnownForms,
        ranking: Ranking,
        grant: Grant = EVERYTHING,
        filters: SearchFilters = NO_FILTERS,
    ) -> None:
        self.searcher = searcher
        self._counts = counts
        self._known_forms = known_forms
        self._ranking = ranking
        self._grant = grant
        self._clauses = clauses(grant, filters)
        self._granted = [Query.const_score_query(clause, 0.0) for clause in clauses(grant)]
        self._documents = self._count(()) if self._granted else searcher.num_docs
        if self._documents == searcher.num_docs:
            # Every document is granted, so the engine's statistics are right.
            self._granted = []

    def find(self, query: Words | Node) -> Ranked:
        """The best matches.

        Events with all words come first, or weigh more; when they are few, any word will do.
        """
        match query:
            case Words():
                ranked = self._find_words(query)
            case _:
                ranked = self._find_expression(query)
        missing, only_excluded = self._without_rows(query)
        return msgspec.structs.replace(ranked, missing=missing, only_excluded=only_excluded)

    def every(self, query: Words | Node, *, any_word: bool = False) -> set[int]:
        """Every event that has all of the words, or with `any_word` any of them, in whichever
        passages of it.

        What AND, OR, NOT and quotes say holds in any case.
        """
        if not isinstance(query, Words):
            return self._seqs(language.relaxed(query) if any_word else query)
        join = set.union if any_word else set.intersection
        words = [join(*map(self._seqs, query.terms))] if query.terms else []
        return set.intersection(*words, *map(self._seqs, query.required))

    def _seqs(self, node: Node, *, exact: bool = False) -> set[int]:
        match node:
            case AnyOf(parts):
                return set().union(*(self._seqs(part, exact=exact) for part in parts))
            case All(parts, without):
                required = [self._seqs(part, exact=exact) for part in parts]
                forbidden = [self._seqs(part, exact=True) for part in without]
                return set.intersection(*required).difference(*forbidden)
        return self._seqs_with([self._node(node, exact=exact), *self._clauses])

    def _seqs_with(self, queries: Sequence[Query], most: int | None = None) -> set[int]:
        """The events whose documents satisfy all of these queries."""
        must = Query.boolean_query([(Occur.Must, query) for query in queries])
        limit = max(1, self.searcher.num_docs) if most is None else most
        return self._events(self.searcher.search(must, limit, count=False).hits)

    def _find_words(self, query: Words) -> Ranked:
        is_word = len(query.terms) == 1 and self._own_forms(query.terms[0]) is not None
        if len(query.terms) < 2 and not is_word:
            return self._ranked(self._candidates(self._any_words(query)).hits)
        strict = self._candidates(self._all_words(query))
        if not query.question and strict.is_cut:
            return self._counted(self._ranked(strict.hits), strict)
        some = self._candidates(self._any_words(query))
        if query.question:
            return self._counted(self._ranked(some.hits), strict)
        weight = OWN_WORD if is_word else ALL_WORDS
        both = [(weight * score, place) for score, place in strict.hits]
        both += some.hits
        both.sort(key=itemgetter(0), reverse=True)
        ranked_events = self._ranked(both)
        return ranked_events if is_word else self._counted(ranked_events, strict)

    def _find_expression(self, query: Node) -> Ranked:
        strict = self._candidates(self._node(query, exact=False))
        ranked_events = self._ranked(strict.hits)
        loose = language.relaxed(query)
        if loose == query or len(ranked_events.matches) >= self._ranking.enough:
            return ranked_events
        some = self._candidates(self._node(loose, exact=False))
        more = self._ranked(some.hits)
        strict_seqs = {match.seq for match in ranked_events.matches}
        matches = list(ranked_events.matches)
        matches += [match for match in more.matches if match.seq not in strict_seqs]
        return self._counted(Ranked(matches[: self._ranking.k], more.excluded), strict)

    def _counted(self, ranked: Ranked, strict: _Candidates) -> Ranked:
        """With the events that have all words, so that a reader can tell them from the others."""
        with_all = frozenset(self._events(strict.hits) - self._ranking.exclude)
        return msgspec.structs.replace(ranked, with_all=with_all, capped=strict.is_cut)

    def _events(self, hits: _Scored) -> set[int]:
        """The events that documents belong to."""
        return set(self._column("seq", [place for _, place in hits])) if hits else set()

    def _without_rows(self, query: Words | Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words that no event within the grant has, and those that only excluded ones have."""
        missing: list[str] = []
        only_excluded: list[str] = []
        for term in language.terms_of(query):
            if term.stem and self._holding("stems", term.stem) > len(self._ranking.exclude):
                # Nearly every term ends here.
                continue
            holders = None if term.field is Field.PAIRS else self._holders(term)
            if holders is None:
                continue
            label = " ".join(term.tokens) + "*" * term.prefix
            if holders:
                only_excluded.append(label)
            else:
                missing.append(label)
        return tuple(missing), tuple(only_excluded)

    def _holders(self, term: Term) -> set[int] | None:
        """The events that have a term, when these are none or only excluded ones; else None."""
        if term.stem:
            term = Term((term.stem,), Field.STEMS)
        if not term.prefix:
            fewest = min(self._holding(term.field, word) for word in term.tokens)
            if fewest == 0:
                return set()
            if len(term.tokens) == 1 and fewest > len(self._ranking.exclude):
                return None
        most = len(self._ranking.exclude) + 1
        seqs = self._seqs_with([self._ways(term)[0], *self._granted], most)
        return seqs if seqs <= self._ranking.exclude else None

    def _holding(self, field: str, word: str) -> int:
        """How many granted documents hold a word."""
        if self._granted:
            return self._count((field, word))
        return self.searcher.doc_freq(field, word)

    def _ranked(self, hits: _Scored) -> Ranked:
        """The events of these documents in their final order."""
        if not hits:
            return Ranked([])
        columns = tuple(zip(*hits, strict=True))
        scores, addresses = list(columns[0]), list(columns[1])
        if self._granted:
            # Weighing within a grant rounds, which must not break ties.
            scores = [float(f"{score:.5g}") for score in scores]
        seqs, turns = self._column("seq", addresses), self._column("answers", addresses)
        column = self._column("stance", addresses)
        stances = dict(compress(zip(seqs, column, strict=True), column)) if any(column) else {}
        documents = _Documents(addresses, seqs)
        order = ranked(seqs, turns, scores, stances, self._ranking)
        best = [Match(seq, score, documents) for seq, score in order]
        exclude = self._ranking.exclude
        excluded = tuple(dict.fromkeys(seq for seq in seqs if seq in exclude)) if exclude else ()
        return Ranked(best, excluded)

    def _column(self, field: str, addresses: list[tantivy.DocAddress]) -> list[int]:
        return cast(list[int], self.searcher.fast_field_values(field, addresses))

    def _all_words(self, query: Words) -> Query:
        """All words, in one of their own forms: a word that only shares the stem is another one."""
        parts = [part for term in (*query.required, *query.terms) for part in self._must(term)]
        if query.question:
            return Query.boolean_query(parts)
        for term in query.terms:
            own_forms = self._own_forms(term)
            if own_forms:
                has_form = Query.term_set_query(SCHEMA, "text", list(own_forms))
                parts.append((Occur.Must, Query.const_score_query(has_form, 0.0)))
        return Query.boolean_query(parts)

    def _own_forms(self, term: Term) -> tuple[str, ...] | None:
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

    def _any_words(self, query: Words) -> Query:
        phrases = [part for term in query.required for part in self._must(term)]
        # These are not nested, so the engine can skip documents that cannot be among the best.
        words = [
            (Occur.Should, way)
            for term in query.terms
            for way in self._ways(term, in_question=query.question)
        ]
        return Query.boolean_query([*phrases, *words])

    def _candidates(self, query: Query) -> _Candidates:
        """The best documents by BM25, and all that tie with the last of the k best.

        If more documents match, the segments of the index decide which of those that tie with the
        last hit are among the hits. So none of them are: a merge of segments changes no answer.
        """
        if self._clauses:
            must = [(Occur.Must, Query.const_score_query(clause, 0.0)) for clause in self._clauses]
            query = Query.boolean_query([(Occur.Must, query), *must])
        limit = self._ranking.candidates
        last_needed = self._ranking.k + len(self._ranking.exclude) - 1
        while True:
            hits = self.searcher.search(query, limit, count=False).hits
            if len(hits) < limit:
                return _Candidates(hits, is_cut=False)
            last = hits[-1][0]
            if hits[last_needed][0] != last:
                hits = hits[: bisect_left(hits, -last, key=lambda hit: -hit[0])]
                return _Candidates(hits, is_cut=True)
            if limit >= MOST_TIES:
                return _Candidates(hits, is_cut=True)
            limit = min(limit * 4, MOST_TIES)

    def _node(self, node: Node, *, exact: bool) -> Query:
        """The query of an expression.

        `exact` matches words only as written, because NOT must exclude exactly the named words.
        """
        match node:
            case Term():
                if exact and node.is_word:
                    return self._exactly(node)
                return Query.boolean_query(self._must(node))
            case AnyOf(parts):
                return Query.boolean_query(
                    [(Occur.Should, self._node(part, exact=exact)) for part in parts]
                )
            case All(parts, without):
                required = [(Occur.Must, self._node(part, exact=exact)) for part in parts]
                forbidden = [(Occur.MustNot, self._node(part, exact=True)) for part in without]
                return Query.boolean_query([*required, *forbidden])

    def _ways(self, term: Term, *, in_question: bool = False) -> list[Query]:
        """The query that matches a term, and queries that only make it count more."""
        if term.prefix:
            return [self._prefix(term)]
        stem = term.stem
        if not stem:
            units = tokenize.quantities(term.tokens[0])[0] if term.is_word else ()
            if not units:
                return [self._exactly(term)]
            # 16gb also matches 16 gb.
            apart = self._exactly(Term(tuple(units[0].split()), term.field))
            return [_either(self._exactly(term), apart)]
        any_form = self._weighed(Query.term_query(SCHEMA, "stems", stem, "freq"), "stems", [stem])
        if term.parts:
            # InternalError also matches internal_error and "internal error".
            any_form = _either(any_form, self._exactly(Term(term.parts, term.field)))
        if in_question and stem == term.tokens[0]:
            return [any_form]
        weight = AS_WRITTEN if in_question else AS_KEYWORD
        return [any_form, Query.boost_query(self._exactly(term), weight)]

    def _must(self, term: Term) -> list[tuple[Occur, Query]]:
        required, *more = self._ways(term)
        return [(Occur.Must, required), *((Occur.Should, way) for way in more)]

    def _prefix(self, term: Term) -> Query:
        *before, last = term.tokens
        granted = None
        if self._granted:
            granted = Query.boolean_query([(Occur.Must, clause) for clause in self._granted])
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
        if not self._granted:
            return query
        within = sum(_rarity(self._count((field, word)), self._documents) for word in words)
        overall = sum(
            _rarity(self.searcher.doc_freq(field, word), self.searcher.num_docs) for word in words
        )
        return Query.boost_query(query, within / overall)

    def _count(self, word: tuple[str, str] | tuple[()]) -> int:
        """How many granted documents there are, or hold a word of a field."""
        key = (self._grant, *word)
        if key not in self._counts:
            must = [(Occur.Must, clause) for clause in self._granted]
            if word:
                must.append((Occur.Must, Query.term_query(SCHEMA, *word, "basic")))
            if len(self._counts) >= MOST_COUNTS:
                self._counts.clear()
            result = self.searcher.search(Query.boolean_query(must), 1)
            self._counts[key] = result.count  # type: ignore[attr-defined]
        return self._counts[key]


def _either(first: Query, second: Query) -> Query:
    return Query.boolean_query([(Occur.Should, first), (Occur.Should, second)])


def _rarity(holding: int, documents: int) -> float:
    """BM25's weight of a word that so many of the documents hold, as the engine computes it."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def ranked(
    seqs: Sequence[int],
    answered: Sequence[int],
    scores: Sequence[float],
    stances: Mapping[int, int],
    ranking: Ranking,
) -> list[tuple[int, float]]:
    """The k best of the events whose documents match, with new scores, ties by seq.

    The documents come best first. `answered` is the user turn that each event answers, its own seq
    for a user turn. If one turn has several replies, or one event several documents, the best one
    counts.
    """
    # The scores of the user turns.
    own: dict[int, float] = {}
    # The scores that replies lend to their turns.
    lent: dict[int, float] = {}
    for seq, turn, score in zip(reversed(seqs), reversed(answered), reversed(scores), strict=True):
        if turn == seq:
            own[seq] = score
        else:
            lent[turn] = score
    weight, flow = ranking.user_weight, ranking.flow
    final = {turn: (score + flow * lent.get(turn, 0.0)) * weight for turn, score in own.items()}
    # The better score of the user turns directly before and after a turn.
    near: dict[int, float] = {}
    for before, after in pairwise(sorted(own)):
        if after - before <= NEAR:
            near[before] = max(final[after], near.get(before, 0.0))
            near[after] = final[before]
    for turn, score in near.items():
        final[turn] += LENT_NEAR * score
    for turn, stance in stances.items():
        final[turn] *= STANCE[stance]
    for seq in ranking.exclude:
        final.pop(seq, None)
    enough = sorted(final.values(), reverse=True)[ranking.k - 1 : ranking.k]
    least = enough[0] if enough else -math.inf
    for seq, turn, score in zip(seqs, answered, scores, strict=True):
        if score < least:
            # No document behind it can be among the k best.
            break
        if turn != seq and seq not in ranking.exclude:
            final.setdefault(seq, score)
    best = sorted([(-score, seq) for seq, score in final.items() if score >= least])
    return [(seq, -score) for score, seq in best[: ranking.k]]
