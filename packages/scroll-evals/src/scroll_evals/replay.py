"""A trial as the log shows it: its numbers, its steps, its answer, and exactly what the model saw
at each step.

All of it is computed from events, so a trial that was continued by a second process counts as one.
"""

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from scroll_context.agent.agent import Limits
from scroll_context.events import Event, Kind
from scroll_context.messages import Message, ToolSpec
from scroll_context.models import Model, Reply, Request
from scroll_context.session.accounts import trajectory
from scroll_context.session.context import WindowedContext, make_context
from scroll_context.store import Store
from scroll_context.view.headline import without_headline
from scroll_evals.protocols import Metrics, TrialOutcome

SUBMIT = ToolSpec(
    "submit_answer",
    "Give your final answer to the question. This ends the task.",
    {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "description": "the answer, in natural language"}
        },
        "required": ["answer"],
    },
)

ROWS = 100  # records that a cell was given, kept for export
ROW_CHARS = 1_000  # of each

_CUT_OFF = frozenset(
    {"killed", "unknown"}
)  # states that a resuming process gives to what was under way


def metrics_and_steps(
    events: Sequence[Event], text: Callable[[Event], str]
) -> tuple[Metrics, list[dict[str, Any]]]:
    """The numbers and the steps of a session."""
    found = trajectory(events, text)
    usages = [
        event.metadata.get("usage", {}) for event in events if event.kind == Kind.EVICTION
    ]  # of summaries
    replies = [
        event for event in events if event.kind == Kind.CONVERSATION and event.role == "assistant"
    ]
    metrics = Metrics(
        tokens_in=found["metrics"]["tokens_in"]
        + sum(usage.get("input_tokens", 0) for usage in usages),
        tokens_out=found["metrics"]["tokens_out"]
        + sum(usage.get("output_tokens", 0) for usage in usages),
        wall_time_s=round(_working_seconds(events), 2),
        step_count=found["metrics"]["step_count"],
        tokens_cached=sum(
            event.metadata.get("usage", {}).get("cache_read_tokens", 0) for event in replies
        ),
        dollars=sum(event.metadata.get("cost") or 0.0 for event in events),
    )
    return metrics, found["steps"]


def limits_left(limits: Limits, used: Metrics) -> Limits:
    """The limits that remain for an interrupted trial."""

    def less(limit: float | None, spent: float) -> float | None:
        return None if limit is None else max(0, limit - spent)

    return Limits(
        steps=None if limits.steps is None else max(0, limits.steps - used.step_count),
        tokens=None
        if limits.tokens is None
        else max(0, limits.tokens - used.tokens_in - used.tokens_out),
        seconds=less(limits.seconds, used.wall_time_s),
        dollars=less(limits.dollars, used.dollars),
    )


class DeadlineModel:
    """A model that is asked for no longer than a task has time left; a reply that takes longer is
    given up.
    """

    def __init__(self, model: Model, seconds: float | None) -> None:
        self.name = model.name
        self.window = model.window
        self._model = model
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def is_late(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def reply(
        self,
        request: Request,
        *,
        on_text: Callable[[str], None] | None = None,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Reply:
        if self._end is not None:
            timeout = min(
                self._end - time.monotonic(), float("inf") if timeout is None else timeout
            )
            timeout = max(0.0, timeout)
        return self._model.reply(request, on_text=on_text, cancel=cancel, timeout=timeout)


def given_answer(
    events: Iterable[Event], text: Callable[[Event], str]
) -> tuple[TrialOutcome, str] | None:
    """How the model ended, if its last reply did end the task."""
    replies = [
        event for event in events if event.kind == Kind.CONVERSATION and event.role == "assistant"
    ]
    if not replies:
        return None
    last = replies[-1]
    calls = last.metadata.get("tool_calls", ())
    for call in calls:
        if call["name"] == SUBMIT.name:
            arguments = call.get("arguments", {})
            answer = (
                str(arguments.get("answer", "")) if isinstance(arguments, dict) else str(arguments)
            )
            return (TrialOutcome.ANSWERED if answer.strip() else TrialOutcome.EMPTY_ANSWER), answer
    said = text(last)
    if calls or last.metadata.get("cut") or not said.strip():
        return None
    said = without_headline(said)
    return (TrialOutcome.UNSUBMITTED if said else TrialOutcome.EMPTY_ANSWER), said


def requests_seen(
    store: Store, events: Sequence[Event], context: WindowedContext | None = None
) -> list[dict[str, Any]]:
    """The model's input at each step, rebuilt from the log: the messages that differ from the step
    before.

    Each record has `step_index`, `keep` (how many messages of the step before begin this request
    too) and `messages` (those that follow them). Of a step with a cell, also how it ended
    (`state`), what it put into the view (`shown`), and the records that it was given (`rows`, at
    most ROWS of `rows_total`). `context` is what the session began with.
    """
    name = next(
        (str(event.metadata["context"]) for event in events if "context" in event.metadata),
        "scroll",
    )
    context = context or make_context(name, store.log.excerpt)
    system = ""
    asked: tuple[Message, ...] = ()
    before: tuple[Message, ...] = ()
    found: list[dict[str, Any]] = []
    for event in events:
        if event.kind == Kind.SESSION and "tools" in event.metadata:
            system = store.log.text(event)
        elif event.kind == Kind.REQUEST:
            asked = context.render(system, str(event.metadata.get("digest", ""))).messages
        elif event.kind == Kind.CONVERSATION and event.role == "assistant" and asked:
            keep = _shared(before, asked)
            messages = [msgspec.to_builtins(message) for message in asked[keep:]]
            found.append({"step_index": len(found), "keep": keep, "messages": messages})
            before, asked = asked, ()
        elif event.kind == Kind.OBSERVATION and found:
            seqs = [seq for seq in event.metadata.get("seqs", ()) if isinstance(seq, int)]
            given = store.log.get_many(seqs[:ROWS])
            rows = found[-1].setdefault("rows", [])
            rows += [
                {"seq": one.seq, "role": one.role, "content": one.content[:ROW_CHARS]}
                for one in given
            ]
            found[-1]["rows_total"] = found[-1].get("rows_total", 0) + len(seqs)
            found[-1] |= {"state": event.tool_state, "shown": event.content}
        context.add(event)
    return found


def _shared(before: tuple[Message, ...], after: tuple[Message, ...]) -> int:
    count = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        count += 1
    return count


def _working_seconds(events: Sequence[Event]) -> float:
    """From the first event to the last, without the time between two processes."""
    times = [dt.datetime.fromisoformat(event.recorded_at) for event in events]
    total = (times[-1] - times[0]).total_seconds() if times else 0.0
    for at, event in enumerate(events):
        if event.kind == Kind.SESSION and event.content == "resumed":
            first = at
            while first > 1 and events[first - 1].tool_state in _CUT_OFF:
                first -= 1
            if first > 0:
                total -= (times[first] - times[first - 1]).total_seconds()
    return total
