"""Scroll: the session of an LLM agent as an executable environment that forgets nothing.

The public names are loaded when they are first used, so that importing the package costs nothing: the jailed kernel
process and `scroll --help` both rely on that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scroll_context.agent.agent import Agent, Limits
    from scroll_context.errors import ScrollError
    from scroll_context.events import Draft, Event, Grant, Kind, Payload
    from scroll_context.kernel.kernel import Kernel
    from scroll_context.models import ScriptedModel, connect
    from scroll_context.session.session import Session, SessionOptions
    from scroll_context.store.log import EventLog
    from scroll_context.store.payloads import ArtifactRef, PayloadStore, ToolResultRef
    from scroll_context.store.search import Hit, SearchIndex
    from scroll_context.store.store import Store
    from scroll_context.surface.tools import tool

__version__ = "0.1.0"

_HOME = {
    "Agent": "agent.agent",
    "ArtifactRef": "store.payloads",
    "Draft": "events",
    "Event": "events",
    "EventLog": "store.log",
    "Grant": "events",
    "Hit": "store.search",
    "Kernel": "kernel.kernel",
    "Kind": "events",
    "Limits": "agent.agent",
    "Payload": "events",
    "PayloadStore": "store.payloads",
    "ScriptedModel": "models",
    "ScrollError": "errors",
    "SearchIndex": "store.search",
    "Session": "session.session",
    "SessionOptions": "session.session",
    "Store": "store.store",
    "ToolResultRef": "store.payloads",
    "connect": "models",
    "tool": "surface.tools",
}

__all__ = [
    "Agent",
    "ArtifactRef",
    "Draft",
    "Event",
    "EventLog",
    "Grant",
    "Hit",
    "Kernel",
    "Kind",
    "Limits",
    "Payload",
    "PayloadStore",
    "ScriptedModel",
    "ScrollError",
    "SearchIndex",
    "Session",
    "SessionOptions",
    "Store",
    "ToolResultRef",
    "connect",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
