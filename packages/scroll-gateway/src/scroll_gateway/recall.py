"""The recall tool that a gateway offers to the model of a program without MCP.

It is one tool, the last of the list, in every request from the first one on: a tool that came later
would change the beginning of the request, and with it the provider's cache. The program never sees
it. The gateway answers its calls itself (`splices`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scroll_context.errors import ScrollError
from scroll_context.recall.memory import Memory
from scroll_context.recall.memory_tools import call_tool, recall_tools
from scroll_context.session.options import Reach
from scroll_context.session.session import Session
from scroll_gateway.wire.protocol import Protocol
from scroll_gateway.wire.requests import WireRequest
from scroll_gateway.wire.slices import decode, encode, item_spans

NAME = "scroll_recall"

DESCRIPTION = (
    "Return earlier parts of this conversation that are no longer shown: results that were folded "
    "and steps that were moved to the index. Give `seq` for one of them word for word, `seq` and "
    "`last` for several in a row, or `query` to find them by their words. Lines that begin with "
    "[scroll: name the seqs."
)
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer", "description": "the part to return, or the first of several"},
        "last": {"type": "integer", "description": "the last of several"},
        "start": {"type": "integer", "description": "where in a long text to begin, in characters"},
        "query": {"type": "string", "description": "words to look for, instead of a seq"},
    },
}


def tool_of(protocol: Protocol) -> dict[str, Any]:
    """The tool, as a protocol describes tools."""
    about = {"name": NAME, "description": DESCRIPTION}
    if protocol.name == "messages":
        return {**about, "input_schema": PARAMETERS}
    if protocol.name == "chat":
        return {"type": "function", "function": {**about, "parameters": PARAMETERS}}
    return {"type": "function", **about, "parameters": PARAMETERS, "strict": False}


def can_offer(request: WireRequest) -> bool:
    """Whether a request may get the tool: a program without tools does not expect calls."""
    tools = decode(request.fields.get("tools", b"[]"))
    if not isinstance(tools, list) or not tools:
        return False
    return not any(_name(tool) in ("", NAME) for tool in tools)


def with_tool(protocol: Protocol, tools: bytes) -> bytes:
    """A list of tools with ours at its end."""
    end = item_spans(tools)[-1].end
    return tools[:end] + b"," + encode(tool_of(protocol)) + tools[end:]


class RecallAnswer(NamedTuple):
    """The text that a call of the tool returns, and the events that the text repeats."""

    text: str
    seqs: tuple[int, ...] = ()


def answer(session: Session, arguments: dict[str, Any] | str) -> RecallAnswer:
    """Answer a call of the tool. The words of a refusal are for the model too."""
    if not isinstance(arguments, dict):
        return RecallAnswer(f"{NAME} takes seq, or query.")
    is_search = "seq" not in arguments
    name = "search" if is_search else "expand"
    names = ("query",) if is_search else ("seq", "last", "start")
    # A fork continues a session, and its stubs name seqs of that one. Both have one task.
    reach: Reach = "task" if session.scope.task_id else "session"
    memory = Memory(session.store, session.scope, reach, session)
    tools = recall_tools(memory, (name,))
    try:
        chosen = {key: arguments[key] for key in names if arguments.get(key) is not None}
        result = call_tool(tools, name, chosen)
    # The arguments are the model's: whatever is wrong with them is told to the model.
    except (ScrollError, TypeError, ValueError) as error:
        return RecallAnswer(f"{NAME} failed: {error}")
    text = "\n\n".join(_lines(result)).replace("expand(seq=", f"{NAME}(seq=")
    return RecallAnswer(text, tuple(row["seq"] for row in result["rows"]))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The events of an answer as text, and the note about them."""
    for row in result["rows"]:
        labels = [f"seq {row['seq']}", *(str(row.get(key) or "") for key in ("role", "name"))]
        text = row.get("content") or row.get("snippet") or row.get("match") or ""
        yield f"[{' · '.join(filter(None, labels))}]\n{text}"
        if row.get("more"):
            yield str(row["more"])
    if result.get("note"):
        yield str(result["note"])


def _name(tool: Any) -> str:
    function = tool.get("function") or tool
    return str(function.get("name") or tool.get("type") or "")
