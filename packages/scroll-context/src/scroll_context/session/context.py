"""The context of a session: which part of it a model sees, and how the model may act.

A context is given the events of its session one by one and must be rebuilt by the same events, so
everything that it shows comes from events. `WindowedContext` is Scroll's: a working view that
eviction plans keep within its window, each recorded before it is applied. Other packages may offer
contexts to compare it with, as subclasses that differ in the methods at the end: they name them in
the entry-point group `scroll_context.contexts`.
"""

from collections.abc import Callable, Collection
from typing import Any, Protocol

import msgspec

from scroll_context.contents import EarlierWork, EvictionPlan
from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import UNSEARCHABLE, Event, Excerpt, Grant, Kind, Scope
from scroll_context.models import Model
from scroll_context.plugins import entry_points
from scroll_context.session.earlier_work import earlier_work, note_sessions
from scroll_context.store import Store
from scroll_context.view.eviction import Budget, plan_eviction, prepare_ahead
from scroll_context.view.passage import HELD_CHARS
from scroll_context.view.wording import CELLS, Words, tool_words
from scroll_context.view.working import Rendered, WorkingView, needs_excerpt, render

GROUP = "scroll_context.contexts"
"""The entry points of contexts that other packages offer: a name and a subclass of WindowedContext.
"""
LONGEST_TEXT = 16 << 20
"""Characters of one text that a view gets: more than fit any window.

A view gets both ends of a longer text.
"""
CROWDED_TOKENS = 4 << 20
"""From this many tokens on, far above any window, a view gets only HELD_CHARS of each further text.
"""

ReadExcerpt = Callable[[Event, int], Excerpt]
"""Returns the text of an event, or both ends of a text with more characters than the limit."""


class Actions(msgspec.Struct, frozen=True):
    """How the model acts under a context, and the prompts that tell it so."""

    # Whether it writes cells with tools as functions in them. Otherwise tools are called natively.
    exec: bool = True
    # Whether cells have `ms`.
    ms: bool = True
    # Native recall tools: those of recall/memory_tools.py.
    memory_tools: tuple[str, ...] = ()
    # The parts of the system prompt, see prompt.part().
    prompts: tuple[str, ...] = ("system", "memory", "evidence", "tools", "ask", "headline")


class ContextSession(Protocol):
    """The part of a session that its context uses."""

    @property
    def store(self) -> Store:
        """The store that the session records in."""

    @property
    def scope(self) -> Scope:
        """The identity of the session."""

    @property
    def grant(self) -> Grant:
        """The events that the session may read."""

    def record(self, kind: str, **fields: Any) -> Event:
        """Append an event of the session; the context is given it before this returns."""


class WindowedContext:
    """Scroll's context: bounded view, recoverable eviction, index with levels, cells with `ms`.

    The context reads the texts of payloads for its view, which has no disk, with `read`. Every
    event goes through `add`, live and when a session is replayed, so both views are given the same
    texts.
    """

    name = "scroll"
    actions = Actions()
    # How the model gets recorded content back.
    words = CELLS

    def __init__(self, read: ReadExcerpt, words: Words | None = None) -> None:
        self.view = self.make_view(words or self.words)
        # Seqs that the newest request shows in full.
        self.visible: Collection[int] = frozenset()
        # Seqs whose payload is missing or damaged, so that a preview is shown.
        self.unreadable: tuple[int, ...] = ()
        self._read = read

    def add(self, event: Event) -> None:
        """Add the next event of the session."""
        if event.kind in UNSEARCHABLE and event.is_foreign:
            # An import brings text to read, never a plan to carry out, nor words of Scroll's own.
            return
        self.view.add(event, self._excerpt(event) if needs_excerpt(event) else None)

    def _excerpt(self, event: Event) -> Excerpt | None:
        """The text of an event's payload, as far as the view may hold it.

        None if it cannot be read.
        """
        is_crowded = self.view.entry_tokens > CROWDED_TOKENS
        try:
            return self._read(event, HELD_CHARS if is_crowded else LONGEST_TEXT)
        except (PayloadMissing, PayloadDamaged):
            self.unreadable += (event.seq,)
            return None

    def fit(
        self, session: ContextSession, budget: Budget, model: Model | None, overflowed: bool
    ) -> bool:
        """Make the view fit its budget, by recording a plan; whether it shrank."""
        budget = self.room(budget)
        if not self.view.begun and self.preface() is None:
            self.begin(session, budget)
        plan = plan_eviction(self.view, budget, overflowed=overflowed)
        if plan is None:
            prepare_ahead(self.view)
            return False
        remark, facts = self.replacement(plan, budget, model)
        # The journal gives the event to `add`, which applies the plan.
        session.record(
            Kind.EVICTION, content=plan.summary() + remark, metadata=plan.metadata() | facts
        )
        return plan.shrinks

    def begin(self, session: ContextSession, budget: Budget) -> None:
        """Record the earlier work that the session starts from, if there is any."""
        store = session.store
        earlier = earlier_work(
            store.log, session.grant, session.scope.session_id, budget, index=store.index
        )
        grant = session.grant
        if grant.session_id is None:
            store.index.after_many(
                f"notes for {grant!r}", lambda: note_sessions(store.log, store.index, grant)
            )
        if earlier != EarlierWork():
            session.record(Kind.SESSION, content=earlier.summary(), metadata=earlier.metadata())

    def render(self, system: str, variable_list: str) -> Rendered:
        """The messages for the next request."""
        rendered = render(self.view, system, variable_list, preface=self.preface())
        self.visible = rendered.visible
        return rendered

    def index_lines(self) -> list[dict[str, Any]]:
        """The evicted steps: headlines and spans of seqs."""
        return [
            {
                "seqs": [list(span) for span in line.spans],
                "headline": line.description,
                "entries": line.entries,
            }
            for line in self.view.index.lines
        ]

    # what other contexts do differently ---------------------------------------------------------

    @staticmethod
    def make_view(words: Words) -> WorkingView:
        """An empty view."""
        return WorkingView(words)

    def room(self, budget: Budget) -> Budget:
        """The budget, less what this context needs for itself."""
        return budget

    def replacement(
        self,
        plan: EvictionPlan,  # noqa: ARG002
        budget: Budget,  # noqa: ARG002
        model: Model | None,  # noqa: ARG002
    ) -> tuple[str, dict[str, Any]]:
        """A replacement for the entries that leave: a remark for people, and facts to record with
        the plan.
        """
        return "", {}

    def preface(self) -> str | None:
        """The text before the live turns; None stands for the index."""
        return None


class PlainContext(WindowedContext):
    """Scroll's context without cells: bounded view, recoverable eviction, index, recall by plain
    tools. No kernel is started, so it works on systems without a jail too.
    """

    name = "plain"
    actions = Actions(
        exec=False, ms=False, memory_tools=("search", "grep", "expand", "outline"), prompts=()
    )
    words = tool_words()


_OWN = (WindowedContext, PlainContext)


def context_class(name: str) -> type[WindowedContext] | None:
    """The context of this name: Scroll's own, or one that an installed package offers.

    None if there is none.
    """
    for context in _OWN:
        if context.name == name:
            return context
    for point in entry_points(GROUP):
        if point.name == name:
            offered: type[WindowedContext] = point.load()
            return offered
    return None


def make_context(name: str, read: ReadExcerpt, words: Words | None = None) -> WindowedContext:
    """A fresh context of this name, which reads the texts of payloads with `read`.

    `words` are for a host that offers the recall tools under names of its own.
    """
    chosen = context_class(name)
    if chosen is None:
        names = {context.name for context in _OWN}
        names.update(point.name for point in entry_points(GROUP))
        raise BadInput(f"there is no context {name!r}; choose one of {', '.join(sorted(names))}")
    return chosen(read, words)
