"""The system prompt, put together from the Markdown files in prompts/, and the tool that runs cells."""

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from scroll_context.messages import ToolSpec

if TYPE_CHECKING:
    from scroll_context.session.session import Session

_EXEC = (
    "Run one Python cell in the session's kernel. Variables persist. Only what the cell prints is returned, at most "
    "32,000 characters; keep large values in variables."
)
_HEADLINE = "task | verified state | next action | status, with exact names and numbers; at most 200 characters"


def exec_spec(name: str) -> ToolSpec:
    """The tool that runs a cell, under this name."""
    return ToolSpec(
        name,
        _EXEC,
        {
            "type": "object",
            "properties": {
                "source": {"type": "string", "description": "the Python source of the cell"},
                "headline": {"type": "string", "description": _HEADLINE},
            },
            "required": ["source"],
        },
    )


def system_prompt(session: "Session", tool_names: tuple[str, ...], instructions: str = "") -> str:
    """The constant beginning of every request of a session."""
    actions = session.context.actions
    tools = session.environment.toolbox.describe()
    without = {name for name, there in (("tools", tools), ("ask", session.environment.ask)) if not there}
    parts = [part(name).replace("{tools}", tools) for name in actions.prompts if name not in without]
    if instructions:
        parts.append(instructions.strip())
    return "\n\n".join(parts).replace("{exec}", " or ".join(tool_names))


@cache
def part(name: str) -> str:
    """One of the files in prompts/. "package:name" is one in the folder `prompts` of another package."""
    package, _, file = name.rpartition(":")
    folder = resources.files(package or "scroll_context.agent").joinpath("prompts")
    return folder.joinpath(f"{file}.md").read_text("utf-8").strip()
