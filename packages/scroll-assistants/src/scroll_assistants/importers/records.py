"""The formats that this package reads, and the place of a message in its session."""

import enum
from typing import Any

import msgspec

from scroll_context.events import IMPORTED
from scroll_context.importing.recorded import metadata_of_reply
from scroll_context.importing.records import RawMessage


class Format(enum.StrEnum):
    """The name of a format. LAYOUTS in formats.py has the reader of each."""

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
    QWEN_CODE = "qwen-code"
    PI = "pi"
    COPILOT = "copilot"
    CHATGPT = "chatgpt"
    SLACK = "slack"
    WHATSAPP = "whatsapp"
    MARKDOWN = "markdown"
    TEXT = "text"
    CSV = "csv"


def placed(
    record: RawMessage,
    layout: Format,
    message: dict[str, Any],
    *,
    session: str,
    key: str,
    task: str = "",
    time: Any = None,
    about: dict[str, Any] | None = None,
    reply_id: Any = None,
) -> RawMessage:
    """A message in its session, under a source key made of ids that the assistant issued.

    `reply_id` is the provider's id of the reply that the message is part of.
    """
    message |= {
        "session_id": session or record.labels.session_id,
        "agent_id": record.labels.agent_id or layout.removesuffix("-agent"),
        "task_id": record.labels.task_id or task,
        "timestamp": time,
    }
    metadata: dict[str, Any] = metadata_of_reply(reply_id)
    if about:
        metadata[layout.replace("-", "_")] = about
    if metadata:
        message["metadata"] = metadata
    return msgspec.structs.replace(record, value=message, key=f"{IMPORTED}{layout}:{key}")
