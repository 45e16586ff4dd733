"""What all contexts share: a working view that is kept within its window by plans, each recorded before it is applied.

Contexts differ in how the model acts, in what may leave the view, and in what stands for it afterwards: the methods
at the end. Whatever they show comes from events, so adding the same events again gives the same requests.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from scroll_context.agent.contexts.protocol import Actions
from scroll_context.events import Event, Kind
from scroll_context.models import Model
from scroll_context.view.eviction import Budget, plan_eviction
from scroll_context.view.render import Rendered, render
from scroll_context.view.working import RENDERER_VERSION, EvictionPlan, WorkingView

if TYPE_CHECKING:
    from scroll_context.session.session import Session

WHOLE_RESULT = 4 << 20  # bytes; a longer native result is shown by its preview


class WindowedContext:
    """A view and its upkeep. `text` gives the whole text of an event; `version` is that of the view's rules."""

    name = ""
    actions = Actions()

    def __init__(self, text: Callable[[Event], str], version: int = RENDERER_VERSION) -> None:
        self.view = self.make_view(version)
        self._text = text
        self._visible: Collection[int] = frozenset()

    def add(self, event: Event) -> None:
        payload = event.payload
        native = event.kind == Kind.TOOL_RESULT and not self.actions.exec
        if native and payload is not None and payload.is_text and payload.size <= WHOLE_RESULT:
            # without a kernel there is no other way to read on, so the view shows as much as its window allows
            event = replace(event, content=self._text(event), payload=None)
        self.view.add(event)

    def fit(self, session: "Session", budget: Budget, model: Model, overflowed: bool) -> bool:
        budget = self.room(budget)
        plan = plan_eviction(self.view, budget, overflowed=overflowed)
        if plan is None:
            return False
        said, facts = self.replacement(plan, budget, model)
        session.record(  # and, being recorded, applied by add()
            Kind.EVICTION, content=plan.summary() + said, metadata=plan.metadata() | facts
        )
        return plan.shrinks

    def render(self, system: str, digest: str) -> Rendered:
        rendered = self.worded(render(self.view, system, digest, preface=self.preface()))
        self._visible = rendered.visible
        return rendered

    @property
    def visible(self) -> Collection[int]:
        return self._visible

    def index_lines(self) -> list[dict[str, Any]]:
        return [
            {"seqs": [list(span) for span in line.spans], "headline": line.headline.full(), "entries": line.entries}
            for line in self.view.index.lines
        ]

    # what contexts differ in ----------------------------------------------------------------------------

    @staticmethod
    def make_view(version: int) -> WorkingView:
        """An empty view."""
        return WorkingView(version)

    def room(self, budget: Budget) -> Budget:
        """The budget, less what this context needs for itself."""
        return budget

    def replacement(self, plan: EvictionPlan, budget: Budget, model: Model) -> tuple[str, dict[str, Any]]:  # noqa: ARG002
        """What is to stand for what leaves: a remark for people, and facts to record with the plan."""
        return "", {}

    def preface(self) -> str | None:
        """What stands before the live turns; None is the index."""
        return None

    def worded(self, rendered: Rendered) -> Rendered:
        """The request in the words of this context."""
        return rendered
