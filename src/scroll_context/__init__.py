"""Scroll: the session of an LLM agent as an executable environment that forgets nothing.

The public names are loaded when they are first used, so that importing the package costs nothing: the jailed kernel
process and `scroll --help` both rely on that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scroll_context.agent.agent import Agent, Limits, Run, RunEvent, Totals
    from scroll_context.errors import QuotaReached, ScrollError, SessionBusy
    from scroll_context.events import Draft, Event, Grant, Kind, Payload, Scope
    from scroll_context.importers import import_file
    from scroll_context.kernel.jail.spec import JailSpec
    from scroll_context.kernel.kernel import Kernel, KernelOptions
    from scroll_context.messages import Message, ToolCall, ToolSpec
    from scroll_context.models import Model, Reply, Request, ScriptedModel, Settings, Usage, connect, exec_cell
    from scroll_context.session.explain import explain
    from scroll_context.session.session import Session, SessionOptions, ViewBudget
    from scroll_context.store.journal import Journal, Quota
    from scroll_context.store.log import EventLog
    from scroll_context.store.payloads import ArtifactRef, PayloadStore, ToolResultRef
    from scroll_context.store.search import Hit, SearchIndex
    from scroll_context.store.store import Store
    from scroll_context.surface.ask import AskModel, AskReply
    from scroll_context.surface.mcp import mount_http, mount_stdio
    from scroll_context.surface.toolbox import ToolUse
    from scroll_context.surface.tools import Tool, tool

__version__ = "0.1.0"

_HOME = {
    "Agent": "agent.agent",
    "ArtifactRef": "store.payloads",
    "AskModel": "surface.ask",
    "AskReply": "surface.ask",
    "Draft": "events",
    "Event": "events",
    "EventLog": "store.log",
    "Grant": "events",
    "Hit": "store.search",
    "JailSpec": "kernel.jail.spec",
    "Journal": "store.journal",
    "Kernel": "kernel.kernel",
    "KernelOptions": "kernel.kernel",
    "Kind": "events",
    "Limits": "agent.agent",
    "Message": "messages",
    "Model": "models",
    "Payload": "events",
    "PayloadStore": "store.payloads",
    "RunEvent": "agent.agent",
    "Quota": "store.journal",
    "QuotaReached": "errors",
    "Reply": "models",
    "Request": "models",
    "Run": "agent.agent",
    "Scope": "events",
    "ScriptedModel": "models",
    "ScrollError": "errors",
    "SearchIndex": "store.search",
    "Session": "session.session",
    "SessionBusy": "errors",
    "SessionOptions": "session.session",
    "Settings": "models",
    "Store": "store.store",
    "Tool": "surface.tools",
    "ToolCall": "messages",
    "ToolResultRef": "store.payloads",
    "ToolSpec": "messages",
    "ToolUse": "surface.toolbox",
    "Totals": "agent.agent",
    "Usage": "models",
    "ViewBudget": "session.session",
    "connect": "models",
    "exec_cell": "models",
    "explain": "session.explain",
    "import_file": "importers",
    "mount_http": "surface.mcp",
    "mount_stdio": "surface.mcp",
    "tool": "surface.tools",
}

__all__ = [
    "Agent",
    "ArtifactRef",
    "AskModel",
    "AskReply",
    "Draft",
    "Event",
    "EventLog",
    "Grant",
    "Hit",
    "JailSpec",
    "Journal",
    "Kernel",
    "KernelOptions",
    "Kind",
    "Limits",
    "Message",
    "Model",
    "Payload",
    "PayloadStore",
    "Quota",
    "QuotaReached",
    "Reply",
    "Request",
    "Run",
    "RunEvent",
    "Scope",
    "ScriptedModel",
    "ScrollError",
    "SearchIndex",
    "Session",
    "SessionBusy",
    "SessionOptions",
    "Settings",
    "Store",
    "Tool",
    "ToolCall",
    "ToolResultRef",
    "ToolSpec",
    "ToolUse",
    "Totals",
    "Usage",
    "ViewBudget",
    "connect",
    "exec_cell",
    "explain",
    "import_file",
    "mount_http",
    "mount_stdio",
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
