"""Scroll itself: bounded view, recoverable eviction, tiered index, cells with `ms`."""

from scroll_context.agent.contexts.windowed import WindowedContext


class ScrollContext(WindowedContext):
    """The paper's system."""

    name = "scroll"
