"""What decides which part of a session a model sees, and how it may act: the seam for comparing contexts."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from scroll_context.events import Event
from scroll_context.models import Model
from scroll_context.view.eviction import Budget
from scroll_context.view.render import Rendered

if TYPE_CHECKING:
    from scroll_context.session.session import Session


class Actions(msgspec.Struct, frozen=True):
    """How the model acts under a context, and the prompts that tell it so."""

    exec: bool = True  # it writes cells, and tools are functions in them; else tools are called natively
    ms: bool = True  # cells have `ms`
    memory_tools: tuple[str, ...] = ()  # native tools that reach the memory: those of surface/memory_tools.py
    prompts: tuple[str, ...] = ("system", "memory", "tools", "ask", "headline")  # files in prompts/, in order


class Context(Protocol):
    """A policy for the view. It learns of events one by one and must be rebuilt by the same events."""

    name: str
    actions: Actions

    def add(self, event: Event) -> None:
        """Take in the next event of the session."""

    def fit(self, session: "Session", budget: Budget, model: Model, overflowed: bool) -> bool:
        """Make the view fit its budget, recording what it does; whether it shrank."""

    def render(self, system: str, digest: str) -> Rendered:
        """The messages for the next request."""

    @property
    def visible(self) -> Collection[int]:
        """Seqs that the newest request shows in full."""

    def index_lines(self) -> list[dict[str, Any]]:
        """What has left the view: headlines and spans of seqs."""
