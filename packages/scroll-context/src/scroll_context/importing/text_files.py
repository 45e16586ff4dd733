"""Text files and JSON files: their lines, their complete text, and the messages in JSON.

UTF-8 with or without a byte order mark, and UTF-16 and UTF-32 with one, are read. Anything else is
a fault, never a guess: a guessed encoding would write wrong words into a history that cannot be
changed. Memory grows with one line, or with the complete text where a function returns that.

A JSON file has one value a line, or one in all; a value is a message, a conversation, or a list of
either. A conversation names its session, or gets a name from its first message.
"""

import codecs
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from scroll_context.importing import records
from scroll_context.importing.messages import is_prompt
from scroll_context.importing.records import Fault, Labels, RawMessage, fingerprint
from scroll_context.importing.shapes import messages_in
from scroll_context.text.json_bounds import TooManyValues, bounded_loads, most_in_document

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # UTF-32 comes before UTF-16, whose mark begins with the same two bytes.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


decode = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")
T = TypeVar("T")

Placed = tuple[int, Any]
"""The line that a value begins at, and the value."""


class Position(msgspec.Struct):
    """How far a growing file has been read, and what a reader must remember of that part."""

    offset: int = 0
    lines: int = 0
    # The state of the reader.
    state: dict[str, Any] = {}
    # Tool names by session and call id. A call id is unique in its session at best.
    tools: dict[str, dict[str, str]] = {}


class Line(msgspec.Struct, frozen=True):
    """A line that is not blank, its number, and where in the file it ends."""

    line: int
    text: str
    offset: int
    # Whether it ends with a line break. A line that a program is still writing does not.
    is_whole: bool = True


# Bytes of a file that is read completely.
LONGEST_TEXT = 2 << 30
# Bytes of a line. An archive of a few kilobytes can hold a line that would fill the memory.
LONGEST_LINE = 256 << 20
# Characters of a line in UTF-16 or UTF-32. Each takes up to four bytes.
LONGEST_WIDE_LINE = LONGEST_LINE // 4


def text_lines(path: Path, offset: int = 0, lines: int = 0) -> Iterator[Line | Fault]:
    """The lines that are not blank. A line that cannot be decoded is a fault.

    Reading starts at `offset`, after `lines` lines; only UTF-8 can be read from an offset.
    """
    with path.open("rb") as file:
        mark, encoding = _encoding(file.read(4))
        offset = offset or len(mark)
        file.seek(offset)
        if encoding == "utf-8":
            yield from _utf8_lines(file, offset, lines)
        else:
            yield from _wide_lines(file, encoding)


def whole_text(path: Path) -> str | Fault:
    """The complete text, or the fault that keeps it from being read."""
    size = path.stat().st_size
    if size > LONGEST_TEXT:
        most = LONGEST_TEXT >> 20
        reason = f"{size >> 20:,} MiB in one document, more than {most:,}; split it into lines"
        return Fault(1, reason)
    data = path.read_bytes()
    mark, encoding = _encoding(data[:4])
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        before = data[len(mark) : len(mark) + error.start].decode(encoding, "replace")
        return Fault(before.count("\n") + 1, _undecodable(error, encoding), error.start)


def _encoding(start: bytes) -> tuple[bytes, str]:
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return mark, encoding
    return b"", "utf-8"


def _utf8_lines(file: io.BufferedReader, offset: int, lines: int) -> Iterator[Line | Fault]:
    for number in itertools.count(lines + 1):
        raw = file.readline(LONGEST_LINE)
        if not raw:
            return
        offset += len(raw)
        if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(1 << 20)
                offset += len(raw)
            yield Fault(number, f"longer than {LONGEST_LINE >> 20} MiB; not a message", offset)
            continue
        try:
            text = raw.decode().strip()
        except UnicodeDecodeError as error:
            yield Fault(number, _undecodable(error, "utf-8"), offset, raw.endswith(b"\n"))
            continue
        if text:
            yield Line(number, text, offset, raw.endswith(b"\n"))


def _wide_lines(file: io.BufferedReader, encoding: str) -> Iterator[Line | Fault]:
    number = 0
    with io.TextIOWrapper(file, encoding, newline="\n") as wrapped:
        try:
            for number in itertools.count(1):
                text = wrapped.readline(LONGEST_WIDE_LINE)
                if not text:
                    return
                if len(text) == LONGEST_WIDE_LINE and not text.endswith("\n"):
                    while text and not text.endswith("\n"):
                        text = wrapped.readline(1 << 20)
                    size = f"{LONGEST_WIDE_LINE >> 20} Mi characters"
                    yield Fault(number, f"longer than {size}; this is not a message", file.tell())
                    continue
                text = text.strip()
                if text:
                    yield Line(number, text, file.tell())
        except UnicodeDecodeError as error:
            # Nobody knows where the next character begins, so reading ends here.
            yield Fault(number, _undecodable(error, encoding), file.tell())


def _undecodable(error: UnicodeDecodeError, encoding: str) -> str:
    return (
        f"not {encoding.upper()} text (byte 0x{error.object[error.start]:02x}: {error.reason}); "
        "convert the file, for example with `iconv -f WINDOWS-1252 -t UTF-8`"
    )


def json_lines(
    path: Path, labels: Labels, position: Position | None = None, *, may_grow: bool = True
) -> Iterator[RawMessage | Fault]:
    """The values of a JSONL file.

    If the file may be growing, an incomplete last line waits for the next import. With a position,
    a last line without a line break always waits.
    """
    start = position or Position()
    for line in text_lines(path, start.offset, start.lines):
        if position is not None:
            if not line.is_whole:
                return
            position.offset, position.lines = line.offset, line.line
        try:
            if not isinstance(line, Fault):
                yield RawMessage(line.line, bounded_loads(line.text), labels, offset=line.offset)
                continue
            fault = line
        except (ValueError, RecursionError) as error:
            fault = Fault(line.line, not_json(error), line.offset)
        if line.is_whole or not may_grow:
            yield fault


def document(content: str) -> Any:
    """The value of a complete JSON document, which may hold many messages."""
    return bounded_loads(content, most_in_document(content))


def not_json(error: Exception) -> str:
    if isinstance(error, TooManyValues):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} (column {error.colno})"
    return "not JSON that can be read: nested too deeply, or a number too long"


def items(content: str, container: int) -> Iterator[tuple[str, int, int]]:
    """The items of the JSON list or object at a place: name, start of the item, start of its value.

    The name is "" in a list. A value is decoded when the next item is asked for. The text should be
    JSON; mistakes in it are not reported.
    """
    at = _behind_space(content, container + 1)
    while content[at] not in "]}":
        name, start = "", at
        if content[container] == "{":
            name, at = decode(content, at)
            colon = _behind_space(content, at)
            at = _behind_space(content, colon + 1)
        yield name, start, at
        at = _behind_space(content, decode(content, at)[1])
        if content[at] == ",":
            at = _behind_space(content, at + 1)


def _behind_space(content: str, at: int) -> int:
    return _SPACE.match(content, at).end()  # type: ignore[union-attr]


def with_lines(content: str) -> Placed | list[Placed]:
    """The elements of a JSON list, each with its line; or the only value with its line.

    The `messages` of that value have their lines too. The json module reports the places of
    mistakes, and not of values, so these are searched for afterwards.
    """
    value = document(content) if content.strip() else []
    start = _behind_space(content, 0)
    if isinstance(value, list):
        return list(zip(_lines(content, start), value, strict=True)) if value else []
    messages = value.get("messages") if isinstance(value, dict) else None
    if isinstance(messages, list):
        at = [at for name, _, at in items(content, start) if name == "messages"][-1]
        value["messages"] = list(zip(_lines(content, at), messages, strict=True))
    return content.count("\n", 0, start) + 1, value


def _lines(content: str, container: int) -> Iterator[int]:
    line, counted = 1, 0
    for _, start, _ in items(content, container):
        line += content.count("\n", counted, start)
        counted = start
        yield line


# messages in JSON ---------------------------------------------------------------------------------

_NAMES_OF_A_SESSION = ("session_id", "conversation_id", "id")


def values(path: Path, labels: Labels, what: str) -> Iterator[RawMessage | Fault]:
    """The values of a JSON list, each with its line, or the only value.

    `what` names a value of the list in messages, as in "message 3".
    """
    top = _parsed(path, with_lines)
    if isinstance(top, Fault):
        yield top
    elif isinstance(top, tuple):
        yield RawMessage(*top, labels)
    else:
        for number, (line, value) in enumerate(top, 1):
            yield RawMessage(line, value, labels, f"{what} {number}")


def whole_value(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """The only value of a JSON document."""
    value = _parsed(path, document)
    yield value if isinstance(value, Fault) else RawMessage(1, value, labels)


def _parsed(path: Path, parse: Callable[[str], T]) -> T | Fault:
    content = whole_text(path)
    if isinstance(content, Fault):
        return content
    try:
        return parse(content)
    except (ValueError, RecursionError) as error:
        return Fault(getattr(error, "lineno", 1), not_json(error))


def messages_in_lines(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """JSONL: each line is a message or a conversation."""
    names_so_far: Counter[str] = Counter()
    for raw in json_lines(path, labels, may_grow=False):
        if isinstance(raw, Fault):
            yield raw
        else:
            yield from _messages(raw, names_so_far)


def messages_in_document(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """One JSON value: a message, a conversation, or a list of either."""
    names_so_far: Counter[str] = Counter()
    for raw in values(path, labels, "message"):
        if isinstance(raw, Fault):
            yield raw
            continue
        is_only = not raw.where
        placed = raw.value.get("messages") if is_only and isinstance(raw.value, dict) else None
        if isinstance(placed, list):
            if "role" not in raw.value:
                fields = {name: value for name, value in raw.value.items() if name != "messages"}
                yield from _conversation(raw, fields, placed, None)
                continue
            # It is a message with a field of that name.
            messages = [message for _, message in placed]
            raw = replace(raw, value={**raw.value, "messages": messages})
        yield from _messages(raw, None if is_only else names_so_far)


def _messages(raw: RawMessage, names_so_far: Counter[str] | None) -> Iterator[RawMessage | Fault]:
    """The message that a value is, or those of the conversation that it is."""
    try:
        conversation = messages_in(raw.value)
    except records.MALFORMED as error:
        yield raw.fault(error)
        return
    if conversation is None:
        yield raw
    else:
        fields, messages = conversation
        placed = [(raw.line, message) for message in messages]
        yield from _conversation(raw, fields, placed, names_so_far)


def _conversation(
    raw: RawMessage,
    fields: dict[str, Any],
    messages: list[Placed],
    names_so_far: Counter[str] | None,
) -> Iterator[RawMessage | Fault]:
    """The messages of one conversation, whose other fields are `fields`.

    `names_so_far` counts the names of conversations in the file. Without it, the file is this
    conversation, and an unnamed conversation gets the name of the file.
    """
    labels = raw.labels
    system = fields.pop("system", None)
    if system is not None:
        messages = [(raw.line, {"role": "system", "content": system}), *messages]
    try:
        names = (records.text(fields, name) for name in _NAMES_OF_A_SESSION)
        session_id = next(filter(None, names), "")
        if not session_id:
            session_id = labels.session_id
            if names_so_far is not None:
                session_id = _name(messages, session_id, names_so_far)
        labels = Labels(
            session_id=session_id,
            agent_id=records.text(fields, "agent_id") or labels.agent_id,
            task_id=records.text(fields, "task_id") or labels.task_id,
            kind=records.text(fields, "kind") or labels.kind,
            created_at=records.time(fields) or labels.created_at,
        )
    except records.MALFORMED as error:
        yield replace(raw, where="").fault(error)
        return
    for number, (line, message) in enumerate(messages, 1):
        shared = fields if number == 1 else {}
        yield RawMessage(line, message, labels, f"message {number}", shared, raw.offset)


def _name(messages: list[Placed], stem: str, names_so_far: Counter[str]) -> str:
    """A name for an unnamed conversation.

    It is made of the first message, so it does not depend on the place in the file.
    """
    objects = [message for _, message in messages if isinstance(message, dict)]
    opening = next((message for message in objects if not is_prompt(message)), None)
    name = f"{stem}-{fingerprint(opening).hex()[:8]}"
    names_so_far[name] += 1
    return name if names_so_far[name] == 1 else f"{name}-{names_so_far[name]}"
