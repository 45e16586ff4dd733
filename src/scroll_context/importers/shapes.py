"""The shapes that other programs give to messages and conversations, turned into the one that `messages.pieces` reads.

Messages of OpenAI and Anthropic are read there as they are. Here are LangChain's three ways to write a message, items
and answers of OpenAI's Responses, answers of its chat completions, pairs of a prompt and a completion, threads of its
assistants, and parts of Gemini. A value of another shape is returned as it came.
"""

from typing import Any

from scroll_context.errors import BadInput
from scroll_context.importers import fields
from scroll_context.importers.messages import META, THINKING

_LANGCHAIN = {
    "human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool", "chat": "",
    "remove": "system",
}  # fmt: skip
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
    return {"role": "tool", "content": content, "tool_call_id": call_id, "tool_state": "error" if is_error else ""}


def response_item(item: dict[str, Any]) -> dict[str, Any] | None:
    """The message of an item of OpenAI's Responses, which Codex writes too; None for one that says nothing."""
    kind = fields.text(item, "type")
    call_id = fields.text(item, "call_id") or fields.text(item, "id")
    if kind == "message":
        return {"role": fields.text(item, "role"), "content": item.get("content")}
    if kind == "reasoning":
        parts = [*fields.objects(item, "summary"), *fields.objects(item, "content")]
        said = [text for part in parts if isinstance(text := part.get("text"), str)]
        return {"role": "assistant", "content": "\n".join(said), "kind": THINKING} if said else None
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") if kind == "function_call" else item.get("input")
        name, space = fields.text(item, "name"), fields.text(item, "namespace")
        return call(f"{space.removesuffix('__')}__{name}" if space else name, arguments or "", call_id)
    if kind.endswith("_output"):
        output = item.get("output")
        failed = isinstance(output, dict) and output.get("success") is False
        return result(call_id, output.get("content", output) if isinstance(output, dict) else output, failed)
    if kind.endswith("_call"):  # local_shell_call, web_search_call
        return call(kind.removesuffix("_call"), item.get("action") or {}, call_id)
    return None


def gemini_parts(content: Any) -> str | list[Any]:
    """The content of a message of Gemini: text, or parts of which the media stay media."""
    parts = content if isinstance(content, list) else [] if content is None else [content]
    found: list[Any] = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        elif not isinstance(part, dict):
            raise BadInput("a part of Gemini must be text or an object")
        elif isinstance(part.get("text"), str):
            found.append(part["text"])
        elif isinstance(media := part.get("inlineData"), dict):
            source = {"type": "base64", "media_type": media.get("mimeType"), "data": media.get("data")}
            found.append({"type": "image", "source": source})
        elif isinstance(answer := part.get("functionResponse"), dict):
            response = answer.get("response")
            output = response.get("output", response) if isinstance(response, dict) else response
            found.append(output if isinstance(output, str) else fields.json_text(output))
        elif part:
            found.append(fields.json_text(part))
    return "\n".join(found) if all(isinstance(one, str) for one in found) else found


def as_message(value: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A message in the common shape, and the name of the shape that it had, "" when it was the common one."""
    if value.get("lc") and isinstance(inner := value.get("kwargs"), dict):
        name = value.get("id")
        return _langchain(str(name[-1]) if name and isinstance(name, list) else "", inner), "LangChain"
    kind = value["type"] if isinstance(value.get("type"), str) else ""
    if _langchain_kind(kind) in _LANGCHAIN and "role" not in value:
        if isinstance(inner := value.get("data"), dict):
            return _langchain(kind, inner), "LangChain"
        if "content" in value:
            return _langchain(kind, value), "LangChain"
    if (kind in _ITEMS or kind.endswith("_call_output")) and "role" not in value:
        return response_item(value) or {"role": "assistant", "content": "", "kind": THINKING}, "OpenAI Responses"
    if value.get("object") == "thread.message":
        return value | {"content": [_thread_part(part) for part in fields.objects(value, "content")]}, "OpenAI thread"
    if "role" in value and "content" not in value and isinstance(inner := value.get("message"), dict):
        return {"role": value["role"], "content": inner.get("content") or ""}, "Cursor"
    return value, ""


def _langchain_kind(name: str) -> str:
    """What a class or type of LangChain says: `ai` for `ai`, `AIMessage` and `AIMessageChunk`."""
    return name.removesuffix("Chunk").removesuffix("Message").lower()


def _langchain(name: str, value: dict[str, Any]) -> dict[str, Any]:
    kind = _langchain_kind(name)
    if kind == "remove":
        return {"role": "system", "kind": META, "content": f"[the message {fields.text(value, 'id')} was removed]"}
    message = {field: one for field, one in value.items() if field not in ("type", "tool_calls", "lc") and one}
    message["role"] = _LANGCHAIN.get(kind) or fields.text(value, "role") or kind
    content = value.get("content")
    extra = value.get("additional_kwargs")
    calls = value.get("tool_calls") or (extra.get("tool_calls") if isinstance(extra, dict) else None) or []
    if not isinstance(calls, list) or not all(isinstance(one, dict) for one in calls):
        raise BadInput("tool_calls must be a list of objects")
    if calls:
        message["tool_calls"] = [
            one if "function" in one else {"id": one.get("id"), "function": {"name": one.get("name"),
            "arguments": one.get("args", {})}} for one in calls
        ]  # fmt: skip
        message.pop("additional_kwargs", None)
        if isinstance(content, list):  # Anthropic's calls stand in the content too
            content = [part for part in content if not (isinstance(part, dict) and part.get("type") == "tool_use")]
    message["content"] = "" if content is None else content
    if value.get("status") == "error":
        message["tool_state"] = "error"
    return message


def _thread_part(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    return {"type": "text", "text": text.get("value", "")} if isinstance(text, dict) else part


def messages_in(value: Any) -> tuple[dict[str, Any], list[Any]] | None:
    """What a conversation says of itself, and its messages; None when a value is a single message."""
    if isinstance(value, list):
        return {}, value
    if not isinstance(value, dict) or "role" in value:
        return None
    about = dict(value)
    if isinstance(inner := about.pop("messages", None), list):
        return about, inner
    if isinstance(inner := value.get("values"), dict) and isinstance(inner.get("messages"), list):  # of LangGraph
        return {}, inner["messages"]
    if isinstance(answer := value.get("response"), dict):  # a line of a batch, or a call with its answer
        answered = messages_in(answer["body"] if isinstance(answer.get("body"), dict) else answer)
        request = value.get("request") or value.get("body")
        asked = request.get("messages") if isinstance(request, dict) else None
        if answered is not None:
            name = {"id": value["custom_id"]} if value.get("custom_id") else {}
            return name, [*(asked if isinstance(asked, list) else ()), *answered[1]]
    if isinstance(choices := value.get("choices"), list):
        found = [one["message"] for one in choices if isinstance(one, dict) and isinstance(one.get("message"), dict)]
        return fields.kept(value, id="id", model="model", created_at="created"), found
    if value.get("object") == "response" and isinstance(output := value.get("output"), list):
        return fields.kept(value, id="id", model="model", created_at="created_at"), output
    if value.get("object") == "list" and isinstance(data := value.get("data"), list):
        ordered = sorted(data, key=lambda one: one.get("created_at") or 0 if isinstance(one, dict) else 0)
        return fields.kept(ordered[0], id="thread_id") if ordered and isinstance(ordered[0], dict) else {}, ordered
    if isinstance(value.get("prompt"), str) and isinstance(value.get("completion"), str):
        asked_and_said = [("user", value["prompt"]), ("assistant", value["completion"])]
        return {}, [{"role": role, "content": text} for role, text in asked_and_said]
    return None
