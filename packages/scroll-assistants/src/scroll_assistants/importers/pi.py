"""Sessions of Pi as messages (`~/.pi/agent/sessions/*/*.jsonl`).

The first line names the session and its folder, and each later line is an entry with an id that is
unique in its session. Entries form a tree: a user may go back and take another way. All ways are
read, in the order of the file. Summaries, texts of extensions and commands that the user ran in the
prompt are not the user's words, so they have kinds of their own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scroll_assistants.importers.records import Format, State, fields, identifier, placed
from scroll_assistants.importers.shapes import result
from scroll_assistants.project import task_of
from scroll_context.errors import BadInput
from scroll_context.importing import records
from scroll_context.importing.records import COMPACTION, META, RawMessage, fingerprint

_SUMMARIES = ("compaction", "branch_summary", "compactionSummary", "branchSummary")


def is_line(value: dict[str, Any]) -> bool:
    """Whether a line is the first of a session."""
    has_folder = isinstance(value.get("cwd"), str) and isinstance(value.get("id"), str)
    return value.get("type") == "session" and has_folder and "timestamp" in value


def read_line(record: RawMessage, state: State, _: Path) -> Iterator[RawMessage]:
    line = record.value
    kind = records.text(line, "type")
    if kind == "session":
        folder = records.text(line, "cwd")
        state |= {"session": records.text(line, "id"), "task": task_of(folder)}
        state["about"] = fields(line, parent_session="parentSession")
        return
    message = _message(kind, line)
    if message is None:
        return
    session = state.get("session") or record.labels.session_id
    entry = identifier(records.text(line, "id")) or fingerprint(line).hex()[:32]
    about = state.get("about", {}) | fields(line, id="id", parent="parentId")
    envelope = line.get("message")
    reply_id = None
    if isinstance(envelope, dict):
        about |= fields(envelope, model="model", provider="provider")
        reply_id = envelope.get("responseId")
    yield placed(
        record,
        Format.PI,
        message,
        session=session,
        key=f"{identifier(session)}:{entry}",
        task=state.get("task", ""),
        time=line.get("timestamp"),
        about=about,
        reply_id=reply_id,
    )


def _message(kind: str, line: dict[str, Any]) -> dict[str, Any] | None:
    """The message of an entry; None for an entry without one."""
    if kind in _SUMMARIES:
        return {"role": "system", "content": line.get("summary") or "", "kind": COMPACTION}
    if kind == "custom_message":
        return {"role": "system", "content": _content(line.get("content")), "kind": META}
    if kind != "message":
        return None
    message = line.get("message")
    if not isinstance(message, dict):
        raise BadInput("a line of type message needs a message")
    role = records.text(message, "role")
    if role in _SUMMARIES:
        return _message(role, message)
    if role == "custom":
        return _message("custom_message", message)
    if role == "bashExecution":
        text = f"$ {message.get('command')}\n{message.get('output')}"
        return {"role": "system", "content": text, "kind": META}
    content = _content(message.get("content"))
    if role == "toolResult":
        call_id = records.text(message, "toolCallId")
        return result(call_id, content, bool(message.get("isError")))
    return {"role": role, "content": content} if content else None


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    parts = [_part(part) if isinstance(part, dict) else part for part in content]
    return [part for part in parts if part is not None]


def _part(part: dict[str, Any]) -> dict[str, Any] | None:
    """A part of a message, as Anthropic writes it; None for a thought without a text."""
    kind = part.get("type")
    if kind == "toolCall":
        return {
            "type": "tool_use",
            "id": part.get("id"),
            "name": part.get("name"),
            "input": part.get("arguments"),
        }
    if kind == "thinking":
        thought = part.get("thinking")
        return {"type": "thinking", "thinking": thought} if thought else None
    if kind == "image":
        source = {"media_type": part.get("mimeType"), "data": part.get("data")}
        return {"type": "image", "source": {"type": "base64", **source}}
    return part
