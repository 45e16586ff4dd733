"""The files behind a path: one file, a transcript with its sub-agents', a folder, or an archive.

Each file that is to be read is a part, with the format that it was recognised as. An archive gives
those of its files that have messages: the parts of a Slack or ChatGPT export, else every file of a
known kind.

An archive may be crafted to fill a disk. So its bytes, its entries and its depth are limited while
it is unpacked, whatever it declares; names in it are used only below a temporary folder.

The user names one path, and it may be a link. Everything else comes from whoever made the folder,
which may have arrived with a repository. A link in it can lead to a private file, or to a device
that never ends; a named pipe never answers. So only plain files count there, and they are reached
without following a link.
"""

import contextlib
import gzip
import os
import stat
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from scroll_context.errors import BadInput
from scroll_context.importing.layouts import EXPORT, Layout, detect, importers

STDIN = Path("-")
_READ = frozenset(
    ".jsonl .ndjson .json .md .markdown .mdx .txt .text .csv .tsv .db .vscdb .sqlite".split()
)
_PACKED = (".gz", ".zip")


class Part(msgspec.Struct, frozen=True):
    """One file to read.

    `inside` is its name in an archive, or beside the file that was asked for.
    """

    path: Path
    # The session of messages that name none.
    name: str
    layout: Layout
    inside: str = ""


class Source(msgspec.Struct, frozen=True):
    """Everything that one path stands for."""

    label: str
    parts: list[Part]
    is_archive: bool = False

    def described(self, shapes: set[str]) -> str:
        """The kind of the source in words, such as "Claude Code transcript, 3 sub-agents"."""
        title = self.parts[0].layout.described
        beside = len(self.parts) - 1
        if self.is_archive:
            kinds = Counter(part.layout.described for part in self.parts)
            counts = [f"{count:,} × {kind}" if count > 1 else kind for kind, count in kinds.items()]
            title = f"archive: {', '.join(counts)}"
        elif beside:
            title += f", {beside:,} sub-agent{'' if beside == 1 else 's'}"
        if shapes:
            title += f", messages of {' and '.join(sorted(shapes))}"
        return title

    @property
    def size(self) -> int:
        """Bytes that are read, including the tool outputs beside a Claude Code transcript."""
        beside = sum(part.layout.bytes_beside(part.path) for part in self.parts)
        return beside + sum(_size(part.path) for part in self.parts)


def open_source(
    path: str | Path | IO[bytes], layout: Layout | None, cleanup: contextlib.ExitStack
) -> Source:
    """Find the parts.

    A stream or a packed file is copied to a temporary file, which stays until the cleanup.
    """
    file_name = path if isinstance(path, str | Path) else getattr(path, "name", "stream")
    original = Path(str(file_name))
    bare = original
    while bare.suffix.lower() in _PACKED:
        bare = bare.with_suffix("")
    label = utf8(str(original))
    name = utf8(bare.stem)
    if original == STDIN:
        label = name = "stdin"
    try:
        file = _readable(path, cleanup)
        content = unpacked(file, cleanup) if file.is_file() else file
        if content.is_dir():
            return _folder_source(content, label, name, layout, is_archive=content is not file)
        if not content.stat().st_size:
            raise BadInput("the file is empty")
        layout = layout or detect(content, bare.suffix)
        parts = [Part(content, name, layout)]
        if content is file:
            for other in layout.files_beside(file):
                inside = utf8(str(other.relative_to(file.parent)))
                parts.append(Part(other, utf8(other.stem), layout, inside))
        return Source(label, parts)
    except OSError as error:
        raise BadInput(error.strerror or str(error)) from error


def _folder_source(
    folder: Path, label: str, name: str, layout: Layout | None, *, is_archive: bool
) -> Source:
    """A known export that consists of many files, or the files of an unpacked archive."""
    for importer in importers():
        export = importer.recognise_folder(folder)
        if export is not None:
            root, folder_layout = export
            return Source(label, [Part(root, name, folder_layout)], is_archive)
    if not is_archive:
        raise BadInput("this is a folder and not a known export; name the files in it")
    return Source(label, _parts_in(folder, name, layout), is_archive)


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
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        # A repository can bring a link to /dev/zero, which never ends.
        raise BadInput("it is a device or a link to one, not a file")
    return spooled(cleanup.enter_context(path.open("rb")), cleanup)


def files_of(path: Path) -> list[Path]:
    """The files that a path stands for: those of a known kind in a folder, else the path itself.

    An export that consists of a folder stays one path. Links in a folder are not followed.
    """
    if path == STDIN or not path.is_dir():
        return [path]
    if any(importer.recognise_folder(path) for importer in importers()):
        return [path]
    suffixes = _READ.union(_PACKED)
    files = [file for file in _visible_files(path) if file.suffix.lower() in suffixes]
    if not files:
        kinds = ", ".join(sorted(suffixes))
        raise BadInput(f"{path}: there is no file in it that could hold messages ({kinds})")
    return files


def _visible_files(folder: Path) -> Iterator[Path]:
    """The files below a folder that have a content and are not hidden, in order."""
    for file in sorted(plain_files_below(folder)):
        names = file.relative_to(folder).parts
        is_hidden = any(name.startswith((".", "__MACOSX")) for name in names)
        if not is_hidden and file.stat().st_size:
            yield file


def _parts_in(folder: Path, name: str, layout: Layout | None) -> list[Part]:
    parts: list[Part] = []
    for file in _visible_files(folder):
        inside = file.relative_to(folder)
        is_other_kind = layout is None and inside.suffix.lower() not in _READ
        is_attachment = any(importer.is_attachment(folder, inside) for importer in importers())
        if is_other_kind or is_attachment:
            continue
        # A database of another program is refused; the rest of the archive is read.
        with contextlib.suppress(BadInput):
            file_layout = layout or detect(file, file.suffix)
            # WhatsApp calls the only chat of an archive _chat.txt.
            is_only_chat = file_layout.name == "whatsapp" and file.stem.startswith("_")
            session = name if is_only_chat else utf8(inside.with_suffix("").as_posix())
            parts.append(Part(file, session, file_layout, utf8(str(inside))))
    exports = [part for part in parts if part.layout.is_complete_export]
    parts = exports or [part for part in parts if part.layout is not EXPORT]
    if not parts:
        raise BadInput("the archive has no file of a known format")
    return parts


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.lstat().st_size for file in plain_files_below(path))
    return path.stat().st_size


def utf8(text: str) -> str:
    """A file name or label without bytes that are not UTF-8, which the log could not store."""
    return text.encode("utf-8", "replace").decode()


# archives -----------------------------------------------------------------------------------------

MAX_BYTES = 16 << 30
"""The most bytes of one file or archive, unpacked."""
ALWAYS_UNPACKED, MOST_TIMES_LARGER = 1 << 30, 100
"""Bytes that any archive may hold, and the factor by which a larger one may grow. Histories shrink
to a tenth or a fiftieth; only repeated bytes shrink to a thousandth."""
MAX_ENTRIES = 100_000
_CHUNK = 1 << 20
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"


def unpacked(path: Path, cleanup: contextlib.ExitStack) -> Path:
    """The file itself, the content of a compressed file, or a folder with the files of an archive.

    Copies stay until the cleanup. Compressed files inside an archive are unpacked too, one level
    deep.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if start != _ZIP and not start.startswith(_GZIP):
        return path
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="scroll-")))
    packed = path.stat().st_size
    budget = _Budget(min(MAX_BYTES, ALWAYS_UNPACKED + MOST_TIMES_LARGER * packed))
    if start.startswith(_GZIP):
        content = folder / "unpacked"
        _gunzip(path, content, budget)
        with content.open("rb") as file:
            if file.read(4) != _ZIP:
                return content
        path = content
    _unzip(path, folder / "files", budget)
    for file_path in sorted((folder / "files").rglob("*.gz")):
        _gunzip(file_path, file_path.with_suffix(""), budget)
        file_path.unlink()
    return folder / "files"


class _Budget:
    """How many bytes may still be copied to the disk."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self.most = self.left = most

    def copy(self, source: IO[bytes] | gzip.GzipFile, target: Path) -> None:
        with target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                self.left -= len(chunk)
                if self.left < 0:
                    raise BadInput(
                        f"it holds more than {self.most >> 20:,} MiB; unpack or split it, and "
                        "import the files"
                    )
                file.write(chunk)


def _gunzip(path: Path, target: Path, budget: _Budget) -> None:
    try:
        with gzip.open(path) as packed:
            budget.copy(packed, target)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"it is compressed with gzip and damaged or cut short ({error})") from error


def _unzip(path: Path, folder: Path, budget: _Budget) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > MAX_ENTRIES:
                raise BadInput(f"it holds {len(entries):,} files; at most {MAX_ENTRIES:,} are read")
            for entry in entries:
                target = folder / _below(entry.filename)
                if target.exists():
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as packed:
                    budget.copy(packed, target)
    except RuntimeError as error:
        # Raised by zipfile for an archive with a password.
        raise BadInput(f"it is a zip archive that cannot be opened: {error}") from error
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        FileExistsError,
        NotADirectoryError,
    ) as error:
        raise BadInput(f"it is a zip archive, damaged or cut short ({error})") from error


def _below(name: str) -> Path:
    """The name of an entry as a path below a folder, whatever the name is."""
    path = PurePosixPath(name.replace("\\", "/").replace(":", "_").replace("\x00", "_"))
    parts = [part[-200:] for part in path.parts if part not in ("..", "/", ".")]
    return Path(*parts[-16:]) if parts else Path("unnamed")


def spooled(stream: IO[bytes], cleanup: contextlib.ExitStack) -> Path:
    """A copy of a stream that can be read only once, until the cleanup."""
    copy = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="scroll-"))) / "spool"
    _Budget().copy(stream, copy)
    return copy


# plain files and folders --------------------------------------------------------------------------


def is_plain_file(path: Path) -> bool:
    """Whether the last part of a path is a file, and neither a link nor a device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_plain_folder(path: Path) -> bool:
    """Whether the last part of a path is a folder, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def plain_files_below(folder: Path, *names: str) -> Iterator[Path]:
    """The files below a folder of a folder, in no order. A link on the way ends the search."""
    for name in names:
        folder = folder / name
        if not is_plain_folder(folder):
            return
    for parent, _, files in os.walk(folder, followlinks=False):
        for file in files:
            path = Path(parent, file)
            if is_plain_file(path):
                yield path
