"""Addresses inside events: an event that moves to another log names other events by new seqs.

Seqs stand in `reply_to`, in some fields of the metadata, in eviction plans, in the earlier work of
a session and in snapshots. `renumbered` replaces all of them; `as_recorded` gives back the seqs
that moved events had where they were recorded, so that their requests can be rebuilt.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from scroll_context.contents import (
    EarlierWork,
    EvictionPlan,
    Retraction,
    Snapshot,
    Spans,
    Standing,
    media_of,
)
from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import Draft, Event, Kind, unpacked_seqs
from scroll_context.log.foreign import SEQ_LIST_NAMES, SEQ_NAMES

NAMED_THERE = "named_there"
"""Where a merged event keeps the parts that name events of other sessions, with their old seqs."""
Address = Callable[[int], int | None]
"""From an old seq to the new one; None if there is none."""
AnyEvent = TypeVar("AnyEvent", Draft, Event)
_OTHER_SHAPE = (BadInput, PayloadMissing, PayloadDamaged)
"""Errors for an event whose plan or snapshot is unreadable. It has no effect, and is unchanged."""


def renumbered(
    event: AnyEvent, addresses: Mapping[int, int], text: Callable[[AnyEvent], str]
) -> AnyEvent:
    """The event with new seqs in `reply_to`, metadata, plans and snapshots.

    A seq without a new one is left out. `text` returns the complete text of a snapshot.
    """
    changed = _Renumbering(addresses.get).event(event, text)
    metadata = dict(changed.metadata)
    old_parts = {
        "earlier": event.metadata.get("earlier"),
        "standing": _dict(event.metadata.get("plan")).get("standing"),
    }
    named_there = {name: value for name, value in old_parts.items() if value}
    named_there |= _dict(event.metadata.get(NAMED_THERE))
    if named_there:
        metadata[NAMED_THERE] = named_there
    upto = event.metadata.get("upto")
    if isinstance(upto, int) and upto not in addresses:
        # This is the last event that a model had read. Any event before it will do.
        nearest = max((seq for seq in addresses if seq < upto), default=None)
        metadata["upto"] = 0 if nearest is None else addresses[nearest]
    return replace(changed, metadata=metadata)


def as_recorded(events: list[Event], text: Callable[[Event], str]) -> list[Event]:
    """Events of a merged export with the seqs that they had where they were recorded."""
    there: dict[int, int] = {}
    for event in events:
        moved_from = event.metadata.get("moved_from")
        there[event.seq] = moved_from if isinstance(moved_from, int) else event.seq
    originals: list[Event] = []
    for event in events:
        original = renumbered(event, there, text)
        metadata = dict(original.metadata)
        named_there = _dict(event.metadata.get(NAMED_THERE))
        if "earlier" in named_there:
            metadata["earlier"] = named_there["earlier"]
        if "standing" in named_there:
            plan = _dict(metadata.get("plan"))
            metadata["plan"] = {**plan, "standing": named_there["standing"]}
        originals.append(replace(original, seq=there[event.seq], metadata=metadata))
    return originals


def named_seqs(event: Draft, text: Callable[[Draft], str]) -> set[int]:
    """Every seq that an event names."""
    seqs: set[int] = set()

    def note(seq: int) -> int:
        seqs.add(seq)
        return seq

    _Renumbering(note).event(event, text)
    return seqs


class _Renumbering:
    """Replaces old seqs by new ones. A value whose seq has no new one is left out."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def event(self, event: AnyEvent, text: Callable[[AnyEvent], str]) -> AnyEvent:
        values: dict[str, Any] = {}
        if event.reply_to is not None:
            values["reply_to"] = self._address(event.reply_to)
        metadata = self._metadata(event)
        with contextlib.suppress(*_OTHER_SHAPE):
            metadata |= self._contents(event.kind, metadata)
            if event.kind == Kind.SNAPSHOT:
                snapshot = self._snapshot(Snapshot.decode(text(event)))
                values |= {"content": snapshot.encode(), "payload": None}
        return replace(event, metadata=metadata, **values)

    def _metadata(self, event: Draft) -> dict[str, Any]:
        """The metadata with new seqs in the fields that any event may have."""
        metadata = dict(event.metadata)
        for field in SEQ_NAMES:
            if isinstance(metadata.get(field), int):
                new_seq = self._address(metadata.pop(field))
                if new_seq is not None:
                    metadata[field] = new_seq
        for field in SEQ_LIST_NAMES:
            if isinstance(metadata.get(field), list):
                metadata[field], is_complete = self._packed(metadata[field])
                if not is_complete:
                    metadata["unknown"] = True
        if isinstance(metadata.get("media"), list):
            media = [replace(facts, seq=self._address(facts.seq) or 0) for facts in media_of(event)]
            metadata["media"] = msgspec.to_builtins(media)
        return metadata

    def _contents(self, kind: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The retraction, the plan or the earlier work in the metadata."""
        if kind == Kind.RETRACTION:
            return self._retraction(Retraction.from_metadata(metadata)).metadata()
        if kind == Kind.EVICTION and "plan" in metadata:
            return self._plan(EvictionPlan.from_metadata(metadata)).metadata()
        if kind == Kind.SESSION:
            earlier = EarlierWork.from_metadata(metadata)
            if earlier is not None:
                return self._earlier(earlier).metadata()
        return {}

    def _retraction(self, retraction: Retraction) -> Retraction:
        return replace(
            retraction, seqs=self._seqs(retraction.seqs), order=self._seqs(retraction.order)
        )

    def _plan(self, plan: EvictionPlan) -> EvictionPlan:
        clipped = [(self._address(seq), characters) for seq, characters in plan.clipped]
        evicted = [(self._address(first), self._address(last)) for first, last in plan.evicted]
        topics = [(self._address(topic.seq), topic) for topic in plan.topics]
        return replace(
            plan,
            folded=self._seqs(plan.folded),
            clipped=tuple((seq, count) for seq, count in clipped if seq is not None),
            evicted=tuple((first, last or first) for first, last in evicted if first is not None),
            rules={rule: self._seqs(seqs) for rule, seqs in plan.rules.items()},
            topics=tuple(replace(topic, seq=seq) for seq, topic in topics if seq is not None),
            standing=self._standing(plan.standing) if plan.standing else plan.standing,
        )

    def _earlier(self, earlier: EarlierWork) -> EarlierWork:
        topics = [replace(topic, spans=self._spans(topic.spans)) for topic in earlier.topics]
        return replace(
            earlier,
            topics=tuple(topic for topic in topics if topic.spans),
            standing=self._standing(earlier.standing),
        )

    def _snapshot(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot with new addresses of the events that its variables come from.

        Cells are numbered by their kernel. These numbers are not addresses, and stay.
        """
        variables = []
        for variable in snapshot.variables:
            # Seq 0 stands for events that cannot be named.
            made_by = [self._address(seq) if seq else 0 for seq in variable.made_by]
            named = tuple(seq for seq in made_by if seq is not None)
            variables.append(replace(variable, made_by=named))
        sources = {cell: self._seqs(seqs) for cell, seqs in snapshot.sources.items()}
        return replace(snapshot, variables=tuple(variables), sources=sources)

    def _standing(self, standing: Iterable[Standing]) -> tuple[Standing, ...]:
        moved = []
        for statement in standing:
            seq = self._address(statement.seq)
            later = self._address(statement.replaced_by) if statement.replaced_by else None
            if seq is not None:
                moved.append(replace(statement, seq=seq, replaced_by=later or 0))
        return tuple(moved)

    def _packed(self, entries: list[Any]) -> tuple[list[int | list[int]], bool]:
        """A list of packed seqs, and whether every run in it is complete.

        If only one end of a run has a new address, nobody knows which of its events have one.
        """
        moved: list[int | list[int]] = []
        is_complete = True
        for first, last in unpacked_seqs(entries):
            ends = self._spans([(first, last)])
            moved += [new if new == end else [new, end] for new, end in ends]
            if not ends and first != last:
                is_complete = False
        return moved, is_complete

    def _spans(self, spans: Iterable[tuple[int, int]]) -> Spans:
        """The spans of which both ends have a new address."""
        moved = []
        for first, last in spans:
            new_first = self._address(first)
            new_last = self._address(last)
            if new_first is not None and new_last is not None:
                moved.append((new_first, new_last))
        return tuple(moved)

    def _seqs(self, seqs: Iterable[int]) -> tuple[int, ...]:
        new = map(self._address, seqs)
        return tuple(seq for seq in new if seq is not None)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
