"""The text of a file, whatever its byte order mark says it is encoded in.

UTF-8 with or without a mark, and UTF-16 and UTF-32 with one, are read. Anything else is a fault with its line, never
a guess: a guessed encoding would write wrong words into a history that cannot be changed.
"""

import codecs
import io
from collections.abc import Iterator
from pathlib import Path

import msgspec

from scroll_context.importers.values import Fault

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Line(msgspec.Struct, frozen=True):
    """A line that is not blank, its number, and where in the file it ends."""

    number: int
    text: str
    offset: int


def lines(path: Path) -> Iterator[Line | Fault]:
    """The lines that are not blank. One that cannot be decoded is a fault."""
    with path.open("rb") as file:
        mark, encoding = _encoding(file.read(4))
        file.seek(len(mark))
        if encoding == "utf-8":
            yield from _utf8_lines(file, len(mark))
        else:
            yield from _wide_lines(file, encoding)


def document(path: Path) -> str | Fault:
    """The whole text, or the fault that keeps it from being read."""
    data = path.read_bytes()
    mark, encoding = _encoding(data[:4])
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        before = data[len(mark) : len(mark) + error.start].decode(encoding, "replace")
        return Fault(before.count("\n") + 1, _undecodable(error, encoding), error.start)


def _encoding(start: bytes) -> tuple[bytes, str]:
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return mark, encoding
    return b"", "utf-8"


def _utf8_lines(file: io.BufferedReader, offset: int) -> Iterator[Line | Fault]:
    for number, raw in enumerate(file, 1):
        offset += len(raw)
        try:
            text = raw.decode().strip()
        except UnicodeDecodeError as error:
            yield Fault(number, _undecodable(error, "utf-8"), offset)
            continue
        if text:
            yield Line(number, text, offset)


def _wide_lines(file: io.BufferedReader, encoding: str) -> Iterator[Line | Fault]:
    number = 0
    with io.TextIOWrapper(file, encoding, newline="\n") as wrapped:
        try:
            for number, text in enumerate(wrapped, 1):
                if stripped := text.strip():
                    yield Line(number, stripped, file.tell())
        except UnicodeDecodeError as error:  # from here on nobody can say where a character begins
            yield Fault(number + 1, _undecodable(error, encoding), file.tell())


def _undecodable(error: UnicodeDecodeError, encoding: str) -> str:
    return (
        f"not {encoding.upper()} text (byte 0x{error.object[error.start]:02x}: {error.reason}); "
        "convert the file, for example with `iconv -f WINDOWS-1252 -t UTF-8`"
    )
