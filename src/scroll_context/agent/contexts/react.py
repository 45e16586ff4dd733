"""A baseline: tools called natively; when the window is full, the oldest steps are dropped for good."""

from msgspec.structs import replace

from scroll_context.agent.contexts.protocol import Actions
from scroll_context.agent.contexts.windowed import WindowedContext
from scroll_context.agent.contexts.wording import left, reworded
from scroll_context.view.eviction import Budget
from scroll_context.view.render import Rendered
from scroll_context.view.working import WorkingView


class WholeSteps(WorkingView):
    """A view whose results are never folded: a step is shown until it leaves."""

    def fold(self, seq: int) -> bool:  # noqa: ARG002
        return False


class ReactContext(WindowedContext):
    """Nothing that left can be reached; the log has it, the model does not."""

    name = "react"
    actions = Actions(exec=False, ms=False, prompts=("native",))
    gone = "dropped"  # where steps went, in a few words
    recovery = "it cannot be recovered"

    @staticmethod
    def make_view(version: int) -> WorkingView:
        return WholeSteps(version)

    def room(self, budget: Budget) -> Budget:
        return replace(budget, index_share=0.0)

    def preface(self) -> str:
        return left(self.view, self.recovery)

    def worded(self, rendered: Rendered) -> Rendered:
        return reworded(rendered, ms="", moved=self.gone)
