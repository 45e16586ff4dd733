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
from scroll_context.log.metadata_names import SEQ_LIST_NAMES, SEQ_NAMES

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
    changed = _readdressed(event, addresses.get, text)
    old_parts = {
        "earlier": event.metadata.get("earlier"),
        "standing": _dict(event.metadata.get("plan")).get("standing"),
    }
    named_there = {name: value for name, value in old_parts.items() if value}
    named_there |= _dict(event.metadata.get(NAMED_THERE))
    if named_there:
        changed = replace(changed, metadata={**changed.metadata, NAMED_THERE: named_there})
    upto = event.metadata.get("upto")
    if isinstance(upto, int) and upto not in addresses:
        # This is the last event that a model had read. Any event before it will do.
        nearest = max((seq for seq in addresses if seq < upto), default=None)
        new_upto = 0 if nearest is None else addresses[nearest]
        changed = replace(changed, metadata={**changed.metadata, "upto": new_upto})
    return changed


def as_recorded(events: list[Event], text: Callable[[Event], str]) -> list[Event]:
    """Events of a merged export with the seqs that they had where they were recorded."""
    there: dict[int, int] = {}
    for event in events:
        moved_from = event.metadata.get("moved_from")
        there[event.seq] = moved_from if isinstance(moved_from, int) else event.seq
    originals: list[Event] = []
    for event in events:
        original = replace(renumbered(event, there, text), seq=there[event.seq])
        named_there = _dict(event.metadata.get(NAMED_THERE))
        metadata = dict(original.metadata)
        if "earlier" in named_there:
            metadata["earlier"] = named_there["earlier"]
        if "standing" in named_there:
            plan = _dict(metadata.get("plan"))
            metadata["plan"] = {**plan, "standing": named_there["standing"]}
        originals.append(replace(original, metadata=metadata))
    return originals


def named_seqs(event: Draft, text: Callable[[Draft], str]) -> set[int]:
    """Every seq that an event names."""
    seqs: set[int] = set()

    def note(seq: int) -> int:
        seqs.add(seq)
        return seq

    _readdressed(event, note, text)
    return seqs


def _readdressed(event: AnyEvent, address: Address, text: Callable[[AnyEvent], str]) -> AnyEvent:
    values: dict[str, Any] = {}
    if event.reply_to is not None:
        values["reply_to"] = address(event.reply_to)
    metadata = dict(event.metadata)
    for field in SEQ_NAMES:
        if isinstance(metadata.get(field), int):
            metadata[field] = address(metadata[field])
    for field in SEQ_LIST_NAMES:
        if isinstance(metadata.get(field), list):
            metadata[field], is_complete = _packed(metadata[field], address)
            if not is_complete:
                metadata["unknown"] = True
    if isinstance(metadata.get("media"), list):
        media = [replace(facts, seq=address(facts.seq) or 0) for facts in media_of(event)]
        metadata["media"] = msgspec.to_builtins(media)
    with contextlib.suppress(*_OTHER_SHAPE):
        metadata |= _contents(event.kind, metadata, address)
        if event.kind == Kind.SNAPSHOT:
            snapshot = _snapshot(Snapshot.decode(text(event)), address)
            values |= {"content": snapshot.encode(), "payload": None}
    if metadata != event.metadata:
        values["metadata"] = {name: value for name, value in metadata.items() if value is not None}
    return replace(event, **values)


def _contents(kind: str, metadata: Mapping[str, Any], address: Address) -> dict[str, Any]:
    """The retraction, the plan or the earlier work in the metadata, with the new addresses."""
    if kind == Kind.RETRACTION:
        return _retraction(Retraction.from_metadata(metadata), address).metadata()
    if kind == Kind.EVICTION and "plan" in metadata:
        return _plan(EvictionPlan.from_metadata(metadata), address).metadata()
    if kind == Kind.SESSION:
        earlier = EarlierWork.from_metadata(metadata)
        if earlier is not None:
            return _earlier(earlier, address).metadata()
    return {}


def _retraction(retraction: Retraction, address: Address) -> Retraction:
    """A retraction with the new addresses."""
    return replace(
        retraction,
        seqs=_addresses(retraction.seqs, address),
        order=_addresses(retraction.order, address),
    )


def _packed(entries: list[Any], address: Address) -> tuple[list[int | list[int]], bool]:
    """A list of packed seqs with the new addresses, and whether every run in it is complete.

    If only one end of a run has a new address, nobody knows which of its events have one.
    """
    moved: list[int | list[int]] = []
    is_complete = True
    for first, last in unpacked_seqs(entries):
        new_first = address(first)
        new_last = address(last)
        if new_first is not None and new_last is not None:
            moved.append(new_first if new_first == new_last else [new_first, new_last])
        elif first != last:
            is_complete = False
    return moved, is_complete


def _addresses(seqs: Iterable[int], address: Address) -> tuple[int, ...]:
    new = (address(seq) for seq in seqs)
    return tuple(seq for seq in new if seq is not None)


def _plan(plan: EvictionPlan, address: Address) -> EvictionPlan:
    """An eviction plan with the new addresses."""
    clipped = [(address(seq), chars) for seq, chars in plan.clipped]
    evicted = [(address(lo), address(hi)) for lo, hi in plan.evicted]
    topics = [(address(topic.seq), topic) for topic in plan.topics]
    return replace(
        plan,
        folded=_addresses(plan.folded, address),
        clipped=tuple((seq, chars) for seq, chars in clipped if seq is not None),
        evicted=tuple((lo, hi or lo) for lo, hi in evicted if lo is not None),
        rules={rule: _addresses(seqs, address) for rule, seqs in plan.rules.items()},
        topics=tuple(replace(topic, seq=seq) for seq, topic in topics if seq is not None),
        standing=_standing(plan.standing, address) if plan.standing else plan.standing,
    )


def _earlier(earlier: EarlierWork, address: Address) -> EarlierWork:
    """The earlier work of a session with the new addresses."""
    topics = [replace(topic, spans=_spans(topic.spans, address)) for topic in earlier.topics]
    return replace(
        earlier,
        topics=tuple(topic for topic in topics if topic.spans),
        standing=_standing(earlier.standing, address),
    )


def _snapshot(snapshot: Snapshot, address: Address) -> Snapshot:
    """A snapshot with the new addresses of the events that its variables come from.

    Cells are numbered by their kernel. These numbers are not addresses, and stay.
    """

    def address_or_zero(seq: int) -> int | None:
        # Seq 0 stands for events that cannot be named.
        return address(seq) if seq else 0

    variables = [
        replace(variable, made_by=_addresses(variable.made_by, address_or_zero))
        for variable in snapshot.variables
    ]
    sources = {cell: _addresses(seqs, address) for cell, seqs in snapshot.sources.items()}
    return replace(snapshot, variables=tuple(variables), sources=sources)


def _standing(standing: Iterable[Standing], address: Address) -> tuple[Standing, ...]:
    moved = []
    for statement in standing:
        seq = address(statement.seq)
        later = address(statement.replaced_by) if statement.replaced_by else None
        if seq is not None:
            moved.append(replace(statement, seq=seq, replaced_by=later or 0))
    return tuple(moved)


def _spans(spans: Spans, address: Address) -> Spans:
    moved = [(address(first), address(last)) for first, last in spans]
    return tuple((first, last) for first, last in moved if first is not None and last is not None)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
