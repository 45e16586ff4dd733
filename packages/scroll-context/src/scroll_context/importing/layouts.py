"""How files of messages are laid out: the layouts, how one is recognised, and its messages.

The core reads messages in JSON and JSON Lines, and exports of Scroll. Other layouts come from
installed packages: the entry points of the group `scroll_context.importers` are the names of their
layouts, and each leads to an `Importer`. Everything that can be wrong with a file is found while
reading it, as a Fault with its line, so that a caller can read it once to check it and a second
time to import it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput
from scroll_context.events import Progress
from scroll_context.importing import records, text_files
from scroll_context.importing.messages import SourceKeys, pieces
from scroll_context.importing.records import Fault, Imported, ImportReport, Labels, RawMessage
from scroll_context.importing.text_files import Line, Position, document, text_lines
from scroll_context.log.foreign import Piece, check_foreign
from scroll_context.plugins import entry_points, how_to_install
from scroll_context.store import Store

GROUP = "scroll_context.importers"
PACKAGE = "scroll-assistants"
OTHER_FORMATS = f"Other formats need {PACKAGE}. {how_to_install(PACKAGE)}"

SQLITE_MAGIC = b"SQLite format 3\x00"
_LINE_SUFFIXES = (".jsonl", ".ndjson")
_SAMPLE_LINES = 50
_SAMPLE_CHARACTERS = 16 << 20

Pieces = tuple[Piece, ...]
Reader = Callable[[Path, Labels, Position | None], Iterator[RawMessage | Fault]]
"""Gives the messages of a file, from a position on if the layout can be followed."""

Renamed = Callable[[str], int | None]
"""The number to append to a session name that another source uses already; None to leave it."""


def _no_files(_path: Path) -> list[Path]:
    return []


def _no_bytes(_path: Path) -> int:
    return 0


def _unchanged(events: Pieces) -> Pieces:
    return events


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is laid out: its name, what a reader calls it, and what it holds."""

    name: str
    described: str
    read: Reader
    has_ids: bool = False
    """Whether messages have ids of their own, so that any file of this layout may add to a session.
    """
    grows_by_lines: bool = False
    """Whether it is a transcript: it has ids, and grows line by line."""
    can_be_followed: bool = False
    """Whether an assistant writes such files. Their user is then the user of the store."""
    names_speakers: bool = False
    """Whether people speak under their own names, so that it does not say which one is the user."""
    is_complete_export: bool = False
    """Whether the other files of an archive are left out beside one of this layout."""
    files_beside: Callable[[Path], list[Path]] = _no_files
    """Further files that belong to one, such as the transcripts of sub-agents."""
    bytes_beside: Callable[[Path], int] = _no_bytes
    """The size of what is read beside a file in addition."""
    mark_echoes: Callable[[Pieces], Pieces] = _unchanged
    """Marks what Scroll itself wrote into a history."""


class InstalledHistory(msgspec.Struct, frozen=True):
    """The history of one assistant on this machine."""

    assistant: str
    folder: str
    # The oldest first, by the time of the last change.
    files: tuple[str, ...]
    bytes: int
    # Dates of the oldest and the newest change.
    first: str
    last: str


class Sample(msgspec.Struct, frozen=True):
    """The part of a file by which its layout is recognised."""

    path: Path
    suffix: str
    lines: list[Line | Fault]
    is_database: bool = False
    # Whether the first line is a JSON value, and that value.
    is_json: bool = False
    first: Any = None
    # Whether the file seems to be one JSON value.
    is_document: bool = False


class Importer(Protocol):
    """The formats that an installed package adds to imports."""

    layouts: tuple[Layout, ...]

    def recognise(self, sample: Sample) -> Layout | None:
        """The layout of a file; BadInput for a database of an unknown program."""

    def recognise_folder(self, folder: Path) -> tuple[Path, Layout] | None:
        """The folder of an export that consists of many files, and its layout."""

    def is_attachment(self, folder: Path, file: Path) -> bool:
        """Whether a file of an unpacked archive belongs to another file of it."""

    def common_shape(self, value: Any) -> tuple[Any, str] | None:
        """A message or a conversation in the shape that messages.py reads, and the name of its own
        shape; None for a value that it does not know. A conversation is a list of messages, or an
        object with `messages`.
        """

    def installed(self) -> list[InstalledHistory]:
        """The histories on this machine."""

    def capture_all(
        self,
        store: Store,
        files: Iterable[str],
        *,
        redact: bool,
        wait: float,
        progress: Progress | None,
        on_report: Callable[[ImportReport], None],
    ) -> None:
        """Record messages that were added to the files, and report on each file."""


@functools.cache
def importers() -> tuple[Importer, ...]:
    """The importers of installed packages; one that has several layouts is there once."""
    points = {point.target: point for point in reversed(list(entry_points(GROUP)))}
    return tuple(point.load() for point in reversed(points.values()))


def layout_names() -> tuple[str, ...]:
    """The names of all layouts, without importing a package."""
    names = [*OWN_LAYOUTS, *(point.name for point in entry_points(GROUP))]
    return tuple(dict.fromkeys(names))


def layout_named(name: str) -> Layout:
    """The layout of that name. Raises BadInput if no installed package has it."""
    if name in OWN_LAYOUTS:
        return OWN_LAYOUTS[name]
    for importer in importers():
        for layout in importer.layouts:
            if layout.name == name:
                return layout
    if importers():
        raise BadInput(f"format {name!r} is unknown; use one of {', '.join(layout_names())}")
    raise BadInput(f"format {name!r} is unknown. {OTHER_FORMATS}")


def detect(path: Path, suffix: str = "") -> Layout:
    """How the file is laid out; `suffix` decides where the content could be either.

    Raises BadInput for a database of an unknown program, and for a text that is not JSON if no
    other importer is installed.
    """
    sample = _sample(path, suffix.lower())
    if isinstance(sample.first, dict) and "scroll_export" in sample.first:
        return EXPORT
    for importer in importers():
        layout = importer.recognise(sample)
        if layout is not None:
            return layout
    if not importers() and not _may_be_json(sample):
        raise BadInput(f"it has no JSON messages. {OTHER_FORMATS}")
    return JSON if sample.is_document else JSONL


def _sample(path: Path, suffix: str) -> Sample:
    if path.is_dir():
        return Sample(path, suffix, [])
    with path.open("rb") as file:
        if file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
            return Sample(path, suffix, [], is_database=True)
    lines = _first_lines(path)
    if not lines or isinstance(lines[0], Fault):
        return Sample(path, suffix, lines)
    try:
        first = document(lines[0].text)
    except (ValueError, RecursionError):
        # A document breaks between tokens; a line of JSONL that was cut, hardly ever just there.
        is_document = lines[0].text.endswith(("[", "{", ",", ":"))
        return Sample(path, suffix, lines, is_document=is_document)
    is_document = len(lines) == 1 and suffix not in _LINE_SUFFIXES
    return Sample(path, suffix, lines, is_json=True, first=first, is_document=is_document)


def _first_lines(path: Path) -> list[Line | Fault]:
    """The lines by which a file is recognised; fewer of very long ones."""
    lines: list[Line | Fault] = []
    size = 0
    for line in text_lines(path):
        lines.append(line)
        size += 0 if isinstance(line, Fault) else len(line.text)
        if len(lines) == _SAMPLE_LINES or size > _SAMPLE_CHARACTERS:
            break
    return lines


def _may_be_json(sample: Sample) -> bool:
    if sample.is_database or sample.path.is_dir():
        return False
    if not sample.lines or isinstance(sample.lines[0], Fault):
        return True
    return sample.is_json or sample.lines[0].text.startswith(("[", "{"))


def _json_lines(path: Path, labels: Labels, _: Position | None) -> Iterator[RawMessage | Fault]:
    lines = text_files.json_lines(path, labels, may_grow=False)
    return text_files.messages(lines, common_shape)


def _json_document(path: Path, labels: Labels, _: Position | None) -> Iterator[RawMessage | Fault]:
    return text_files.messages(text_files.values(path, labels, "message"), common_shape)


def common_shape(value: Any) -> tuple[Any, str]:
    """A message or a conversation in the common shape, and the name of the shape that it had."""
    for importer in importers():
        translated = importer.common_shape(value)
        if translated is not None:
            return translated
    return value, ""


def _export(_path: Path, _labels: Labels, _: Position | None) -> Iterator[RawMessage | Fault]:
    raise BadInput("an export is read completely, by upkeep/merge.py")


JSONL = Layout(name="jsonl", described="JSON Lines", read=_json_lines)
JSON = Layout(name="json", described="JSON", read=_json_document)
EXPORT = Layout(name="export", described="export of Scroll", read=_export)
OWN_LAYOUTS = {layout.name: layout for layout in (JSONL, JSON, EXPORT)}


def read(
    path: Path,
    layout: Layout,
    labels: Labels,
    *,
    position: Position | None = None,
    renamed: Renamed | None = None,
) -> Iterator[Imported | Fault]:
    """The messages of a file, in order.

    If `renamed` returns a number for a session, its name and its keys end with that number. With a
    `position`, an assistant's history is read from there on. In a transcript, the position moves
    with each line, and only lines that end with a line break are read. In a database, the position
    moves after everything was read.
    """
    keys = SourceKeys()
    tools = position.tools if position else {}
    for item in layout.read(path, labels, position):
        if isinstance(item, Fault):
            yield item
            continue
        try:
            yield _message(item, layout, keys, tools, renamed)
        except records.MALFORMED as error:
            yield item.fault(error)


def _message(
    raw: RawMessage,
    layout: Layout,
    keys: SourceKeys,
    tools: dict[str, dict[str, str]],
    renamed: Renamed | None,
) -> Imported:
    if not isinstance(raw.value, dict):
        raise BadInput(f"expected a message (a JSON object), found {type(raw.value).__name__}")
    session = records.text(raw.value, "session_id") or raw.labels.session_id
    key = raw.key or keys.key(session, raw.value)
    tool_names = tools.setdefault(session, {})
    number = renamed(session) if renamed else None
    events = pieces(raw, key if number is None else f"{key}~{number}", tool_names)
    if number is not None:
        events = tuple(_in_session(piece, f"{session}-{number}") for piece in events)
    for piece in events:
        check_foreign(piece.draft)
    if raw.key:
        events = layout.mark_echoes(events)
    return Imported(raw.line, session, key, events, raw.offset, raw.shape, raw.is_last)


def _in_session(piece: Piece, session_id: str) -> Piece:
    return Piece(replace(piece.draft, session_id=session_id), piece.attachment)
