"""A baseline: tools called natively; the oldest steps are replaced by a summary that the model writes.

The summary is made when the view is above its high mark, of the summary before it and the steps that leave. It is
recorded with the plan, so a resumed session has the very same one. If the model gives none, the steps leave all the
same, and both the log and the next request say that they left without one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.agent.contexts.react import ReactContext
from scroll_context.agent.prompt import part
from scroll_context.errors import ModelCancelled, ModelError
from scroll_context.events import Event, Kind
from scroll_context.messages import Message
from scroll_context.models import Model, Request
from scroll_context.view.entries import MARK, Entry, Step
from scroll_context.view.eviction import Budget
from scroll_context.view.tokens import estimate
from scroll_context.view.working import RENDERER_VERSION, EvictionPlan

SHARE = 0.1  # of the window, for the summary
SECONDS = 180.0  # to wait for it


class SummarizeContext(ReactContext):
    """What leaves is gone but for a summary."""

    name = "summarize"
    gone = "summarized above"

    def __init__(self, text: Callable[[Event], str], version: int = RENDERER_VERSION) -> None:
        super().__init__(text, version)
        self.summary = ""
        self._unsummarized = 0  # entries that left without a word

    def add(self, event: Event) -> None:
        super().add(event)
        if event.kind == Kind.EVICTION:
            self.summary = event.metadata.get("summary", self.summary)
            self._unsummarized += int(event.metadata.get("unsummarized", 0))

    def room(self, budget: Budget) -> Budget:
        budget = super().room(budget)
        return replace(budget, overhead=budget.overhead + max(self._limit(budget), estimate(self.preface())))

    def preface(self) -> str:
        parts = []
        if self.summary:
            parts = [f"{MARK}summary of earlier work; its exact text is gone]", self.summary]
        if self._unsummarized:
            parts.append(f"{MARK}{self._unsummarized} steps and messages were dropped without a summary]")
        return "\n\n".join(parts)

    def replacement(self, plan: EvictionPlan, budget: Budget, model: Model) -> tuple[str, dict[str, Any]]:
        leaving = [entry for lo, _ in plan.evicted if (entry := self.view.get(lo))]
        if not leaving:
            return "", {}
        limit = self._limit(budget)
        system = part("summarize").replace("{words}", str(limit // 2))
        room = int(budget.window * budget.high / self.view.gauge.ratio) - limit - estimate(system)
        said = _transcript(self.summary, leaving, room)
        request = Request((Message(role="system", text=system), Message(role="user", text=said)))
        try:
            reply = model.reply(request, timeout=SECONDS)
        except ModelCancelled:
            raise ModelCancelled("the work was stopped before its summary was written") from None
        except ModelError as error:
            return f"; no summary was made: {error}", {"unsummarized": len(leaving)}
        facts = {"usage": msgspec.to_builtins(reply.usage), "cost": reply.cost}
        if not reply.text.strip():
            return "; no summary was made: the reply was empty", {"unsummarized": len(leaving), **facts}
        return "; summarized", {"summary": _within(reply.text.strip(), limit), **facts}

    def _limit(self, budget: Budget) -> int:
        return int(budget.window * SHARE / self.view.gauge.ratio)


def _transcript(summary: str, entries: list[Entry], room: int) -> str:
    """What is to be summarised, its longest texts cut in the middle until all of it is within `room` tokens."""
    pieces = [f"SUMMARY SO FAR: {summary}"] if summary else []
    pieces += [piece for entry in entries for piece in _pieces(entry)]
    most = max(map(len, pieces))
    while (said := "\n\n".join(_cut(piece, most) for piece in pieces)) and estimate(said) > room and most > 80:
        most = most * 3 // 4
    return said


def _pieces(entry: Entry) -> Iterator[str]:
    if not isinstance(entry, Step):
        yield f"{'NOTICE' if entry.body.shown.startswith(MARK) else 'USER'}: {entry.body.shown}"
        return
    if entry.reply.body.shown:
        yield f"ASSISTANT: {entry.reply.body.shown}"
    for call, result in zip(entry.reply.calls, entry.results, strict=True):
        yield f"CALL {call.name}: {call.shown}"
        yield f"RESULT: {result.body.shown if result else 'none'}"


def _cut(text: str, most: int) -> str:
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} […] {text[len(text) - half :]}"


def _within(text: str, tokens: int) -> str:
    """As much of the beginning of a text as `tokens` hold."""
    while estimate(text) > tokens and text:
        text = text[: len(text) * 9 // 10]
    return text
