"""The plan of an erasure: the events asked for, their copies, and the snapshots of their sessions.

A copy repeats an event or was made from it. Copies are found in one walk through the log, in order.
Each step compares an event with those that the walk has found before, so copies of copies are found
too:

* by *provenance*. The host records which events a cell read (`seqs` of its observation and of the
  calls inside it) and which cells its variables come from (`made_from` of the cell, and of a
  request, whose variable list names variables). The printed output of such a cell, its tool calls
  and their results, and the requests that list its variables are copies. An index or a hand-over
  (plan, settings) names the events that its lines were made of.
* by *text*, see needles.py.

Results of queries that name no events (an SQL aggregate, an outline) are listed apart: `possible`.

Saved variables are erased completely, session by session: a pickle cannot be cut.
"""

import bisect
import json
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum

from scroll_context.contents import Snapshot, index_sources, media_of
from scroll_context.events import ABOUT_THE_LOG, Event, Grant, Kind, Progress, Scope, unpacked_seqs
from scroll_context.log.log import EventLog
from scroll_context.log.readers import PAGE
from scroll_context.upkeep.needles import Needles, NewValues


class Why(StrEnum):
    """Why an event counts as a copy, in words for the person who erases."""

    WORD = "has one of the words"
    TEXT = "repeats the text, or a line of it"
    GIVEN = "was made from it"
    PRINTED = "printed by a cell that had read it"
    CALLED = "called by a cell that had read it"
    RETURNED = "returned by such a call"
    VARIABLES = "lists variables made from it"
    INDEX = "is an index of it"
    VALUE = "repeats a value computed from it"
    PART = "is an image, a file or the bytes of it"
    POSSIBLE = "may have read it: its query names no events"


class _Trail:
    """The events that the walk has found so far, and the cells that have read any of them."""

    def __init__(self, seqs: Collection[int]) -> None:
        self._seqs = set(seqs)
        self._ordered = sorted(seqs)

    def add(self, seq: object) -> None:
        if isinstance(seq, int) and seq not in self._seqs:
            self._seqs.add(seq)
            bisect.insort(self._ordered, seq)

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and seq in self._seqs

    def meets(self, entries: object) -> bool:
        """Whether any seq of a list that `packed_seqs` made is on the trail."""
        return any(self._has_between(first, last) for first, last in unpacked_seqs(entries))

    def _has_between(self, first: int, last: int) -> bool:
        if first == last:
            return first in self._seqs
        at = bisect.bisect_left(self._ordered, first)
        return at < len(self._ordered) and self._ordered[at] <= last

    def between(self, spans: Sequence[Sequence[int]]) -> bool:
        return any(self._has_between(lo, hi) for lo, hi in spans)


class ErasurePlan:
    """The events that an erasure concerns."""

    def __init__(self, log: EventLog, seqs: Sequence[int]) -> None:
        self._log = log
        self.asked: list[int] = []
        self.copies: list[int] = []
        # The copies by their reason.
        self.why: dict[Why, list[int]] = {}
        self.possible: list[int] = []
        self.snapshots: list[int] = []
        self.sessions: set[str] = set()
        # Names of sessions, agents and tasks that have one of the words.
        self.labels: dict[str, None] = {}
        self._snapshots: list[Event] = []
        for event in _events(log, seqs):
            if event.kind not in ABOUT_THE_LOG and not event.is_erased:
                self.asked.append(event.seq)
                self.sessions.add(event.session_id)

    def look_around(
        self,
        words: Collection[str],
        *,
        copies: bool,
        possible: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Read the complete log for copies, and for variables that were made from erased events.

        `copies` says whether the copies are erased as well, and `possible` whether possible copies
        count as copies.
        """
        walk = self._begin_walk(words, possible)
        snapshots = self._find_copies(walk, progress)
        for seq in self._parts_recorded_before():
            self._add_copy(seq, Why.PART)
        self.possible = walk.possible
        trail = _Trail(self.asked)
        if copies:
            trail = walk.trail
            self.sessions |= {event.session_id for event in _events(self._log, self.copies)}
        self.sessions |= set(forks_of(self._log, self.sessions))
        for event in snapshots:
            if event.session_id in self.sessions or self._holds_any(event, trail):
                self._snapshots.append(event)
                self.snapshots.append(event.seq)

    def _begin_walk(self, words: Collection[str], possible: bool) -> "_Walk":
        needles = Needles(words)
        asked = list(_events(self._log, self.asked))
        for event in asked:
            needles.add(self._log.text_or_preview(event))
            needles.add(event.headline)
        return _Walk(self._log, asked, needles, possible)

    def _find_copies(self, walk: "_Walk", progress: Progress | None) -> list[Event]:
        """Add the copies that a walk through the log finds; the snapshots on its way."""
        chosen = set(self.asked)
        snapshots: list[Event] = []
        last = self._log.last_seq()
        for event in self._log.iterate():
            if progress and event.seq % 1000 == 0:
                progress(event.seq, last)
            if event.is_erased or event.kind in ABOUT_THE_LOG:
                continue
            for label in (event.session_id, event.agent_id, event.task_id):
                if label not in walk.plain_labels and walk.has_word(label):
                    self.labels[label] = None
            if event.seq in chosen:
                walk.follow(event)
            elif event.kind == Kind.SNAPSHOT:
                snapshots.append(event)
            else:
                why = walk.look_at(event)
                if why is not None:
                    self._add_copy(event.seq, why)
        return snapshots

    def _add_copy(self, seq: int, why: Why) -> None:
        self.copies.append(seq)
        self.why.setdefault(why, []).append(seq)

    def _parts_recorded_before(self) -> list[int]:
        """Images, files and bytes of the erased messages, which are recorded before them."""
        messages = {*self.asked, *self.copies}
        parts: set[int] = set()
        for event in _events(self._log, sorted(messages)):
            parts |= {facts.seq for facts in media_of(event)}
            wire_seq = event.metadata.get("wire_seq")
            if isinstance(wire_seq, int):
                parts.add(wire_seq)
        return sorted(parts - messages - {0})

    def _holds_any(self, event: Event, trail: _Trail) -> bool:
        return trail.meets(list(_seqs_of_variables(self._log, event)))

    def variables(self) -> list[str]:
        names: dict[str, None] = {}
        for event in self._snapshots:
            snapshot = Snapshot.decode_readable(self._log.text_or_preview(event))
            names.update(dict.fromkeys(variable.name for variable in snapshot.variables))
        return [name for name in names if name.isidentifier()]


class _Walk:
    """One walk through the log, which decides for each event whether it is a copy."""

    def __init__(
        self, log: EventLog, asked: Sequence[Event], needles: Needles, possible: bool
    ) -> None:
        self._log = log
        self._needles = needles
        self._counts_possible = possible
        self._asked = asked
        # By session: the first erased event that it may read.
        self._first_within: dict[str, int | None] = {}
        # New values by session.
        self._values: dict[str, NewValues] = {}
        self.trail = _Trail([event.seq for event in self._asked])
        # Media in a result are events of their own, recorded before it, and answer the same call.
        results = [event for event in self._asked if event.kind == Kind.TOOL_RESULT]
        self._answered = {event.reply_to for event in results} - {None}
        self.possible: list[int] = []
        self.plain_labels: set[str] = set()

    def has_word(self, label: str) -> bool:
        """Whether a name has one of the words. The caller asks once for each name."""
        self.plain_labels.add(label)
        return self._needles.has_word(label)

    def look_at(self, event: Event) -> Why | None:
        """Why an event is a copy; None when it is not a copy."""
        why = self._by_provenance(event) or self._by_text(event)
        if why is None and event.metadata.get("unknown") and self._may_have_read(event):
            self.possible.append(event.seq)
            why = Why.POSSIBLE if self._counts_possible else None
            if why is not None and event.kind == Kind.CELL:
                # The source is the model's own words, but its output may be a copy.
                self.trail.add(event.seq)
                why = None
        if why is not None:
            self.trail.add(event.seq)
            self.follow(event, why)
        return why

    def follow(self, event: Event, why: Why | None = None) -> None:
        """Put on the trail everything that was made from an erased event."""
        if event.kind == Kind.OBSERVATION:
            # The cell has its printed output in its variables.
            self.trail.add(event.reply_to)
        elif event.kind in (Kind.TOOL_RESULT, Kind.ARTIFACT):
            self.trail.add(event.metadata.get("inside_cell"))
        # Other values of an event that only repeats something are not searched for, since each
        # would lead to the next.
        if why in (None, Why.PRINTED, Why.CALLED, Why.VARIABLES):
            self._values_of(event).computed(_values_text(self._log, event))

    def _by_provenance(self, event: Event) -> Why | None:
        metadata, trail = event.metadata, self.trail
        has_read = trail.meets(metadata.get("seqs")) or trail.meets(metadata.get("made_from"))
        cell = event.reply_to if event.kind == Kind.OBSERVATION else metadata.get("inside_cell")
        if has_read and event.kind in (Kind.OBSERVATION, Kind.TOOL_CALL):
            trail.add(cell)
        match event.kind:
            case Kind.CELL:
                if has_read:
                    trail.add(event.seq)
                return None
            case Kind.OBSERVATION:
                return Why.PRINTED if cell in trail else None
            case Kind.TOOL_CALL:
                return Why.CALLED if has_read or cell in trail else None
            case Kind.TOOL_RESULT | Kind.ARTIFACT if event.reply_to in trail:
                return Why.RETURNED
            case Kind.ARTIFACT if event.reply_to in self._answered:
                return Why.RETURNED
            case Kind.WIRE if event.reply_to in trail:
                return Why.PART
            case Kind.REQUEST:
                return Why.VARIABLES if has_read else None
            case Kind.EVICTION | Kind.SESSION if _names_any(event, trail):
                return Why.INDEX
        return Why.GIVEN if has_read else None

    def _by_text(self, event: Event) -> Why | None:
        metadata = json.dumps(event.metadata, ensure_ascii=False) if event.metadata else ""
        fields = (
            event.headline,
            event.name,
            event.tool_call_id,
            event.tool_state,
            event.source_key,
            metadata,
        )
        text = self._log.text_or_preview(event)
        if any(map(self._needles.has_word, (*fields, text))):
            return Why.WORD
        if any(map(self._needles.has_text, (*fields, text))):
            return Why.TEXT
        new_values = self._values.get(event.session_id)
        if new_values is None or event.kind not in _MAY_REPEAT_VALUES:
            return None
        return Why.VALUE if new_values.repeated_in(f"{text} {event.headline}") else None

    def _values_of(self, event: Event) -> NewValues:
        """The values that are new to a session which has read an erased event."""
        session = event.session_id
        if session not in self._values:
            earlier = self._log.iterate(
                until=event.seq - 1, session_id=session, kind=list(_MAY_REPEAT_VALUES)
            )
            unread = (past for past in earlier if past.seq not in self.trail)
            self._values[session] = NewValues(map(self._log.text_or_preview, unread))
        return self._values[session]

    def _may_have_read(self, event: Event) -> bool:
        """Whether an event that names no sources came after an erased event within its reach."""
        if event.session_id not in self._first_within:
            grant = _recorded_reach(self._log, event)
            within = (erased.seq for erased in self._asked if grant.permits(erased))
            self._first_within[event.session_id] = min(within, default=None)
        first = self._first_within[event.session_id]
        return first is not None and first < event.seq


_MAY_REPEAT_VALUES = (
    Kind.CONVERSATION,
    Kind.CELL,
    Kind.OBSERVATION,
    Kind.TOOL_CALL,
    Kind.TOOL_RESULT,
)


def _values_text(log: EventLog, event: Event) -> str:
    """The text of an event that may have computed values."""
    if event.kind == Kind.REQUEST:
        return str(event.metadata.get("digest", ""))
    return log.text_or_preview(event)


def _recorded_reach(log: EventLog, event: Event) -> Grant:
    """The reach of an event's session, as last recorded; everything if none is recorded."""
    for setup in reversed(log.tail(50, session_id=event.session_id, kind=Kind.SESSION)):
        settings = setup.metadata.get("settings")
        reach = settings.get("reach") if isinstance(settings, dict) else None
        if reach in ("session", "task", "agent", "all"):
            return Scope(event.session_id, event.agent_id, event.task_id).grant(str(reach))
    return Grant()


def _names_any(event: Event, trail: _Trail) -> bool:
    """Whether an index has titles, terms or standing instructions of an event on the trail."""
    sources = index_sources(event)
    return any(seq in trail for seq in sources.seqs) or trail.between(sources.spans)


def _events(log: EventLog, seqs: Sequence[int]) -> Iterator[Event]:
    for at in range(0, len(seqs), PAGE):
        yield from log.get_many(seqs[at : at + PAGE])


def forks_of(log: EventLog, sessions: Collection[str]) -> list[str]:
    """The sessions that continue one of these, and those that continue them."""
    forks = [
        (event.session_id, event.metadata.get("session_id"))
        for event in log.iterate(kind=Kind.FORK)
    ]
    family = list(sessions)
    # The list grows while it is read, so forks of forks are included.
    for session in family:
        family += [child for child, parent in forks if parent == session and child not in family]
    return family[len(sessions) :]


def _seqs_of_variables(log: EventLog, event: Event) -> set[int]:
    """The events that the variables of a snapshot were made from, and the cells that made them."""
    snapshot = Snapshot.decode_readable(log.text_or_preview(event))
    seqs: set[int] = set()
    for variable in snapshot.variables:
        seqs.update(variable.made_by)
    seqs.update(*snapshot.sources.values())
    return seqs
