"""The memory surface without a session: for a person who looks around in a store."""

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.kernel.messages import Prelude
from scroll_context.kernel.results import CapabilityResult
from scroll_context.store.store import Store
from scroll_context.surface.handles import read_payload
from scroll_context.surface.memory import MemorySurface
from scroll_context.surface.preludes import handles_prelude, memory_prelude
from scroll_context.surface.scope import Scope


class NoSession:
    """The facts of a session that is not there: no view, no index, no cells on record."""

    def visible_seqs(self) -> Collection[int]:
        return ()

    def index_lines(self) -> list[dict[str, Any]]:
        return []

    def provenance(self, name: str) -> dict[str, Any]:
        raise BadInput(f"there is no session here, so nothing is known about {name!r}; :names lists your variables")


class Surface(msgspec.Struct, frozen=True):
    """What a kernel is given: the capabilities, and the source that binds them."""

    methods: dict[str, Callable[..., CapabilityResult]] = {}
    preludes: tuple[Prelude, ...] = ()


def reading_surface(store: Store) -> Surface:
    """`ms` on a whole store."""
    memory = MemorySurface(store, Scope(""), "all", NoSession())

    def payload(seq: Any, start: Any = 0) -> CapabilityResult:
        return read_payload(store, memory.grant, seq, start)

    return Surface({**memory.methods(), "payload.read": payload}, (handles_prelude(), memory_prelude()))
