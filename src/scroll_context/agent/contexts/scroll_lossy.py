"""An ablation: Scroll without its log. Cells in a kernel; what leaves the view is summarised, and then gone."""

from scroll_context.agent.contexts.protocol import Actions
from scroll_context.agent.contexts.summarize import SummarizeContext


class ScrollLossyContext(SummarizeContext):
    """A summary in the place of the originals; variables last."""

    name = "scroll-lossy"
    actions = Actions(ms=False, prompts=("codeact", "tools", "ask"))
