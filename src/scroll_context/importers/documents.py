"""Texts as messages: Markdown and plain text, with or without roles, and tables (CSV) with a column of roles.

A text in which lines say who speaks ("## User", "**Assistant:** …", "Human: …") is a conversation. Any other is a
document: each of its paragraphs is an event of the kind `document`, so that a search finds the part that matters and a
text that has grown adds its new paragraphs. A paragraph is named by what it says, never by where it stands.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scroll_context.importers.messages import DOCUMENT, Fault, Found, Labels
from scroll_context.importers.text_files import text_lines, whole_text

_ROLES = {
    **dict.fromkeys(("user", "human", "you", "me", "prompt", "question", "customer", "client"), "user"),
    **dict.fromkeys(
        """assistant ai bot model chatgpt gpt claude gemini copilot codex cursor deepseek response answer agent
        support""".split(), "assistant",
    ),
    "system": "system", "developer": "system", "tool": "tool", "function": "tool",
}  # fmt: skip
_NAMES = "|".join(_ROLES)
_HEADING = re.compile(rf"#{{1,6}}\s+\W{{0,4}}({_NAMES})(?:\s+(?:said|says|message))?\s*:?\W{{0,2}}", re.IGNORECASE)
_BOLD = re.compile(rf"(?:\*\*|__)\W{{0,4}}({_NAMES})\s*:?\s*(?:\*\*|__)\s*:?\s*(.*)", re.IGNORECASE)
_PLAIN = re.compile(rf"({_NAMES})\s*:\s*(.*)", re.IGNORECASE)

ROLE_COLUMNS = ("role", "author", "sender", "speaker", "from", "name", "user", "type")
_CONTENT_COLUMNS = ("content", "message", "text", "body", "utterance")
_RENAMED = {
    **dict.fromkeys(("conversation_id", "conversation", "session", "thread_id", "thread", "chat_id"), "session_id"),
    **dict.fromkeys(("date", "time", "datetime", "created", "sent_at", "created_at"), "timestamp"),
}


def markdown(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """A conversation in Markdown, or a document."""
    return _spoken(path, labels, (_HEADING, _BOLD))


def plain_text(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """A conversation in plain text, or a document."""
    return _spoken(path, labels, (_PLAIN, _HEADING, _BOLD))


def _spoken(path: Path, labels: Labels, marks: tuple["re.Pattern[str]", ...]) -> Iterator[Found | Fault]:
    content = whole_text(path)
    if isinstance(content, Fault):
        yield content
        return
    turns: list[tuple[int, str, list[str]]] = []
    fence = ""
    for number, line in enumerate(content.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fence = "" if fence and stripped.startswith(fence) else fence or stripped[:3]
        match = None if fence else next((found for mark in marks if (found := mark.fullmatch(stripped))), None)
        if match:
            rest = match[2] if match.re.groups > 1 else ""
            turns.append((number, _ROLES[match[1].lower()], [rest] if rest else []))
        elif turns:
            turns[-1][2].append(line)
    if len(turns) < 2 or not any(role == "user" for _, role, _ in turns):
        yield from _paragraphs(content, labels)
        return
    for number, role, lines in turns:
        if said := "\n".join(lines).strip("\n").rstrip():
            yield Found(number, {"role": role, "content": said}, labels)


def _paragraphs(content: str, labels: Labels) -> Iterator[Found | Fault]:
    """The paragraphs of a document, a heading with what follows it, a block of code whole."""
    begun, lines, fence = 1, list[str](), ""
    for number, line in enumerate([*content.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fence = "" if fence and stripped.startswith(fence) else fence or stripped[:3]
        is_heading_only = all(not one.strip() or one.startswith("#") for one in lines)
        if stripped or (fence and lines) or (lines and is_heading_only and number <= content.count("\n")):
            begun = begun if lines else number
            lines.append(line)
        elif lines:
            yield _paragraph(begun, lines, labels)
            lines = []
    if lines:
        yield _paragraph(begun, lines, labels)


def _paragraph(line: int, lines: list[str], labels: Labels) -> Found:
    return Found(line, {"role": "user", "kind": DOCUMENT, "content": "\n".join(lines).strip("\n")}, labels)


def columns_of(header: str) -> tuple[str, list[str]] | None:
    """The delimiter and the columns of a table with roles; None when the line is no header of one."""
    for delimiter in ",;\t|":
        columns = [name.strip().strip('"').lower() for name in header.split(delimiter)]
        if len(columns) > 1 and set(columns) & set(ROLE_COLUMNS) and set(columns) & set(_CONTENT_COLUMNS):
            return delimiter, columns
    return None


def table(path: Path, labels: Labels) -> Iterator[Found | Fault]:
    """The rows of a table, each a message."""
    start = next(text_lines(path), None)
    if start is None or isinstance(start, Fault):
        if start is not None:
            yield start
        return
    header = columns_of(start.text)
    if header is None:
        wanted = f"one of {', '.join(ROLE_COLUMNS)} and one of {', '.join(_CONTENT_COLUMNS)}"
        yield Fault(start.line, f"a table of messages needs a line of column names with {wanted}")
        return
    delimiter, columns = header
    role = next(name for name in ROLE_COLUMNS if name in columns)
    content = next(name for name in _CONTENT_COLUMNS if name in columns and name != role)
    whole = whole_text(path)
    if isinstance(whole, Fault):
        yield whole
        return
    csv.field_size_limit(1 << 27)
    rows = csv.reader(whole.splitlines(keepends=True), delimiter=delimiter, strict=True)
    line = 1
    try:
        for number, row in enumerate(rows):
            if number and any(row):
                yield _row(line, dict(zip(columns, row, strict=False)), len(row) - len(columns), role, content, labels)
            line = rows.line_num + 1
    except csv.Error as error:
        yield Fault(line, f"not CSV: {error}")


def _row(line: int, row: dict[str, str], surplus: int, role: str, content: str, labels: Labels) -> Found | Fault:
    if surplus > 0:
        return Fault(line, f"{surplus} more fields than columns; is a delimiter in a text without quotation marks?")
    if not row.get(role) or content not in row:
        return Fault(line, f"the row has no {content if row.get(role) else role}")
    message: dict[str, Any] = {_RENAMED.get(name, name): value for name, value in row.items() if value and name}
    said, who = message.pop(content, ""), message.pop(role)
    known = _ROLES.get(who.strip().lower())
    message |= {"role": known or "user", "content": said}
    if known is None:
        message["name"] = who
    return Found(line, message, labels)
