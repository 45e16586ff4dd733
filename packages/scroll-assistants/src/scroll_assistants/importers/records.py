"""The names of the formats that this package reads, and messages of assistants in their sessions."""

import enum
from typing import Any

import msgspec

from scroll_context.events import IMPORTED
from scroll_context.importing.records import RawMessage


class Format(enum.StrEnum):
    """The name of a format; `layouts` of importer.py says how each is read."""

    JSONL = "jsonl"
    JSON = "json"
    EXPORT = "export"
    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"
    CURSOR = "cursor"
    CURSOR_AGENT = "cursor-agent"
    QWENPAW = "qwenpaw"
    CHATGPT = "chatgpt"
    SLACK = "slack"
    WHATSAPP = "whatsapp"
    MARKDOWN = "markdown"
    TEXT = "text"
    CSV = "csv"


def placed(
    found: RawMessage,
    layout: Format,
    message: dict[str, Any],
    *,
    session: str,
    key: str,
    task: str = "",
    time: Any = None,
    about: dict[str, Any] | None = None,
) -> RawMessage:
    """A message of an assistant in its session, under a source key made of ids that the assistant
    gave out.
    """
    message |= {
        "session_id": session or found.labels.session_id,
        "agent_id": found.labels.agent_id or layout.removesuffix("-agent"),
        "task_id": found.labels.task_id or task,
        "timestamp": time,
    }
    if about:
        message["metadata"] = {layout.replace("-", "_"): about}
    return msgspec.structs.replace(found, value=message, key=f"{IMPORTED}{layout}:{key}")
