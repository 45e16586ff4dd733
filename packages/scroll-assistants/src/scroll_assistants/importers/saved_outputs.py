"""Tool outputs that Claude Code keeps in files beside a transcript.

An output of more than some 30 kB goes to `SESSION/tool-results/NAME` beside `SESSION.jsonl`; the
transcript has the first two kilobytes and the path. The same folder holds PDFs, images and other
bodies that a tool brought. Here the file takes the place of the preview, or becomes an attachment
of the result.

A transcript may come from anywhere, so a path in it is only a name: it is looked up in the
transcript's own folder, no link is followed, and no more than `LONGEST_OUTPUT` is read. A file
counts for the first result that names it. Where it cannot be read, the preview stays.
"""

import contextlib
import mimetypes
import os
import re
import stat
from pathlib import Path
from typing import Any

from scroll_context.importing.records import State
from scroll_context.log.foreign import Attachment

FOLDER = "tool-results"
LONGEST_OUTPUT = 64 << 20  # bytes; Claude Code itself cuts outputs off about there
REMEMBERED = 500  # names of files that were read, in the state of a reader

_OPENING, _CLOSING = "<persisted-output>", "</persisted-output>"
_SAVED = re.compile(
    rf"saved to:? [^\n]{{0,4000}}?[/\\]{FOLDER}[/\\]([\w.%-]+(?:[/\\][\w.%-]+)?)", re.ASCII
)
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
    total = 0
    for file in (session_folder(transcript) / FOLDER).rglob("*"):
        with contextlib.suppress(OSError):
            status = file.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def complete(content: Any, transcript: Path, state: State) -> Any:
    """The content of a tool result, with what was saved beside the transcript in its place."""
    if isinstance(content, str):
        parts = _complete_text(content, transcript, state)
        return parts[0]["text"] if len(parts) == 1 else parts
    if not isinstance(content, list):
        return content
    whole: list[Any] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        whole += _complete_text(text, transcript, state) if isinstance(text, str) else [part]
    return whole


def _complete_text(text: str, transcript: Path, state: State) -> list[Part]:
    """A text whose preview is replaced by the output, or the text and the attachments that it
    names.
    """
    start, end = text.find(_OPENING), text.rfind(_CLOSING)
    if 0 <= start < end and (match := _SAVED.search(text, start, end)):
        name = match[1].rstrip(".")
        body = _body(name, transcript, state)
        if body is None:
            return [_text_part(text)]
        if (output := _decoded(body)) is not None:
            return [_text_part(text[:start] + output + text[end + len(_CLOSING) :])]
        return [_text_part(text), _attachment(name, body)]
    parts = [_text_part(text)]
    for match in _SAVED.finditer(text):
        name = match[1].rstrip(".")
        if (body := _body(name, transcript, state)) is not None:
            parts.append(_attachment(name, body))
    return parts


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
    """The bytes of a saved output, the first time that it is named; None when it cannot be read."""
    names: list[str] = state.setdefault("saved", [])
    if name in names:
        return None
    body = _read(session_folder(transcript), [FOLDER, *re.split(r"[/\\]", name)])
    if body is not None:
        names.append(name)
        del names[:-REMEMBERED]
    return body


def _read(folder: Path, names: list[str]) -> bytes | None:
    """The bytes of a plain file below a folder, reached without following a link; None when there
    is none.
    """
    if any(name in ("", ".", "..") for name in names):
        return None
    handles: list[int] = []
    try:
        handles.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        for name in names[:-1]:
            handles.append(
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handles[-1])
            )
        # A pipe in place of a file must not make the import wait.
        handles.append(
            os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handles[-1])
        )
        status = os.fstat(handles[-1])
        if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST_OUTPUT:
            return None
        with open(handles.pop(), "rb") as file:
            return file.read(LONGEST_OUTPUT)
    except OSError:
        return None
    finally:
        for handle in handles:
            os.close(handle)
