"""The layouts that this package adds: histories of assistants, chats, texts and tables.

The histories of assistants grow, so they can also be read from a position: transcripts line by line
(transcripts.py), databases by their changed sessions (databases.py). Calls of Scroll's own MCP
tools, and their results, are marked as echoes: they repeat history that is in the store already.
"""

import contextlib
import datetime as dt
import re
import sqlite3
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scroll_assistants.importers import chats, databases, saved_outputs, transcripts
from scroll_assistants.importers.records import Format
from scroll_assistants.importers.shapes import common_shape
from scroll_assistants.project import CLOSING, OPENING, task_of
from scroll_context.errors import BadInput
from scroll_context.importing import text_files
from scroll_context.importing.layouts import Layout, Pieces, Reader, Sample
from scroll_context.importing.records import MALFORMED, Fault, Labels, RawMessage
from scroll_context.importing.sources import plain_files_below
from scroll_context.importing.text_files import (
    Position,
    document,
    items,
    json_lines,
    text_lines,
    whole_text,
)
from scroll_context.text.json_bounds import bounded_loads

_OWN_TOOL = re.compile(
    r"(?:mcp__?)?(?:plugin_)?(?:\w+_)?scroll(?:-context)?(?:__?|\.|/)(?:search|expand|exec|note)"
)
# A hand-over as Scroll writes it, or as Gemini records it: escaped, and in a frame of its own.
_HANDOVER = re.compile(
    rf"(?:<hook_context>)?(?:{OPENING}|{escape(OPENING)})\n.*?"
    rf"(?:{CLOSING}|{escape(CLOSING)})(?:</hook_context>)?\s*",
    re.DOTALL,
)

_FRAME_END = re.compile(r"(?:</hook_context>)?\s*")


def recognise(sample: Sample) -> Layout | None:
    """The layout of a file; None when it may be plain messages in JSON.

    Raises BadInput for the database of an unknown program.
    """
    if sample.path.is_dir():
        return LAYOUTS[Format.SLACK]
    if sample.is_database:
        return LAYOUTS[databases.recognise(sample.path)]
    if not sample.lines or isinstance(sample.lines[0], Fault):
        return None
    name = None
    if not sample.is_json:
        texts = [line.text for line in sample.lines if not isinstance(line, Fault)]
        name = _text_format(texts, sample.suffix)
    if name is None and sample.is_document:
        name = _document_format(sample.path)
    if name is None:
        name = _transcript_format(sample)
    return LAYOUTS[name] if name else None


def _transcript_format(sample: Sample) -> Format | None:
    """The assistant that wrote the lines, according to the first line that shows it."""
    for line in sample.lines:
        if isinstance(line, Fault):
            continue
        try:
            value = bounded_loads(line.text)
        except (ValueError, RecursionError):
            continue
        assistant = transcripts.recognise(value)
        if assistant:
            return assistant
        if isinstance(value, dict) and "role" in value:
            return None
    return None


def _text_format(lines: list[str], suffix: str) -> Format | None:
    """The format of a text that is not JSON; None if it may be damaged JSON."""
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
    """The format of a document, according to the member names of its first object.

    The object is read only up to its messages.
    """
    content = whole_text(path)
    if isinstance(content, Fault):
        return None
    start = re.match(r"\s*(?:\[\s*)?(?=\{)", content)
    if start is None:
        return None
    names: set[str] = set()
    # The document may not be JSON.
    with contextlib.suppress(ValueError, RecursionError, IndexError, TypeError):
        for name, _, at in items(content, start.end()):
            names.add(name)
            if name == "mapping" and content.startswith("{", at):
                return Format.CHATGPT
            if name in ("messages", "role"):
                break
    if "sessionId" in names and names & {"projectHash", "startTime"}:
        return Format.GEMINI
    if {"type", "ts", "text"} <= names and names & {"user", "bot_id", "username"}:
        return Format.SLACK
    return None


def _by_value(
    values: Iterator[RawMessage | Fault], read: Callable[[RawMessage], Iterator[RawMessage]]
) -> Iterator[RawMessage | Fault]:
    """The messages that a reader finds in each value. A value that it cannot read is a fault."""
    for value in values:
        if isinstance(value, Fault):
            yield value
            continue
        last: RawMessage | None = None
        fault: Fault | None = None
        try:
            if not isinstance(value.value, dict):
                raise BadInput(f"expected a JSON object, found {type(value.value).__name__}")
            for message in read(value):
                if last is not None:
                    yield replace(last, is_last=False)
                last = message
        except MALFORMED as error:
            fault = value.fault(error)
        if last is not None:
            yield last
        if fault is not None:
            yield fault


def _transcript(name: Format) -> Reader:
    """A reader of one assistant's transcripts."""
    read_line = transcripts.READERS[name]

    def read(path: Path, labels: Labels, position: Position | None) -> Iterator[RawMessage | Fault]:
        state = position.state if position else {}
        if name is Format.GEMINI and is_one_value(path):
            values = text_files.values(path, labels, "session")
        else:
            values = json_lines(path, labels, position)
        return _by_value(values, lambda record: read_line(record, state, path))

    return read


def _database(name: Format) -> Reader:
    """A reader of one assistant's databases."""

    def read(path: Path, labels: Labels, position: Position | None) -> Iterator[RawMessage | Fault]:
        state = position.state if position else {}
        try:
            yield from databases.read(name, path, labels, state)
        except (sqlite3.Error, *MALFORMED) as error:
            reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
            yield Fault(1, f"the database cannot be read any further: {reason}")

    return read


def _complete(read: Callable[[Path, Labels], Iterator[RawMessage | Fault]]) -> Reader:
    """A reader of files that are always read from their beginning."""
    return lambda path, labels, _position: read(path, labels)


def is_one_value(path: Path) -> bool:
    """Whether a JSON file is one value that spans several lines."""
    start = next(text_lines(path), None)
    try:
        return not isinstance(start, Fault | None) and not document(start.text)
    except (ValueError, RecursionError):
        return True


def _cursor_agent(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    """Lines of Cursor's command line: messages without ids or times, and Cursor's own marks, which
    are skipped.

    A message gets the time of the file's last change, which is right for the newest messages and
    an upper bound for the others.
    """
    parents = (parent for parent in path.parents if parent.name == "agent-transcripts")
    transcripts_folder = next(parents, None)
    folder = transcripts_folder.parent.name if transcripts_folder else ""
    # Cursor writes a hyphen for each separator, and for each hyphen.
    project = Path("/" + folder.replace("-", "/"))
    project_task = task_of(str(project)) if folder and project.is_dir() else folder
    changed = dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).isoformat()
    labels = replace(
        labels,
        agent_id=labels.agent_id or "cursor",
        task_id=labels.task_id or project_task,
        created_at=labels.created_at or changed,
    )
    for record in json_lines(path, labels):
        if isinstance(record, Fault):
            yield record
            continue
        is_mark = isinstance(record.value, dict) and "role" not in record.value
        if not is_mark:
            value, shape = common_shape(record.value) or (record.value, "")
            yield replace(record, value=value, shape=shape)


def _chatgpt(path: Path, labels: Labels) -> Iterator[RawMessage | Fault]:
    return _by_value(text_files.values(path, labels, "conversation"), chats.chatgpt)


def subagent_files(path: Path) -> list[Path]:
    """The transcripts of the sub-agents that a session of Claude Code started."""
    files = plain_files_below(path.parent, path.stem, "subagents")
    return sorted(file for file in files if file.match("agent-*.jsonl"))


def _without_handovers(text: str) -> str:
    """The text without hand-overs.

    Only the part up to the last closing mark is searched. After it, the pattern would follow each
    opening mark to the end of the text: 60,000 of them took longer than anybody waits.
    """
    ends = [text.rfind(mark) + len(mark) for mark in (CLOSING, escape(CLOSING)) if mark in text]
    if not ends:
        return text
    end = max(ends)
    frame = _FRAME_END.match(text, end)
    end = frame.end() if frame else end
    rest = _HANDOVER.sub("", text[:end]) + text[end:]
    # Gemini puts a brief behind the prompt, on a line of its own.
    return rest if end < len(text) or rest == text else rest.rstrip("\n")


def mark_echoes(events: Pieces) -> Pieces:
    """The events, with Scroll's own words marked as echoes: calls of its tools, their results, and
    hand-overs.

    Some assistants put a hand-over before the user's words: there it is cut out.
    """
    marked = []
    for piece in events:
        draft = piece.draft
        is_spoken_to_model = not draft.tool_call_id and draft.role != "assistant"
        rest = draft.content
        if is_spoken_to_model and OPENING[1:-1] in draft.content:
            rest = _without_handovers(draft.content)
        is_handover = rest != draft.content and not rest.strip()
        is_echo = is_handover or bool(draft.tool_call_id and _OWN_TOOL.fullmatch(draft.name))
        if rest != draft.content and not is_echo:
            draft = replace(draft, content=rest)
        marked.append(replace(piece, draft=draft, is_echo=is_echo))
    return tuple(marked)


def _layout(name: Format, described: str, read: Reader, **properties: Any) -> Layout:
    return Layout(
        name=str(name), described=described, read=read, mark_echoes=mark_echoes, **properties
    )


_TRANSCRIPT = {"has_ids": True, "grows_by_lines": True, "can_be_followed": True}
_DATABASE = {"has_ids": True, "can_be_followed": True}

_ALL = (
    _layout(
        Format.CLAUDE_CODE,
        "Claude Code transcript",
        _transcript(Format.CLAUDE_CODE),
        files_beside=subagent_files,
        bytes_beside=saved_outputs.size_beside,
        **_TRANSCRIPT,
    ),
    _layout(Format.CODEX, "Codex rollout", _transcript(Format.CODEX), **_TRANSCRIPT),
    _layout(Format.GEMINI, "Gemini CLI session", _transcript(Format.GEMINI), **_TRANSCRIPT),
    _layout(Format.QWEN_CODE, "Qwen Code session", _transcript(Format.QWEN_CODE), **_TRANSCRIPT),
    _layout(Format.PI, "Pi session", _transcript(Format.PI), **_TRANSCRIPT),
    _layout(Format.COPILOT, "Copilot CLI session", _transcript(Format.COPILOT), **_TRANSCRIPT),
    _layout(Format.OPENCODE, "opencode database", _database(Format.OPENCODE), **_DATABASE),
    _layout(Format.CURSOR, "Cursor database", _database(Format.CURSOR), **_DATABASE),
    _layout(
        Format.CURSOR_AGENT,
        "Cursor agent transcript",
        _complete(_cursor_agent),
        can_be_followed=True,
    ),
    _layout(Format.QWENPAW, "QwenPaw history", _database(Format.QWENPAW), **_DATABASE),
    _layout(
        Format.CHATGPT,
        "ChatGPT export",
        _complete(_chatgpt),
        has_ids=True,
        is_complete_export=True,
    ),
    _layout(
        Format.SLACK, "Slack export", _complete(chats.slack), has_ids=True, names_speakers=True
    ),
    _layout(Format.WHATSAPP, "WhatsApp chat", _complete(chats.whatsapp), names_speakers=True),
    _layout(Format.MARKDOWN, "Markdown", _complete(chats.markdown)),
    _layout(Format.TEXT, "plain text", _complete(chats.plain_text)),
    _layout(Format.CSV, "CSV", _complete(chats.table), names_speakers=True),
)
LAYOUTS = {layout.name: layout for layout in _ALL}
