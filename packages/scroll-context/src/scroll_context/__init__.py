"""Scroll: context management for long-running LLM agents that keeps the full history.

The public names are the names in `PUBLIC`. Each is loaded when it is first used, so importing the
package costs nothing: the jailed kernel process and `scroll --help` both rely on that. The whole
error tree is in `scroll_context.errors`. Authors of host adapters find their names in
`scroll_context.hosts`. Everything else is imported from its own module.
"""

from typing import TYPE_CHECKING

from scroll_context.plugins import lazy_names

__version__ = "0.1.0"

PUBLIC = {
    "agent.agent": ("Agent", "Limits", "Run"),
    "errors": ("ModelError", "ScrollError", "SessionBusy", "StoreError"),
    "events": ("Draft", "Event", "Grant", "Kind"),
    "importing.run": ("import_file",),
    "log.journal": ("Quota",),
    "models": ("Model", "ScriptedModel", "Settings", "connect", "exec_cell"),
    "session.explain": ("explain",),
    "session.options": ("SessionOptions",),
    "session.session": ("Session",),
    "store": ("Store",),
    "tools.toolbox": ("ToolUse",),
    "tools.tools": ("tool",),
    "view.eviction": ("ViewBudget",),
}
"""The public names by the module that defines them."""

__all__, _load = lazy_names(__name__, PUBLIC)

if TYPE_CHECKING:
    # Type checkers cannot read the table. A test compares these lines with it.
    from scroll_context.agent.agent import Agent as Agent
    from scroll_context.agent.agent import Limits as Limits
    from scroll_context.agent.agent import Run as Run
    from scroll_context.errors import ModelError as ModelError
    from scroll_context.errors import ScrollError as ScrollError
    from scroll_context.errors import SessionBusy as SessionBusy
    from scroll_context.errors import StoreError as StoreError
    from scroll_context.events import Draft as Draft
    from scroll_context.events import Event as Event
    from scroll_context.events import Grant as Grant
    from scroll_context.events import Kind as Kind
    from scroll_context.importing.run import import_file as import_file
    from scroll_context.log.journal import Quota as Quota
    from scroll_context.models import Model as Model
    from scroll_context.models import ScriptedModel as ScriptedModel
    from scroll_context.models import Settings as Settings
    from scroll_context.models import connect as connect
    from scroll_context.models import exec_cell as exec_cell
    from scroll_context.session.explain import explain as explain
    from scroll_context.session.options import SessionOptions as SessionOptions
    from scroll_context.session.session import Session as Session
    from scroll_context.store import Store as Store
    from scroll_context.tools.toolbox import ToolUse as ToolUse
    from scroll_context.tools.tools import tool as tool
    from scroll_context.view.eviction import ViewBudget as ViewBudget
else:
    # Type checkers must not see this function: they would accept any name.
    __getattr__ = _load


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
