"""Messages of chat APIs as the events that happened: what was said, each tool call, each tool result.

OpenAI's and Anthropic's shapes are told apart part by part, since every part names its type; so a list may mix
them. Order inside a message is kept, neighbouring texts are one event, base64 media become attachments, and whatever
has no place of its own (reasoning, unknown parts, extra fields) is kept in the metadata of the message's first event.

A source key is how a second import of a message is recognised as the same message. It is the same one when these are
equal: its session; the whole JSON of the message (whatever the order of its keys and its spacing); how many equal
messages stand before it in that session of the file; and the first message of that session that is not a system
prompt. So

* the same file adds nothing, under another name too, when its messages name their session;
* a file that has grown, at its end or in the middle, adds the new messages and no others;
* equal messages in one file ("ok", "ok") are all kept;
* equal messages in two different conversations are both kept, even if both are given the same session name.

No key depends on a line number or on a position in a list. This module only parses: it reads no file, and an
attachment travels beside its draft until it can be stored.
"""

import collections
import enum
import hashlib
import json
from collections.abc import MutableMapping
from typing import Any, Self

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import IMPORTED, STORE_SESSION, Draft, Kind
from scroll_context.importers import fields

METADATA_LIMIT = 8 << 20  # bytes of JSON: what the log accepts
RESERVED = frozenset(Kind) - {Kind.CONVERSATION, Kind.TOOL_CALL, Kind.TOOL_RESULT}
"""Kinds that only Scroll itself records: they mean something to a session that is resumed."""

_OWN_FIELDS = frozenset(
    """role content session_id agent_id task_id kind created_at timestamp name headline step_index msg_index metadata
    tool_calls function_call tool_call_id tool_state""".split()
)
_TOOL_ROLES = ("tool", "function")
_THINKING = ("thinking", "redacted_thinking")

ToolNames = MutableMapping[str, str]
"""Names of the tools that were called, by call id, so that a result can say whose it is."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


THINKING, META, COMPACTION, BRANCH, DOCUMENT = "thinking", "meta", "compaction", "branch", "document"
"""Kinds of messages that are no part of the conversation: a model's reasoning, what a program told a model, a summary
that replaced the past, turns that were taken back, and pieces of a text that is no conversation."""


class Format(enum.StrEnum):
    """How a file is laid out: its name, what a reader calls it, and what it holds.

    `data` is written by programs for programs; `text` is written at work and has no ids; the messages of a `history`
    have ids of their own; a `transcript` is a history that grows line by line. The shape of a message (OpenAI,
    Anthropic, LangChain) is told message by message.
    """

    JSONL = "jsonl", "JSON Lines", "data"  # one JSON value a line: a message, or a conversation
    JSON = "json", "JSON", "data"  # the whole file is one JSON value
    EXPORT = "export", "export of Scroll", "data"
    CLAUDE_CODE = "claude-code", "Claude Code transcript", "transcript"
    CODEX = "codex", "Codex rollout", "transcript"
    GEMINI = "gemini", "Gemini CLI session", "transcript"
    OPENCODE = "opencode", "opencode database", "history"
    CURSOR = "cursor", "Cursor database", "history"
    CURSOR_AGENT = "cursor-agent", "Cursor agent transcript", "text"  # of its command line
    QWENPAW = "qwenpaw", "QwenPaw history", "history"
    CHATGPT = "chatgpt", "ChatGPT export", "history"
    SLACK = "slack", "Slack export", "history"
    WHATSAPP = "whatsapp", "WhatsApp chat", "text"
    MARKDOWN = "markdown", "Markdown", "text"
    TEXT = "text", "plain text", "text"
    CSV = "csv", "CSV", "text"

    described: str
    holds: str

    def __new__(cls, value: str, described: str = "", holds: str = "data") -> Self:
        made = str.__new__(cls, value)
        made._value_, made.described, made.holds = value, described, holds
        return made

    @property
    def is_redacted(self) -> bool:
        """Whether secrets are replaced unless that is declined: people and programs write them down at their work."""
        return self.holds != "data"

    @property
    def has_ids(self) -> bool:
        """Whether any file of this kind may add to a session, since its messages have ids of their own."""
        return self.holds in ("history", "transcript")


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

    @property
    def size(self) -> int:
        return len(self.draft.content) + (len(self.attachment.body) if self.attachment else 0)


class Fault(msgspec.Struct, frozen=True):
    """Why a line, or one message in it, cannot be imported."""

    line: int
    reason: str
    offset: int = 0  # how far into the file, in bytes, for progress
    is_whole: bool = True  # whether a line break ends the line


class Imported(msgspec.Struct, frozen=True):
    """One message, as the events it stands for, in order."""

    line: int
    session_id: str  # as the file names it
    key: str  # the source key, without the number of the piece
    pieces: tuple[Piece, ...]
    offset: int = 0
    shape: str = ""  # whose shape the message had, where that was not the common one
    is_last: bool = True  # of the messages in its line


class Found(msgspec.Struct, frozen=True):
    """A value in the place of a message, not checked yet."""

    line: int
    value: Any
    labels: Labels
    where: str = ""  # "message 3", when one line holds several
    shared: dict[str, Any] = {}  # what the conversation says of itself; kept with its first message
    offset: int = 0
    key: str = ""  # made of ids that the source gave out; empty: to be made of the message itself
    is_last: bool = True  # of the messages in its line

    def fault(self, error: Exception) -> Fault:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Fault(self.line, f"{self.where}: {reason}" if self.where else reason, self.offset)


def placed(
    found: Found,
    layout: Format,
    message: dict[str, Any],
    *,
    session: str,
    key: str,
    task: str = "",
    time: Any = None,
    about: dict[str, Any] | None = None,
) -> Found:
    """A message of an assistant in its session, under a source key made of ids that the assistant gave out."""
    message |= {
        "session_id": session or found.labels.session_id,
        "agent_id": found.labels.agent_id or layout.removesuffix("-agent"),
        "task_id": found.labels.task_id or task,
        "timestamp": time,
    }
    if about:
        message["metadata"] = {layout.replace("-", "_"): about}
    return msgspec.structs.replace(found, value=message, key=f"{IMPORTED}{layout}:{key}")


def fingerprint(message: Any) -> bytes:
    """The hash of a message, the same for any order of its keys."""
    return hashlib.sha256(_encode(message).encode()).digest()


def is_prompt(message: dict[str, Any]) -> bool:
    """Whether a message is a system prompt, which many conversations share."""
    return message.get("role") in ("system", "developer")


class SourceKeys:
    """Gives out the keys of one file. Ask once for each message, in order."""

    def __init__(self) -> None:
        self._openings: dict[str, bytes] = {}
        self._seen: collections.Counter[bytes] = collections.Counter()

    def key(self, session_id: str, message: dict[str, Any]) -> str:
        """The key of a message; the events that it becomes add a number of their own."""
        content = fingerprint(message)
        opening = self._openings.get(session_id, b"")
        if not opening and not is_prompt(message):
            opening = self._openings[session_id] = content
        identity = hashlib.sha256(opening + content + session_id.encode()).digest()[:16]
        self._seen[identity] += 1
        return f"{IMPORTED}{identity.hex()}:{self._seen[identity]}"


def pieces(found: Found, key: str, tools: ToolNames) -> tuple[Piece, ...]:
    """The events that a message stands for; BadInput when it is not one."""
    message = found.value
    if not fields.text(message, "role"):
        raise BadInput("a message needs a role")
    if "content" not in message and message.get("tool_calls") is None and message.get("function_call") is None:
        raise BadInput("a message needs content or tool calls")
    return _Message(message, found.labels, key, tools).read(found.shared)


class _Message:
    """One message while it is taken apart."""

    def __init__(self, message: dict[str, Any], labels: Labels, key: str, tools: ToolNames) -> None:
        self.message = message
        self.key = key
        self.tools = tools
        self.role = fields.text(message, "role")
        self.call_id = fields.text(message, "tool_call_id")
        self.is_result = self.role in _TOOL_ROLES
        self.common: dict[str, Any] = {
            "session_id": fields.text(message, "session_id") or labels.session_id,
            "agent_id": fields.text(message, "agent_id") or labels.agent_id,
            "task_id": fields.text(message, "task_id") or labels.task_id,
            "created_at": fields.time(message) or labels.created_at,
            "step_index": fields.number(message, "step_index"),
            "msg_index": fields.number(message, "msg_index"),
        }
        self.kind = fields.text(message, "kind") or (str(Kind.TOOL_RESULT) if self.is_result else labels.kind)
        if self.kind in RESERVED:
            raise BadInput(
                f"kind {self.kind!r} is reserved for what Scroll records itself; leave it out or choose another"
            )
        if self.common["session_id"] == STORE_SESSION:
            raise BadInput(f"session {STORE_SESSION!r} is the store's own; choose another name")
        self.texts: list[str] = []
        self.found: list[Piece] = []
        self.thinking: list[dict[str, Any]] = []
        self.others: list[Any] = []

    def read(self, shared: dict[str, Any]) -> tuple[Piece, ...]:
        self._content(self.message.get("content"))
        self._flush()
        self._calls()
        if not self.found:
            self._say("")
        metadata, headline = self._metadata(shared), fields.text(self.message, "headline")
        if metadata or headline:
            first = self.found[0]
            draft = msgspec.structs.replace(first.draft, metadata=metadata, headline=headline)
            self.found[0] = Piece(draft, first.attachment)
        return tuple(self.found)

    def _content(self, content: Any) -> None:
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, list):
            for part in content:
                self._part(part)
        elif self.is_result and content is not None:
            self.texts.append(fields.json_text(content))
        elif content is not None:
            raise BadInput(f"content must be text or a list of parts, not {type(content).__name__}")

    def _part(self, part: Any) -> None:
        if isinstance(part, str):
            self.texts.append(part)
            return
        kind = fields.text(part, "type") if isinstance(part, dict) else ""
        if not kind:
            raise BadInput("a content part must be text or an object with a type")
        if (said := _text_of(part)) is not None:
            self.texts.append(said)
        elif kind in _THINKING:
            self.thinking.append(part)
        elif kind.endswith("tool_use"):
            self._call(fields.text(part, "id"), fields.text(part, "name"), part.get("input", {}))
        elif kind.endswith("tool_result"):
            self._result(part)
        elif (media := _media(part)) is not None:
            self._attach(media, self.kind, self.role, fields.text(self.message, "name"), self.call_id)
        elif (address := _address(part)) is not None:
            self.texts.append(f"[{kind}: {address}]")
        elif self.is_result:
            self.texts.append(fields.json_text(part))
        else:
            self.others.append(part)

    def _flush(self) -> None:
        """The texts so far become one event, if they say anything."""
        if any(self.texts):
            self._say("\n".join(self.texts))
        self.texts.clear()

    def _say(self, content: str) -> None:
        name = fields.text(self.message, "name") or (self.tools.get(self.call_id, "") if self.is_result else "")
        self._add(
            kind=self.kind, role=self.role, name=name, content=content,
            tool_call_id=self.call_id, tool_state=fields.text(self.message, "tool_state"),
        )  # fmt: skip

    def _calls(self) -> None:
        """OpenAI keeps calls beside the content, not in it."""
        calls = self.message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise BadInput("tool_calls must be a list")
        if legacy := self.message.get("function_call"):
            calls = [*calls, {"function": legacy}]
        for call in calls:
            function = call.get("function", call.get("custom", call)) if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise BadInput("a tool call must be an object with a function")
            arguments = function.get("arguments", function.get("input", ""))
            self._call(fields.text(call, "id"), fields.text(function, "name"), arguments)

    def _call(self, call_id: str, name: str, arguments: Any) -> None:
        self._flush()
        if not name:
            raise BadInput("a tool call needs the name of its tool")
        if call_id:
            self.tools[call_id] = name
        content = arguments if isinstance(arguments, str) else fields.json_text(arguments)
        self._add(kind=str(Kind.TOOL_CALL), role="assistant", name=name, content=content, tool_call_id=call_id)

    def _result(self, part: dict[str, Any]) -> None:
        """A result inside a message of the user, as Anthropic sends it."""
        self._flush()
        call_id = fields.text(part, "tool_use_id")
        name = self.tools.get(call_id, "")
        content = part.get("content")
        texts: list[str] = []
        media: list[Attachment] = []
        for item in content if isinstance(content, list) else [] if content is None else [content]:
            if isinstance(item, dict) and (body := _media(item)) is not None:
                media.append(body)
            elif (said := item if isinstance(item, str) else _text_of(item)) is not None:
                texts.append(said)
            else:
                texts.append(fields.json_text(item))
        if texts or not media:
            self._add(
                kind=str(Kind.TOOL_RESULT), role="tool", name=name, content="\n".join(texts),
                tool_call_id=call_id, tool_state="error" if part.get("is_error") is True else "",
            )  # fmt: skip
        for body in media:
            self._attach(body, str(Kind.TOOL_RESULT), "tool", name, call_id)

    def _attach(self, media: Attachment, kind: str, role: str, name: str, call_id: str) -> None:
        self._flush()
        content = f"[{media.media_type}, {len(media.body):,} bytes]"
        self._add(media, kind=kind, role=role, name=name, content=content, tool_call_id=call_id)

    def _add(self, attachment: Attachment | None = None, **values: Any) -> None:
        source_key = f"{self.key}:{len(self.found)}"
        self.found.append(Piece(Draft(**self.common, **values, source_key=source_key), attachment))

    def _metadata(self, shared: dict[str, Any]) -> dict[str, Any]:
        given = self.message.get("metadata")
        if given is not None and not isinstance(given, dict):
            raise BadInput("metadata must be an object")
        metadata = {field: value for field, value in self.message.items() if field not in _OWN_FIELDS} | (given or {})
        kept = {"thinking": self.thinking, "parts": self.others, "conversation": shared}
        metadata |= {field: value for field, value in kept.items() if value}
        if metadata:
            try:
                size = len(msgspec.json.encode(metadata))
            except (ValueError, TypeError, OverflowError) as error:
                raise BadInput(f"fields that Scroll keeps as metadata cannot be stored: {error}") from None
            if size > METADATA_LIMIT:
                raise BadInput(f"{size:,} bytes of metadata are over {METADATA_LIMIT:,}; move them into the content")
        return metadata


def _text_of(part: Any) -> str | None:
    """What a part of text says; None when it is no text."""
    source = part.get("source") if isinstance(part, dict) else None
    if isinstance(source, dict) and source.get("type") == "text":  # Anthropic: a document given as text
        said = source.get("data")
    elif isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text", "refusal"):
        said = part.get("refusal" if part["type"] == "refusal" else "text")
    else:
        return None
    if not isinstance(said, str):
        raise BadInput(f"a part of type {part.get('type')} must hold text")
    return said


def _media(part: dict[str, Any]) -> Attachment | None:
    """The body of a part that carries one in base64, in any of the shapes in use."""
    source = part.get("source")  # Anthropic: image, document
    if isinstance(source, dict) and source.get("type") == "base64":
        return Attachment(fields.body(source.get("data")), fields.media_type(source.get("media_type")))
    audio = part.get("input_audio")
    if isinstance(audio, dict):
        return Attachment(fields.body(audio.get("data")), fields.media_type(f"audio/{audio.get('format', 'wav')}"))
    if (url := _url(part)) and (found := fields.data_url(url)):
        return Attachment(found[1], found[0])
    return None


def _address(part: dict[str, Any]) -> str | None:
    """Where the body of a part is, when the part has only an address."""
    source = part.get("source")
    if isinstance(source, dict):
        found = source.get("url") or source.get("file_id")
        return found if isinstance(found, str) else None
    return _url(part)


def _url(part: dict[str, Any]) -> str | None:
    """The address in an OpenAI part: image_url as text or object, or a file."""
    holder = part.get("image_url") or part.get("file")
    if isinstance(holder, dict):
        holder = holder.get("url") or holder.get("file_data") or holder.get("file_id")
    return holder if isinstance(holder, str) else None
