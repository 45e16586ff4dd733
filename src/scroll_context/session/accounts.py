"""What a session has cost so far: requests, tokens, evictions. Computed from its events; nothing is counted live."""

from collections.abc import Iterable

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.view.working import EvictionPlan


class Accounts(msgspec.Struct, kw_only=True):
    """A session in numbers. Tokens are the provider's own count, so a request that got no reply adds none."""

    events: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    largest: int = 0  # input tokens of one request
    dollars: float = 0.0
    evictions: int = 0  # plans carried out
    folded: int = 0
    clipped: int = 0
    evicted: int = 0

    @property
    def reuse(self) -> float:
        """The share of all input that repeated the beginning of the request before."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0


def accounts(events: Iterable[Event]) -> Accounts:
    """Add up the events of a session."""
    sums = Accounts()
    for event in events:
        sums.events += 1
        if event.kind == Kind.REQUEST:
            sums.requests += 1
        if event.kind == Kind.EVICTION or (event.kind == Kind.CONVERSATION and event.role == "assistant"):
            usage = event.metadata.get("usage", {})  # a plan has one when it came with a summary by the model
            sums.input_tokens += usage.get("input_tokens", 0)
            sums.output_tokens += usage.get("output_tokens", 0)
            sums.cache_read_tokens += usage.get("cache_read_tokens", 0)
            sums.largest = max(sums.largest, usage.get("input_tokens", 0))
            sums.dollars += event.metadata.get("cost") or 0.0
        if event.kind == Kind.EVICTION:
            _add_plan(sums, event)
    return sums


def _add_plan(sums: Accounts, event: Event) -> None:
    try:
        plan = EvictionPlan.from_metadata(event.metadata)
    except BadInput:  # of a context that plans in another way
        return
    sums.evictions += 1
    sums.folded += len(plan.folded)
    sums.clipped += len(plan.clipped)
    sums.evicted += len(plan.evicted)
