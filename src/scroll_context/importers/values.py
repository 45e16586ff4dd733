"""What an import file turns into: messages with their drafts, and faults that name a line.

An importer cannot store a body, so an attachment travels beside its draft until somebody who owns a store puts
the one into the other.
"""

import enum
from typing import Any

import msgspec

from scroll_context.events import Draft


class Format(enum.StrEnum):
    """How a file is laid out. The shape of a message (OpenAI, Anthropic, plain) is told message by message."""

    JSONL = "jsonl"  # one JSON value a line: a message, or a conversation
    JSON = "json"  # the whole file is one JSON value
    EXPORT = "export"  # what `scroll export` writes


class Labels(msgspec.Struct, frozen=True):
    """Where messages belong that do not say so themselves. An empty session is named after the file."""

    session_id: str = ""
    agent_id: str = ""
    task_id: str = ""
    kind: str = "conversation"
    created_at: str = ""


class Attachment(msgspec.Struct, frozen=True):
    """A body in bytes, not yet stored."""

    body: bytes
    media_type: str


class Piece(msgspec.Struct, frozen=True):
    """One event to be, with the body that becomes its payload, if it has one."""

    draft: Draft
    attachment: Attachment | None = None


class Fault(msgspec.Struct, frozen=True):
    """Why a line, or one message in it, cannot be imported."""

    line: int
    reason: str
    offset: int = 0  # how far into the file, in bytes, for progress


class Imported(msgspec.Struct, frozen=True):
    """One message, as the events it stands for, in order."""

    line: int
    pieces: tuple[Piece, ...]
    offset: int = 0


class Found(msgspec.Struct, frozen=True):
    """A JSON value in the place of a message, before anybody looked into it."""

    line: int
    value: Any
    labels: Labels
    where: str = ""  # "message 3", when one line holds several
    shared: dict[str, Any] = {}  # what the conversation says of itself; kept with its first message
    offset: int = 0
