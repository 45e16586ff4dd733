"""Files inside files: what gzip and zip hold, unpacked into a temporary folder, bounded.

An archive may be made to fill a disk. So the bytes, the entries and the depth are bounded while it is unpacked, not by
what it says of itself; names in it are used only below the folder.
"""

import contextlib
import gzip
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from scroll_context.errors import BadInput

MAX_BYTES = 16 << 30  # of one file or archive, unpacked
MAX_ENTRIES = 100_000
_CHUNK = 1 << 20
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"


def unpacked(path: Path, cleanup: contextlib.ExitStack) -> Path:
    """The file itself; of a compressed one the content, of an archive a folder with its files, until the cleanup.

    What is compressed inside an archive is unpacked too, once; deeper archives are left as they are.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if start != _ZIP and not start.startswith(_GZIP):
        return path
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="scroll-")))
    budget = _Budget()
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
    """How many bytes may still be unpacked."""

    def __init__(self) -> None:
        self.left = MAX_BYTES

    def copy(self, source: IO[bytes] | gzip.GzipFile, target: Path) -> None:
        with target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                self.left -= len(chunk)
                if self.left < 0:
                    raise BadInput(
                        f"it holds more than {MAX_BYTES >> 20:,} MiB unpacked; unpack it and import the files"
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
                raise BadInput(f"it holds {len(entries):,} files, and {MAX_ENTRIES:,} at most are read")
            for entry in entries:
                target = folder / _below(entry.filename)
                if target.exists():
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as packed:
                    budget.copy(packed, target)
    except RuntimeError as error:  # what zipfile raises for an archive with a password
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
    """The name of an entry as a path below a folder, whatever it says."""
    parts = [part[-200:] for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("..", "/", ".")]
    return Path(*(part.replace(":", "_").replace("\x00", "_") for part in parts[-16:])) if parts else Path("unnamed")


def spooled(stream: IO[bytes], cleanup: contextlib.ExitStack) -> Path:
    """A copy of what can be read only once, until the cleanup."""
    copy = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="scroll-"))) / "spool"
    with copy.open("wb") as target:
        shutil.copyfileobj(stream, target)
    return copy
