"""Scroll: the session of an LLM agent as an executable environment that forgets nothing.

The public names are loaded when they are first used, so that importing the package costs nothing: the jailed kernel
process and `scroll --help` both rely on that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scroll_context.errors import ScrollError
    from scroll_context.events import Draft, Event, Grant, Kind, Payload
    from scroll_context.store.log import EventLog
    from scroll_context.store.payloads import PayloadStore
    from scroll_context.store.refs import ArtifactRef, ToolResultRef
    from scroll_context.store.search import Hit, SearchIndex
    from scroll_context.store.store import Store

__version__ = "0.1.0"

_HOME = {
    "ArtifactRef": "store.refs",
    "Draft": "events",
    "Event": "events",
    "EventLog": "store.log",
    "Grant": "events",
    "Hit": "store.search",
    "Kind": "events",
    "Payload": "events",
    "PayloadStore": "store.payloads",
    "ScrollError": "errors",
    "SearchIndex": "store.search",
    "Store": "store.store",
    "ToolResultRef": "store.refs",
}

__all__ = [
    "ArtifactRef",
    "Draft",
    "Event",
    "EventLog",
    "Grant",
    "Hit",
    "Kind",
    "Payload",
    "PayloadStore",
    "ScrollError",
    "SearchIndex",
    "Store",
    "ToolResultRef",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
