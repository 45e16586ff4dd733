"""Tool outputs that Claude Code keeps in files beside a transcript.

An output of more than about 30 kB goes to `SESSION/tool-results/NAME` beside `SESSION.jsonl`; the
transcript has the first two kilobytes and the path. The same folder has PDFs, images and other
bodies that a tool returned. This module replaces the preview by the file, or attaches the file to
the result.

A transcript may come from anywhere, so a path in it is only a name: it is looked up in the
transcript's own folder, no link is followed, and at most `LONGEST_OUTPUT` is read. Only the first
result that names a file gets it. If a file cannot be read, the preview remains.
"""

import contextlib
import mimetypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scroll_assistants.importers.read_plain import read_plain
from scroll_assistants.importers.records import State
from scroll_context.importing.sources import plain_files_below
from scroll_context.log.foreign import Attachment

FOLDER = "tool-results"
# In bytes. Claude Code itself cuts outputs off at about this size.
LONGEST_OUTPUT = 64 << 20
# The most names of files already read that the state of a reader lists.
REMEMBERED = 500

_OPENING, _CLOSING = "<persisted-output>", "</persisted-output>"
_SAVED = "saved to"
# The most characters between these words and the name of the folder.
_LONGEST_PATH = 4_000
_PATH_END = re.compile(rf"[/\\]{FOLDER}[/\\]([\w.%-]+(?:[/\\][\w.%-]+)?)", re.ASCII)
_TEXT_ENDINGS = (".txt", ".json", ".md", ".csv", ".html", ".xml", ".log")

Part = dict[str, Any]


def session_folder(transcript: Path) -> Path:
    """The folder of a session beside its transcript; a sub-agent's transcript lies inside it."""
    for parent in transcript.parents:
        if parent.name == "subagents":
            return parent.parent
    return transcript.with_suffix("")


def size_beside(transcript: Path) -> int:
    """Bytes in the saved outputs of a session."""
    folder = session_folder(transcript)
    total = 0
    for file in plain_files_below(folder.parent, folder.name, FOLDER):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total


def complete(content: Any, transcript: Path, state: State) -> Any:
    """The content of a tool result, with the files that were saved beside the transcript."""
    if isinstance(content, str):
        parts = _complete_text(content, transcript, state)
        return parts[0]["text"] if len(parts) == 1 else parts
    if not isinstance(content, list):
        return content
    completed: list[Any] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if isinstance(text, str):
            completed += _complete_text(text, transcript, state)
        else:
            completed.append(part)
    return completed


def _complete_text(text: str, transcript: Path, state: State) -> list[Part]:
    """A text with its preview replaced by the output, or the text and the attachments that it
    names.
    """
    start = text.find(_OPENING)
    end = text.rfind(_CLOSING)
    name = next(_saved_names(text, start, end), "") if 0 <= start < end else ""
    if name:
        body = _body(name, transcript, state)
        if body is None:
            return [_text_part(text)]
        output = _decoded(body)
        if output is None:
            return [_text_part(text), _attachment(name, body)]
        return [_text_part(text[:start] + output + text[end + len(_CLOSING) :])]
    parts = [_text_part(text)]
    for name in _saved_names(text, 0, len(text)):
        body = _body(name, transcript, state)
        if body is not None:
            parts.append(_attachment(name, body))
    return parts


def _saved_names(text: str, start: int, end: int) -> Iterator[str]:
    """The names of files in a part of a text that follow the words "saved to".

    The folder is searched for first, and then the words before it. A pattern for both took minutes
    for a text of a megabyte that only repeats the words.
    """
    for match in _PATH_END.finditer(text, start, end):
        line = text.rfind("\n", start, match.start()) + 1
        earliest = max(start, line, match.start() - _LONGEST_PATH)
        if text.find(_SAVED, earliest, match.start()) >= 0:
            yield match[1].rstrip(".")
            start = match.end()


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _attachment(name: str, body: bytes) -> Part:
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    is_text = name.lower().endswith(_TEXT_ENDINGS)
    if is_text and _decoded(body) is not None:
        media_type = "text/plain; charset=utf-8"
    return {"type": "file", "source": Attachment(body, media_type)}


def _decoded(body: bytes) -> str | None:
    """The text of a body; None when it is not text."""
    return None if b"\x00" in body else body.decode("utf-8", "replace")


def _body(name: str, transcript: Path, state: State) -> bytes | None:
    """The bytes of a saved output.

    None if an earlier result has named it already, or if it cannot be read.
    """
    names_read: list[str] = state.setdefault("saved", [])
    if name in names_read:
        return None
    folder = session_folder(transcript)
    path = [folder.name, FOLDER, *re.split(r"[/\\]", name)]
    body = read_plain(folder.parent, path, LONGEST_OUTPUT)
    if body is not None:
        names_read.append(name)
        del names_read[:-REMEMBERED]
    return body
