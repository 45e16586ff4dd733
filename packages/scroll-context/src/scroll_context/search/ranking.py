"""From the engine's candidates to an order of events.

The order is BM25 with four additions: a reply lends part of its score to the turn that it answers,
turns weigh more, those that state a preference or a standing instruction more still, and turns
close to each other lend a little, since a subject is rarely done with in one. A turn is what a
person says; a short reply that makes no calls is one too (turns.py), because in a conversation
between people, or recorded as one with an assistant, both say what is asked for later. Most
constants were chosen on 39 chats of BEAM (692 questions with evidence, asked whole and as their
five rarest words), by five folds of chats and 23 settings: recall of evidence at 10 went from .548
to .584. Weights of turns, replies and neighbours were then chosen again on these chats and five
conversations of LoCoMo (1,017 questions, the second speaker recorded as a person and as the
assistant): of 36 settings the same one won, whichever of the 44 was left out. With short replies as
turns, the right session comes first for .689 of LoCoMo's questions instead of .627 where the second
speaker is the assistant, and BEAM stays at .583. Keywords as written weigh as much as their stem,
which costs .002 to .005 of recall.

Nothing here reads the log. `engine_queries.py` says what the engine is asked.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from operator import itemgetter
from typing import NamedTuple, cast

import msgspec
import tantivy
from tantivy import Query

from scroll_context.events import EVERYTHING, Grant
from scroll_context.log.filters import NO_FILTERS, SearchFilters
from scroll_context.search import query as language
from scroll_context.search.engine_queries import (
    Counts,
    EngineQueries,
    KnownForms,
    clauses,
    required,
    unscored,
)
from scroll_context.search.query import All, AnyOf, Field, Node, Term, Words

# Documents that are read at least.
CANDIDATES = 600
# The weight of an event that has all of a few words.
ALL_WORDS = 1.3
# The weight of an event that has the only word itself, not just one with the same stem.
OWN_WORD = 8.0
# The weights of a user turn, of a preference and of a standing instruction.
STANCE = (1.0, 1.2, 2.0)
# User turns that are at most `NEAR` seqs apart lend each other this part of their score.
NEAR = 4
LENT_NEAR = 0.1
# Candidates that are read when many score the same, so that ties are broken by seq.
MOST_TIES = 10_000


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
        self._searcher = searcher
        self._ranking = ranking
        self._clauses = clauses(grant, filters)
        self._queries = EngineQueries(searcher, counts, known_forms, grant)

    # all matches ----------------------------------------------------------------------------------

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
                forbidden = [self._seqs(part, exact=True) for part in without]
                return set.intersection(*wanted).difference(*forbidden)
        return self._seqs_with([self._queries.expression(node, exact=exact), *self._clauses])

    def _seqs_with(self, queries: Sequence[Query], most: int | None = None) -> set[int]:
        """The events whose documents satisfy all of these queries."""
        limit = max(1, self._searcher.num_docs) if most is None else most
        return self._events(self._searcher.search(required(queries), limit, count=False).hits)

    def _events(self, hits: _Scored) -> set[int]:
        """The events that documents belong to."""
        return set(self._column("seq", [place for _, place in hits])) if hits else set()

    # the best matches -----------------------------------------------------------------------------

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

    def _find_words(self, query: Words) -> Ranked:
        is_word = len(query.terms) == 1 and self._queries.own_forms(query.terms[0]) is not None
        if len(query.terms) < 2 and not is_word:
            return self._ranked(self._candidates(self._queries.any_words(query)).hits)
        strict = self._candidates(self._queries.all_words(query))
        if not query.question and strict.is_cut:
            return self._counted(self._ranked(strict.hits), strict)
        some = self._candidates(self._queries.any_words(query))
        if query.question:
            return self._counted(self._ranked(some.hits), strict)
        weight = OWN_WORD if is_word else ALL_WORDS
        both = [(weight * score, place) for score, place in strict.hits]
        both += some.hits
        both.sort(key=itemgetter(0), reverse=True)
        ranked_events = self._ranked(both)
        return ranked_events if is_word else self._counted(ranked_events, strict)

    def _find_expression(self, query: Node) -> Ranked:
        strict = self._candidates(self._queries.expression(query))
        ranked_events = self._ranked(strict.hits)
        loose = language.relaxed(query)
        if loose == query or len(ranked_events.matches) >= self._ranking.enough:
            return ranked_events
        some = self._candidates(self._queries.expression(loose))
        more = self._ranked(some.hits)
        strict_seqs = {match.seq for match in ranked_events.matches}
        matches = list(ranked_events.matches)
        matches += [match for match in more.matches if match.seq not in strict_seqs]
        return self._counted(Ranked(matches[: self._ranking.k], more.excluded), strict)

    def _counted(self, ranked: Ranked, strict: _Candidates) -> Ranked:
        """With the events that have all words, so that a reader can tell them from the others."""
        with_all = frozenset(self._events(strict.hits) - self._ranking.exclude)
        return msgspec.structs.replace(ranked, with_all=with_all, capped=strict.is_cut)

    def _candidates(self, query: Query) -> _Candidates:
        """The best documents by BM25, and all that tie with the last of the k best.

        If more documents match, the segments of the index decide which of those that tie with the
        last hit are among the hits. So none of them are: a merge of segments changes no answer.
        """
        if self._clauses:
            query = required([query, *map(unscored, self._clauses)])
        limit = self._ranking.candidates
        last_needed = self._ranking.k + len(self._ranking.exclude) - 1
        while True:
            hits = self._searcher.search(query, limit, count=False).hits
            if len(hits) < limit:
                return _Candidates(hits, is_cut=False)
            last = hits[-1][0]
            if hits[last_needed][0] != last:
                hits = hits[: bisect_left(hits, -last, key=lambda hit: -hit[0])]
                return _Candidates(hits, is_cut=True)
            if limit >= MOST_TIES:
                return _Candidates(hits, is_cut=True)
            limit = min(limit * 4, MOST_TIES)

    def _ranked(self, hits: _Scored) -> Ranked:
        """The events of these documents in their final order."""
        if not hits:
            return Ranked([])
        columns = tuple(zip(*hits, strict=True))
        scores, addresses = list(columns[0]), list(columns[1])
        if self._queries.granted:
            # Weighing within a grant rounds, which must not break ties.
            scores = [float(f"{score:.5g}") for score in scores]
        seqs = self._column("seq", addresses)
        turns = self._column("answers", addresses)
        stance_column = self._column("stance", addresses)
        stances = dict(compress(zip(seqs, stance_column, strict=True), stance_column))
        documents = _Documents(addresses, seqs)
        order = ranked(seqs, turns, scores, stances, self._ranking)
        best = [Match(seq, score, documents) for seq, score in order]
        exclude = self._ranking.exclude
        excluded = tuple(dict.fromkeys(seq for seq in seqs if seq in exclude)) if exclude else ()
        return Ranked(best, excluded)

    def _column(self, field: str, addresses: list[tantivy.DocAddress]) -> list[int]:
        return cast(list[int], self._searcher.fast_field_values(field, addresses))

    # words that match nothing ---------------------------------------------------------------------

    def _without_rows(self, query: Words | Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words that no event within the grant has, and those that only excluded ones have."""
        missing: list[str] = []
        only_excluded: list[str] = []
        for term in language.terms_of(query):
            stem = term.stem
            if stem and self._queries.holding("stems", stem) > len(self._ranking.exclude):
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
            fewest = min(self._queries.holding(term.field, word) for word in term.tokens)
            if fewest == 0:
                return set()
            if len(term.tokens) == 1 and fewest > len(self._ranking.exclude):
                return None
        most = len(self._ranking.exclude) + 1
        seqs = self._seqs_with([self._queries.ways(term)[0], *self._queries.granted], most)
        return seqs if seqs <= self._ranking.exclude else None


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
