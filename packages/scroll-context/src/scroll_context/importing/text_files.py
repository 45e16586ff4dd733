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
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.importing import records
from scroll_context.importing.messages import is_prompt
from scroll_context.importing.records import Fault, Labels, RawMessage, fingerprint
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


def values(path: Path, labels: Labels, what: str) -> Iterator[RawMessage | Fault]:
    """The values of a JSON list, each with its line, or the only value.

    `what` names a value of the list in messages, as in "message 3". The json module reports the
    places of mistakes, and not of values, so these are searched for afterwards.
    """
    content = whole_text(path)
    if isinstance(content, Fault):
        yield content
        return
    if not content.strip():
        return
    try:
        value = document(content)
    except (ValueError, RecursionError) as error:
        yield Fault(getattr(error, "lineno", 1), not_json(error))
        return
    start = _behind_space(content, 0)
    if isinstance(value, list):
        places = zip(_lines(content, start), value, strict=True)
        for number, (line, item) in enumerate(places, 1):
            yield RawMessage(line, item, labels, f"{what} {number}")
        return
    message_lines: tuple[int, ...] = ()
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        starts = [at for name, _, at in items(content, start) if name == "messages"]
        message_lines = tuple(_lines(content, starts[-1]))
    first_line = content.count("\n", 0, start) + 1
    yield RawMessage(first_line, value, labels, message_lines=message_lines)


def _lines(content: str, container: int) -> Iterator[int]:
    line, counted = 1, 0
    for _, start, _ in items(content, container):
        line += content.count("\n", counted, start)
        counted = start
        yield line


# messages in JSON ---------------------------------------------------------------------------------

_NAMES_OF_A_SESSION = ("session_id", "conversation_id", "id")

CommonShape = Callable[[Any], tuple[Any, str]]
"""Gives a message or a conversation in the common shape, and the name of the shape that it had; ""
for the common one."""


def messages(
    file_values: Iterator[RawMessage | Fault], common_shape: CommonShape
) -> Iterator[RawMessage | Fault]:
    """The messages in the values of a file: each is a message, a conversation, or a list."""
    names_so_far: Counter[str] = Counter()
    for value in file_values:
        raw = _in_common_shape(value, common_shape)
        if isinstance(raw, Fault) or not _is_conversation(raw.value):
            yield raw
            continue
        for message in _conversation(raw, names_so_far):
            yield _in_common_shape(message, common_shape)


def _in_common_shape(raw: RawMessage | Fault, common_shape: CommonShape) -> RawMessage | Fault:
    if isinstance(raw, Fault):
        return raw
    try:
        value, shape = common_shape(raw.value)
    except records.MALFORMED as error:
        return raw.fault(error)
    return raw if value is raw.value else replace(raw, value=value, shape=shape)


def _is_conversation(value: Any) -> bool:
    if isinstance(value, list):
        return True
    if not isinstance(value, dict):
        return False
    return "role" not in value and isinstance(value.get("messages"), list)


def _conversation(raw: RawMessage, names_so_far: Counter[str]) -> Iterator[RawMessage | Fault]:
    """The messages of one conversation. Its other fields are recorded with the first message.

    `names_so_far` counts the names of conversations in the file. A conversation that is the
    complete file gets the name of the file.
    """
    fields: dict[str, Any] = {} if isinstance(raw.value, list) else dict(raw.value)
    messages = fields.pop("messages", raw.value)
    lines = raw.message_lines or [raw.line] * len(messages)
    system = fields.pop("system", None)
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
        lines = [raw.line, *lines]
    try:
        labels = _labels_of(fields, raw.labels)
        if not labels.session_id:
            name = raw.labels.session_id
            if raw.message_lines is None:
                name = _name(messages, name, names_so_far)
            labels = replace(labels, session_id=name)
    except records.MALFORMED as error:
        yield replace(raw, where="").fault(error)
        return
    for number, (line, message) in enumerate(zip(lines, messages, strict=True), 1):
        shared = fields if number == 1 else {}
        yield RawMessage(line, message, labels, f"message {number}", shared, raw.offset)


def _labels_of(fields: dict[str, Any], labels: Labels) -> Labels:
    """The labels of a conversation; its session is "" if its fields do not name it."""
    names = (records.text(fields, name) for name in _NAMES_OF_A_SESSION)
    return Labels(
        session_id=next(filter(None, names), ""),
        agent_id=records.text(fields, "agent_id") or labels.agent_id,
        task_id=records.text(fields, "task_id") or labels.task_id,
        kind=records.text(fields, "kind") or labels.kind,
        created_at=records.time(fields) or labels.created_at,
    )


def _name(messages: list[Any], stem: str, names_so_far: Counter[str]) -> str:
    """A name for an unnamed conversation.

    It is made of the first message, so it does not depend on the place in the file.
    """
    objects = [message for message in messages if isinstance(message, dict)]
    opening = next((message for message in objects if not is_prompt(message)), None)
    name = f"{stem}-{fingerprint(opening).hex()[:8]}"
    names_so_far[name] += 1
    return name if names_so_far[name] == 1 else f"{name}-{names_so_far[name]}"
