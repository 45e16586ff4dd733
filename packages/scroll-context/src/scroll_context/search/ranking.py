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

Looking for word forms at query time instead of indexing stems was tried: the engine indexes three
times as fast and finds less (at 10, .570 instead of .584 on BEAM, .648 instead of .664 on LoCoMo).

What a search within a grant returns does not tell what lies outside. The engine's statistics are of
the whole index, so each word is weighed anew by how many granted documents hold it; the words of a
prefix are those of granted documents; and search.py makes the score of a hit within a grant from
its rank alone. Two things remain of the whole index: the mean length of a document, which moves the
order a little, and time: a common word takes longer than a rare one. A grant that permits every
document is searched without this work.
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

AS_WRITTEN = 0.4  # weight of a word of a question as written, beside its stem,
AS_KEYWORD = 1.0  # and of a keyword: integrate is not integral
RANKED_WORDS = 128  # beyond so many words with a prefix, all weigh the same
MOST_WORDS = 10_000  # beyond so many, a row of words that ends in a prefix finds only the commonest
MOST_PHRASES = 1_000  # the same, within a grant
CANDIDATES = 600
ALL_WORDS = 1.3  # weight of an event that has all of a few words
OWN_WORD = 8.0  # weight of an event that has the only word itself, not just one with the same stem
SHORTEST_BEGINNING = 3  # letters that the forms of a word share; fewer begin too many words
STANCE = (1.0, 1.2, 2.0)  # weight of a user turn, of a preference and of a standing instruction
NEAR = 4  # neighbouring user turns at most so many seqs apart
LENT_NEAR = 0.1  # lend so much of their score to each other
MOST_COUNTS = 20_000  # numbers of documents that are remembered
MOST_TIES = 10_000  # candidates looked at when many score the same, so that ties go by seq

_BIGGEST = (1 << 63) - 1


def clauses(grant: Grant, filters: SearchFilters = NO_FILTERS) -> list[Query]:
    """What a document must satisfy within a grant and filters, for the engine."""
    labels = filters.labels()
    for name in grant.__struct_fields__:
        granted = getattr(grant, name)
        if granted is not None:
            labels.append((name, (granted,)))
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
    enough: int = 10  # matches, so that words that stand side by side need not be taken apart
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
    """Documents that were found, best first, and the events that they belong to."""

    addresses: list[tantivy.DocAddress]
    seqs: list[int]


class Ranked(msgspec.Struct, frozen=True):
    """The best matches, and what there is to say about them."""

    matches: list[Match]
    excluded: tuple[int, ...] = ()  # events that matched and that the caller excludes
    # Events with all of the words, where some of them would do; None if that is all of them.
    with_all: frozenset[int] | None = None
    capped: bool = False  # whether more events than these have all words
    missing: tuple[str, ...] = ()  # words that no event within the grant has
    only_excluded: tuple[str, ...] = ()  # words that only excluded events have


Counts = dict[tuple[object, ...], int]
"""Numbers of documents, remembered for one committed state of the index."""

KnownForms = dict[str, tuple[str, ...] | None]
"""The inflections of query words, remembered in the same way."""

_Scored = list[tuple[float, tantivy.DocAddress]]


class _Candidates(NamedTuple):
    """The best documents for a query, best first."""

    hits: _Scored
    is_cut: bool  # whether more documents match


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
        found = (
            self._find_words(query) if isinstance(query, Words) else self._find_expression(query)
        )
        missing, only_excluded = self._without_rows(query)
        return msgspec.structs.replace(found, missing=missing, only_excluded=only_excluded)

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
                wanted = [self._seqs(part, exact=exact) for part in parts]
                unwanted = [self._seqs(part, exact=True) for part in without]
                return set.intersection(*wanted).difference(*unwanted)
        must = [(Occur.Must, query) for query in (self._node(node, exact=exact), *self._clauses)]
        hits = self.searcher.search(
            Query.boolean_query(must), max(1, self.searcher.num_docs), count=False
        ).hits
        return set(self._column("seq", [place for _, place in hits])) if hits else set()

    def _find_words(self, query: Words) -> Ranked:
        is_word = len(query.terms) == 1 and self._own_forms(query.terms[0]) is not None
        if len(query.terms) < 2 and not is_word:
            return self._found(self._candidates(self._any_words(query)).hits)
        strict = self._candidates(self._all_words(query))
        if not query.question and strict.is_cut:
            return self._counted(self._found(strict.hits), strict)
        some = self._candidates(self._any_words(query))
        if query.question:
            return self._counted(self._found(some.hits), strict)
        weight = OWN_WORD if is_word else ALL_WORDS
        both = sorted(
            [*((weight * score, place) for score, place in strict.hits), *some.hits],
            key=itemgetter(0),
            reverse=True,
        )
        ranked_events = self._found(both)
        return ranked_events if is_word else self._counted(ranked_events, strict)

    def _find_expression(self, query: Node) -> Ranked:
        strict = self._candidates(self._node(query, exact=False))
        found = self._found(strict.hits)
        loose = language.relaxed(query)
        if loose == query or len(found.matches) >= self._ranking.enough:
            return found
        some = self._candidates(self._node(loose, exact=False))
        more = self._found(some.hits)
        have = {match.seq for match in found.matches}
        matches = [*found.matches, *(match for match in more.matches if match.seq not in have)][
            : self._ranking.k
        ]
        return self._counted(Ranked(matches, more.excluded), strict)

    def _counted(self, ranked: Ranked, strict: _Candidates) -> Ranked:
        """With the events that have all words, so that a reader can tell them from the others."""
        return msgspec.structs.replace(
            ranked, with_all=frozenset(self._events(strict.hits)), capped=strict.is_cut
        )

    def _events(self, hits: _Scored) -> set[int]:
        seqs = self._column("seq", [place for _, place in hits]) if hits else []
        return set(seqs) - self._ranking.exclude

    def _without_rows(self, query: Words | Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words that no event within the grant has, and those that only excluded ones have."""
        missing: list[str] = []
        only_excluded: list[str] = []
        for term in language.terms_of(query):
            if term.stem and self._holding("stems", term.stem) > len(self._ranking.exclude):
                continue  # as nearly always
            if term.field is not Field.PAIRS and (holders := self._holders(term)) is not None:
                (only_excluded if holders else missing).append(
                    " ".join(term.tokens) + "*" * term.prefix
                )
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
        must = [(Occur.Must, query) for query in (self._ways(term)[0], *self._granted)]
        hits = self.searcher.search(
            Query.boolean_query(must), len(self._ranking.exclude) + 1, count=False
        ).hits
        seqs = set(self._column("seq", [place for _, place in hits])) if hits else set()
        return seqs if seqs <= self._ranking.exclude else None

    def _holding(self, field: str, word: str) -> int:
        """How many granted documents hold a word."""
        return self._count((field, word)) if self._granted else self.searcher.doc_freq(field, word)

    def _found(self, hits: _Scored) -> Ranked:
        if not hits:
            return Ranked([])
        columns = tuple(zip(*hits, strict=True))
        scores, addresses = list(columns[0]), list(columns[1])
        if self._granted:  # weighing anew rounds, which must not break ties
            scores = [float(f"{score:.5g}") for score in scores]
        seqs, turns = self._column("seq", addresses), self._column("answers", addresses)
        column = self._column("stance", addresses)
        stances = dict(compress(zip(seqs, column, strict=True), column)) if any(column) else {}
        documents = _Documents(addresses, seqs)
        best = [
            Match(*one, documents) for one in ranked(seqs, turns, scores, stances, self._ranking)
        ]
        exclude = self._ranking.exclude
        excluded = tuple(dict.fromkeys(seq for seq in seqs if seq in exclude)) if exclude else ()
        return Ranked(best, excluded)

    def _column(self, field: str, addresses: list[tantivy.DocAddress]) -> list[int]:
        return cast(list[int], self.searcher.fast_field_values(field, addresses))

    def _all_words(self, query: Words) -> Query:
        """All words, in one of their own forms: a word that only shares the stem is another one."""
        parts = [part for term in (*query.required, *query.terms) for part in self._must(term)]
        for term in query.terms if not query.question else ():
            if own_forms := self._own_forms(term):
                has_form = Query.term_set_query(SCHEMA, "text", list(own_forms))
                parts.append((Occur.Must, Query.const_score_query(has_form, 0.0)))
        return Query.boolean_query(parts)

    def _own_forms(self, term: Term) -> tuple[str, ...] | None:
        """The inflections of a word that the index has; None where nothing else shares its stem."""
        stem = term.stem
        # Of "study" and "studies" the stem is "studi", and only "stud" begins all three.
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
        # not nested, so that the engine can pass over what cannot be among the best
        words = [
            (Occur.Should, way)
            for term in query.terms
            for way in self._ways(term, in_question=query.question)
        ]
        return Query.boolean_query([*phrases, *words])

    def _candidates(self, query: Query) -> _Candidates:
        """The best documents by BM25, and all that tie with the last one wanted.

        Where more documents match, which of those that tie with the last one are among the hits
        depends on the segments of the index. So none of them are: merges change no answer.
        """
        if self._clauses:
            must = [(Occur.Must, Query.const_score_query(clause, 0.0)) for clause in self._clauses]
            query = Query.boolean_query([(Occur.Must, query), *must])
        limit = self._ranking.candidates
        last_wanted = self._ranking.k + len(self._ranking.exclude) - 1
        while True:
            hits = self.searcher.search(query, limit, count=False).hits
            if len(hits) < limit:
                return _Candidates(hits, is_cut=False)
            last = hits[-1][0]
            if hits[last_wanted][0] != last:
                hits = hits[: bisect_left(hits, -last, key=_negative_score)]
                return _Candidates(hits, is_cut=True)
            if limit >= MOST_TIES:
                return _Candidates(hits, is_cut=True)
            limit = min(limit * 4, MOST_TIES)

    def _node(self, node: Node, *, exact: bool) -> Query:
        """`exact` finds words only as they are written: what NOT takes away must be what was named."""
        match node:
            case Term():
                return (
                    self._exactly(node)
                    if exact and node.is_word
                    else Query.boolean_query(self._must(node))
                )
            case AnyOf(parts):
                return Query.boolean_query(
                    [(Occur.Should, self._node(part, exact=exact)) for part in parts]
                )
            case All(parts, without):
                wanted = [(Occur.Must, self._node(part, exact=exact)) for part in parts]
                unwanted = [(Occur.MustNot, self._node(part, exact=True)) for part in without]
                return Query.boolean_query([*wanted, *unwanted])

    def _ways(self, term: Term, *, in_question: bool = False) -> list[Query]:
        """What finds a term, and what only makes it count more."""
        if term.prefix:
            return [self._prefix(term)]
        stem = term.stem
        if not stem:
            units = tokenize.quantities(term.tokens[0])[0] if term.is_word else ()
            if units:  # 16gb also finds 16 gb
                apart = self._exactly(Term(tuple(units[0].split()), term.field))
                return [
                    Query.boolean_query(
                        [(Occur.Should, self._exactly(term)), (Occur.Should, apart)]
                    )
                ]
            return [self._exactly(term)]
        any_form = self._weighed(Query.term_query(SCHEMA, "stems", stem, "freq"), "stems", [stem])
        if term.parts:
            # InternalError also finds internal_error and "internal error".
            apart = self._exactly(Term(term.parts, term.field))
            any_form = Query.boolean_query([(Occur.Should, any_form), (Occur.Should, apart)])
        if in_question and stem == term.tokens[0]:
            return [any_form]
        return [
            any_form,
            Query.boost_query(self._exactly(term), AS_WRITTEN if in_question else AS_KEYWORD),
        ]

    def _must(self, term: Term) -> list[tuple[Occur, Query]]:
        found, *more = self._ways(term)
        return [(Occur.Must, found), *((Occur.Should, way) for way in more)]

    def _prefix(self, term: Term) -> Query:
        *before, last = term.tokens
        granted = (
            Query.boolean_query([(Occur.Must, clause) for clause in self._granted])
            if self._granted
            else None
        )
        counted = self.searcher.terms_with_prefix(
            term.field, last, filter_query=granted, limit=MOST_WORDS + 1
        )
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
            self._counts[key] = self.searcher.search(Query.boolean_query(must), 1).count  # type: ignore[attr-defined]
        return self._counts[key]


def _negative_score(hit: tuple[float, tantivy.DocAddress]) -> float:
    return -hit[0]


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
    """The k best of the events whose documents were found, which come best first: new scores, ties
    by seq.

    `answered` is the user turn that each event answers, its own seq for a user turn. Of several
    replies to one turn, and of several documents of one event, the best counts.
    """
    own: dict[int, float] = {}  # of the user turns
    lent: dict[int, float] = {}  # by the replies
    for seq, turn, score in zip(reversed(seqs), reversed(answered), reversed(scores), strict=True):
        if turn == seq:
            own[seq] = score
        else:
            lent[turn] = score
    weight, flow = ranking.user_weight, ranking.flow
    final = {turn: (score + flow * lent.get(turn, 0.0)) * weight for turn, score in own.items()}
    near: dict[int, float] = {}  # the better score of the user turns just before and after
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
        if score < least:  # nor can any that follow be among the k best
            break
        if turn != seq and seq not in ranking.exclude:
            final.setdefault(seq, score)
    best = sorted([(-score, seq) for seq, score in final.items() if score >= least])
    return [(seq, -score) for score, seq in best[: ranking.k]]
