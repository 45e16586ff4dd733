"""Text files and JSON files: their lines, the whole of one, and the messages in JSON.

UTF-8 with or without a byte order mark, and UTF-16 and UTF-32 with one, are read. Anything else is
a fault, never a guess: a guessed encoding would write wrong words into a history that cannot be
changed. Memory grows with one line, or with the whole text where a function returns that.

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
from scroll_context.importing.messages import is_prompt, messages_in
from scroll_context.importing.records import Fault, Found, Labels, fingerprint
from scroll_context.text.json_bounds import TooManyValues, bounded_loads, most_in_document

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with the same two bytes
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
    """How far a growing file has been read, and what a reader must know of that part to go on
    behind it.
    """

    offset: int = 0
    lines: int = 0
    state: dict[str, Any] = {}  # of the reader
    tools: dict[
        str, dict[str, str]
    ] = {}  # names of called tools by call id, which is unique in a session at best


class Line(msgspec.Struct, frozen=True):
    """A line that is not blank, its number, and where in the file it ends."""

    line: int
    text: str
    offset: int
    is_whole: bool = (
        True  # whether it ends with a line break; one that a program is still writing does not
    )


LONGEST_TEXT = 2 << 30  # bytes of a file that is read as a whole
LONGEST_LINE = (
    256 << 20
)  # bytes: an archive of a few kilobytes can hold a line that would fill the memory


LONGEST_WIDE_LINE = LONGEST_LINE // 4  # characters, which take up to four bytes each


def text_lines(path: Path, offset: int = 0, lines: int = 0) -> Iterator[Line | Fault]:
    """The lines that are not blank, from an offset behind so many `lines` on. One that cannot be
    decoded is a fault.

    Only UTF-8 can be read from an offset.
    """
    with path.open("rb") as file:
        mark, encoding = _encoding(file.read(4))
        file.seek(offset := offset or len(mark))
        if encoding == "utf-8":
            yield from _utf8_lines(file, offset, lines)
        else:
            yield from _wide_lines(file, encoding)


def whole_text(path: Path) -> str | Fault:
    """The whole text, or the fault that keeps it from being read."""
    if (size := path.stat().st_size) > LONGEST_TEXT:
        return Fault(
            1,
            f"{size >> 20:,} MiB in one document, more than {LONGEST_TEXT >> 20:,}; split it into "
            "lines",
        )
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
        if not (raw := file.readline(LONGEST_LINE)):
            return
        offset += len(raw)
        if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
            while (raw := file.readline(1 << 20)) and not raw.endswith(b"\n"):
                offset += len(raw)
            offset += len(raw)
            yield Fault(number, f"longer than {LONGEST_LINE >> 20} MiB; this is no message", offset)
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
                    reason = (
                        f"longer than {LONGEST_WIDE_LINE >> 20} Mi characters; this is no message"
                    )
                    yield Fault(number, reason, file.tell())
                elif stripped := text.strip():
                    yield Line(number, stripped, file.tell())
        except UnicodeDecodeError as error:  # behind it, where a character begins is not known
            yield Fault(number, _undecodable(error, encoding), file.tell())


def _undecodable(error: UnicodeDecodeError, encoding: str) -> str:
    return (
        f"not {encoding.upper()} text (byte 0x{error.object[error.start]:02x}: {error.reason}); "
        "convert the file, for example with `iconv -f WINDOWS-1252 -t UTF-8`"
    )


def json_lines(
    path: Path, labels: Labels, position: Position | None = None, *, may_grow: bool = True
) -> Iterator[Found | Fault]:
    """The values of a JSONL file. If it may be growing, a last line that is cut off waits for the
    next import.

    Read on from a position, a last line without a line break waits in any case.
    """
    start = position or Position()
    for line in text_lines(path, start.offset, start.lines):
        if position is not None:
            if not line.is_whole:
                return
            position.offset, position.lines = line.offset, line.line
        try:
            if not isinstance(line, Fault):
                yield Found(line.line, bounded_loads(line.text), labels, offset=line.offset)
                continue
            fault = line
        except (ValueError, RecursionError) as error:
            fault = Fault(line.line, not_json(error), line.offset)
        if line.is_whole or not may_grow:
            yield fault


def document(content: str) -> Any:
    """The value of a whole JSON document, which may hold many messages."""
    return bounded_loads(content, most_in_document(content))


def not_json(error: Exception) -> str:
    if isinstance(error, TooManyValues):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} (column {error.colno})"
    return "not JSON that can be read: nested too deeply, or a number too long"


def items(content: str, container: int) -> Iterator[tuple[str, int, int]]:
    """What the JSON list or object at a place holds: the name of a member, where each item begins,
    and where its value.

    A value is decoded when the item behind it is asked for. The text should be JSON: mistakes in it
    are not looked for.
    """
    at = _behind_space(content, container + 1)
    while content[at] not in "]}":
        name, start = "", at
        if content[container] == "{":
            name, at = decode(content, at)
            at = _behind_space(content, _behind_space(content, at) + 1)  # behind the colon
        yield name, start, at
        at = _behind_space(content, decode(content, at)[1])
        if content[at] == ",":
            at = _behind_space(content, at + 1)


def _behind_space(content: str, at: int) -> int:
    return _SPACE.match(content, at).end()  # type: ignore[union-attr]


def with_lines(content: str) -> Placed | list[Placed]:
    """The elements of a JSON list, each with its line; or the one value with its line, and its
    `messages` with theirs.

    The json module says where a mistake is, and not where a value was, so the places are looked for
    afterwards.
    """
    value = document(content) if content.strip() else []
    start = _behind_space(content, 0)
    if isinstance(value, list):
        return list(zip(_lines(content, start), value, strict=True)) if value else []
    if isinstance(value, dict) and isinstance(messages := value.get("messages"), list):
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


def values(path: Path, labels: Labels, what: str) -> Iterator[Found | Fault]:
    """The values of a JSON list, each with its line and as the `what` of its number; or the one
    value.
    """
    top = _parsed(path, with_lines)
    if isinstance(top, Fault):
        yield top
    elif isinstance(top, tuple):
        yield Found(*top, labels)
    else:
        for number, (line, value) in enumerate(top, 1):
            yield Found(line, value, labels, f"{what} {number}")


def whole_value(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """The one value of a JSON document."""
    value = _parsed(path, document)
    yield value if isinstance(value, Fault) else Found(1, value, labels)


def _parsed(path: Path, parse: Callable[[str], T]) -> T | Fault:
    content = whole_text(path)
    if isinstance(content, Fault):
        return content
    try:
        return parse(content)
    except (ValueError, RecursionError) as error:
        return Fault(getattr(error, "lineno", 1), not_json(error))


def messages_in_lines(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """JSONL: each line is a message or a conversation."""
    named: Counter[str] = Counter()
    for found in json_lines(path, labels, may_grow=False):
        yield from [found] if isinstance(found, Fault) else _messages(found, named)


def messages_in_document(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """One JSON value: a message, a conversation, or a list of either."""
    named: Counter[str] = Counter()
    for found in values(path, labels, "message"):
        if isinstance(found, Fault):
            yield found
            continue
        is_only = not found.where
        placed = found.value.get("messages") if is_only and isinstance(found.value, dict) else None
        if isinstance(placed, list) and "role" not in found.value:
            about = {field: value for field, value in found.value.items() if field != "messages"}
            yield from _conversation(found, about, placed, None)
            continue
        if isinstance(placed, list):  # a message with a field of that name
            found = replace(
                found, value={**found.value, "messages": [message for _, message in placed]}
            )
        yield from _messages(found, None if is_only else named)


def _messages(found: Found, named: Counter[str] | None) -> Iterator[Found | Fault]:
    """The message that a value is, or those of the conversation that it is."""
    try:
        conversation = messages_in(found.value)
    except records.MALFORMED as error:
        yield found.fault(error)
        return
    if conversation is None:
        yield found
    else:
        about, messages = conversation
        yield from _conversation(
            found, about, [(found.line, message) for message in messages], named
        )


def _conversation(
    found: Found, about: dict[str, Any], messages: list[Placed], named: Counter[str] | None
) -> Iterator[Found | Fault]:
    """The messages of one conversation.

    Without `named`, the file is this conversation and may lend it its name.
    """
    labels = found.labels
    if (system := about.pop("system", None)) is not None:
        messages = [(found.line, {"role": "system", "content": system}), *messages]
    try:
        own = next(
            (name for field in _NAMES_OF_A_SESSION if (name := records.text(about, field))), ""
        )
        labels = Labels(
            session_id=own
            or (labels.session_id if named is None else _name(messages, labels.session_id, named)),
            agent_id=records.text(about, "agent_id") or labels.agent_id,
            task_id=records.text(about, "task_id") or labels.task_id,
            kind=records.text(about, "kind") or labels.kind,
            created_at=records.time(about) or labels.created_at,
        )
    except records.MALFORMED as error:
        yield replace(found, where="").fault(error)
        return
    for number, (line, message) in enumerate(messages, 1):
        yield Found(
            line, message, labels, f"message {number}", about if number == 1 else {}, found.offset
        )


def _name(messages: list[Placed], stem: str, named: Counter[str]) -> str:
    """A name for a conversation without one, made of its first message: it stays the same at any
    place in the file.
    """
    opening = next((m for _, m in messages if isinstance(m, dict) and not is_prompt(m)), None)
    name = f"{stem}-{fingerprint(opening).hex()[:8]}"
    named[name] += 1
    return name if named[name] == 1 else f"{name}-{named[name]}"
