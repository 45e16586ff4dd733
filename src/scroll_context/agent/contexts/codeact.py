"""A baseline: cells in a kernel with tools as functions, and nothing else; the oldest steps are dropped for good."""

from scroll_context.agent.contexts.protocol import Actions
from scroll_context.agent.contexts.react import ReactContext


class CodeActContext(ReactContext):
    """Variables last; what was shown does not."""

    name = "codeact"
    actions = Actions(ms=False, prompts=("codeact", "tools", "ask"))
