"""The system prompt, put together from the Markdown files in prompts/, and the tools of the agent
itself.
"""

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from scroll_context.messages import ToolSpec
from scroll_context.tools.tools import Tool, tool

if TYPE_CHECKING:
    from scroll_context.session.session import Session

PROMPT_TOKENS = 1_600
"""The most that the system prompt and the schema of the cell tool may take, by `view.tokens`.

With every part in it, but without the user's tools and instructions. Name fewer calls rather than
shorten the examples; `help(ms)` has the others. tests/agent/test_prompts.py checks it.
"""

HEADLINE = "task | state | next action | status"
"""The parts of a headline, in the prompt and in the schema."""

_EXEC = (
    "Run one Python cell in the session's kernel. Variables persist. Only printed text is "
    "returned, at most 32,000 characters; keep large values in variables."
)
_HEADLINE = f"{HEADLINE}, with exact names and numbers; at most 200 characters"


def exec_spec(name: str) -> ToolSpec:
    """The tool that runs a cell, under this name.

    >>> from scroll_context.hosts import exec_spec
    >>> exec_spec("exec").parameters["required"]
    ['source']
    """
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


def answer_tool(wanted: type) -> Tool[..., Any]:
    """The tool by which a model gives an answer of a type; the annotation makes both its schema and
    its check.
    """

    def answer(answer: Any) -> Any:
        """Give the answer to the user's request. This ends the task."""
        return answer

    answer.__annotations__ = {"answer": wanted, "return": None}
    return tool(answer)


def system_prompt(
    session: "Session",
    cell_tools: tuple[str, ...],
    instructions: str = "",
    steps: int | None = None,
) -> str:
    """The constant beginning of every request of a session.

    >>> from scroll_context import Session, Store
    >>> from scroll_context.hosts import system_prompt
    >>> with Store("work.scroll", create=True) as store, Session.open(store) as session:
    ...     text = system_prompt(session, ("exec",))
    >>> "ms.search" in text
    True
    """
    actions = session.context.actions
    tools = session.environment.toolbox.describe()
    alone = session.environment.memory.grant.session_id is not None
    there = {
        "tools": bool(tools),
        "ask": session.environment.ask is not None,
        "evidence": not (tools and alone),
    }
    without = {name for name, is_there in there.items() if not is_there}
    parts = [
        part(name).replace("{tools}", tools) for name in actions.prompts if name not in without
    ]
    if steps is not None:
        parts[0] += f" You have {steps} replies for a request, calls included."
    if instructions:
        parts.append(instructions.strip())
    text = "\n\n".join(parts).replace("{exec}", " or ".join(cell_tools))
    return text.replace("{cell_seconds}", f"{session.cell_timeout:g}")


@cache
def part(name: str) -> str:
    """One of the files in prompts/. "package:name" is one in the folder `prompts` of another
    package.
    """
    package, _, file = name.rpartition(":")
    folder = resources.files(package or "scroll_context.agent").joinpath("prompts")
    return folder.joinpath(f"{file}.md").read_text("utf-8").strip()
