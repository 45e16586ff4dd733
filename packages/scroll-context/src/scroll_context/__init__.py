"""Scroll: the session of an LLM agent as an executable environment that forgets nothing.

The public names are loaded when they are first used, so that importing the package costs nothing:
the jailed kernel process and `scroll --help` both rely on that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scroll_context.agent.agent import Agent, Limits, Run, RunEvent, Totals
    from scroll_context.errors import (
        BadInput,
        ContextOverflow,
        ModelError,
        QuotaReached,
        ScrollError,
        SessionBusy,
        StoreError,
        ToolFailed,
        UnknownSession,
    )
    from scroll_context.events import Draft, Event, Grant, Kind, Payload, Scope
    from scroll_context.importing.run import import_file
    from scroll_context.jail.spec import JailSpec
    from scroll_context.kernel.kernel import Kernel, KernelOptions
    from scroll_context.log.journal import Journal, Quota
    from scroll_context.log.log import EventLog
    from scroll_context.log.payloads import ArtifactRef, PayloadStore, ToolResultRef
    from scroll_context.messages import Message, Thinking, ToolCall, ToolSpec
    from scroll_context.models import (
        Model,
        Reply,
        Request,
        ScriptedModel,
        Settings,
        Usage,
        connect,
        exec_cell,
    )
    from scroll_context.search.search import Hit, SearchIndex
    from scroll_context.session.explain import explain
    from scroll_context.session.session import Session, SessionOptions
    from scroll_context.store import Store
    from scroll_context.tools.ask import AskModel, AskReply
    from scroll_context.tools.mcp import mount_http, mount_stdio
    from scroll_context.tools.toolbox import ToolUse
    from scroll_context.tools.tools import Tool, tool
    from scroll_context.view.eviction import ViewBudget

__version__ = "0.1.0"

_NAMES = {
    "agent.agent": "Agent Limits Run RunEvent Totals",
    "errors": (
        "BadInput ContextOverflow ModelError QuotaReached ScrollError SessionBusy StoreError ToolFailed UnknownSession"
    ),
    "events": "Draft Event Grant Kind Payload Scope",
    "importing.run": "import_file",
    "jail.spec": "JailSpec",
    "kernel.kernel": "Kernel KernelOptions",
    "messages": "Message Thinking ToolCall ToolSpec",
    "models": "Model Reply Request ScriptedModel Settings Usage connect exec_cell",
    "session.explain": "explain",
    "session.session": "Session SessionOptions",
    "log.journal": "Journal Quota",
    "log.log": "EventLog",
    "log.payloads": "ArtifactRef PayloadStore ToolResultRef",
    "search.search": "Hit SearchIndex",
    "store": "Store",
    "tools.ask": "AskModel AskReply",
    "tools.mcp": "mount_http mount_stdio",
    "tools.toolbox": "ToolUse",
    "tools.tools": "Tool tool",
    "view.eviction": "ViewBudget",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Agent",
    "ArtifactRef",
    "AskModel",
    "AskReply",
    "BadInput",
    "ContextOverflow",
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
    "ModelError",
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
    "StoreError",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "ToolResultRef",
    "ToolSpec",
    "ToolUse",
    "Totals",
    "UnknownSession",
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
