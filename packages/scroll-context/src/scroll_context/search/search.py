"""Search over the log: `SearchIndex` finds events by their words and says how current the answer
is.

A search first waits until the index holds every event that the caller may see; past its patience
it answers from the indexed events and says how many are missing. A short backlog is worth a longer
wait: only a busy machine takes more than a moment for it, and an answer without the events just
recorded would be wrong. A search never blocks forever. A damaged index is discarded and built
again; IndexUnavailable is raised only when nothing is indexed and it cannot be built.
Echoes, notices and bookkeeping are never indexed, so they are never hits.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Unpack

import msgspec
import tantivy

from scroll_context.errors import BadInput, IndexUnavailable
from scroll_context.events import EVERYTHING, Event, Grant, Progress
from scroll_context.log.filters import NO_FILTERS, FilterFields, SearchFilters
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.search import query as language
from scroll_context.search import tokenize
from scroll_context.search.indexer import Commit, EngineFaults, Indexer
from scroll_context.search.query import Node, Words
from scroll_context.search.ranking import Match, Ranked, RankedSearch, Ranking
from scroll_context.search.snippet import Needle, snippet
from scroll_context.text.similar import Repeats

# Seconds that a search waits for an index that is far behind.
PATIENCE = 2.0
# Seconds that a search waits for a short backlog.
BUSY_PATIENCE = 20.0
# An idle machine indexes a backlog of this size in about a second.
SHORT_EVENTS = 5_000
SHORT_BYTES = 8 << 20
MOST_HITS = 10_000
# Further matches that may replace those that repeat a better one.
MOST_REPEATS = 100
# Matches that are read when the hits of one session are limited.
ONE_PER_SESSION = 600
# Words or rows that a note names.
MOST_NAMED = 20
# Tasks that follow an import.
MOST_TASKS = 8
# New events that a search reads to see whether any of them matters to it.
GLANCE = 256


class Hit(msgspec.Struct, frozen=True):
    """One matching event. Its `content` is the complete text, or a preview when its `payload`
    holds the body.
    """

    event: Event
    score: float
    # The part that matched.
    snippet: str

    @property
    def seq(self) -> int:
        return self.event.seq


class Hits(list[Hit]):
    """The matching events, best first, and how far the index was behind the log at that time."""

    # Events not yet indexed.
    behind: int = 0
    # Why the index could not catch up, when it could not.
    trouble: str = ""
    # Whether the query has no word to search for.
    asked_nothing: bool = False
    # Events that matched and were left out because the caller excluded them.
    excluded: tuple[int, ...] = ()
    # Words of the query that no event within reach has.
    missing: tuple[str, ...] = ()
    # Words that only excluded events have.
    only_excluded: tuple[str, ...] = ()
    # How many events have all words, and which of the hits these are.
    spread: str = ""

    @property
    def note(self) -> str:
        """A text about the answer for its reader; empty when there is nothing to say."""
        if self.asked_nothing:
            return (
                "The query has no word to search for: words such as 'the' or 'what' count only "
                'within "quotes".'
            )
        notes = [self.spread] if self.spread else []
        if self.missing:
            notes.append(f"no row contains: {', '.join(self.missing[:MOST_NAMED])}.")
        if self.only_excluded:
            words = ", ".join(self.only_excluded[:MOST_NAMED])
            notes.append(f"besides what the view shows, no row contains: {words}.")
        if self.behind:
            why = f" ({self.trouble})" if self.trouble else ""
            which = "newest event is" if self.behind == 1 else f"newest {self.behind:,} events are"
            notes.append(f"The {which} not searchable yet{why}; search again, or read by seq.")
        return " ".join(notes)


class Mentions(msgspec.Struct, frozen=True):
    """Every event that a query means, in order of seq."""

    seqs: tuple[int, ...]
    # Whether each has all words of the query; else each has any of them.
    has_all: bool
    # Words and phrases in the query.
    words: int
    # Events that are not indexed yet.
    behind: int = 0


class IndexStats(msgspec.Struct, frozen=True):
    """The index in numbers."""

    indexed_seq: int
    documents: int
    segments: int
    trouble: str


class SearchIndex:
    """Find events by their words. Share one instance between threads."""

    def __init__(self, folder: Path, log: EventLog, payloads: PayloadStore) -> None:
        self.folder = folder
        self._log = log
        self._indexer = Indexer(folder, log, payloads)

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        grant: Grant = EVERYTHING,
        filters: SearchFilters = NO_FILTERS,
        exclude: Collection[int] = (),
        per_session: int | None = None,
        user_weight: float = 2.0,
        flow: float = 0.25,
        patience: float | None = None,
        **fields: Unpack[FilterFields],
    ) -> Hits:
        """The k best events for a query (see query.py for the language), best first.

        Filters come as one value, or field by field (log/filters.py): session_id, agent_id,
        task_id, kind and role take a text or several; seq_range, created_from and created_to are
        inclusive. `exclude` names events that are of no use to the caller.
        `per_session` is the most hits that one session may have. `patience` is how many seconds to
        wait for the index; without it, as long as its backlog is worth. A turn (what a person
        says, or a short reply) weighs `user_weight` times as much, and gets `flow` of the score of
        the reply to it.
        """
        if k < 1:
            raise BadInput(f"k must be at least 1, not {k}")
        k = min(k, MOST_HITS)
        filters = filters.narrowed(**fields)
        parsed = language.parse(query)
        hits = Hits()
        if not language.terms_of(parsed):
            hits.asked_nothing = True
            return hits
        exclude = frozenset(exclude)
        pool = ONE_PER_SESSION if per_session else k + min(2 * k, MOST_REPEATS)
        ranking = Ranking(min(pool, MOST_HITS), k, exclude, user_weight, flow)
        hits.behind = self._freshen(grant, exclude, patience)
        hits.trouble = self._indexer.trouble
        try:
            self._find(hits, parsed, ranking, grant, filters, per_session)
        except IndexUnavailable:
            # Reading has shown damage.
            self._indexer.discard(PATIENCE if patience is None else patience)
            hits.behind = self._freshen(grant, exclude, patience)
            hits.trouble = self._indexer.trouble
            # Some hits may have been added before the damage.
            hits.clear()
            self._find(hits, parsed, ranking, grant, filters, per_session)
        return hits

    def every(
        self,
        query: str,
        *,
        any_word: bool = False,
        filters: SearchFilters = NO_FILTERS,
        **fields: Unpack[FilterFields],
    ) -> list[int]:
        """The seqs of all events that a query means, in order, however many there are; nothing is
        ranked.

        They have all of its words, or with `any_word` any of them. Waits until everything is
        indexed.
        """
        parsed = language.parse(query, every_word=True)
        if not language.terms_of(parsed):
            raise BadInput(f'{query!r:.80} has no word to search for; put common words in "quotes"')
        filters = filters.narrowed(**fields)
        self._log.backend.refresh()
        self._indexer.catch_up()
        try:
            return self._every(parsed, filters, any_word)
        except IndexUnavailable:
            # Reading has shown damage.
            self._indexer.discard()
            self._indexer.catch_up()
            return self._every(parsed, filters, any_word)

    def mentions(
        self,
        query: str,
        *,
        grant: Grant = EVERYTHING,
        filters: SearchFilters = NO_FILTERS,
        exclude: Collection[int] = (),
    ) -> "Mentions":
        """Every event that has all words of a query, or, if none has, any of them.

        The query is read as `search` reads it; nothing is ranked.
        """
        parsed = language.parse(query)
        terms = language.terms_of(parsed)
        if not terms:
            raise BadInput(
                f'{query!r:.80} has no word to look for; put common words in "quotes", '
                "or use ms.grep, which finds any text"
            )
        behind = self._freshen(grant, frozenset(exclude), None)
        hidden = set(exclude)
        seqs: list[int] = []
        has_all = True
        for any_word in (False, True):
            seqs = [
                seq for seq in self._every(parsed, filters, any_word, grant) if seq not in hidden
            ]
            has_all = not any_word
            if seqs or len(terms) == 1:
                break
        return Mentions(tuple(seqs), has_all, len(terms), behind)

    def _every(
        self,
        parsed: Words | Node,
        filters: SearchFilters,
        any_word: bool,
        grant: Grant = EVERYTHING,
    ) -> list[int]:
        commit = self._indexer.newest()
        if commit is None:
            return []
        with EngineFaults("searching the index"):
            search = RankedSearch(
                commit.searcher, commit.counts, commit.known_forms, Ranking(1), grant, filters
            )
            return sorted(search.every(parsed, any_word=any_word))

    # freshness ------------------------------------------------------------------------------------

    @property
    def indexed_seq(self) -> int:
        """Every event up to here is searchable, if it may ever be."""
        return self._indexer.current_until()

    def catch_up(self, timeout: float | None = None, progress: Progress | None = None) -> bool:
        """Index what is new in the log; False when time ran out first."""
        return self._indexer.catch_up(timeout, progress)

    def discard(self, timeout: float | None = None) -> bool:
        """Discard the index; the next search builds it again.

        Returns False when another process held it too long.
        """
        return self._indexer.discard(timeout)

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build the index again from the log."""
        self._indexer.discard()
        self._indexer.catch_up(progress=progress)

    def stats(self) -> IndexStats:
        try:
            commit = self._indexer.newest()
        except IndexUnavailable as error:
            return IndexStats(0, 0, 0, str(error))
        return IndexStats(
            indexed_seq=self._indexer.current_until(),
            documents=commit.searcher.num_docs if commit else 0,
            segments=commit.searcher.num_segments if commit else 0,
            trouble=self._indexer.trouble,
        )

    def start(self) -> None:
        """Keep the index up to date from now on; otherwise only searches do."""
        self._indexer.start()

    def notify(self) -> None:
        """Something was appended."""
        self._indexer.notify()

    def close(self) -> None:
        """Stop indexing, merges included. The next search indexes the rest."""
        self._indexer.close()

    def searcher(self, patience: float | None = None) -> tantivy.Searcher | None:
        """The newest committed state of the index, after it has caught up, for readers with queries
        of their own; None if nothing is indexed.
        """
        self._freshen(EVERYTHING, (), patience)
        commit = self._indexer.newest()
        return commit.searcher if commit else None

    # notes ----------------------------------------------------------------------------------------

    def notes(self, name: str) -> bytes | None:
        """Data that was stored under a name; None if there is none, as after an erasure."""
        return self._indexer.notes(name)

    def after_many(self, name: str, task: Callable[[], None]) -> None:
        """Do a task in the background whenever many events were indexed, as after an import or an
        erasure. It replaces a task of the same name.

        Only the newest tasks are kept, because a server may have thousands of users with a task
        each.
        """
        tasks = self._indexer.after_many
        tasks.pop(name, None)
        tasks[name] = task
        for oldest in list(tasks)[:-MOST_TASKS]:
            tasks.pop(oldest, None)

    def keep_notes(self, name: str, data: bytes, is_valid: Callable[[], bool]) -> bool:
        """Store data beside the index that was made from the log and can be made again, if it is
        still valid.
        """
        return not self._log.read_only and self._indexer.keep_notes(name, data, is_valid)

    # searching ------------------------------------------------------------------------------------

    def _freshen(self, grant: Grant, exclude: Collection[int], patience: float | None) -> int:
        """Wait for what this search may see; the number of events that are still missing."""
        last = self._log.awaited_seq(PATIENCE if patience is None else patience)
        until = self._indexer.current_until()
        if not self._is_current(until, last, grant, exclude):
            seconds = self._patience(until, last) if patience is None else patience
            is_reached = self._indexer.wait_for(last, seconds)
            until = self._indexer.current_until()
            if not is_reached:
                if until == 0 and self._indexer.trouble:
                    raise IndexUnavailable(self._indexer.trouble)
                missing = last - until
                if grant != EVERYTHING:
                    missing = sum(1 for _ in self._log.iterate(until, last, grant=grant))
                return missing + self._log.backend.unread(last)
        behind = self._log.backend.unread(max(last, until))
        if behind:
            # This is for the next search. The current one does not wait for other hosts.
            self._indexer.start()
        return behind

    def _patience(self, until: int, last: int) -> float:
        """How long to wait for the events behind `until`: longer when there is little to index."""
        if last - until > SHORT_EVENTS:
            return PATIENCE
        ((backlog,),) = self._log.query(
            """SELECT sum(length(content) + ifnull(payload_size, 0)) FROM event
            WHERE seq > ? AND seq <= ?""",
            [until, last],
        )
        return BUSY_PATIENCE if (backlog or 0) <= SHORT_BYTES else PATIENCE

    def _is_current(self, until: int, last: int, grant: Grant, exclude: Collection[int]) -> bool:
        """Whether this search could return none of the new events, so that it need not wait for a
        commit.
        """
        if last <= until:
            return True
        if until == 0 or last - until > GLANCE:
            return False
        commit = self._indexer.newest()
        new = [event for event in self._log.iterate(after=until, until=last) if event.is_searchable]
        if not new and commit is not None:
            commit.current_until = max(commit.current_until, last)
        return all(event.seq in exclude or not grant.permits(event) for event in new)

    def _find(
        self,
        hits: Hits,
        parsed: Words | Node,
        ranking: Ranking,
        grant: Grant,
        filters: SearchFilters,
        per_session: int | None,
    ) -> None:
        commit = self._indexer.newest()
        if commit is None:
            return
        with EngineFaults("searching the index"):
            search = RankedSearch(
                commit.searcher, commit.counts, commit.known_forms, ranking, grant, filters
            )
            ranked = search.find(parsed)
            needles = [Needle.of(term) for term in language.terms_of(parsed)]
            matches = ranked.matches
            if per_session is not None:
                matches = self._spread_out(matches, per_session)
            for event, match in self._without_repeats(matches, grant, ranking.enough):
                # BM25 depends on texts outside a grant, so a restricted reader gets the rank.
                score = match.score if grant == EVERYTHING else 1 / (len(hits) + 1)
                hits.append(_hit(event, score, match, commit, needles))
        hits.spread = _spread(ranked, hits)
        hits.excluded = ranked.excluded
        hits.missing = ranked.missing
        hits.only_excluded = ranked.only_excluded

    def _spread_out(self, matches: Sequence[Match], most: int) -> list[Match]:
        """The best matches of each session."""
        counts: Counter[str] = Counter()
        sessions = self._log.column("session_id", [match.seq for match in matches])
        best = []
        for match in matches:
            session = sessions.get(match.seq)
            if session is not None and counts[session] < most:
                counts[session] += 1
                best.append(match)
        return best

    def _without_repeats(
        self, matches: Sequence[Match], grant: Grant, k: int
    ) -> list[tuple[Event, Match]]:
        """The k best that say different things; those that nearly repeat a better one fill the
        remaining places.
        """
        seen = Repeats()
        different: list[tuple[Event, Match]] = []
        repeats: list[tuple[Event, Match]] = []
        for at in range(0, len(matches), k):
            part = matches[at : at + k]
            rows = self._log.get_many([match.seq for match in part], grant)
            events = {event.seq: event for event in rows}
            for match in part:
                event = events.get(match.seq)
                if event is None or not event.is_searchable:
                    continue
                if seen.is_repeat(event.content):
                    repeats.append((event, match))
                else:
                    different.append((event, match))
                if len(different) == k:
                    return different
        return [*different, *repeats][:k]


def _spread(ranked: Ranked, hits: Sequence[Hit]) -> str:
    """How many events have all words, and which of the hits these are.

    Empty for a query of one word.
    """
    if ranked.with_all is None or not hits:
        return ""
    count = len(ranked.with_all)
    if not count:
        return "No event has all words; these rows have some of them."
    events = "1 event has" if count == 1 else f"{'over ' * ranked.capped}{count:,} events have"
    complete = [hit.seq for hit in hits if hit.seq in ranked.with_all]
    if len(complete) == len(hits):
        return f"{events} all words, and so has every row here."
    if not complete:
        return f"{events} all words, but none of these rows."
    listed = ", ".join(map(str, complete[:MOST_NAMED]))
    if len(complete) > MOST_NAMED:
        listed += f" and {len(complete) - MOST_NAMED} more rows"
    return f"{events} all words: seq {listed}. The other rows have some of them."


def _hit(
    event: Event, score: float, match: Match, commit: Commit, needles: Sequence[Needle]
) -> Hit:
    # A reply that only made calls has no other words than its headline.
    text = event.content or event.headline
    from_start = True
    if event.payload is not None:
        passage = commit.searcher.doc(match.address).get_first("passage")
        if passage:
            text = bytes(passage).decode()
            from_start = text.startswith(event.content[:1_000])
    excerpt = snippet(tokenize.without_colours(text), needles, from_start=from_start)
    return Hit(event, score, excerpt)
