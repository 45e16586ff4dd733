"""A session as a trajectory in the paper's JSON form: task_id, metrics, and steps of reasoning, action, observation."""

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

from scroll_context.events import Event, Kind


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
