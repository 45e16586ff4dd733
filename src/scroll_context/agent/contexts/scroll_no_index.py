"""An ablation: Scroll without its index. What left the view is found by searching alone, or by the seq of a stub."""

from typing import Any

from msgspec.structs import replace

from scroll_context.agent.contexts.protocol import Actions
from scroll_context.agent.contexts.windowed import WindowedContext
from scroll_context.agent.contexts.wording import left, reworded
from scroll_context.view.eviction import Budget
from scroll_context.view.render import Rendered


class ScrollNoIndexContext(WindowedContext):
    """The same kernel, view and eviction."""

    name = "scroll-no-index"
    actions = Actions(prompts=("system", "memory", "tools", "ask"))

    def room(self, budget: Budget) -> Budget:
        return replace(budget, index_share=0.0)

    def preface(self) -> str:
        return left(self.view, "ms.search(query) finds it")

    def worded(self, rendered: Rendered) -> Rendered:
        return reworded(rendered, ms="ms.", moved="moved out of view")

    def index_lines(self) -> list[dict[str, Any]]:
        return []
