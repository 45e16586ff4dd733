"""Files of messages: find out how one is laid out, and give its messages one by one.

A format is one function that takes a path and gives messages (`_READERS`). The histories of
assistants, which grow, can also be read from a position on: transcripts line by line
(transcripts.py), databases by what was changed since (databases.py). Everything that can be wrong
with a file is found while reading it, as a Fault with its line, so that a caller can read it once
to check it and a second time to import it. Calls of Scroll's own MCP tools, and their results, are
marked as echoes: they repeat history that is in the store already.
"""

import contextlib
import datetime as dt
import re
import sqlite3
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from msgspec.structs import replace

from scroll_assistants.importers import chats, databases, records, text_files, transcripts
from scroll_assistants.importers.messages import SourceKeys, as_message, pieces
from scroll_assistants.importers.records import Fault, Format, Found, Imported, Labels
from scroll_assistants.importers.text_files import (
    Line,
    Position,
    document,
    items,
    json_lines,
    text_lines,
    whole_text,
)
from scroll_assistants.project import CLOSING, OPENING, task_of
from scroll_context.errors import BadInput
from scroll_context.log.foreign import Piece, check_foreign
from scroll_context.text.json_bounds import bounded_loads

_LINE_SUFFIXES = (".jsonl", ".ndjson")
_LOOKED_AT = 50  # lines at most, until one says which assistant wrote it
_LOOKED_AT_BYTES = 16 << 20  # of these lines, about
_OWN_TOOL = re.compile(
    r"(?:mcp__?)?(?:plugin_)?(?:\w+_)?scroll(?:-context)?(?:__?|\.|/)(?:search|expand|exec|note)"
)
_HANDOVER = re.compile(  # as Scroll wrote it, and as Gemini does, in a frame of its own and escaped
    rf"(?:<hook_context>)?(?:{OPENING}|{escape(OPENING)})\n.*?(?:{CLOSING}|{escape(CLOSING)})(?:</hook_context>)?\s*",
    re.DOTALL,
)

Renamed = Callable[[str], int | None]
"""The number that the sessions of a name get at the end of it, since another source has the name;
or None.
"""


def detect(path: Path, suffix: str = "") -> Format:
    """How the file is laid out; `suffix` decides where the content could be either.

    BadInput for a foreign database.
    """
    if path.is_dir():
        return Format.SLACK
    with path.open("rb") as file:
        if file.read(len(databases.MAGIC)) == databases.MAGIC:
            return databases.recognise(path)
    start = _first_lines(path)
    if not start or isinstance(start[0], Fault):
        return Format.JSONL
    try:
        value = document(start[0].text)
    except (ValueError, RecursionError):
        if text := _text_format(
            [line.text for line in start if not isinstance(line, Fault)], suffix.lower()
        ):
            return text
        # A document breaks between tokens; a line of JSONL that was cut, hardly ever just there.
        is_document = start[0].text.endswith(("[", "{", ",", ":"))
    else:
        if isinstance(value, dict) and "scroll_export" in value:
            return Format.EXPORT
        is_document = len(start) == 1 and suffix.lower() not in _LINE_SUFFIXES
    if is_document and (named := _document_format(path)):
        return named
    for line in start:
        try:
            value = {} if isinstance(line, Fault) else bounded_loads(line.text)
        except (ValueError, RecursionError):
            continue
        if assistant := transcripts.recognise(value):
            return assistant
        if isinstance(value, dict) and "role" in value:
            break
    return Format.JSON if is_document else Format.JSONL


def _first_lines(path: Path) -> list[Line | Fault]:
    """The lines by which a file is recognised; fewer of very long ones."""
    lines: list[Line | Fault] = []
    size = 0
    for line in text_lines(path):
        lines.append(line)
        size += 0 if isinstance(line, Fault) else len(line.text)
        if len(lines) == _LOOKED_AT or size > _LOOKED_AT_BYTES:
            break
    return lines


def _text_format(lines: list[str], suffix: str) -> Format | None:
    """What a text is that is not JSON; None when it may be JSON that is damaged."""
    if chats.is_whatsapp(lines):
        return Format.WHATSAPP
    if re.match(r'[\[{]\s*(?:$|["{\[])', lines[0]):
        return None
    if suffix in (".csv", ".tsv") or (suffix in ("", ".txt") and chats.columns_of(lines[0])):
        return Format.CSV
    if suffix in (".md", ".markdown", ".mdx"):
        return Format.MARKDOWN
    return Format.TEXT if suffix in (".txt", ".text", ".log") else None


def _document_format(path: Path) -> Format | None:
    """Whose document it is, by the names in its first object, which is read as far as its messages."""
    content = whole_text(path)
    if isinstance(content, Fault) or not (start := re.match(r"\s*(?:\[\s*)?(?=\{)", content)):
        return None
    names: set[str] = set()
    with contextlib.suppress(
        ValueError, RecursionError, IndexError, TypeError
    ):  # it may be no JSON
        for name, _, at in items(content, start.end()):
            names.add(name)
            if name == "mapping" and content.startswith("{", at):
                return Format.CHATGPT
            if name in ("messages", "role"):
                break
    if "sessionId" in names and names & {"projectHash", "startTime"}:
        return Format.GEMINI
    return (
        Format.SLACK
        if {"type", "ts", "text"} <= names and names & {"user", "bot_id", "username"}
        else None
    )


def _by_value(
    values: Iterator[Found | Fault], read: Callable[[Found], Iterator[Found]]
) -> Iterator[Found | Fault]:
    """The messages that a reader finds in each value. What it cannot read is a fault."""
    for value in values:
        if isinstance(value, Fault):
            yield value
            continue
        last: Found | None = None
        fault: Fault | None = None
        try:
            if not isinstance(value.value, dict):
                raise BadInput(f"expected a JSON object, found {type(value.value).__name__}")
            for message in read(value):
                if last is not None:
                    yield replace(last, is_last=False)
                last = message
        except (BadInput, RecursionError) as error:
            fault = value.fault(error)
        yield from (item for item in (last, fault) if item is not None)


def _history(
    layout: Format, path: Path, labels: Labels, position: Position | None
) -> Iterator[Found | Fault]:
    """The messages of an assistant's history: of a database, or of a transcript, from a position
    on.
    """
    state = position.state if position else {}
    if layout in databases.READERS:
        return databases.read(layout, path, labels, state)
    is_document = layout is Format.GEMINI and is_one_value(path)
    values = (
        text_files.whole_value(path, labels) if is_document else json_lines(path, labels, position)
    )
    return _by_value(values, lambda found: transcripts.READERS[layout](found, state, path))


def is_one_value(path: Path) -> bool:
    """Whether a JSON file is one value that goes over several lines."""
    start = next(text_lines(path), None)
    try:
        return not isinstance(start, Fault | None) and not document(start.text)
    except (ValueError, RecursionError):
        return True


def _cursor_agent(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """Lines of Cursor's command line: messages without ids or times, and marks of its own, which
    say nothing.

    A message gets the time of the file's last change, which is right for the newest ones and never
    too late.
    """
    folder = next((one.parent.name for one in path.parents if one.name == "agent-transcripts"), "")
    project = Path(
        "/" + folder.replace("-", "/")
    )  # Cursor writes a hyphen for each separator, and for each hyphen
    task = labels.task_id or (task_of(str(project)) if folder and project.is_dir() else folder)
    changed = dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).isoformat()
    labels = replace(
        labels,
        agent_id=labels.agent_id or "cursor",
        task_id=task,
        created_at=labels.created_at or changed,
    )
    for found in json_lines(path, labels):
        if isinstance(found, Fault) or not (
            isinstance(found.value, dict) and "role" not in found.value
        ):
            yield found


_READERS: dict[Format, Callable[[Path, Labels], Iterator[Found | Fault]]] = {
    Format.JSONL: text_files.messages_in_lines,
    Format.JSON: text_files.messages_in_document,
    Format.CURSOR_AGENT: _cursor_agent,
    Format.CHATGPT: lambda path, labels: _by_value(
        text_files.values(path, labels, "conversation"), chats.chatgpt
    ),
    Format.SLACK: chats.slack,
    Format.WHATSAPP: chats.whatsapp,
    Format.MARKDOWN: chats.markdown,
    Format.TEXT: chats.plain_text,
    Format.CSV: chats.table,
}


def read(
    path: Path,
    layout: Format,
    labels: Labels,
    *,
    position: Position | None = None,
    renamed: Renamed | None = None,
) -> Iterator[Imported | Fault]:
    """The messages of a file, in order. Sessions that are `renamed` get the number at the end of
    their name and keys.

    Given a `position`, a history of an assistant is read from there on. In a transcript the
    position moves with each line that is read; only lines that end with a line break are. In a
    database it moves when everything was read.
    """
    reader = _READERS.get(layout)
    found = reader(path, labels) if reader else _history(layout, path, labels, position)
    keys, tools = SourceKeys(), position.tools if position else {}
    try:
        for item in found:
            yield (
                item
                if isinstance(item, Fault)
                else _message(item, keys, tools, renamed or (lambda _: None))
            )
    except sqlite3.Error as error:
        yield Fault(1, f"the database cannot be read any further: {error}")


def _message(
    found: Found, keys: SourceKeys, tools: dict[str, dict[str, str]], renamed: Renamed
) -> Imported | Fault:
    try:
        if not isinstance(found.value, dict):
            raise BadInput(
                f"expected a message (a JSON object), found {type(found.value).__name__}"
            )
        message, shape = (found.value, "") if found.key else as_message(found.value)
        found = replace(found, value=message) if shape else found
        session = records.text(message, "session_id") or found.labels.session_id
        key = found.key or keys.key(session, message)
        called = tools.setdefault(session, {})
        if (number := renamed(session)) is None:
            events = pieces(found, key, called)
        else:
            events = tuple(
                Piece(replace(piece.draft, session_id=f"{session}-{number}"), piece.attachment)
                for piece in pieces(found, f"{key}~{number}", called)
            )
        for piece in events:
            check_foreign(piece.draft)
        events = _marked(events) if found.key else events
        return Imported(found.line, session, key, events, found.offset, shape, found.is_last)
    except (BadInput, RecursionError) as error:
        return found.fault(error)


def _marked(events: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The events with what Scroll itself said marked as echoes: calls of its tools, their results,
    its handovers.

    Some assistants put a handover before the user's words: there it is cut out.
    """
    found: list[Piece] = []
    for piece in events:
        draft = piece.draft
        may_be_told = (
            OPENING[1:-1] in draft.content and not draft.tool_call_id and draft.role != "assistant"
        )
        rest = _HANDOVER.sub("", draft.content) if may_be_told else draft.content
        is_handover = rest != draft.content and not rest.strip()
        is_echo = is_handover or bool(draft.tool_call_id and _OWN_TOOL.fullmatch(draft.name))
        if rest != draft.content and not is_echo:
            draft = replace(draft, content=rest)
        found.append(replace(piece, draft=draft, is_echo=is_echo))
    return tuple(found)
