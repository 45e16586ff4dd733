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
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from scroll_context.contents import Snapshot, index_sources, media_of
from scroll_context.events import ABOUT_THE_LOG, Event, Grant, Kind, Progress, Scope, unpacked_seqs
from scroll_context.log.log import EventLog
from scroll_context.log.schema import PAGE
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


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The erased events, or with a dry run those that would be, and the events that remain."""

    # The events that were asked for.
    asked: tuple[int, ...]
    # Events that repeat their words, or were made from them.
    copies: tuple[int, ...] = ()
    # The copies by the reason why they count as such.
    why: dict[str, tuple[int, ...]] = {}
    # Events that may have been made from them: their queries name no events.
    possible: tuple[int, ...] = ()
    # Names of sessions, agents and tasks that have one of the words. They stay.
    labels: tuple[str, ...] = ()
    # Saved variables of the sessions concerned, and the names of those variables.
    snapshots: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()
    sessions: tuple[str, ...]
    # Files that no other event needs.
    payloads: int = 0
    payload_bytes: int = 0
    # The seq of the event that records the erasure; None for a dry run.
    seq: int | None = None
    # Copies that were not erased.
    remaining: tuple[int, ...] = ()
    # Why some cleaning is left to the next opening of the store.
    unfinished: str = ""

    @property
    def erased(self) -> tuple[int, ...]:
        """The events that the erasure is about."""
        copies = () if self.remaining else self.copies
        return (*self.asked, *self.snapshots, *copies)

    @property
    def events(self) -> int:
        """How many events the erasure is about."""
        return len(self.erased)


def plan_alone(log: EventLog, seqs: Sequence[int]) -> ErasureReport:
    """The plan to erase these events and nothing else."""
    asked: list[int] = []
    sessions: set[str] = set()
    for event in _events(log, seqs):
        if event.kind not in ABOUT_THE_LOG and not event.is_erased:
            asked.append(event.seq)
            sessions.add(event.session_id)
    return ErasureReport(asked=tuple(asked), sessions=tuple(sorted(sessions)))


def plan_with_copies(
    log: EventLog,
    seqs: Sequence[int],
    words: Collection[str] = (),
    *,
    copies: bool,
    possible: bool = False,
    progress: Progress | None = None,
) -> ErasureReport:
    """The plan to erase these events, and variables that were made from them.

    The complete log is read for copies. `copies` says whether they are erased as well, and
    `possible` whether possible copies count as copies.
    """
    plan = plan_alone(log, seqs)
    walk = _Walk(log, plan.asked, words, possible)
    walk.through_the_log(progress)
    walk.add_parts()
    trail = walk.trail if copies else _Trail(plan.asked)
    sessions = set(plan.sessions)
    if copies:
        sessions |= {event.session_id for event in _events(log, walk.copies)}
    sessions |= set(forks_of(log, sessions))
    snapshots: list[int] = []
    variables: dict[str, None] = {}
    for event in walk.snapshots:
        snapshot = Snapshot.decode_readable(log.text_or_preview(event))
        if event.session_id in sessions or any(seq in trail for seq in _sources(snapshot)):
            snapshots.append(event.seq)
            variables |= dict.fromkeys(variable.name for variable in snapshot.variables)
    return replace(
        plan,
        copies=tuple(walk.copies),
        why={str(why): tuple(seqs) for why, seqs in walk.why.items()},
        possible=tuple(walk.possible),
        labels=tuple(walk.labels),
        snapshots=tuple(snapshots),
        variables=tuple(filter(str.isidentifier, variables)),
        sessions=tuple(sorted(sessions)),
        remaining=() if copies else tuple(walk.copies),
    )


def _sources(snapshot: Snapshot) -> set[int]:
    """The events that the variables of a snapshot were made from, and the cells that made them."""
    seqs: set[int] = set()
    for variable in snapshot.variables:
        seqs.update(variable.made_by)
    seqs.update(*snapshot.sources.values())
    return seqs


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


def _events(log: EventLog, seqs: Sequence[int]) -> Iterator[Event]:
    for at in range(0, len(seqs), PAGE):
        yield from log.get_many(seqs[at : at + PAGE])


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

    def meets(self, spans: Iterable[tuple[int, int]]) -> bool:
        """Whether any of the spans holds a seq of the trail."""
        return any(self._has_between(first, last) for first, last in spans)

    def _has_between(self, first: int, last: int) -> bool:
        if first == last:
            return first in self._seqs
        at = bisect.bisect_left(self._ordered, first)
        return at < len(self._ordered) and self._ordered[at] <= last


class _Walk:
    """One walk through the log, which decides for each event whether it is a copy."""

    def __init__(
        self, log: EventLog, asked: Sequence[int], words: Collection[str], possible: bool
    ) -> None:
        self.copies: list[int] = []
        # The copies by their reason.
        self.why: dict[Why, list[int]] = {}
        self.possible: list[int] = []
        self.snapshots: list[Event] = []
        # Names of sessions, agents and tasks that have one of the words.
        self.labels: dict[str, None] = {}
        self.trail = _Trail(asked)
        self._log = log
        self._asked = {event.seq: event for event in _events(log, asked)}
        self._counts_possible = possible
        self._needles = Needles(words)
        # Media in a result are events of their own, recorded before it, and answer the same call.
        self._answered: set[int | None] = set()
        for event in self._asked.values():
            self._needles.add(log.text_or_preview(event))
            self._needles.add(event.headline)
            if event.kind == Kind.TOOL_RESULT and event.reply_to is not None:
                self._answered.add(event.reply_to)
        # By session: the first erased event that it may read.
        self._first_within: dict[str, int | None] = {}
        # New values by session.
        self._values: dict[str, NewValues] = {}
        self._plain_labels: set[str] = set()

    def through_the_log(self, progress: Progress | None) -> None:
        """Find the copies, the snapshots, and the names that have one of the words."""
        last = self._log.last_seq()
        for event in self._log.iterate():
            if progress and event.seq % 1000 == 0:
                progress(event.seq, last)
            if event.is_erased or event.kind in ABOUT_THE_LOG:
                continue
            for label in (event.session_id, event.agent_id, event.task_id):
                self._look_at_label(label)
            if event.seq in self._asked:
                self._follow(event)
            elif event.kind == Kind.SNAPSHOT:
                self.snapshots.append(event)
            else:
                self._look_at(event)

    def add_parts(self) -> None:
        """Add images, files and bytes of the erased messages, which are recorded before them."""
        messages = {*self._asked, *self.copies}
        parts: set[int] = set()
        for event in _events(self._log, sorted(messages)):
            parts |= {facts.seq for facts in media_of(event)}
            wire_seq = event.metadata.get("wire_seq")
            if isinstance(wire_seq, int):
                parts.add(wire_seq)
        for seq in sorted(parts - messages - {0}):
            self._add_copy(seq, Why.PART)

    def _add_copy(self, seq: int, why: Why) -> None:
        self.copies.append(seq)
        self.why.setdefault(why, []).append(seq)

    def _look_at_label(self, label: str) -> None:
        if label not in self._plain_labels:
            self._plain_labels.add(label)
            if self._needles.has_word(label):
                self.labels[label] = None

    def _look_at(self, event: Event) -> None:
        """Add an event if it is a copy."""
        why = self._by_provenance(event) or self._by_text(event)
        if why is None and event.metadata.get("unknown") and self._may_have_read(event):
            self.possible.append(event.seq)
            if self._counts_possible:
                self.trail.add(event.seq)
                # The source of a cell is the model's own words, but its output may be a copy.
                why = None if event.kind == Kind.CELL else Why.POSSIBLE
        if why is not None:
            self._add_copy(event.seq, why)
            self.trail.add(event.seq)
            self._follow(event, why)

    def _follow(self, event: Event, why: Why | None = None) -> None:
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
        trail = self.trail
        inside_cell = event.metadata.get("inside_cell")
        has_read = self._names_trail(event, "seqs") or self._names_trail(event, "made_from")
        match event.kind:
            case Kind.CELL:
                if has_read:
                    trail.add(event.seq)
                return None
            case Kind.OBSERVATION:
                if has_read:
                    trail.add(event.reply_to)
                return Why.PRINTED if event.reply_to in trail else None
            case Kind.TOOL_CALL:
                if has_read:
                    trail.add(inside_cell)
                return Why.CALLED if has_read or inside_cell in trail else None
            case Kind.TOOL_RESULT | Kind.ARTIFACT if event.reply_to in trail:
                return Why.RETURNED
            case Kind.ARTIFACT if event.reply_to in self._answered:
                return Why.RETURNED
            case Kind.WIRE if event.reply_to in trail:
                return Why.PART
            case Kind.REQUEST:
                return Why.VARIABLES if has_read else None
            case Kind.EVICTION | Kind.SESSION if trail.meets(index_sources(event)):
                return Why.INDEX
        return Why.GIVEN if has_read else None

    def _names_trail(self, event: Event, field: str) -> bool:
        return self.trail.meets(unpacked_seqs(event.metadata.get(field)))

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
            asked = self._asked.values()
            within = (erased.seq for erased in asked if grant.permits(erased))
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
