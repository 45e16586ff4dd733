"""What a path stands for: one file, a transcript with those of its sub-agents, an export in a folder, or an archive.

Each file that is to be read is a part, with the format that it was recognised as. Of an archive the parts that say
something are taken: an export of Slack or ChatGPT as a whole, else every file of a known kind.
"""

import contextlib
import stat
import sys
from collections import Counter
from pathlib import Path
from typing import IO

import msgspec

from scroll_context.errors import BadInput
from scroll_context.importers.archive import spooled, unpacked
from scroll_context.importers.chats import slack_root
from scroll_context.importers.formats import detect
from scroll_context.importers.messages import Format

STDIN = Path("-")
_READ = frozenset(".jsonl .ndjson .json .md .markdown .mdx .txt .text .csv .tsv .db .vscdb .sqlite".split())
_PACKED = (".gz", ".zip")


class Part(msgspec.Struct, frozen=True):
    """One file to read. `inside` is its name in an archive, or beside the file that was asked for."""

    path: Path
    name: str  # of the session of messages that name none
    layout: Format
    inside: str = ""


class Source(msgspec.Struct, frozen=True):
    """Everything that one path stands for."""

    label: str
    parts: list[Part]
    is_archive: bool = False

    def described(self, shapes: set[str]) -> str:
        """What a reader calls it: "Claude Code transcript, 3 sub-agents"."""
        kinds = Counter(part.layout.described for part in self.parts)
        if self.is_archive:
            several = [f"{count:,} × {kind}" if count > 1 else kind for kind, count in kinds.items()]
            title = f"archive: {', '.join(several)}"
        else:
            title = self.parts[0].layout.described
            if beside := len(self.parts) - 1:
                title += f", {beside:,} sub-agent{'' if beside == 1 else 's'}"
        return title + (f", messages of {' and '.join(sorted(shapes))}" if shapes else "")

    @property
    def size(self) -> int:
        return sum(_size(part.path) for part in self.parts)


def open_source(path: str | Path | IO[bytes], layout: Format | None, cleanup: contextlib.ExitStack) -> Source:
    """Find the parts. Copies of what can be read only once, or is packed, are kept until the cleanup."""
    named = Path(str(path if isinstance(path, str | Path) else getattr(path, "name", "stream")))
    label = "stdin" if named == STDIN else utf8(str(named))
    bare = named
    while bare.suffix.lower() in _PACKED:
        bare = bare.with_suffix("")
    name = "stdin" if named == STDIN else utf8(bare.stem)
    try:
        file = _readable(path, cleanup)
        content = unpacked(file, cleanup) if file.is_file() else file
        if content.is_dir():
            root = slack_root(content)
            if root is not None:
                return Source(label, [Part(root, name, Format.SLACK)], content is not file)
            if content is file:
                raise BadInput("this is a folder; name the files in it")
            return Source(label, _parts_in(content, name, layout), is_archive=True)
        if not content.stat().st_size:
            raise BadInput("it is empty")
        parts = [Part(content, name, layout or detect(content, bare.suffix))]
        if parts[0].layout is Format.CLAUDE_CODE and content is file:
            parts += [
                Part(one, utf8(one.stem), Format.CLAUDE_CODE, utf8(str(one.relative_to(file.parent))))
                for one in subagent_files(file)
            ]
        return Source(label, parts)
    except OSError as error:
        raise BadInput(error.strerror or str(error)) from error


def subagent_files(path: Path) -> list[Path]:
    """The transcripts of the sub-agents that a session of Claude Code started."""
    return sorted((path.parent / path.stem / "subagents").rglob("agent-*.jsonl"))


def _readable(path: str | Path | IO[bytes], cleanup: contextlib.ExitStack) -> Path:
    """A path whose file can be read more than once."""
    if not isinstance(path, str | Path):
        return spooled(path, cleanup)
    path = Path(path)
    if path == STDIN:
        return spooled(sys.stdin.buffer, cleanup)
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return path
    return spooled(cleanup.enter_context(path.open("rb")), cleanup)


def _parts_in(folder: Path, name: str, layout: Format | None) -> list[Part]:
    parts: list[Part] = []
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        inside = file.relative_to(folder)
        is_hidden = any(part.startswith((".", "__MACOSX")) for part in inside.parts)
        if is_hidden or (inside.suffix.lower() not in _READ and layout is None) or not file.stat().st_size:
            continue
        with contextlib.suppress(BadInput):  # a database of another program
            found = layout or detect(file, file.suffix)
            is_only_chat = found is Format.WHATSAPP and file.stem.startswith("_")
            session = name if is_only_chat else utf8(inside.with_suffix("").as_posix())
            parts.append(Part(file, session, found, utf8(str(inside))))
    exports = [part for part in parts if part.layout is Format.CHATGPT]
    parts = exports or [part for part in parts if part.layout is not Format.EXPORT]
    if not parts:
        raise BadInput("it is an archive without a file of a known kind")
    return parts


def _size(path: Path) -> int:
    return (
        path.stat().st_size if path.is_file() else sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    )


def utf8(text: str) -> str:
    """A file name or label without bytes that are not UTF-8, which the log could not store."""
    return text.encode("utf-8", "replace").decode()
