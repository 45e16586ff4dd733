"""The descriptions of the tools of `scroll mcp` for a model, and the checks of its arguments.

Every word here is sent with each request of an assistant, so the texts are short.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from scroll_context.errors import BadInput

INSTRUCTIONS = (
    "The whole history of this user's work, searchable. Search before you say that something was "
    "never said or done, and after a compaction to find what you no longer see. Answers carry "
    "seqs; `expand` returns the exact texts. For counting, comparing or reading much use `exec`, "
    "which shows only what it prints."
)

# Claude Code hides tools behind a search unless they say this, and a hidden tool is not used.
ALWAYS_LOADED = {"anthropic/alwaysLoad": True}

TEXT, NUMBER, ANY = "string", "integer", "any"


class Argument(NamedTuple):
    """An argument of a tool."""

    # TEXT, NUMBER, or ANY for a text in which models also send numbers and lists.
    type: str
    description: str = ""
    # Arguments without a default are required.
    default: str | int | None = None

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": NUMBER if self.type == NUMBER else TEXT}
        if self.description:
            schema["description"] = self.description
        if self.default is not None:
            schema["default"] = self.default
        return schema


class Tool(NamedTuple):
    """A tool, as a client lists it."""

    name: str
    description: str
    arguments: Mapping[str, Argument]
    is_read_only: bool = False

    def listed(self) -> dict[str, Any]:
        """The tool in the form of the protocol."""
        schema = {
            "type": "object",
            "properties": {name: value.schema() for name, value in self.arguments.items()},
            "required": [name for name, value in self.arguments.items() if value.default is None],
        }
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": schema,
            "annotations": {"readOnlyHint": self.is_read_only},
            "_meta": ALWAYS_LOADED,
        }


_ALL = (
    Tool(
        "search",
        "Find past messages, calls and results by words, best first.\n\n"
        "A hit has its seq; `expand` gives the whole.",
        {
            "query": Argument(TEXT, 'words; OR, AND, NOT, "phrases" and prefix* work'),
            "k": Argument(NUMBER, "most hits", 10),
            "role": Argument(TEXT, "user, assistant or tool", ""),
            "session_id": Argument(TEXT, "", ""),
            "created_from": Argument(TEXT, "a date", ""),
            "created_to": Argument(TEXT, "a date, included", ""),
        },
        is_read_only=True,
    ),
    Tool(
        "expand",
        "The exact texts at seqs.\n\nA long text comes in pages; the end of a page says how to "
        "go on.",
        {
            "seqs": Argument(ANY, 'such as "12", "12,15" or "12-20"'),
            "start": Argument(NUMBER, "where in a long text to begin, in characters", 0),
        },
        is_read_only=True,
    ),
    Tool(
        "brief",
        "The few earlier events that bear on a task, and earlier work on the files and errors "
        "that it names.\n\nCall it with the user's own words when a task begins.",
        {"prompt": Argument(TEXT)},
        is_read_only=True,
    ),
    Tool(
        "exec",
        "Run a cell in a sandboxed Python kernel that keeps its variables.\n\n"
        "In it, `ms.search(query, k=10)`, `ms.grep(text)` (every occurrence, counted) and\n"
        "`ms.expand(seq)` return rows (seq, role, created_at, session_id, content), "
        "`ms.outline()`\none row a session, `ms.sql_query(sql)` reads hist.conversation_history; "
        "help(ms) tells the\nrest.",
        {
            "source": Argument(TEXT, "Python; only what it prints is shown"),
            "kernel": Argument(TEXT, "whose variables to use, if an answer named one", ""),
        },
    ),
    Tool(
        "note",
        "Keep something worth finding later.\n\n"
        "It is searchable at once, in every later session of this project.",
        {"text": Argument(TEXT, "a decision, fact or instruction, in whole sentences")},
    ),
)
TOOLS = {tool.name: tool for tool in _ALL}

RESOURCE_TEMPLATES = (
    {
        "name": "event",
        "uriTemplate": "scroll://event/{seq}",
        "description": "One event: its heading and its text.",
        "mimeType": "text/plain",
    },
    {
        "name": "session",
        "uriTemplate": "scroll://session/{session_id}",
        "description": "A session: one line for each of its messages.",
        "mimeType": "text/plain",
    },
)

BRIEF_PROMPT = {
    "name": "brief",
    "description": "What earlier work bears on a task, with the task itself",
    "arguments": [{"name": "prompt", "description": "the task", "required": True}],
}
"""A prompt that the user calls, in clients that offer prompts as commands."""


def checked(tool: str, arguments: Any) -> dict[str, Any]:
    """The arguments of a call. Models send numbers as texts, and arguments that no tool has."""
    if tool not in TOOLS:
        raise BadInput(f"there is no tool {tool[:40]!r}; the tools are {', '.join(TOOLS)}")
    if not isinstance(arguments, dict):
        raise BadInput("tool arguments must be an object")
    values: dict[str, Any] = {}
    for name, argument in TOOLS[tool].arguments.items():
        value = arguments.get(name)
        if value is None:
            value = argument.default
        if value is None:
            raise BadInput(f"{tool} needs the argument {name!r}")
        values[name] = _checked(name, argument.type, value)
    return values


def _checked(name: str, type_name: str, value: Any) -> Any:
    if type_name == ANY:
        return value
    if type_name == TEXT:
        if not isinstance(value, str):
            raise BadInput(f"{name} must be text, not {type(value).__name__}")
        # No stored text has a lone surrogate.
        return value.encode(errors="replace").decode()
    try:
        return int(value)
    except (ValueError, TypeError, OverflowError):
        raise BadInput(f"{name} must be a whole number, not {str(value)[:40]!r}") from None
