"""Reads a JSON array element by element, for files that are too long to be read whole.

Each element comes with its place in the file, so that it can be read again by itself. Damage ends
the reading with a `ValueError` that names the byte; what came before it has been given out.
"""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

CHUNK = 4 << 20  # bytes read at a time
LONGEST = 256 << 20  # characters of one element; a longer one is damaged

_decode = json.JSONDecoder().raw_decode


class Place(msgspec.Struct, frozen=True):
    """Where an element stands in its file."""

    start: int  # byte
    size: int  # bytes


def elements(file: Path) -> Iterator[tuple[Place, Any]]:
    """The elements of the array in a file, in order."""
    with file.open("rb") as stream:
        reader = _ArrayReader(stream)
        reader.expect("[")
        if reader.passes("]"):
            return
        while True:
            yield reader.element()
            if reader.passes("]"):
                return
            reader.expect(",")


def element_at(file: Path, place: Place) -> Any:
    """An element that `elements` found, read again."""
    with file.open("rb") as stream:
        stream.seek(place.start)
        return json.loads(stream.read(place.size))


class _ArrayReader:
    """A window of text that moves along the file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0  # in the text
        self._byte = 0  # in the file, of the same place
        self._ended = False

    def passes(self, mark: str) -> bool:
        """Pass over blanks, and over a mark if that comes next; whether it did."""
        while True:
            end = self._at
            while end < len(self._text) and self._text[end] in " \t\r\n":
                end += 1
            self._move(end)
            if end < len(self._text) or self._ended:
                break
            self._read()
        found = self._text.startswith(mark, self._at)
        if found:
            self._move(self._at + len(mark))
        return found

    def expect(self, mark: str) -> None:
        if not self.passes(mark):
            found = self._text[self._at : self._at + 20] or "the end of the file"
            raise ValueError(f"byte {self._byte:,} should have {mark!r}, not {found!r}")

    def element(self) -> tuple[Place, Any]:
        self.passes("")
        wanted = CHUNK
        while True:
            while len(self._text) - self._at < wanted and not self._ended:
                self._read()
            try:
                value, end = _decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # broken off or broken: only reading on can tell
                if self._ended or wanted > LONGEST:
                    raise ValueError(
                        f"the element at byte {self._byte:,} is not complete: {error.msg}"
                    ) from error
                wanted *= 2
                continue
            start = self._byte
            self._move(end)
            return Place(start, self._byte - start), value

    def _move(self, to: int) -> None:
        self._byte += len(self._text[self._at : to].encode())
        self._at = to

    def _read(self) -> None:
        chunk = self._stream.read(CHUNK)
        self._ended = not chunk
        self._text = self._text[self._at :] + self._decoder.decode(chunk, final=self._ended)
        self._at = 0
