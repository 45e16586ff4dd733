"""The part of `ms` that covers rather than ranks: grep, outline, timeline, turns, gist and
standing.

Ranked search shows the best few rows; these methods show that there is nothing more, what lies
where, and how a subject went on over time. They keep the rules of the memory surface: arguments are
checked, nothing outside the grant is read, each answer says which seqs it gave away, and what is
said about rows goes beside them in a note. Echoes are never shown, and neither is the running task:
what was said since the newest request and still stands in the view is no evidence about the past.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.kernel.results import CapabilityResult
from scroll_context.log.filters import NO_FILTERS, SearchFilters
from scroll_context.log.log import SessionInfo
from scroll_context.origin import SPEAKER, Origin
from scroll_context.recall.memory import (
    FUSED,
    MemorySurface,
    bounds,
    filters_of,
    moment,
    whole_number,
)
from scroll_context.search.grep import (
    LONGEST_PATTERN,
    SECONDS,
    GrepMatch,
    Scan,
    pattern,
    query_patterns,
)
from scroll_context.search.meaning import fused
from scroll_context.search.search import Hit
from scroll_context.text.dates import misdated
from scroll_context.text.gist import READ as GIST_READ
from scroll_context.text.gist import gist
from scroll_context.text.similar import Folder, content_stems
from scroll_context.text.stance import INSTRUCTION, stance, stances, standing
from scroll_context.text.terms import TermTable, distinctive, title
from scroll_context.text.words import body, clip
from scroll_context.work import check as check_work

MOST_MATCHES = 1_000  # rows of one grep
MOST_WIDTH = 2_000  # characters to each side of a match
MOST_ALSO = 20  # seqs of near-duplicates that are listed
MOST_TURNS = 2_000  # rows of one turns()
MOST_CHARS = 4_000_000  # characters of one turns()
MOST_GIST = 30_000  # characters of one gist()
MOST_READ = 20_000  # turns that one gist() reads; of more, it reads some that are spread evenly
MOST_ALTERNATIVES = 16  # parts of a query between OR
MOST_COUNTED_ROWS = 200_000  # rows that one part of a query is counted in
# of a turn that a gist for a query shows: the more turns, the more of the evidence is among them
TURN_CHARS = 110
ENOUGH = 3  # rows with all words of a query, below which rows with most of the words are taken
FEW_STANDING = 12  # instructions and preferences that are listed whatever the topic
TITLE_TURNS, TITLE_FROM, TITLE_CHARS = (
    6,
    2_000,
    60,
)  # turns, characters of each to look at, characters of a title

NOBODYS = (
    "The user of this store said nothing there: these are words of others, from an imported file."
)
_SPOKEN = ("user", "assistant", SPEAKER)
_NOT_SAID = frozenset({Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.CELL, Kind.OBSERVATION})
_CUT_TAG = re.compile(
    r"\A…[^\[\]\n]{0,80}\] ?(?:user|assistant): "
)  # the rest of the tag of an imported message
_CONDITION = re.compile(
    r"\b(?:when|whenever|if|each time|every time)\b|\A(?:for|in|on|with)\b", re.IGNORECASE
)

Rows = list[dict[str, Any]]


class Recall:
    """The methods, within the grant of a memory surface.

    Calls may come from several threads at once.
    """

    def __init__(self, memory: MemorySurface) -> None:
        self._memory = memory
        self._log = memory.store.log
        self._grant = memory.grant
        self._notes = _Notes(0)

    # finding everything ---------------------------------------------------------------------------------

    def grep(
        self,
        text: Any,
        regex: Any = False,
        case: Any = False,
        width: Any = 120,
        limit: Any = 50,
        **filters: Any,
    ) -> CapabilityResult:
        """Every row whose text holds a text or matches a regular expression, in order of seq, with
        the total.
        """
        wanted = self._filters("ms.grep", filters)
        most = whole_number(limit, "limit", 1, MOST_MATCHES)
        wide = min(whole_number(width, "width", 0), MOST_WIDTH)
        scan = Scan(self._log, detailed=2 * MOST_MATCHES, width=wide)
        sought = pattern(text, regex=bool(regex), case=bool(case))
        folder = Folder()
        rows: Rows = []
        total = folded = upto = 0
        running = self._memory.running_seqs()
        for found in scan.rows([sought], grant=self._grant, exclude=running, filters=wanted):
            group, is_first = folder.add(found.excerpt)
            if is_first and len(rows) == most:
                upto = found.seq - 1
                total += 1 + scan.count_rest(sought, running)
                break
            total += 1
            if is_first:
                excerpt = _CUT_TAG.sub("", body(found.excerpt))
                row: dict[str, Any] = {
                    "seq": found.seq,
                    "session_id": found.session_id,
                    "role": found.role,
                    "kind": found.kind,
                    "created_at": found.created_at,
                    "text": excerpt,
                    "count": found.count,
                }
                rows.append(row | ({"name": found.name} if found.name else {}))
            else:
                folded += 1
                row = rows[group]
                row["repeats"] = row.get("repeats", 0) + 1
                if len(also := row.setdefault("also", [])) < MOST_ALSO:
                    also.append(found.seq)
        if not total:
            self._memory.empty_searches += 1
        note = _grep_note(text, total, folded, upto, wanted != NO_FILTERS, scan)
        self._memory.note("ms.grep: ", note)
        seqs = [seq for row in rows for seq in (row["seq"], *row.get("also", ()))]
        return self._answer(rows, note, seqs)

    def timeline(self, query: Any, by: Any = "session", **filters: Any) -> CapabilityResult:
        """How often a subject came up, session by session, day by day or month by month."""
        if by not in ("session", "day", "month"):
            raise BadInput(f"by is 'session', 'day' or 'month', not {by!r:.80}")
        found, how = self._matches(query, self._filters("ms.timeline", filters))
        numbers = {info.session_id: number for number, info in enumerate(self._sessions(), 1)}
        groups: dict[str, list[GrepMatch]] = {}
        for one in found:
            key = one.session_id if by == "session" else one.created_at[: 10 if by == "day" else 7]
            groups.setdefault(key, []).append(one)
        rows: Rows = [
            ({"n": numbers.get(key), "session_id": key} if by == "session" else {by: key})
            | {
                "hits": len(own),
                "by_user": sum(one.is_from_user for one in own),
                "first": own[0].created_at[:10],
                "last": own[-1].created_at[:10],
                "first_seq": own[0].seq,
                "last_seq": own[-1].seq,
            }
            for key, own in groups.items()
        ]
        if by != "session":
            rows.sort(key=lambda row: row[by])
        note = how
        if found:
            first, last = (f"{one.seq} ({one.created_at[:10]})" for one in (found[0], found[-1]))
            note += f"; first mention seq {first}, last {last}"
        self._memory.note("ms.timeline: ", note)
        return self._answer(rows, note, [match.seq for match in found])

    # what lies where ------------------------------------------------------------------------------------

    def outline(
        self, created_from: Any = None, created_to: Any = None, query: Any = None
    ) -> CapabilityResult:
        """One row a session: number, id, dates, seqs, turns of the user, distinctive terms, title;
        hits of a query.
        """
        sessions = self._sessions()
        first = None if created_from is None else moment(created_from, upper=False)
        last = None if created_to is None else moment(created_to, upper=True)
        suspect = misdated([info.first_at for info in sessions])
        hits: Counter[str] = Counter()
        notes = []
        if query is not None:
            found, how = self._matches(query, NO_FILTERS)
            hits.update(one.session_id for one in found)
            notes.append(how)
        known = self._current_notes().map
        told = known.read(
            lambda after, until: self._turns(_between(after, until)), self._before_running()
        )
        rows: Rows = []
        for number, info in enumerate(sessions):
            if (first and info.last_at < first) or (last and info.first_at[: len(last)] > last):
                continue
            if query is not None and not hits[info.session_id]:
                continue
            about = told.get(info.session_id) or self._unspoken(info)
            if about is None:
                continue
            turns, terms, name = about
            row: dict[str, Any] = {
                "n": number + 1,
                "session_id": info.session_id,
                "from": info.first_at[:10],
                "to": info.last_at[:10],
                "seqs": [info.first_seq, info.last_seq],
                "turns": turns,
                "terms": list(terms),
                "title": name,
            }
            if info.session_id in known.imported:
                row["imported"] = known.imported[info.session_id]
            if query is not None:
                row["hits"] = hits[info.session_id]
            if number in suspect:
                row["misdated"] = suspect[number]
                notes.append(f"session {number + 1} is {suspect[number]}")
            rows.append(row)
        self._memory.note("ms.outline: ", *notes)
        notes.insert(0, f"{len(rows)} of {len(sessions)} sessions")
        # Titles and terms are made of all turns of a session, which are too many to be named.
        return self._answer(
            rows, "; ".join(notes), [seq for row in rows for seq in row["seqs"]], unknown=bool(rows)
        )

    def turns(self, *place: Any, session_id: Any = None, role: Any = None) -> CapabilityResult:
        """What was said in a session (by id, or by its number in the outline), or from one seq to
        another.
        """
        if session_id is not None:
            place = (session_id,)
        if len(place) == 2:
            filters = SearchFilters.of(seq_range=bounds(place), role=role)
        elif len(place) == 1:
            filters = SearchFilters.of(session_id=self._session(place[0]), role=role)
        else:
            raise BadInput(
                "ms.turns takes the id or the number of a session, or a first and a last seq"
            )
        rows: Rows = []
        chars, note = 0, ""
        for event in self._said(filters):
            text = body(self._memory.whole_text(event))
            chars += len(text)
            if len(rows) >= MOST_TURNS or chars > MOST_CHARS:
                note = f"there is more: go on with ms.turns({event.seq}, …)"
                break
            rows.append(_row_of_turn(event, text))
        return self._answer(rows, note or ("" if rows else "nothing was said there within reach"))

    # what was said, in short ----------------------------------------------------------------------------

    def gist(
        self,
        session_id: Any = None,
        seq_range: Any = None,
        query: Any = None,
        chars: Any = 6_000,
        role: Any = "user",
        created_from: Any = None,
        created_to: Any = None,
    ) -> CapabilityResult:
        """An extract that covers a stretch evenly: its most telling sentences, in order, each with
        its seq.
        """
        room = whole_number(chars, "chars", 200, MOST_GIST)
        given = {
            "role": role,
            "seq_range": seq_range,
            "created_from": created_from,
            "created_to": created_to,
        }
        wanted = self._filters(
            "ms.gist", {name: value for name, value in given.items() if value is not None}
        )
        if session_id is not None:
            wanted = wanted.narrowed(session_id=self._session(session_id))
        behind = ""
        if query is None:
            turns = self._spread_evenly(self._said(wanted))
            if not turns and wanted.role == ("user",):
                of_anybody = msgspec.structs.replace(wanted, role=None)
                turns = self._spread_evenly(self._turns(of_anybody))
                behind = NOBODYS if turns else ""
            extracts = gist(((turn.seq, turn.text) for turn in turns), room)
        else:
            events, behind = self._best_turns(query, room // TURN_CHARS, wanted)
            turns = [self._turn(event) for event in events]
            extracts = gist(
                ((turn.seq, turn.text) for turn in turns), room, content_stems(query), TURN_CHARS
            )
        at = {turn.seq: turn for turn in turns}
        rows = [
            {"seq": one.seq, "date": at[one.seq].date, "role": at[one.seq].role, "text": one.text}
            | ({"repeats": one.repeats} if one.repeats else {})
            for one in extracts
        ]
        sessions = len({turn.session_id for turn in turns})
        note = f"{len(rows)} sentences of {len(turns)} turns in {sessions} sessions"
        if query is not None:
            note += (
                f", the best for {clip(query, 60)!r}; ms.timeline and ms.grep find every mention."
            )
        note = f"{note} {behind}".rstrip()
        return self._answer(rows, note)

    def _spread_evenly(self, events: Iterator[Event]) -> list["_Turn"]:
        """A bounded number of turns, whatever their number: every one, or every second, fourth,
        eighth.
        """
        turns: list[_Turn] = []
        step = 1
        for number, event in enumerate(events):
            if number % step:
                continue
            turns.append(self._turn(event))
            if len(turns) > MOST_READ:
                turns = turns[::2]
                step *= 2
        return turns

    def _turn(self, event: Event) -> "_Turn":
        text = self._memory.whole_text(event)[:GIST_READ]
        return _Turn(event.seq, event.session_id, event.created_at[:10], event.role, text)

    def standing(self, topic: Any = "") -> CapabilityResult:
        """The user's standing instructions and preferences, newest last; about a topic, if one is
        named.
        """
        if not isinstance(topic, str):
            raise BadInput(f"topic is a text, not {type(topic).__name__}")
        told = self._current_notes().stances.read(self._user_turns, self._before_running())
        rows: Rows = [
            {
                "seq": seq,
                "session_id": told[seq].session_id,
                "date": told[seq].created_at[:10],
                "kind": "instruction" if stance(sentence) == INSTRUCTION else "preference",
                "text": sentence,
            }
            for seq, sentence in standing(
                ((seq, one) for seq, turn in told.items() for one in turn.sentences), least=1
            )
        ]
        note = "" if rows else "no standing instruction or preference was found"
        if topic and len(rows) > FEW_STANDING:
            about = content_stems(topic)
            chosen = [
                row
                for row in rows
                if about & content_stems(row["text"])
                or (row["kind"] == "instruction" and not _CONDITION.search(row["text"]))
            ]
            note = f"{len(chosen)} of {len(rows)} are about {clip(topic, 60)!r} or always hold; ms.standing() lists all"
            rows = chosen
        return self._answer(rows, note)

    # other words ----------------------------------------------------------------------------------------

    def with_meaning(
        self,
        query: str,
        count: int,
        by_words: Sequence[Hit],
        per_session: int | None,
        filters: SearchFilters,
    ) -> tuple[list[Hit], str]:
        """The hits of a search by words, joined with the turns that are near in meaning; and what
        to say about them.
        """
        meaning = self._memory.store.meaning
        if meaning is None:
            raise BadInput(
                "this store has no embedder, so there is no search by meaning; leave out by= to search by words"
            )
        hidden = self._memory.facts.visible_seqs()
        try:
            near = meaning.search(
                query, k=max(count, FUSED), grant=self._grant, exclude=hidden, filters=filters
            )
        except Exception as error:  # noqa: BLE001 - the embedder is foreign code, and words still work
            return list(
                by_words[:count]
            ), f"search by meaning failed ({error!r:.200}); these are the hits by words"
        hits = {hit.seq: hit for hit in by_words}
        events = self._log.get_many([seq for seq in near.seqs if seq not in hits], self._grant)
        hits |= {event.seq: Hit(event, 0.0, clip(body(event.content), 300)) for event in events}
        taken: Counter[str] = Counter()
        order = []
        for hit in (
            hits[seq] for seq in fused([hit.seq for hit in by_words], near.seqs) if seq in hits
        ):
            if per_session is None or taken[hit.event.session_id] < per_session:
                taken[hit.event.session_id] += 1
                order.append(hit)
        note = f"{near.missing:,} turns of the user have no vector yet" if near.missing else ""
        return order[:count], note

    # shared ---------------------------------------------------------------------------------------------

    def _answer(
        self, rows: Rows, note: str, seqs: Sequence[int] | None = None, unknown: bool = False
    ) -> CapabilityResult:
        given = [row["seq"] for row in rows] if seqs is None else seqs
        return CapabilityResult({"rows": rows, "note": note}, tuple(dict.fromkeys(given)), unknown)

    def _filters(self, method: str, given: Mapping[str, Any]) -> SearchFilters:
        named = {name: value for name, value in given.items() if value is not None}
        if "session_id" in named and not isinstance(named["session_id"], list | tuple):
            named["session_id"] = self._session(named["session_id"])
        return filters_of(method, named, self._memory.scope)

    def _session(self, named: Any) -> str:
        """The id of a session that was named by its id, or by its number in the outline."""
        sessions = self._sessions()
        if isinstance(named, str) and any(info.session_id == named for info in sessions):
            return named
        try:
            number = int(named)
        except (TypeError, ValueError):
            number = 0
        if 1 <= number <= len(sessions):
            return sessions[number - 1].session_id
        raise BadInput(
            f"there is no session {named!r:.80} within reach; ms.outline() lists them by number and id"
        )

    def _sessions(self) -> list[SessionInfo]:
        return self._log.sessions(self._grant)

    def _current_notes(self) -> "_Notes":
        """What was read so far; nothing of what was erased stays in memory."""
        if (erased := self._log.newest_erasure()) != self._notes.erased:
            self._notes = _Notes(erased)
        return self._notes

    def _before_running(self) -> int:
        """The last seq before the running task."""
        running = self._memory.running_seqs()
        return min(running) - 1 if running else self._log.last_seq()

    def _user_turns(self, after: int, until: int) -> Iterator[Event]:
        """The turns of the user of this store."""
        return self._said(_between(after, until).narrowed(role="user"))

    def _turns(self, filters: SearchFilters) -> Iterator[Event]:
        """The turns of humans, those in imported conversations too."""
        return (event for event in self._said(filters) if event.is_turn)

    def _said(self, filters: SearchFilters) -> Iterator[Event]:
        """What these roles said, or, without a role, what anybody said; the running task is left
        out.
        """
        running = self._memory.running_seqs()
        for event in self._log.iterate(grant=self._grant, filters=filters):
            if filters.role is None and event.role not in _SPOKEN:
                continue
            if (
                event.is_searchable
                and event.content
                and event.seq not in running
                and event.kind not in _NOT_SAID
            ):
                yield event

    def _best_turns(
        self, query: Any, count: int, filters: SearchFilters
    ) -> tuple[list[Event], str]:
        """The turns that search finds best for a query, in order of seq, and what search says about
        them.
        """
        if not isinstance(query, str):
            raise BadInput(f"a query is a text, not {type(query).__name__}")
        hits = self._memory.store.index.search(
            query,
            k=max(1, count),
            grant=self._grant,
            exclude=self._memory.running_seqs(),
            filters=filters,
        )
        return sorted(
            (hit.event for hit in hits if hit.event.content), key=lambda event: event.seq
        ), hits.note

    def _unspoken(self, info: SessionInfo) -> tuple[int, tuple[str, ...], str] | None:
        """What a session was about in which no user spoke; None when there is nothing to show."""
        some = self._log.iterate(grant=self._grant, session_id=info.session_id)
        texts = [
            event.headline or event.content
            for _, event in zip(range(40), some, strict=False)
            if event.is_searchable
        ]
        [terms] = distinctive([texts])
        return (0, terms, title(texts, terms, TITLE_CHARS)) if texts else None

    def _matches(self, query: Any, filters: SearchFilters) -> tuple[list[GrepMatch], str]:
        """Every row that matches a query, in order of seq, and in words how the query was
        understood.
        """
        if not isinstance(query, str):
            raise BadInput(f"a query is a text, not {type(query).__name__}")
        if len(query) > LONGEST_PATTERN:
            raise BadInput(
                f"a query has at most {LONGEST_PATTERN:,} characters here, not {len(query):,}"
            )
        rows: dict[int, GrepMatch] = {}
        notes = []
        running = self._memory.running_seqs()
        until = time.monotonic() + SECONDS
        stopped_at: int | None = None
        for part in _alternatives(query)[:MOST_ALTERNATIVES]:
            wanted, unwanted = query_patterns(part)
            if not wanted:
                continue
            scan = Scan(self._log, seconds=until - time.monotonic())
            matches = scan.rows(
                wanted, without=unwanted, grant=self._grant, exclude=running, filters=filters
            )
            every = list(islice(matches, MOST_COUNTED_ROWS))
            which = "the word" if len(wanted) == 1 else "all words"
            found, how = every, f"{len(every)} rows with {which} of {clip(part, 60)!r}"
            if len(every) < ENOUGH and len(wanted) > 1:
                scan = Scan(self._log, seconds=until - time.monotonic())
                matches = scan.rows(
                    wanted,
                    every=False,
                    without=unwanted,
                    grant=self._grant,
                    exclude=running,
                    filters=filters,
                )
                found = _with_most_words(list(islice(matches, MOST_COUNTED_ROWS)), len(wanted))
                how += f", {len(found)} with most of them"
            if stopped_at is None:
                stopped_at = scan.stopped_at
            rows |= {match.seq: match for match in found}
            notes.append(how)
        if not notes:
            raise BadInput(f"{query!r:.80} has no word to look for; ms.grep looks for any text")
        if stopped_at is not None:
            notes.append(f"time ran out at seq {stopped_at}, so rows behind it may be missing")
        return [rows[seq] for seq in sorted(rows)], "; ".join(notes)


# what is kept between calls ----------------------------------------------------------------------------------

_Turns = Callable[[int, int], Iterator[Event]]  # the turns behind a seq and up to another


class _Map:
    """What each session was about, as far as it was read; new turns are counted when they are asked
    for.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._upto = 0
        self._table = TermTable()
        self._numbers: dict[str, int] = {}
        self._counts: Counter[str] = Counter()
        self._first: dict[str, list[str]] = {}  # the turns that a title is made of
        self._terms: dict[str, tuple[str, ...]] = {}
        self.imported: dict[str, str] = {}  # the files of sessions in which somebody else may speak

    def read(self, turns: _Turns, upto: int) -> dict[str, tuple[int, tuple[str, ...], str]]:
        """For each session in which a user spoke: the number of the turns, the terms and a title."""
        with self._lock:
            if upto < self._upto:
                self._forget()
            new = self._new(turns, self._upto, upto)
            newest = next(reversed(self._numbers), None)
            if any(
                session in self._numbers and session != newest for session in new
            ):  # an older session went on
                self._forget()
                new = self._new(turns, 0, upto)
            try:
                self._add(new)
            except BaseException:
                # What was counted of some sessions only would be counted again.
                self._forget()
                raise
            self._upto = upto
            for session, number in self._numbers.items():
                if session not in self._terms:
                    check_work()
                    self._terms[session] = self._table.terms(number)
            sessions = {}
            for session, terms in self._terms.items():
                check_work()
                name = title(self._first[session], terms, TITLE_CHARS)
                sessions[session] = self._counts[session], terms, name
            return sessions

    def _add(self, new: Mapping[str, list[str]]) -> None:
        for session, texts in new.items():
            check_work()
            if session in self._numbers:
                self._table.extend(texts)
                self._terms.pop(session, None)
            else:
                self._numbers[session] = self._table.add(texts)
                self._terms.clear()  # a new session changes what sets the others apart
            self._counts[session] += len(texts)
            first = self._first.setdefault(session, [])
            first += [text[:TITLE_FROM] for text in texts[: TITLE_TURNS - len(first)]]

    def _new(self, turns: _Turns, after: int, until: int) -> dict[str, list[str]]:
        """The texts of turns that were not read yet, by session."""
        texts: dict[str, list[str]] = {}
        for event in turns(after, until):
            texts.setdefault(event.session_id, []).append(event.content)
            if not event.is_from_user:
                self.imported[event.session_id] = str(event.metadata.get(Origin.IMPORTED, ""))
        return texts


class _Stated(msgspec.Struct, frozen=True):
    session_id: str
    created_at: str
    sentences: tuple[str, ...]


class _Stances:
    """The turns that state an instruction or a preference, as far as they were read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._upto = 0
        self._stated: dict[int, _Stated] = {}

    def read(self, turns: _Turns, upto: int) -> dict[int, _Stated]:
        with self._lock:
            for event in turns(self._upto, upto) if upto > self._upto else ():
                check_work()
                if found := tuple(sentence for _, sentence in stances(event.content)):
                    self._stated[event.seq] = _Stated(event.session_id, event.created_at, found)
                self._upto = event.seq
            self._upto = max(upto, self._upto)
            return dict(self._stated)


class _Notes:
    """All that is kept between calls, since an erasure."""

    def __init__(self, erased: int) -> None:
        self.erased = erased  # seq of the newest erasure
        self.map = _Map()
        self.stances = _Stances()


class _Turn(msgspec.Struct, frozen=True):
    """A turn of which an extract is made."""

    seq: int
    session_id: str
    date: str
    role: str
    text: str  # as much as an extract reads of it


def _between(after: int, until: int) -> SearchFilters:
    """The events behind a seq and up to another."""
    return SearchFilters.of(seq_range=(after + 1, until))


def _alternatives(query: str) -> list[str]:
    """The parts of a query between uppercase OR."""
    parts: list[list[str]] = [[]]
    for word in query.split():
        if word == "OR":
            parts.append([])
        else:
            parts[-1].append(word)
    return [" ".join(words) for words in parts]


# rows and notes ---------------------------------------------------------------------------------------------


def _row_of_turn(event: Event, text: str) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "session_id": event.session_id,
        "role": event.role,
        "created_at": event.created_at,
        "text": text,
    }


def _grep_note(text: str, total: int, folded: int, upto: int, is_narrowed: bool, scan: Scan) -> str:
    where = "within reach" + (" and these filters" if is_narrowed else "")
    if not total:
        notes = [f"no row {where} holds {clip(text, 80)!r}; every row was looked at"]
    else:
        notes = [
            f"{total:,} {'row holds' if total == 1 else 'rows hold'} {clip(text, 80)!r} {where}"
        ]
        if folded:
            notes.append(
                f"{folded:,} near-duplicates are folded into the rows that they repeat (repeats, also)"
            )
        if upto:
            notes.append(
                f"shown are those up to seq {upto}: go on with seq_range=({upto + 1}, …), or take a larger limit"
            )
    if scan.stopped_at is not None:
        notes.append(
            f"time ran out at seq {scan.stopped_at}: go on with seq_range=({scan.stopped_at + 1}, …)"
        )
    if scan.unreadable:
        notes.append(
            f"the payloads of {scan.unreadable[:10]} cannot be read; only their previews were looked at"
        )
    return "; ".join(notes)


def _with_most_words(found: list[GrepMatch], count: int) -> list[GrepMatch]:
    """The rows with at least two of the words and at least half of their weight; rare words weigh
    more.
    """
    held = Counter(number for one in found for number in one.matched)
    weights = {
        number: math.log(1 + len(found) / held[number]) if held[number] else 0.0
        for number in range(count)
    }
    half = sum(weights.values()) / 2
    return [
        one
        for one in found
        if len(one.matched) > 1 and sum(weights[number] for number in one.matched) >= half
    ]
