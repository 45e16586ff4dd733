"""A session added up: its requests, tokens and evictions, and its steps one by one."""

import datetime as dt
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from scroll_context.contents import EvictionPlan, usage_of, well_formed
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.models.protocol import Spent
from scroll_context.view.steps import decoded, step


class Accounts(Spent, kw_only=True):
    """A session in numbers."""

    events: int = 0
    requests: int = 0
    # Input tokens of one request.
    largest: int = 0
    # Plans carried out.
    evictions: int = 0
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
    for event in map(well_formed, events):
        sums.events += 1
        if event.is_foreign:
            # Its plans have no effect here, and its replies were paid for elsewhere.
            continue
        if event.kind == Kind.REQUEST:
            sums.requests += 1
        is_reply = event.kind == Kind.CONVERSATION and event.role == "assistant"
        if is_reply or event.kind == Kind.EVICTION:
            # A plan has a usage if it came with a summary by the model.
            usage = usage_of(event)
            sums.add(usage, event.metadata.get("cost"))
            sums.largest = max(sums.largest, usage.input_tokens)
        if event.kind == Kind.EVICTION:
            _add_plan(sums, event)
    return sums


def _add_plan(sums: Accounts, event: Event) -> None:
    try:
        plan = EvictionPlan.from_metadata(event.metadata)
    except BadInput:
        # It is of a context that plans in another way.
        return
    sums.evictions += 1
    sums.folded += len(plan.folded)
    sums.clipped += len(plan.clipped)
    sums.evicted += len(plan.evicted)


# the steps --------------------------------------------------------------------------------------


def trajectory(
    events: Iterable[Event], text: Callable[[Event], str], task_id: str = ""
) -> dict[str, Any]:
    """The steps of a session, one for each reply. `text` gives the complete text of an event."""
    steps: list[dict[str, Any]] = []
    spent = Spent()
    first = last = ""
    outputs: dict[str, list[str]] = {}
    for event in map(well_formed, events):
        first, last = first or event.recorded_at, event.recorded_at
        if event.kind == Kind.CONVERSATION and event.role == "assistant":
            if not event.is_foreign:
                spent.add(usage_of(event), None)
            steps.append(_step(len(steps), event, text(event)))
            outputs = {}
        is_output = event.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT)
        if is_output and steps and "inside_cell" not in event.metadata:
            outputs.setdefault(event.tool_call_id, []).append(text(event))
            steps[-1]["observation"] = "\n".join(itertools.chain(*outputs.values()))
    return {
        "task_id": task_id,
        "metrics": {
            "tokens_in": spent.input_tokens,
            "tokens_out": spent.output_tokens,
            "wall_time_s": round(_seconds(first, last), 2),
            "step_count": len(steps),
        },
        "steps": steps,
    }


def _step(index: int, event: Event, text: str) -> dict[str, Any]:
    # `step` reads whatever imports bring without raising.
    reply = step(event, 0, "").reply
    thinking = " ".join(str(block.get("text", "")) for block in reply.thinking)
    actions = [{"tool": call.name, "args": decoded(call.arguments)} for call in reply.calls]
    reasoning = thinking or (text if actions else "")
    first, *more = actions or [{"tool": "answer", "args": {"answer": text}}]
    fields = {"step_index": index, "seq": event.seq, "reasoning": reasoning, "action": first}
    if more:
        fields["further_actions"] = more
    return fields


def _seconds(first: str, last: str) -> float:
    if not first:
        return 0.0
    return (dt.datetime.fromisoformat(last) - dt.datetime.fromisoformat(first)).total_seconds()
