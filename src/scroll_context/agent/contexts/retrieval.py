"""A baseline: tools called natively; the oldest steps leave the view and one tool searches them by words."""

from scroll_context.agent.contexts.protocol import Actions
from scroll_context.agent.contexts.react import ReactContext


class RetrievalContext(ReactContext):
    """Without an index and without addresses: what is not asked for by its words is not found."""

    name = "retrieval"
    actions = Actions(exec=False, ms=False, memory_tools=("recall",), prompts=("native", "recall"))
    gone = "moved out of view"
    recovery = "recall(query) searches it"
