"""The eviction plans of a session, read from their events."""

import bisect
from typing import NamedTuple

from scroll_context.contents import EvictionPlan
from scroll_context.errors import BadInput
from scroll_context.events import Event
from scroll_context.session.past import Past


class NumberedPlan(NamedTuple):
    """A plan with the seq of its event."""

    seq: int
    plan: EvictionPlan

    @staticmethod
    def of(event: Event) -> "NumberedPlan":
        return NumberedPlan(event.seq, EvictionPlan.from_metadata(event.metadata))

    def is_about(self, seq: int) -> bool:
        """Whether the plan names an event."""
        is_clipped = any(clipped_seq == seq for clipped_seq, _ in self.plan.clipped)
        is_evicted = any(first <= seq <= last for first, last in self.plan.evicted)
        return seq in self.plan.folded or is_clipped or is_evicted


def plan_summary(event: Event) -> str:
    """The reason for an eviction and how much it removed, without token counts: those are shown
    with the requests before and after it.
    """
    try:
        plan = EvictionPlan.from_metadata(event.metadata)
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


def plans_between(past: Past, after: int, before: int) -> list[NumberedPlan]:
    """The eviction plans between two seqs, oldest first."""
    first = bisect.bisect_right(past.evictions, after, key=lambda event: event.seq)
    last = bisect.bisect_right(past.evictions, before, key=lambda event: event.seq)
    return [NumberedPlan.of(event) for event in past.evictions[first:last]]


def plans_after(past: Past, seq: int) -> list[NumberedPlan]:
    """The eviction plans after a seq, oldest first."""
    first = bisect.bisect_right(past.evictions, seq, key=lambda event: event.seq)
    return [NumberedPlan.of(event) for event in past.evictions[first:]]


def plans_about(past: Past, seq: int) -> list[NumberedPlan]:
    """The eviction plans that name an event, oldest first."""
    return [plan for plan in plans_after(past, seq) if plan.is_about(seq)]
