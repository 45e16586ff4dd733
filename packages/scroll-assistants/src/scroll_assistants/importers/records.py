"""The formats that this package reads, the place of a message in its session, and fields."""

import enum
import hashlib
import re
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import IMPORTED
from scroll_context.importing import records
from scroll_context.importing.records import RawMessage
from scroll_context.origin import REPLY_ID

BRANCH = "branch"
DOCUMENT = "document"
"""Kinds of messages besides those of the core: turns that were taken back, and pieces of a text
that is not a conversation."""

State = dict[str, Any]
"""A transcript reader's memory of earlier lines, as JSON; {} at the start of a file."""

_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)


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
    metadata: dict[str, Any] = {}
    if isinstance(reply_id, str) and reply_id:
        metadata[REPLY_ID] = reply_id
    if about:
        metadata[layout.replace("-", "_")] = about
    if metadata:
        message["metadata"] = metadata
    return msgspec.structs.replace(record, value=message, key=f"{IMPORTED}{layout}:{key}")


def objects(message: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """The objects of a list; other values in it are left out."""
    value = message.get(field)
    if value is not None and not isinstance(value, list):
        raise BadInput(f"{field} must be a list, not {records.kind_of(value)}")
    return [item for item in value or () if isinstance(item, dict)]


def identifier(name: str) -> str:
    """An id that can be part of a source key. One of another shape is replaced by its hash."""
    if not name or _ID.fullmatch(name):
        return name
    storable = records.text({"id": name}, "id")
    return hashlib.sha256(storable.encode()).hexdigest()[:32]


def fields(value: dict[str, Any], **names: str) -> dict[str, Any]:
    """Some fields of a record, under plain names; fields without a value are left out."""
    return {
        name: value[field]
        for name, field in names.items()
        if value.get(field) not in (None, "", False)
    }
