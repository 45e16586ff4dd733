"""Messages of chat APIs as the events that happened: what was said, each tool call, each tool
result.

OpenAI's and Anthropic's shapes are told apart part by part, since every part names its type; so a
list may mix them. Order inside a message is kept, neighbouring texts are one event, reasoning is an
event of its own, base64 media become attachments, and whatever has no place of its own (unknown
parts, extra fields) is kept in the metadata of the message's first event that is not reasoning.

A message of kind `meta` or `compaction` was written by a program, whatever role the program gave
it: it is never recorded with the role of the user.

A source key is how a second import of a message is recognised as the same message. It is the same
one when these are equal: its session; the whole JSON of the message (whatever the order of its keys
and its spacing); how many equal messages stand before it in that session of the file; and the first
message of that session that is not a system prompt. So

* the same file adds nothing, under another name too, when its messages name their session;
* a file that has grown, at its end or in the middle, adds the new messages and no others;
* equal messages in one file ("ok", "ok") are all kept;
* equal messages in two different conversations are both kept, even if both are given the same
  session name.

No key depends on a line number or on a position in a list. This module only parses: it reads no
file, and an attachment travels beside its draft until it can be stored.

At its end are the shapes that are turned into the common one first: LangChain's three ways to write
a message, items and answers of OpenAI's Responses, answers of its chat completions, pairs of a
prompt and a completion, and threads of its assistants. A value of another shape is
returned as it came.
"""

import collections
from collections.abc import MutableMapping
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import IMPORTED, Draft, Kind
from scroll_context.ids import id_of
from scroll_context.importing import records
from scroll_context.importing.records import (
    COMPACTION,
    META,
    THINKING,
    Found,
    Labels,
    fingerprint,
)
from scroll_context.log.foreign import Attachment, Piece

METADATA_LIMIT = 8 << 20  # bytes of JSON: what the log accepts

_OWN_FIELDS = frozenset(
    """role content session_id agent_id task_id kind created_at timestamp name headline step_index msg_index metadata
    tool_calls function_call tool_call_id tool_state""".split()
)
_TOOL_ROLES = ("tool", "function")
_THINKING = ("thinking", "redacted_thinking")

ToolNames = MutableMapping[str, str]
"""Names of the tools that were called, by call id, so that a result can say whose it is."""


def is_prompt(message: dict[str, Any]) -> bool:
    """Whether a message is a system prompt, which many conversations share."""
    return message.get("role") in ("system", "developer")


class SourceKeys:
    """Gives out the keys of one file. Ask once for each message, in order."""

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


def pieces(found: Found, key: str, tools: ToolNames) -> tuple[Piece, ...]:
    """The events that a message stands for; BadInput when it is not one."""
    message = found.value
    if not records.text(message, "role"):
        raise BadInput("a message needs a role")
    if (
        "content" not in message
        and message.get("tool_calls") is None
        and message.get("function_call") is None
    ):
        raise BadInput("a message needs content or tool calls")
    return _Message(message, found.labels, key, tools).read(found.shared)


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
        self.kind = records.text(message, "kind") or (
            str(Kind.TOOL_RESULT) if self.is_result else labels.kind
        )
        if self.kind in (META, COMPACTION) and self.role == "user":
            self.role = "system"
        self.texts: list[str] = []
        self.found: list[Piece] = []
        self.sealed: list[dict[str, Any]] = []
        self.others: list[Any] = []

    def read(self, shared: dict[str, Any]) -> tuple[Piece, ...]:
        self._content(self.message.get("content"))
        self._flush()
        self._calls()
        if not self.found:
            self._say("")
        metadata, headline = self._metadata(shared), records.text(self.message, "headline")
        if metadata or headline:
            spoken = (
                number for number, piece in enumerate(self.found) if piece.draft.kind != THINKING
            )
            number = next(spoken, 0)
            first = self.found[number]
            draft = msgspec.structs.replace(first.draft, metadata=metadata, headline=headline)
            self.found[number] = Piece(draft, first.attachment)
        return tuple(self.found)

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
        if (said := _text_of(part)) is not None:
            self.texts.append(said)
        elif kind in _THINKING:
            self._think(part)
        elif kind.endswith("tool_use"):
            self._call(records.text(part, "id"), records.text(part, "name"), part.get("input", {}))
        elif kind.endswith("tool_result"):
            self._result(part)
        elif (media := _media(part)) is not None:
            self._attach(
                media, self.kind, self.role, records.text(self.message, "name"), self.call_id
            )
        elif (address := _address(part)) is not None:
            self.texts.append(f"[{kind}: {address}]")
        elif self.is_result:
            self.texts.append(records.json_text(part))
        else:
            self.others.append(part)

    def _flush(self) -> None:
        """The texts so far become one event, if they say anything."""
        if any(self.texts):
            self._say("\n".join(self.texts))
        self.texts.clear()

    def _say(self, content: str) -> None:
        name = records.text(self.message, "name") or (
            self.tools.get(self.call_id, "") if self.is_result else ""
        )
        self._add(
            kind=self.kind,
            role=self.role,
            name=name,
            content=content,
            tool_call_id=self.call_id,
            tool_state=records.text(self.message, "tool_state"),
        )

    def _think(self, part: dict[str, Any]) -> None:
        """Reasoning that can be read is an event; what a provider has sealed is only kept."""
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
        if legacy := self.message.get("function_call"):
            calls = [*calls, {"function": legacy}]
        for call in calls:
            function = (
                call.get("function", call.get("custom", call)) if isinstance(call, dict) else None
            )
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
        texts: list[str] = []
        media: list[Attachment] = []
        for item in content if isinstance(content, list) else [] if content is None else [content]:
            if isinstance(item, dict) and (body := _media(item)) is not None:
                media.append(body)
            elif (said := item if isinstance(item, str) else _text_of(item)) is not None:
                texts.append(said)
            else:
                texts.append(records.json_text(item))
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
        source_key = f"{self.key}:{len(self.found)}"
        self.found.append(Piece(Draft(**self.common, **values, source_key=source_key), attachment))

    def _metadata(self, shared: dict[str, Any]) -> dict[str, Any]:
        given = self.message.get("metadata")
        if given is not None and not isinstance(given, dict):
            raise BadInput("metadata must be an object")
        metadata = {
            field: value for field, value in self.message.items() if field not in _OWN_FIELDS
        } | (given or {})
        kept = {"thinking": self.sealed, "parts": self.others, "conversation": shared}
        metadata |= {field: value for field, value in kept.items() if value}
        if metadata:
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
    """What a part of text says; None when it is no text."""
    source = part.get("source") if isinstance(part, dict) else None
    if (
        isinstance(source, dict) and source.get("type") == "text"
    ):  # Anthropic: a document given as text
        said = source.get("data")
    elif isinstance(part, dict) and part.get("type") in (
        "text",
        "input_text",
        "output_text",
        "refusal",
    ):
        said = part.get("refusal" if part["type"] == "refusal" else "text")
    else:
        return None
    if not isinstance(said, str):
        raise BadInput(f"a part of type {part.get('type')} must hold text")
    return said


def _media(part: dict[str, Any]) -> Attachment | None:
    """The body of a part that carries one in base64, in any of the shapes in use."""
    source = part.get("source")  # Anthropic: image, document
    if isinstance(source, Attachment):  # read from a file beside the transcript
        return source
    if isinstance(source, dict) and source.get("type") == "base64":
        return Attachment(
            records.body(source.get("data")), records.media_type(source.get("media_type"))
        )
    audio = part.get("input_audio")
    if isinstance(audio, dict):
        return Attachment(
            records.body(audio.get("data")),
            records.media_type(f"audio/{audio.get('format', 'wav')}"),
        )
    if (url := _url(part)) and (found := records.data_url(url)):
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


# shapes of other programs -------------------------------------------------------------------------

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
    """The message of an item of OpenAI's Responses, which Codex writes too; None for one that says
    nothing.
    """
    kind = records.text(item, "type")
    call_id = records.text(item, "call_id") or records.text(item, "id")
    if kind == "message":
        return {"role": records.text(item, "role"), "content": item.get("content")}
    if kind == "reasoning":
        parts = [*records.objects(item, "summary"), *records.objects(item, "content")]
        said = [text for part in parts if isinstance(text := part.get("text"), str)]
        return {"role": "assistant", "content": "\n".join(said), "kind": THINKING} if said else None
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") if kind == "function_call" else item.get("input")
        name, space = records.text(item, "name"), records.text(item, "namespace")
        return call(
            f"{space.removesuffix('__')}__{name}" if space else name, arguments or "", call_id
        )
    if kind.endswith("_output"):
        output = item.get("output")
        failed = isinstance(output, dict) and output.get("success") is False
        return result(
            call_id, output.get("content", output) if isinstance(output, dict) else output, failed
        )
    if kind.endswith("_call"):  # local_shell_call, web_search_call
        return call(kind.removesuffix("_call"), item.get("action") or {}, call_id)
    return None


def as_message(value: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A message in the common shape, and the name of the shape that it had, "" when it was the
    common one.
    """
    if value.get("lc") and isinstance(inner := value.get("kwargs"), dict):
        name = value.get("id")
        return _langchain(
            str(name[-1]) if name and isinstance(name, list) else "", inner
        ), "LangChain"
    kind = value["type"] if isinstance(value.get("type"), str) else ""
    if _langchain_kind(kind) in _LANGCHAIN and "role" not in value:
        if isinstance(inner := value.get("data"), dict):
            return _langchain(kind, inner), "LangChain"
        if "content" in value:
            return _langchain(kind, value), "LangChain"
    if (kind in _ITEMS or kind.endswith("_call_output")) and "role" not in value:
        return response_item(value) or {
            "role": "assistant",
            "content": "",
            "kind": THINKING,
        }, "OpenAI Responses"
    if value.get("object") == "thread.message":
        return value | {
            "content": [_thread_part(part) for part in records.objects(value, "content")]
        }, "OpenAI thread"
    if (
        "role" in value
        and "content" not in value
        and isinstance(inner := value.get("message"), dict)
    ):
        return {"role": value["role"], "content": inner.get("content") or ""}, "Cursor"
    return value, ""


def _langchain_kind(name: str) -> str:
    """What a class or type of LangChain says: `ai` for `ai`, `AIMessage` and `AIMessageChunk`."""
    return name.removesuffix("Chunk").removesuffix("Message").lower()


def _langchain(name: str, value: dict[str, Any]) -> dict[str, Any]:
    kind = _langchain_kind(name)
    if kind == "remove":
        return {
            "role": "system",
            "kind": META,
            "content": f"[the message {records.text(value, 'id')} was removed]",
        }
    message = {
        field: one
        for field, one in value.items()
        if field not in ("type", "tool_calls", "lc") and one
    }
    message["role"] = _LANGCHAIN.get(kind) or records.text(value, "role") or kind
    content = value.get("content")
    extra = value.get("additional_kwargs")
    calls = (
        value.get("tool_calls")
        or (extra.get("tool_calls") if isinstance(extra, dict) else None)
        or []
    )
    if not isinstance(calls, list) or not all(isinstance(one, dict) for one in calls):
        raise BadInput("tool_calls must be a list of objects")
    if calls:
        message["tool_calls"] = [
            one
            if "function" in one
            else {
                "id": one.get("id"),
                "function": {"name": one.get("name"), "arguments": one.get("args", {})},
            }
            for one in calls
        ]
        message.pop("additional_kwargs", None)
        if isinstance(content, list):  # Anthropic's calls stand in the content too
            content = [
                part
                for part in content
                if not (isinstance(part, dict) and part.get("type") == "tool_use")
            ]
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
    if isinstance(inner := value.get("values"), dict) and isinstance(
        inner.get("messages"), list
    ):  # of LangGraph
        return {}, inner["messages"]
    if isinstance(
        answer := value.get("response"), dict
    ):  # a line of a batch, or a call with its answer
        answered = messages_in(answer["body"] if isinstance(answer.get("body"), dict) else answer)
        request = value.get("request") or value.get("body")
        asked = request.get("messages") if isinstance(request, dict) else None
        if answered is not None:
            name = {"id": value["custom_id"]} if value.get("custom_id") else {}
            return name, [*(asked if isinstance(asked, list) else ()), *answered[1]]
    if isinstance(choices := value.get("choices"), list):
        found = [
            one["message"]
            for one in choices
            if isinstance(one, dict) and isinstance(one.get("message"), dict)
        ]
        return records.kept(value, id="id", model="model", created_at="created"), found
    if value.get("object") == "response" and isinstance(output := value.get("output"), list):
        return records.kept(value, id="id", model="model", created_at="created_at"), output
    if value.get("object") == "list" and isinstance(data := value.get("data"), list):
        ordered = sorted(
            data, key=lambda one: one.get("created_at") or 0 if isinstance(one, dict) else 0
        )
        return records.kept(ordered[0], id="thread_id") if ordered and isinstance(
            ordered[0], dict
        ) else {}, ordered
    if isinstance(value.get("prompt"), str) and isinstance(value.get("completion"), str):
        asked_and_said = [("user", value["prompt"]), ("assistant", value["completion"])]
        return {}, [{"role": role, "content": text} for role, text in asked_and_said]
    return None
