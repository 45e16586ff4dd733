"""Whether the files of the search index are as the engine wrote them.

The engine ends each file with a footer that holds a checksum of the rest, and never looks at it again: a flipped bit
in a posting list makes searches miss events in silence. Reading everything takes time, so this is part of `verify`
and never of opening. The index is derived: what is found here is mended by building it anew.
"""

import mmap
import zlib
from pathlib import Path
from typing import Any

import msgspec

_MAGIC = (1337).to_bytes(4, "little")  # the last four bytes; before them, the length of the footer
_CHUNK = 1 << 24

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def damaged_files(root: Path) -> list[str]:
    """The files of the committed index below this folder that do not match their checksums, by name."""
    found = []
    for meta in root.glob("v*/meta.json"):
        try:
            segments = [str(one["segment_id"]).replace("-", "") for one in _decode(meta.read_bytes())["segments"]]
        except (msgspec.DecodeError, KeyError, TypeError):
            found.append(meta.name)
            continue
        files = [file for segment in segments for file in meta.parent.glob(f"{segment}.*")]
        found += [file.name for file in sorted(files) if not _is_whole(file)]
    return found


def _is_whole(file: Path) -> bool:
    try:
        with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as body:
            end = _body_end(body)
            checksum = 0
            for at in range(0, end, _CHUNK):
                checksum = zlib.crc32(body[at : min(at + _CHUNK, end)], checksum)
            return bool(_decode(body[end:-8])["crc"] == checksum)
    except FileNotFoundError:  # merged into another one meanwhile
        return True
    except (ValueError, KeyError):  # empty, or no footer
        return False


def _body_end(body: mmap.mmap) -> int:
    length = int.from_bytes(body[-8:-4], "little")
    if body[-4:] != _MAGIC or length + 8 > len(body):
        raise ValueError("no footer")
    return len(body) - 8 - length
