"""The contexts that can be compared behind one agent, by name: Scroll, its three ablations and four baselines."""

from collections.abc import Callable

from scroll_context.agent.contexts.codeact import CodeActContext
from scroll_context.agent.contexts.protocol import Actions, Context
from scroll_context.agent.contexts.react import ReactContext
from scroll_context.agent.contexts.retrieval import RetrievalContext
from scroll_context.agent.contexts.scroll import ScrollContext
from scroll_context.agent.contexts.scroll_lossy import ScrollLossyContext
from scroll_context.agent.contexts.scroll_no_index import ScrollNoIndexContext
from scroll_context.agent.contexts.scroll_no_repl import ScrollNoReplContext
from scroll_context.agent.contexts.summarize import SummarizeContext
from scroll_context.agent.contexts.windowed import WindowedContext
from scroll_context.errors import BadInput
from scroll_context.events import Event

CONTEXTS: dict[str, type[WindowedContext]] = {
    context.name: context
    for context in (
        ScrollContext,
        ScrollNoReplContext,
        ScrollNoIndexContext,
        ScrollLossyContext,
        SummarizeContext,
        RetrievalContext,
        CodeActContext,
        ReactContext,
    )
}


def make_context(name: str, text: Callable[[Event], str]) -> Context:
    """A fresh context of this name; `text` gives it the whole text of an event."""
    if name not in CONTEXTS:
        raise BadInput(f"there is no context {name!r}; choose one of {', '.join(CONTEXTS)}")
    return CONTEXTS[name](text)


__all__ = ["CONTEXTS", "Actions", "Context", "make_context"]
