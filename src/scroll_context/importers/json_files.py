"""JSON files of messages: one value a line, or one in all; a value is a message, a conversation, or a list of either.

A conversation names its session, or gets a name from what it opens with. Everything that can be wrong is a Fault with
its line.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scroll_context.errors import BadInput
from scroll_context.importers import fields
from scroll_context.importers.messages import Fault, Found, Labels, fingerprint, is_prompt
from scroll_context.importers.shapes import messages_in
from scroll_context.importers.text_files import Document, Placed, not_json, text_lines, whole_text

_NAMES_OF_A_SESSION = ("session_id", "conversation_id", "id")


def conversations(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """The values of a JSON list, or the one value, each with its line."""
    top = _parsed(path)
    if isinstance(top, Fault):
        yield top
    elif isinstance(top, tuple):
        yield Found(*top, labels)
    else:
        for number, (line, value) in enumerate(top, 1):
            yield Found(line, value, labels, f"conversation {number}")


def whole_value(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """The one value of a JSON document."""
    content = whole_text(path)
    if isinstance(content, Fault):
        yield content
        return
    try:
        yield Found(1, json.loads(content), labels)
    except (ValueError, RecursionError) as error:
        yield Fault(getattr(error, "lineno", 1), not_json(error))


def messages_in_lines(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """JSONL: each line is a message or a conversation."""
    named: Counter[str] = Counter()
    for line in text_lines(path):
        if isinstance(line, Fault):
            yield line
            continue
        try:
            value = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            yield Fault(line.line, not_json(error), line.offset)
            continue
        if (conversation := messages_in(value)) is None:
            yield Found(line.line, value, labels, offset=line.offset)
        else:
            about, inner = conversation
            messages = [(line.line, message) for message in inner]
            yield from _conversation(about, messages, line.line, labels, named, line.offset)


def messages_in_document(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """One JSON value: a message, a conversation, or a list of either."""
    top = _parsed(path)
    if isinstance(top, Fault):
        yield top
        return
    named: Counter[str] = Counter()
    if isinstance(top, tuple):
        line, value = top
        if isinstance(value, dict) and isinstance(placed := value.get("messages"), list):
            if "role" not in value:
                about = {field: one for field, one in value.items() if field != "messages"}
                yield from _conversation(about, placed, line, labels, None)
                return
            value["messages"] = [inner for _, inner in placed]  # a message with a field of that name
        if (conversation := messages_in(value)) is None:
            yield Found(line, value, labels)
        else:
            about, inner = conversation
            yield from _conversation(about, [(line, message) for message in inner], line, labels, None)
        return
    for number, (line, value) in enumerate(top, 1):
        if (conversation := messages_in(value)) is None:
            yield Found(line, value, labels, f"message {number}")
        else:
            about, inner = conversation
            yield from _conversation(about, [(line, message) for message in inner], line, labels, named)


def _parsed(path: Path) -> Placed | list[Placed] | Fault:
    content = whole_text(path)
    if isinstance(content, Fault):
        return content
    if not content.strip():
        return []
    try:
        return Document(content).read()
    except (ValueError, RecursionError) as error:
        return Fault(getattr(error, "lineno", 1), not_json(error))


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
