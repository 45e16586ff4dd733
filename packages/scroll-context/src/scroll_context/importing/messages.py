"""Messages of chat APIs as events: spoken text, tool calls and tool results.

Every part of a message names its type, so OpenAI's and Anthropic's shapes are distinguished part by
part, and a list may mix them. The order inside a message stays. Neighbouring texts are one event,
reasoning is an event of its own, and base64 media become attachments. Everything else (unknown
parts, extra fields) goes into the metadata of the first event that is not reasoning.

A message of kind `meta` or `compaction` was written by a program, whatever role the program gave
it: it is never recorded with the role of the user.

A source key is how a second import of a message is recognised as the same message. It is the same
one when these are equal: its session; the complete JSON of the message (whatever the order of its
keys and its spacing); how many equal messages stand before it in that session of the file; and the
first message of that session that is not a system prompt. So

* the same file adds nothing, under another name too, when its messages name their session;
* a file that has grown, at its end or in the middle, adds the new messages and no others;
* equal messages in one file ("ok", "ok") are all kept;
* equal messages in two different conversations are both kept, even if both are given the same
  session name.

No key depends on a line number or on a position in a list. This module only parses: it reads no
file, and an attachment travels beside its draft until it can be stored.

Other shapes are turned into the common one first, by installed packages (layouts.py).
"""

import collections
from collections.abc import MutableMapping
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import IMPORTED, Draft, Kind, id_of
from scroll_context.importing import records
from scroll_context.importing.records import (
    COMPACTION,
    META,
    THINKING,
    Labels,
    RawMessage,
    fingerprint,
)
from scroll_context.log.foreign import Attachment, Piece
from scroll_context.log.rows import METADATA_LIMIT

_OWN_FIELDS = frozenset(
    """
    role content session_id agent_id task_id kind created_at timestamp name headline step_index
    msg_index metadata tool_calls function_call tool_call_id tool_state
    """.split()
)
_TOOL_ROLES = ("tool", "function")
_THINKING = ("thinking", "redacted_thinking")

ToolNames = MutableMapping[str, str]
"""Names of the tools that were called, by call id, so that a result can say whose it is."""


def is_prompt(message: dict[str, Any]) -> bool:
    """Whether a message is a system prompt, which many conversations share."""
    return message.get("role") in ("system", "developer")


class SourceKeys:
    """Makes the source keys of one file. Call it once for each message, in order."""

    def __init__(self) -> None:
        self._openings: dict[str, bytes] = {}
        self._seen: collections.Counter[str] = collections.Counter()

    def key(self, session_id: str, message: dict[str, Any]) -> str:
        """The key of a message; the events that it becomes add a number of their own."""
        content = fingerprint(message)
        opening = self._openings.get(session_id, b"")
        if not opening and not is_prompt(message):
            opening = self._openings[session_id] = content
        identity = id_of(opening, content, session_id)
        self._seen[identity] += 1
        return f"{IMPORTED}{identity}:{self._seen[identity]}"


def pieces(raw: RawMessage, key: str, tools: ToolNames) -> tuple[Piece, ...]:
    """The events that a message stands for; BadInput when it is not a message."""
    message = raw.value
    if not records.text(message, "role"):
        raise BadInput("a message needs a role")
    calls = (message.get("tool_calls"), message.get("function_call"))
    if "content" not in message and calls == (None, None):
        raise BadInput("a message needs content or tool calls")
    return _Message(message, raw.labels, key, tools).read(raw.shared)


class _Message:
    """One message while it is taken apart."""

    def __init__(self, message: dict[str, Any], labels: Labels, key: str, tools: ToolNames) -> None:
        self.message = message
        self.key = key
        self.tools = tools
        self.role = records.text(message, "role")
        self.call_id = records.text(message, "tool_call_id")
        self.is_result = self.role in _TOOL_ROLES
        self.common: dict[str, Any] = {
            "session_id": records.text(message, "session_id") or labels.session_id,
            "agent_id": records.text(message, "agent_id") or labels.agent_id,
            "task_id": records.text(message, "task_id") or labels.task_id,
            "created_at": records.time(message) or labels.created_at,
            "step_index": records.number(message, "step_index"),
            "msg_index": records.number(message, "msg_index"),
        }
        usual_kind = str(Kind.TOOL_RESULT) if self.is_result else labels.kind
        self.kind = records.text(message, "kind") or usual_kind
        if self.kind in (META, COMPACTION) and self.role == "user":
            self.role = "system"
        # Texts that are not in an event yet.
        self.texts: list[str] = []
        self.pieces: list[Piece] = []
        # Encrypted reasoning, and parts of unknown types.
        self.sealed: list[dict[str, Any]] = []
        self.others: list[Any] = []

    def read(self, shared: dict[str, Any]) -> tuple[Piece, ...]:
        self._content(self.message.get("content"))
        self._flush()
        self._calls()
        if not self.pieces:
            self._say("")
        metadata = self._metadata(shared)
        headline = records.text(self.message, "headline")
        if metadata or headline:
            kinds = [piece.draft.kind for piece in self.pieces]
            spoken = (number for number, kind in enumerate(kinds) if kind != THINKING)
            number = next(spoken, 0)
            first = self.pieces[number]
            draft = msgspec.structs.replace(first.draft, metadata=metadata, headline=headline)
            self.pieces[number] = Piece(draft, first.attachment)
        return tuple(self.pieces)

    def _content(self, content: Any) -> None:
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, list):
            for part in content:
                self._part(part)
        elif self.is_result and content is not None:
            self.texts.append(records.json_text(content))
        elif content is not None:
            raise BadInput(f"content must be text or a list of parts, not {type(content).__name__}")

    def _part(self, part: Any) -> None:
        if isinstance(part, str):
            self.texts.append(part)
            return
        kind = records.text(part, "type") if isinstance(part, dict) else ""
        if not kind:
            raise BadInput("a content part must be text or an object with a type")
        text = _text_of(part)
        if text is not None:
            self.texts.append(text)
        elif kind in _THINKING:
            self._think(part)
        elif kind.endswith("tool_use"):
            self._call(records.text(part, "id"), records.text(part, "name"), part.get("input", {}))
        elif kind.endswith("tool_result"):
            self._result(part)
        else:
            self._other_part(part, kind)

    def _other_part(self, part: dict[str, Any], kind: str) -> None:
        """A part with media, with the address of media, or of an unknown type."""
        media = _media(part)
        if media is not None:
            name = records.text(self.message, "name")
            self._attach(media, self.kind, self.role, name, self.call_id)
            return
        address = _address(part)
        if address is not None:
            self.texts.append(f"[{kind}: {address}]")
        elif self.is_result:
            self.texts.append(records.json_text(part))
        else:
            self.others.append(part)

    def _flush(self) -> None:
        """Make one event of the texts so far, if they are not all empty."""
        if any(self.texts):
            self._say("\n".join(self.texts))
        self.texts.clear()

    def _say(self, content: str) -> None:
        name = records.text(self.message, "name")
        if not name and self.is_result:
            name = self.tools.get(self.call_id, "")
        self._add(
            kind=self.kind,
            role=self.role,
            name=name,
            content=content,
            tool_call_id=self.call_id,
            tool_state=records.text(self.message, "tool_state"),
        )

    def _think(self, part: dict[str, Any]) -> None:
        """Readable reasoning is an event; encrypted reasoning only goes into the metadata."""
        thought = part.get("thinking")
        if isinstance(thought, str) and thought:
            self._flush()
            self._add(kind=THINKING, role=self.role, content=records.text(part, "thinking"))
        elif part.get("type") != "thinking":
            self.sealed.append(part)

    def _calls(self) -> None:
        """OpenAI keeps calls beside the content, not in it."""
        calls = self.message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise BadInput("tool_calls must be a list")
        legacy = self.message.get("function_call")
        if legacy:
            calls = [*calls, {"function": legacy}]
        for call in calls:
            function = None
            if isinstance(call, dict):
                function = call.get("function", call.get("custom", call))
            if not isinstance(function, dict):
                raise BadInput("a tool call must be an object with a function")
            arguments = function.get("arguments", function.get("input", ""))
            self._call(records.text(call, "id"), records.text(function, "name"), arguments)

    def _call(self, call_id: str, name: str, arguments: Any) -> None:
        self._flush()
        if not name:
            raise BadInput("a tool call needs the name of its tool")
        if call_id:
            self.tools[call_id] = name
        content = arguments if isinstance(arguments, str) else records.json_text(arguments)
        self._add(
            kind=str(Kind.TOOL_CALL),
            role="assistant",
            name=name,
            content=content,
            tool_call_id=call_id,
        )

    def _result(self, part: dict[str, Any]) -> None:
        """A result inside a message of the user, as Anthropic sends it."""
        self._flush()
        call_id = records.text(part, "tool_use_id")
        name = self.tools.get(call_id, "")
        content = part.get("content")
        if content is None:
            content = []
        texts: list[str] = []
        media: list[Attachment] = []
        for item in content if isinstance(content, list) else [content]:
            body = _media(item) if isinstance(item, dict) else None
            if body is not None:
                media.append(body)
                continue
            text = item if isinstance(item, str) else _text_of(item)
            texts.append(records.json_text(item) if text is None else text)
        if texts or not media:
            self._add(
                kind=str(Kind.TOOL_RESULT),
                role="tool",
                name=name,
                content="\n".join(texts),
                tool_call_id=call_id,
                tool_state="error" if part.get("is_error") is True else "",
            )
        for body in media:
            self._attach(body, str(Kind.TOOL_RESULT), "tool", name, call_id)

    def _attach(self, media: Attachment, kind: str, role: str, name: str, call_id: str) -> None:
        self._flush()
        content = f"[{media.media_type}, {len(media.body):,} bytes]"
        self._add(media, kind=kind, role=role, name=name, content=content, tool_call_id=call_id)

    def _add(self, attachment: Attachment | None = None, **values: Any) -> None:
        source_key = f"{self.key}:{len(self.pieces)}"
        draft = Draft(**self.common, **values, source_key=source_key)
        self.pieces.append(Piece(draft, attachment))

    def _metadata(self, shared: dict[str, Any]) -> dict[str, Any]:
        own_metadata = self.message.get("metadata")
        if own_metadata is not None and not isinstance(own_metadata, dict):
            raise BadInput("metadata must be an object")
        metadata = {
            field: value for field, value in self.message.items() if field not in _OWN_FIELDS
        }
        metadata |= own_metadata or {}
        extra = {"thinking": self.sealed, "parts": self.others, "conversation": shared}
        metadata |= {field: value for field, value in extra.items() if value}
        if not metadata:
            return {}
        try:
            size = len(msgspec.json.encode(metadata))
        except (ValueError, TypeError, OverflowError) as error:
            raise BadInput(
                f"fields that Scroll keeps as metadata cannot be stored: {error}"
            ) from None
        if size > METADATA_LIMIT:
            raise BadInput(
                f"{size:,} bytes of metadata are over {METADATA_LIMIT:,}; move them into the "
                "content"
            )
        return metadata


def _text_of(part: Any) -> str | None:
    """The text of a part; None when it is not text."""
    if not isinstance(part, dict):
        return None
    source = part.get("source")
    if isinstance(source, dict) and source.get("type") == "text":
        # Anthropic sends a text document so.
        text = source.get("data")
    elif part.get("type") in ("text", "input_text", "output_text"):
        text = part.get("text")
    elif part.get("type") == "refusal":
        text = part.get("refusal")
    else:
        return None
    if not isinstance(text, str):
        raise BadInput(f"a part of type {part.get('type')} must hold text")
    return text


def _media(part: dict[str, Any]) -> Attachment | None:
    """The body of a part that carries one in base64, in any of the shapes in use."""
    # Anthropic's images and documents have a source.
    source = part.get("source")
    if isinstance(source, Attachment):
        # It was read from a file beside the transcript.
        return source
    if isinstance(source, dict) and source.get("type") == "base64":
        body = records.body(source.get("data"))
        return Attachment(body, records.media_type(source.get("media_type")))
    audio = part.get("input_audio")
    if isinstance(audio, dict):
        body = records.body(audio.get("data"))
        return Attachment(body, records.media_type(f"audio/{audio.get('format', 'wav')}"))
    url = _url(part)
    data = records.data_url(url) if url else None
    if data is None:
        return None
    media_type, body = data
    return Attachment(body, media_type)


def _address(part: dict[str, Any]) -> str | None:
    """Where the body of a part is, when the part has only an address."""
    source = part.get("source")
    if isinstance(source, dict):
        address = source.get("url") or source.get("file_id")
        return address if isinstance(address, str) else None
    return _url(part)


def _url(part: dict[str, Any]) -> str | None:
    """The address in an OpenAI part: image_url as text or object, or a file."""
    holder = part.get("image_url") or part.get("file")
    if isinstance(holder, dict):
        holder = holder.get("url") or holder.get("file_data") or holder.get("file_id")
    return holder if isinstance(holder, str) else None
