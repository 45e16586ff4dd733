"""Names for authors of host adapters: the values that pass between a session and another program.

A host describes its messages as `HostMessage`s to `Session.follow`, applies the `Layout` that it
gets back to its own objects, and reports the `Reply`. `HostAdapter` opens the session for it and
carries out the model's recalls. The distribution scroll-adapters has the adapters for known
frameworks, such as `scroll_adapters.langchain`, and scroll-gateway those for the wire protocols of
OpenAI and Anthropic. The names are loaded when they are first used, like those of `scroll_context`
itself.
"""

from typing import TYPE_CHECKING

from scroll_context.plugins import lazy_names

PUBLIC = {
    "errors": ("ContextOverflow",),
    "hosts.adapter": ("HostAdapter",),
    "messages": ("Media", "Message", "Thinking", "ToolCall", "ToolSpec"),
    "models": ("Reply", "Request", "Usage"),
    "recall.memory_tools": ("call_tool", "recall_tools", "tool_specs"),
    "session.host": ("Drop", "HostMessage", "Insert", "Keep", "Layout", "Replace"),
    "session.media": ("wire_bytes",),
    "session.prompt": ("exec_spec", "system_prompt"),
    "view.tokens": ("estimate",),
}
"""The public names by the module of `scroll_context` that defines them."""

__all__, _load = lazy_names(__name__, PUBLIC)

if TYPE_CHECKING:
    # Type checkers cannot read the table. A test compares these lines with it.
    from scroll_context.errors import ContextOverflow as ContextOverflow
    from scroll_context.hosts.adapter import HostAdapter as HostAdapter
    from scroll_context.messages import Media as Media
    from scroll_context.messages import Message as Message
    from scroll_context.messages import Thinking as Thinking
    from scroll_context.messages import ToolCall as ToolCall
    from scroll_context.messages import ToolSpec as ToolSpec
    from scroll_context.models import Reply as Reply
    from scroll_context.models import Request as Request
    from scroll_context.models import Usage as Usage
    from scroll_context.recall.memory_tools import call_tool as call_tool
    from scroll_context.recall.memory_tools import recall_tools as recall_tools
    from scroll_context.recall.memory_tools import tool_specs as tool_specs
    from scroll_context.session.host import Drop as Drop
    from scroll_context.session.host import HostMessage as HostMessage
    from scroll_context.session.host import Insert as Insert
    from scroll_context.session.host import Keep as Keep
    from scroll_context.session.host import Layout as Layout
    from scroll_context.session.host import Replace as Replace
    from scroll_context.session.media import wire_bytes as wire_bytes
    from scroll_context.session.prompt import exec_spec as exec_spec
    from scroll_context.session.prompt import system_prompt as system_prompt
    from scroll_context.view.tokens import estimate as estimate
else:
    # Type checkers must not see this function: they would accept any name.
    __getattr__ = _load


def __dir__() -> list[str]:
    return list(__all__)
