"""The files of a committed index, and whether they are intact.

The engine ends each file with a footer that holds a checksum of the rest, and never reads it again:
a flipped bit in a posting list makes searches miss events in silence. `verify` checks every file;
opening an index does not, because reading everything takes time.
"""

import zlib
from pathlib import Path
from typing import IO, Any

import msgspec

# The last four bytes of a file. The length of its footer is in the four bytes before them.
_MAGIC = (1337).to_bytes(4, "little")
_TAIL = 8
_CHUNK = 1 << 20
# Every segment has these files. Nothing is ever deleted from a segment.
_PARTS = ("fast", "fieldnorm", "idx", "pos", "store", "term")

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def damaged_files(root: Path) -> list[str]:
    """The names of committed index files below this folder that are missing or do not match their
    checksums.

    The files are read, not mapped: a file that is cut short meanwhile, or a failing device, is then
    damage to report, not a signal that ends the process.
    """
    names: list[str] = []
    for meta in root.glob("v*/meta.json"):
        try:
            suspects = [file for file in committed_files(meta) if not _is_intact(file)]
            # A merge may have removed a file since then, so the list is read again.
            committed = committed_files(meta) if suspects else []
            names += [file.name for file in suspects if file in committed]
        except FileNotFoundError:
            # The index is being built again.
            continue
        except (OSError, ValueError, KeyError, TypeError):
            names.append(meta.name)
    return names


def committed_files(meta: Path) -> list[Path]:
    """The files with a checksum that an index consists of, according to its meta.json."""
    segments = _decode(meta.read_bytes())["segments"]
    ids = sorted(str(segment["segment_id"]).replace("-", "") for segment in segments)
    return [meta.parent / f"{segment_id}.{part}" for segment_id in ids for part in _PARTS]


def _is_intact(file: Path) -> bool:
    try:
        with file.open("rb") as handle:
            end, expected = footer(handle)
            handle.seek(0)
            checksum = 0
            while handle.tell() < end:
                piece = handle.read(min(_CHUNK, end - handle.tell()))
                if not piece:
                    break
                checksum = zlib.crc32(piece, checksum)
            return checksum == expected
    except (OSError, ValueError, KeyError):
        # It is missing, empty or unreadable, or has no footer.
        return False


def footer(handle: IO[bytes]) -> tuple[int, int]:
    """Where the body of a file ends, and its checksum.

    The rest of the footer, the engine's version, has none.
    """
    size = handle.seek(0, 2)
    handle.seek(max(0, size - _TAIL))
    length, magic = int.from_bytes(handle.read(4), "little"), handle.read(4)
    end = size - _TAIL - length
    if magic != _MAGIC or end < 0:
        raise ValueError("no footer")
    handle.seek(end)
    return end, _decode(handle.read(length))["crc"]
