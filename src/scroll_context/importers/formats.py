"""Read a file of messages: find out how it is laid out, and give its messages one by one.

Everything that can be wrong with a file is found while reading it, as a Fault with its line, so that a caller can
read it once to check it and a second time to import it. UTF-8 with or without a byte order mark, and UTF-16 and
UTF-32 with one, are read; anything else is a fault, never a guess: a guessed encoding would write wrong words into a
history that cannot be changed. Memory grows with one line of a JSONL file, or with the whole of a JSON file, and with
16 bytes a message for recognising repeats.
"""

import codecs
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput
from scroll_context.importers import fields, transcripts
from scroll_context.importers.messages import (
    Fault,
    Format,
    Found,
    Imported,
    Labels,
    Piece,
    SourceKeys,
    fingerprint,
    is_prompt,
    pieces,
)

_LINE_SUFFIXES = (".jsonl", ".ndjson")
_LOOKED_AT = 50  # lines at most, until one says which assistant wrote it
_NAMES_OF_A_SESSION = ("session_id", "conversation_id", "id")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_decode = json.JSONDecoder().raw_decode

Placed = tuple[int, Any]
"""The line that a value begins at, and the value."""


def detect(path: Path, suffix: str = "") -> Format:
    """How the file is laid out; `suffix` decides for a single line of JSON, which could be either."""
    start = [line for line, _ in zip(text_lines(path), range(_LOOKED_AT), strict=False)]
    if not start or isinstance(start[0], Fault):
        return Format.JSONL
    try:
        value = json.loads(start[0].text)
    except (ValueError, RecursionError):
        # A document breaks between tokens; a line of JSONL that was cut, hardly ever just there.
        is_document = start[0].text.endswith(("[", "{", ",", ":"))
    else:
        if isinstance(value, dict) and "scroll_export" in value:
            return Format.EXPORT
        is_document = len(start) == 1 and suffix.lower() not in _LINE_SUFFIXES
    if is_document and _is_chatgpt(path):
        return Format.CHATGPT
    for line in start:
        try:
            value = {} if isinstance(line, Fault) else json.loads(line.text)
        except (ValueError, RecursionError):
            continue
        if assistant := transcripts.recognise(value):
            return assistant
        if isinstance(value, dict) and "role" in value:
            break
    return Format.JSON if is_document else Format.JSONL


def _is_chatgpt(path: Path) -> bool:
    """Whether a document is a conversation with a `mapping`, or a list of them; it is read as far as the first one."""
    content = whole_text(path)
    if isinstance(content, Fault) or not (start := re.match(r"\s*(?:\[\s*)?\{\s*", content)):
        return False
    at = start.end()
    try:
        while True:
            name, at = _decode(content, at)
            at = _after(content, at, ":")
            if name in ("mapping", "messages", "role"):
                return name == "mapping" and content[at : at + 1] == "{"
            _, at = _decode(content, at)
            at = _after(content, at, ",")
    except (ValueError, RecursionError):
        return False


def _after(content: str, at: int, mark: str) -> int:
    """Where the next value begins, behind a mark and the space around it."""
    found = re.compile(rf"\s*{mark}\s*").match(content, at)
    if found is None:
        raise ValueError(f"no {mark!r} at {at}")
    return found.end()


Renamed = Callable[[str], int | None]
"""The number that the sessions of a name get at the end of it, since another source has the name; or None."""


class Position(msgspec.Struct):
    """How far a growing file has been read, and what a reader must know of that part to go on behind it."""

    offset: int = 0
    lines: int = 0
    state: transcripts.State = {}
    tools: dict[str, dict[str, str]] = {}  # names of called tools by call id, which is unique in a session at best


def read(
    path: Path, name: str, labels: Labels, layout: Format, renamed: Renamed | None = None
) -> Iterator[Imported | Fault]:
    """The messages of a file, in order. `name` stands for the session of messages that name none.

    Sessions that are `renamed` get the number at the end of their name, and of the keys of their messages.
    """
    labels = replace(labels, session_id=labels.session_id or name)
    found: Iterator[Found | Fault]
    if layout is Format.CHATGPT:
        found = transcripts.messages_of(layout, _conversations(path, labels), {})
    elif layout.is_transcript:
        found = transcripts.messages_of(layout, _whole_lines(path, labels), {})
    else:
        found = _lines(path, labels) if layout is Format.JSONL else _document(path, labels)
    return _messages(found, {}, renamed)


def read_on(
    path: Path, name: str, layout: Format, position: Position, renamed: Renamed | None = None
) -> Iterator[Imported | Fault]:
    """The messages of a growing transcript from a position on, which moves with each line that is read.

    Only lines that end with a line break are read.
    """
    lines = _whole_lines(path, Labels(session_id=name), position)
    return _messages(transcripts.messages_of(layout, lines, position.state), position.tools, renamed)


def _messages(
    found: Iterator[Found | Fault], tools: dict[str, dict[str, str]], renamed: Renamed | None
) -> Iterator[Imported | Fault]:
    keys = SourceKeys()
    for item in found:
        yield item if isinstance(item, Fault) else _message(item, keys, tools, renamed or (lambda _: None))


def _message(found: Found, keys: SourceKeys, tools: dict[str, dict[str, str]], renamed: Renamed) -> Imported | Fault:
    try:
        if not isinstance(found.value, dict):
            raise BadInput(f"expected a message (a JSON object), found {type(found.value).__name__}")
        session = fields.text(found.value, "session_id") or found.labels.session_id
        key = found.key or keys.key(session, found.value)
        called = tools.setdefault(session, {})
        if (number := renamed(session)) is None:
            events = pieces(found, key, called)
        else:
            events = tuple(
                Piece(replace(piece.draft, session_id=f"{session}-{number}"), piece.attachment)
                for piece in pieces(found, f"{key}~{number}", called)
            )
        if found.key:
            events = transcripts.marked(events)
        return Imported(found.line, session, key, events, found.offset)
    except (BadInput, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Fault(found.line, f"{found.where}: {reason}" if found.where else reason, found.offset)


def _whole_lines(path: Path, labels: Labels, position: Position | None = None) -> Iterator[Found | Fault]:
    """The values of a JSONL file that may be growing: a last line that is not whole yet waits for the next import.

    Read on from a position, a last line without a line break waits too.
    """
    start = position or Position()
    for line in text_lines(path, start.offset, start.lines):
        if position is not None:
            if not line.is_whole:
                return
            position.offset, position.lines = line.offset, line.line
        if isinstance(line, Fault):
            if line.is_whole:
                yield line
            continue
        try:
            value = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            if line.is_whole:
                yield Fault(line.line, _not_json(error), line.offset)
        else:
            yield Found(line.line, value, labels, offset=line.offset)


def _conversations(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """The values of a JSON list, or the one value, each with its line."""
    top = _parsed(path)
    if isinstance(top, Fault):
        yield top
    elif isinstance(top, tuple):
        yield Found(*top, labels)
    else:
        for number, (line, value) in enumerate(top, 1):
            yield Found(line, value, labels, f"conversation {number}")


def _lines(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """JSONL: each line is a message or a conversation."""
    named: Counter[str] = Counter()
    for line in text_lines(path):
        if isinstance(line, Fault):
            yield line
            continue
        try:
            value = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            yield Fault(line.line, _not_json(error), line.offset)
            continue
        if (inner := _messages_of(value)) is None:
            yield Found(line.line, value, labels, offset=line.offset)
        else:
            messages = [(line.line, message) for message in inner]
            yield from _conversation(_about(value), messages, line.line, labels, named, line.offset)


def _document(path: Path, labels: Labels) -> Iterator[Found | Fault]:
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


def _parsed(path: Path) -> Placed | list[Placed] | Fault:
    content = whole_text(path)
    if isinstance(content, Fault):
        return content
    if not content.strip():
        return []
    try:
        return Document(content).read()
    except (ValueError, RecursionError) as error:
        return Fault(getattr(error, "lineno", 1), _not_json(error))


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


# the text of a file -------------------------------------------------------------------------------------


class Line(msgspec.Struct, frozen=True):
    """A line that is not blank, its number, and where in the file it ends."""

    line: int
    text: str
    offset: int
    is_whole: bool = True  # whether it ends with a line break; one that a program is still writing does not


def text_lines(path: Path, offset: int = 0, lines: int = 0) -> Iterator[Line | Fault]:
    """The lines that are not blank, from an offset behind so many `lines` on. One that cannot be decoded is a fault.

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
    for number, raw in enumerate(file, lines + 1):
        offset += len(raw)
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
            for number, text in enumerate(wrapped, 1):
                if stripped := text.strip():
                    yield Line(number, stripped, file.tell())
        except UnicodeDecodeError as error:  # from here on nobody can say where a character begins
            yield Fault(number + 1, _undecodable(error, encoding), file.tell())


def _undecodable(error: UnicodeDecodeError, encoding: str) -> str:
    return (
        f"not {encoding.upper()} text (byte 0x{error.object[error.start]:02x}: {error.reason}); "
        "convert the file, for example with `iconv -f WINDOWS-1252 -t UTF-8`"
    )


# a JSON document -----------------------------------------------------------------------------------------


class Document:
    """The text of a JSON document and how far it has been read. Errors are JSONDecodeError, as from json.loads.

    The json module says where a syntax error is, and not where a value was. To name the line of a bad message in a
    file of many lines, the outermost list or object, and the list under `messages`, are walked here by hand;
    everything inside goes through the json module.
    """

    def __init__(self, content: str) -> None:
        self._content = content
        self._at = 0
        self._line, self._counted = 1, 0

    def read(self) -> Placed | list[Placed]:
        """The outermost list, as placed elements, or the outermost value, its `messages` as placed elements."""
        char = self._peek()
        line = self._here()
        found: Placed | list[Placed]
        if char == "[":
            found = self._elements()
        elif char == "{":
            found = (line, self._members())
        else:
            found = (line, self._value())
        if self._peek():
            raise self._error("Extra data")
        return found

    def _elements(self) -> list[Placed]:
        self._at += 1
        elements: list[Placed] = []
        if self._peek() != "]":
            self._place(elements)
            while self._peek() == ",":
                self._at += 1
                self._peek()
                self._place(elements)
        self._take("]", "',' or ']'")
        return elements

    def _place(self, elements: list[Placed]) -> None:
        line = self._here()
        elements.append((line, self._value()))

    def _members(self) -> dict[str, Any]:
        self._at += 1
        members: dict[str, Any] = {}
        if self._peek() != "}":
            self._member(members)
            while self._peek() == ",":
                self._at += 1
                self._peek()
                self._member(members)
        self._take("}", "',' or '}'")
        return members

    def _member(self, members: dict[str, Any]) -> None:
        if self._peek() != '"':
            raise self._error("Expecting a property name in double quotes")
        name = self._value()
        self._take(":", "':'")
        is_list = self._peek() == "["
        members[name] = self._elements() if name == "messages" and is_list else self._value()

    def _value(self) -> Any:
        value, self._at = _decode(self._content, self._at)
        return value

    def _peek(self) -> str:
        """The next character that is not space; empty at the end."""
        while (char := self._content[self._at : self._at + 1]) and char in " \t\r\n":
            self._at += 1
        return char

    def _take(self, char: str, expected: str) -> None:
        if self._peek() != char:
            raise self._error(f"Expecting {expected}")
        self._at += 1

    def _here(self) -> int:
        self._line += self._content.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _error(self, reason: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(reason, self._content, self._at)
