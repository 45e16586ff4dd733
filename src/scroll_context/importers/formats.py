"""Read a file of messages: find out how it is laid out, and give its messages one by one.

Everything that can be wrong with a file is found while reading it, as a Fault with its line, so that a caller can
read it once to check it and a second time to import it. Memory grows with one line of a JSONL file, or with
the whole of a JSON file, and with 16 bytes a message for recognising repeats.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.importers import fields, text
from scroll_context.importers.document import Document, Placed
from scroll_context.importers.keys import SourceKeys, fingerprint, is_prompt
from scroll_context.importers.messages import pieces
from scroll_context.importers.values import Fault, Format, Found, Imported, Labels

_LINE_SUFFIXES = (".jsonl", ".ndjson")
_NAMES_OF_A_SESSION = ("session_id", "conversation_id", "id")


def detect(path: Path, suffix: str = "") -> Format:
    """How the file is laid out; `suffix` decides for a single line of JSON, which could be either."""
    start = [line for line, _ in zip(text.lines(path), range(2), strict=False)]
    if not start or isinstance(start[0], Fault):
        return Format.JSONL
    try:
        value = json.loads(start[0].text)
    except (ValueError, RecursionError):
        # A document breaks between tokens; a line of JSONL that was cut, hardly ever just there.
        return Format.JSON if start[0].text.endswith(("[", "{", ",", ":")) else Format.JSONL
    if isinstance(value, dict) and "scroll_export" in value:
        return Format.EXPORT
    return Format.JSONL if len(start) > 1 or suffix.lower() in _LINE_SUFFIXES else Format.JSON


def read(path: Path, name: str, labels: Labels, layout: Format) -> Iterator[Imported | Fault]:
    """The messages of a file, in order. `name` stands for the session of messages that name none."""
    labels = msgspec.structs.replace(labels, session_id=labels.session_id or name)
    found = _lines(path, labels) if layout is Format.JSONL else _document(path, labels)
    keys = SourceKeys()
    tools: dict[str, dict[str, str]] = defaultdict(dict)  # call ids are unique within a session at best
    for item in found:
        yield item if isinstance(item, Fault) else _message(item, keys, tools)


def _message(found: Found, keys: SourceKeys, tools: dict[str, dict[str, str]]) -> Imported | Fault:
    try:
        if not isinstance(found.value, dict):
            raise BadInput(f"expected a message (a JSON object), found {type(found.value).__name__}")
        session = fields.text(found.value, "session_id") or found.labels.session_id
        key = keys.key(session, found.value)
        return Imported(found.line, pieces(found, key, tools[session]), found.offset)
    except (BadInput, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Fault(found.line, f"{found.where}: {reason}" if found.where else reason, found.offset)


def _lines(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """JSONL: each line is a message or a conversation."""
    named: Counter[str] = Counter()
    for line in text.lines(path):
        if isinstance(line, Fault):
            yield line
            continue
        try:
            value = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            yield Fault(line.number, _not_json(error), line.offset)
            continue
        if (inner := _messages_of(value)) is None:
            yield Found(line.number, value, labels, offset=line.offset)
        else:
            messages = [(line.number, message) for message in inner]
            yield from _conversation(_about(value), messages, line.number, labels, named, line.offset)


def _document(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """One JSON value: a message, a conversation, or a list of either."""
    content = text.document(path)
    if isinstance(content, Fault):
        yield content
        return
    if not content.strip():
        return
    try:
        top = Document(content).read()
    except (ValueError, RecursionError) as error:
        yield Fault(getattr(error, "lineno", 1), _not_json(error))
        return
    named: Counter[str] = Counter()
    if isinstance(top, tuple):
        line, value = top
        if isinstance(value, dict) and isinstance(placed := value.get("messages"), list):
            if "role" not in value:
                yield from _conversation(_about(value), placed, line, labels, None)
                return
            value["messages"] = [inner for _, inner in placed]  # a message with a field of that name
        yield Found(line, value, labels)
        return
    for number, (line, value) in enumerate(top, 1):
        if (inner := _messages_of(value)) is None:
            yield Found(line, value, labels, f"message {number}")
        else:
            yield from _conversation(_about(value), [(line, message) for message in inner], line, labels, named)


def _conversation(
    about: dict[str, Any],
    messages: list[Placed],
    line: int,
    labels: Labels,
    named: Counter[str] | None,
    offset: int = 0,
) -> Iterator[Found | Fault]:
    """The messages of one conversation. Without `named`, the file is this conversation and may lend it its name."""
    if (system := about.pop("system", None)) is not None:
        messages = [(line, {"role": "system", "content": system}), *messages]
    try:
        own = next((name for field in _NAMES_OF_A_SESSION if (name := fields.text(about, field))), "")
        labels = Labels(
            session_id=own or (labels.session_id if named is None else _name(messages, labels.session_id, named)),
            agent_id=fields.text(about, "agent_id") or labels.agent_id,
            task_id=fields.text(about, "task_id") or labels.task_id,
            kind=fields.text(about, "kind") or labels.kind,
            created_at=fields.time(about) or labels.created_at,
        )
    except (BadInput, RecursionError) as error:
        yield Fault(line, str(error), offset)
        return
    for number, (place, message) in enumerate(messages, 1):
        yield Found(place, message, labels, f"message {number}", about if number == 1 else {}, offset)


def _name(messages: list[Placed], stem: str, named: Counter[str]) -> str:
    """A name for a conversation without one: by what it opens with, so that it keeps it wherever it stands."""
    opening = next((m for _, m in messages if isinstance(m, dict) and not is_prompt(m)), None)
    name = f"{stem}-{fingerprint(opening).hex()[:8]}"
    named[name] += 1
    return name if named[name] == 1 else f"{name}-{named[name]}"


def _about(conversation: Any) -> dict[str, Any]:
    """What a conversation says of itself beside its messages."""
    return {} if isinstance(conversation, list) else {k: v for k, v in conversation.items() if k != "messages"}


def _messages_of(value: Any) -> list[Any] | None:
    """The list of messages, when a value is a conversation."""
    inner = value.get("messages") if isinstance(value, dict) and "role" not in value else value
    return inner if isinstance(inner, list) else None


def _not_json(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} (column {error.colno})"
    return "not JSON that can be read: nested too deeply, or a number too long"
