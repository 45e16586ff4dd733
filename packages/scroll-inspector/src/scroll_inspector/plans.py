"""The eviction plans of a session, read from their events."""

import bisect
from functools import lru_cache
from typing import NamedTuple

import msgspec

from scroll_context.contents import EvictionPlan
from scroll_context.errors import BadInput
from scroll_context.events import Event
from scroll_context.session.past import Past


class NumberedPlan(NamedTuple):
    """A plan with the seq of its event."""

    seq: int
    plan: EvictionPlan


def plan_of(event: Event) -> EvictionPlan:
    """The plan of an eviction, cached because many pages ask for the same few."""
    return _plan(event.seq, msgspec.json.encode(event.metadata.get("plan")))


def plan_summary(event: Event) -> str:
    """The reason for an eviction and how much it removed, without token counts: those are shown
    with the requests before and after it.
    """
    try:
        plan = plan_of(event)
    except BadInput:
        # It is of a context that plans in another way.
        return event.content
    numbers = {
        "folded": len(plan.folded),
        "clipped": len(plan.clipped),
        "moved to the index": len(plan.evicted),
    }
    actions = ", ".join(f"{number} {words}" for words, number in numbers.items() if number)
    return f"{plan.reason}: {actions or 'nothing could leave'}"


def forget() -> None:
    """Clear the cache after an erasure: it may hold erased text."""
    _plan.cache_clear()


@lru_cache(maxsize=4096)
def _plan(_: int, plan: bytes) -> EvictionPlan:
    return EvictionPlan.from_metadata({"plan": msgspec.json.decode(plan)})


def plans_between(past: Past, after: int, before: int) -> list[NumberedPlan]:
    """The eviction plans between two seqs, oldest first."""
    at = bisect.bisect_right(past.evictions, after, key=lambda event: event.seq)
    plans = []
    for event in past.evictions[at:]:
        if event.seq > before:
            break
        plans.append(NumberedPlan(event.seq, plan_of(event)))
    return plans


def plans_about(past: Past, seq: int) -> list[NumberedPlan]:
    """The eviction plans that name an event, oldest first."""
    return [one for one in plans_after(past, seq) if _names(one.plan, seq)]


def plans_after(past: Past, seq: int) -> list[NumberedPlan]:
    """The eviction plans after a seq, oldest first."""
    first = bisect.bisect_right(past.evictions, seq, key=lambda event: event.seq)
    return [NumberedPlan(event.seq, plan_of(event)) for event in past.evictions[first:]]


def _names(plan: EvictionPlan, seq: int) -> bool:
    is_clipped = any(clipped_seq == seq for clipped_seq, _ in plan.clipped)
    is_evicted = any(first <= seq <= last for first, last in plan.evicted)
    return seq in plan.folded or is_clipped or is_evicted
