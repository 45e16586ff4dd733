"""The contexts of conversations under a gateway: without a kernel, and with the names under which
each assistant offers the tools of Scroll's MCP server.

A stub must name a call that exists. Assistants put the name of the server before a tool's name,
each in its own way.
"""

from scroll_context.session.context import Actions, PlainContext
from scroll_context.view.wording import Words, tool_words
from scroll_gateway.recall import NAME


class GatewayContext(PlainContext):
    """For Claude Code and Codex."""

    name = "gateway"
    words = tool_words("mcp__scroll__")


class OpencodeContext(PlainContext):
    """For opencode."""

    name = "gateway-opencode"
    words = tool_words("scroll_")


class RecallContext(PlainContext):
    """For programs without MCP, whose model gets one tool that the gateway answers itself."""

    name = "gateway-recall"
    actions = Actions(exec=False, ms=False, prompts=())
    words = Words(NAME, NAME, "")
