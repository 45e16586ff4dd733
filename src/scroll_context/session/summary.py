"""A session as a whole, computed from its events: what it has cost, and its steps in the paper's JSON form."""

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

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


# the steps --------------------------------------------------------------------------------------------


def trajectory(events: Iterable[Event], text: Callable[[Event], str], task_id: str = "") -> dict[str, Any]:
    """The steps of a session, one for each reply. `text` gives the whole text of an event."""
    steps: list[dict[str, Any]] = []
    tokens_in = tokens_out = 0
    first = last = ""
    observed: dict[str, list[str]] = {}
    for event in events:
        first, last = first or event.recorded_at, event.recorded_at
        if event.kind == Kind.CONVERSATION and event.role == "assistant":
            usage = event.metadata.get("usage", {})
            tokens_in += usage.get("input_tokens", 0)
            tokens_out += usage.get("output_tokens", 0)
            steps.append(_step(len(steps), event, text(event)))
            observed = {}
        elif event.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT) and steps and "inside_cell" not in event.metadata:
            observed.setdefault(event.tool_call_id, []).append(text(event))
            steps[-1]["observation"] = "\n".join(piece for pieces in observed.values() for piece in pieces)
    return {
        "task_id": task_id,
        "metrics": {
            "tokens_in": tokens_in,
            "tokens_out": tokens_out,
            "wall_time_s": round(_seconds(first, last), 2),
            "step_count": len(steps),
        },
        "steps": steps,
    }


def _step(index: int, event: Event, said: str) -> dict[str, Any]:
    thinking = " ".join(block.get("text", "") for block in event.metadata.get("thinking", ()))
    calls = event.metadata.get("tool_calls", ())
    actions = [{"tool": call["name"], "args": call.get("arguments", {})} for call in calls]
    if not actions:
        actions = [{"tool": "answer", "args": {"answer": said}}]
    step: dict[str, Any] = {"step_index": index, "seq": event.seq, "reasoning": thinking or (said if calls else "")}
    step["action"] = actions[0]
    if len(actions) > 1:
        step["further_actions"] = actions[1:]
    return step


def _seconds(first: str, last: str) -> float:
    if not first:
        return 0.0
    return (dt.datetime.fromisoformat(last) - dt.datetime.fromisoformat(first)).total_seconds()
