"""Whether the files of the search index are as the engine wrote them.

The engine ends each file with a footer that holds a checksum of the rest, and never looks at it again: a flipped bit
in a posting list makes searches miss events in silence. Reading everything takes time, so this is part of `verify`
and never of opening. The files are read, not mapped: a file that somebody cuts short meanwhile, or a failing device,
is then damage to report and no signal that ends the process. The index is derived: what is found here is mended by
building it anew.
"""

import zlib
from pathlib import Path
from typing import IO, Any

import msgspec

_MAGIC = (1337).to_bytes(4, "little")  # the last four bytes; before them, the length of the footer
_TAIL = 8
_CHUNK = 1 << 20
_PARTS = ("fast", "fieldnorm", "idx", "pos", "store", "term")  # of every segment; nothing is ever deleted from one

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def damaged_files(root: Path) -> list[str]:
    """The files of the committed index below this folder that are missing or do not match their checksums, by name."""
    found: list[str] = []
    for meta in root.glob("v*/meta.json"):
        try:
            bad = [file for file in committed_files(meta) if not _is_whole(file)]
            found += [file.name for file in bad if file in committed_files(meta)]  # else a merge has done away with it
        except FileNotFoundError:  # it is being built anew
            continue
        except (OSError, ValueError, KeyError, TypeError):
            found.append(meta.name)
    return found


def committed_files(meta: Path) -> list[Path]:
    """What an index consists of, according to its meta.json: the files that have a checksum."""
    segments = sorted(str(one["segment_id"]).replace("-", "") for one in _decode(meta.read_bytes())["segments"])
    return [meta.parent / f"{segment}.{part}" for segment in segments for part in _PARTS]


def _is_whole(file: Path) -> bool:
    try:
        with file.open("rb") as handle:
            end, expected = footer(handle)
            handle.seek(0)
            checksum = 0
            while piece := handle.read(min(_CHUNK, end - handle.tell())):
                checksum = zlib.crc32(piece, checksum)
            return checksum == expected
    except (OSError, ValueError, KeyError):  # is missing, cannot be read, is empty, or has no footer
        return False


def footer(handle: IO[bytes]) -> tuple[int, int]:
    """Where the body of a file ends, and its checksum. The rest of the footer, the engine's version, has none."""
    size = handle.seek(0, 2)
    handle.seek(max(0, size - _TAIL))
    length, magic = int.from_bytes(handle.read(4), "little"), handle.read(4)
    end = size - _TAIL - length
    if magic != _MAGIC or end < 0:
        raise ValueError("no footer")
    handle.seek(end)
    return end, _decode(handle.read(length))["crc"]
