"""An ablation: Scroll without its kernel. Tools and the memory surface are called natively, one call at a time."""

from scroll_context.agent.contexts.protocol import Actions
from scroll_context.agent.contexts.windowed import WindowedContext
from scroll_context.agent.contexts.wording import reworded
from scroll_context.view.render import Rendered


class ScrollNoReplContext(WindowedContext):
    """The same view, eviction and index."""

    name = "scroll-no-repl"
    actions = Actions(
        exec=False, ms=False, memory_tools=("search", "expand", "sql_query"), prompts=("native", "memory_tools")
    )

    def worded(self, rendered: Rendered) -> Rendered:
        return reworded(rendered, ms="ms_")
