"""The contexts that Scroll is compared with: three ablations of it and four baselines.

Each differs from Scroll's own context (scroll_context.session.context) in a few methods, and in
the words by which its view names the calls that recover what left it (`Words`).
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EvictionPlan
from scroll_context.errors import ModelCancelled, ModelError
from scroll_context.events import Event, Kind
from scroll_context.messages import Message
from scroll_context.models import Model, Request
from scroll_context.session.context import Actions, ReadExcerpt, WindowedContext
from scroll_context.session.prompt import part
from scroll_context.view.entries import Entry
from scroll_context.view.eviction import Budget
from scroll_context.view.steps import Step
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import MARK, Words, tool_words
from scroll_context.view.working import WorkingView

SUMMARY_SHARE = 0.1  # of the window, for a summary
SUMMARY_SECONDS = 180.0  # to wait for it

_CELLS_ALONE = Actions(ms=False, prompts=("scroll_evals:codeact", "tools", "ask"))


class ScrollNoReplContext(WindowedContext):
    """An ablation: Scroll without its kernel.

    Tools and the memory are called natively, one call at a time.
    """

    name = "scroll-no-repl"
    actions = Actions(
        exec=False,
        ms=False,
        memory_tools=("search", "expand", "sql_query"),
        prompts=("scroll_evals:native", "scroll_evals:memory_tools"),
    )

    words = tool_words("ms_")


class ScrollNoIndexContext(WindowedContext):
    """An ablation: Scroll without its index.

    What left the view is found by searching, or by the seq of a stub.
    """

    name = "scroll-no-index"
    actions = Actions(prompts=("system", "memory", "evidence", "tools", "ask"))
    words = Words(moved="moved out of view")

    def room(self, budget: Budget) -> Budget:
        return replace(budget, index_share=0.0)

    def preface(self) -> str:
        return _left(self.view, "ms.search(query) finds it")

    def index_lines(self) -> list[dict[str, Any]]:
        return []


class WholeSteps(WorkingView):
    """A view whose results are never folded: a step is shown until it leaves."""

    def fold(self, seq: int) -> bool:  # noqa: ARG002
        return False


class ReactContext(WindowedContext):
    """A baseline: tools are called natively, and when the window is full, the oldest steps are
    dropped for good.
    """

    name = "react"
    actions = Actions(exec=False, ms=False, prompts=("scroll_evals:native",))
    words = Words("", "", "", moved="dropped")
    recovery = "it cannot be recovered"

    @staticmethod
    def make_view(words: Words) -> WorkingView:
        return WholeSteps(words)

    def room(self, budget: Budget) -> Budget:
        return replace(budget, index_share=0.0)

    def preface(self) -> str:
        return _left(self.view, self.recovery)


class CodeActContext(ReactContext):
    """A baseline: cells in a kernel with tools as functions; the oldest steps are dropped for good."""

    name = "codeact"
    actions = _CELLS_ALONE


class RetrievalContext(ReactContext):
    """A baseline: tools are called natively; the oldest steps leave the view, and one tool searches
    them by words.
    """

    name = "retrieval"
    actions = Actions(
        exec=False,
        ms=False,
        memory_tools=("recall",),
        prompts=("scroll_evals:native", "scroll_evals:recall"),
    )
    words = Words("", "", "", moved="moved out of view")
    recovery = "recall(query) searches it"


class SummarizeContext(ReactContext):
    """A baseline: tools are called natively; the oldest steps are replaced by a summary that the
    model writes.

    The summary is made when the view is above its high mark, of the summary before it and the steps
    that leave. It is recorded with the plan, so a resumed session has the very same one. If the
    model gives none, the steps leave all the same, and both the log and the next request say that
    they left without one.
    """

    name = "summarize"
    words = Words("", "", "", moved="summarized above")

    def __init__(self, read: ReadExcerpt, words: Words | None = None) -> None:
        super().__init__(read, words)
        self.summary = ""
        self._unsummarized = 0  # entries that left without a word

    def add(self, event: Event) -> None:
        super().add(event)
        if event.kind == Kind.EVICTION:
            self.summary = event.metadata.get("summary", self.summary)
            self._unsummarized += int(event.metadata.get("unsummarized", 0))

    def room(self, budget: Budget) -> Budget:
        budget = super().room(budget)
        return replace(
            budget, overhead=budget.overhead + max(self._limit(budget), estimate(self.preface()))
        )

    def preface(self) -> str:
        parts = []
        if self.summary:
            parts = [f"{MARK}summary of earlier work; its exact text is gone]", self.summary]
        if self._unsummarized:
            parts.append(
                f"{MARK}{self._unsummarized} steps and messages were dropped without a summary]"
            )
        return "\n\n".join(parts)

    def replacement(
        self, plan: EvictionPlan, budget: Budget, model: Model | None
    ) -> tuple[str, dict[str, Any]]:
        assert model is not None, (
            "a session of this context is driven with a model that writes its summaries"
        )
        leaving = [entry for lo, _ in plan.evicted if (entry := self.view.get(lo))]
        if not leaving:
            return "", {}
        limit = self._limit(budget)
        system = part("scroll_evals:summarize").replace("{words}", str(limit // 2))
        room = int(budget.window * budget.high / self.view.gauge.ratio) - limit - estimate(system)
        said = _transcript(self.summary, leaving, room)
        request = Request((Message(role="system", text=system), Message(role="user", text=said)))
        try:
            reply = model.reply(request, timeout=SUMMARY_SECONDS)
        except ModelCancelled:
            raise ModelCancelled("the work was stopped before its summary was written") from None
        except ModelError as error:
            return f"; no summary was made: {error}", {"unsummarized": len(leaving)}
        facts = {"usage": msgspec.to_builtins(reply.usage), "cost": reply.cost}
        if not reply.text.strip():
            return "; no summary was made: the reply was empty", {
                "unsummarized": len(leaving),
                **facts,
            }
        return "; summarized", {"summary": _within(reply.text.strip(), limit), **facts}

    def _limit(self, budget: Budget) -> int:
        return int(budget.window * SUMMARY_SHARE / self.view.gauge.ratio)


class ScrollLossyContext(SummarizeContext):
    """An ablation: Scroll without its log.

    Cells in a kernel; what leaves the view is summarised, and then gone.
    """

    name = "scroll-lossy"
    actions = _CELLS_ALONE


CONTEXTS: dict[str, type[WindowedContext]] = {
    context.name: context
    for context in (
        WindowedContext,
        ScrollNoReplContext,
        ScrollNoIndexContext,
        ScrollLossyContext,
        SummarizeContext,
        RetrievalContext,
        CodeActContext,
        ReactContext,
    )
}
"""Every context of the comparison, Scroll's own first."""


# wording and summaries ----------------------------------------------------------------------------


def _left(view: WorkingView, then: str) -> str:
    """One line about everything that left a view; empty while nothing has."""
    entries = sum(line.entries for line in view.index.lines)
    if not entries:
        return ""
    return f"{MARK}earlier work ({entries} steps and messages) is no longer shown; {then}. The rest follows.]"


def _transcript(summary: str, entries: list[Entry], room: int) -> str:
    """The text to summarise. Its longest parts are cut in the middle until it fits `room` tokens."""
    pieces = [f"SUMMARY SO FAR: {summary}"] if summary else []
    pieces += [piece for entry in entries for piece in _pieces(entry)]
    most = max(map(len, pieces))
    while (
        (said := "\n\n".join(_cut(piece, most) for piece in pieces))
        and estimate(said) > room
        and most > 80
    ):
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
