"""Messages and conversations of other programs, turned into the common shape of chat messages.

These are LangChain's three ways to write a message, items and answers of OpenAI's Responses, and
answers of its chat completions. The core reads the common shape (importing/messages.py).
"""

from typing import Any

from scroll_assistants.importers.records import fields, objects
from scroll_context.errors import BadInput
from scroll_context.importing import records
from scroll_context.importing.records import META, THINKING

_LANGCHAIN = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "chat": "",
    "remove": "system",
}
_ITEMS = ("function_call", "custom_tool_call", "reasoning", "web_search_call", "local_shell_call")


def call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    """A message of the assistant that is one tool call."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "function": {"name": name, "arguments": arguments}}],
    }


def result(call_id: str, content: Any, is_error: bool) -> dict[str, Any]:
    """A message that is the result of a tool call."""
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": call_id,
        "tool_state": "error" if is_error else "",
    }


def response_item(item: dict[str, Any]) -> dict[str, Any] | None:
    """The message of an item of OpenAI's Responses, which Codex writes too; None if it is empty."""
    kind = records.text(item, "type")
    call_id = records.text(item, "call_id") or records.text(item, "id")
    if kind == "message":
        return {"role": records.text(item, "role"), "content": item.get("content")}
    if kind == "reasoning":
        parts = [*objects(item, "summary"), *objects(item, "content")]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        if not texts:
            return None
        return {"role": "assistant", "content": "\n".join(texts), "kind": THINKING}
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") if kind == "function_call" else item.get("input")
        name = records.text(item, "name")
        namespace = records.text(item, "namespace")
        if namespace:
            name = f"{namespace.removesuffix('__')}__{name}"
        return call(name, arguments or "", call_id)
    if kind.endswith("_output"):
        output = item.get("output")
        if not isinstance(output, dict):
            return result(call_id, output, is_error=False)
        is_error = output.get("success") is False
        return result(call_id, output.get("content", output), is_error)
    if kind.endswith("_call"):
        # Such as local_shell_call and web_search_call.
        return call(kind.removesuffix("_call"), item.get("action") or {}, call_id)
    return None


def common_shape(value: Any) -> tuple[Any, str] | None:
    """A message or a conversation in the common shape, and the name of its own shape.

    None for a value that has the common shape, or none of these.
    """
    if not isinstance(value, dict):
        return None
    message = value.get("message")
    if "role" in value:
        if "content" not in value and isinstance(message, dict):
            return {"role": value["role"], "content": message.get("content") or ""}, "Cursor"
        return _as_langchain(value)
    if isinstance(value.get("messages"), list):
        return None
    return _as_conversation(value) or _as_langchain(value) or _as_response_item(value)


def _as_langchain(value: dict[str, Any]) -> tuple[Any, str] | None:
    """A message in one of LangChain's three ways to write it."""
    arguments = value.get("kwargs")
    if value.get("lc") and isinstance(arguments, dict):
        path = value.get("id")
        name = str(path[-1]) if path and isinstance(path, list) else ""
        return _langchain(name, arguments), "LangChain"
    kind = _type_of(value)
    if "role" in value or _langchain_kind(kind) not in _LANGCHAIN:
        return None
    data = value.get("data")
    if isinstance(data, dict):
        return _langchain(kind, data), "LangChain"
    if "content" in value:
        return _langchain(kind, value), "LangChain"
    return None


def _as_response_item(value: dict[str, Any]) -> tuple[Any, str] | None:
    """An item of OpenAI's Responses. Its own messages have the common shape."""
    kind = _type_of(value)
    if kind not in _ITEMS and not kind.endswith("_call_output"):
        return None
    empty = {"role": "assistant", "content": "", "kind": THINKING}
    return response_item(value) or empty, "OpenAI Responses"


def _type_of(value: dict[str, Any]) -> str:
    return value["type"] if isinstance(value.get("type"), str) else ""


def _langchain_kind(name: str) -> str:
    """The role of a LangChain class or type: `ai` for `ai`, `AIMessage` and `AIMessageChunk`."""
    return name.removesuffix("Chunk").removesuffix("Message").lower()


def _langchain(name: str, value: dict[str, Any]) -> dict[str, Any]:
    kind = _langchain_kind(name)
    if kind == "remove":
        return {
            "role": "system",
            "kind": META,
            "content": f"[the message {records.text(value, 'id')} was removed]",
        }
    message = {}
    for field, item in value.items():
        if item and field not in ("type", "tool_calls", "lc"):
            message[field] = item
    message["role"] = _LANGCHAIN.get(kind) or records.text(value, "role") or kind
    content = value.get("content")
    calls = value.get("tool_calls")
    extra = value.get("additional_kwargs")
    if not calls and isinstance(extra, dict):
        calls = extra.get("tool_calls")
    calls = calls or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadInput("tool_calls must be a list of objects")
    if calls:
        message["tool_calls"] = [_langchain_call(call) for call in calls]
        message.pop("additional_kwargs", None)
        if isinstance(content, list):
            # Anthropic's calls are in the content too.
            content = [part for part in content if not _is_tool_use(part)]
    message["content"] = "" if content is None else content
    if value.get("status") == "error":
        message["tool_state"] = "error"
    return message


def _langchain_call(call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call:
        return call
    function = {"name": call.get("name"), "arguments": call.get("args", {})}
    return {"id": call.get("id"), "function": function}


def _is_tool_use(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_use"


def _as_conversation(value: dict[str, Any]) -> tuple[Any, str] | None:
    """The state of a LangGraph thread, or an answer of a chat completion or of Responses."""
    state = value.get("values")
    if isinstance(state, dict) and isinstance(state.get("messages"), list):
        return state["messages"], ""
    choices = value.get("choices")
    if isinstance(choices, list):
        replies = []
        for choice in choices:
            if isinstance(choice, dict) and isinstance(choice.get("message"), dict):
                replies.append(choice["message"])
        shared = fields(value, id="id", model="model", created_at="created")
        return {**shared, "messages": replies}, ""
    output = value.get("output")
    if value.get("object") == "response" and isinstance(output, list):
        shared = fields(value, id="id", model="model", created_at="created_at")
        return {**shared, "messages": output}, ""
    return None
