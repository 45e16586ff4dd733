"""Reading event rows straight from the pages of an SQLite file, without SQLite.

A damaged file is one that SQLite refuses: a broken page near the root of the tree hides all that
hangs below it. The leaves are still there. This reader reads every page by itself, lays the
committed frames of the write-ahead log over the file, and takes each table cell that decodes as an
event row. It understands just enough of the file format for that: leaf cells, records, overflow
chains, WAL frames. It judges nothing: the hash chain does.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from scroll_context.log.columns import ALL_COLUMNS, TableRow

_TABLE_LEAF = 0x0D
# The serial type of a 32-byte blob.
_CHAIN_TYPE = 12 + 2 * 32
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

Place = tuple[int, int]
"""A page number and the offset of a cell in it."""


class PageFile:
    """The pages of a log file with its write-ahead log."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._size = _page_size(self._file.read(100))
        self._count = -(-path.stat().st_size // self._size)
        wal = path.with_name(path.name + "-wal")
        self._wal: IO[bytes] | None = wal.open("rb") if wal.exists() else None
        self._frames = self._committed_frames() if self._wal else {}

    def close(self) -> None:
        self._file.close()
        if self._wal:
            self._wal.close()

    @property
    def count(self) -> int:
        return max([self._count, *self._frames])

    def page(self, number: int) -> bytes:
        """A page as last committed; short or empty when the file ends early."""
        if self._wal and number in self._frames:
            self._wal.seek(self._frames[number])
            return self._wal.read(self._size)
        self._file.seek((number - 1) * self._size)
        return self._file.read(self._size)

    def cells(self, number: int) -> Iterator[tuple[Place, int]]:
        """The places of the event rows on a page, with their seqs."""
        page = self.page(number)
        for offset in _cell_offsets(page, number):
            try:
                seq, record = self._cell(page, offset)
                if _looks_like_event(record):
                    yield (number, offset), seq
            except (IndexError, ValueError, struct.error):
                continue

    def pairs(self, number: int) -> Iterator[tuple[str, Any]]:
        """The rows of tables with two columns on a page: the newest seq of "event", and chores."""
        page = self.page(number)
        for offset in _cell_offsets(page, number):
            try:
                values = _decode(self._cell(page, offset)[1])
            except (IndexError, ValueError, struct.error):
                continue
            if len(values) == 2 and isinstance(values[0], str):
                yield values[0], values[1]

    def row(self, place: Place, errors: str = "strict") -> TableRow:
        """The complete row at a place, as SQLite would return it.

        `errors` says what to do with text that is not UTF-8.
        """
        seq, record = self._cell(self.page(place[0]), place[1])
        return TableRow._make((seq, *_decode(record, errors)[1:]))

    def _cell(self, page: bytes, offset: int) -> tuple[int, bytes]:
        """A leaf cell's rowid and its complete record, overflow pages included."""
        length, offset = _varint(page, offset)
        rowid, offset = _varint(page, offset)
        # Scroll reserves no bytes at the end of a page.
        usable = self._size
        if length > usable - 35:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (length - least) % (usable - 4)
            if local > usable - 35:
                local = least
            (overflow,) = struct.unpack_from(">I", page, offset + local)
        else:
            local, overflow = length, 0
        parts, have = [page[offset : offset + local]], local
        while have < length:
            piece = self.page(overflow) if overflow else b""
            if len(piece) < self._size:
                raise ValueError("the overflow chain is broken")
            overflow = int.from_bytes(piece[:4], "big")
            parts.append(piece[4 : 4 + length - have])
            have += len(parts[-1])
        return rowid, b"".join(parts)

    def _committed_frames(self) -> dict[int, int]:
        """Where the newest committed copy of each page lies in the write-ahead log."""
        assert self._wal is not None
        header = self._wal.read(32)
        committed: dict[int, int] = {}
        pending: dict[int, int] = {}
        at = 32
        while True:
            frame = self._wal.read(24)
            # The salts say whether a frame belongs to this generation of the WAL.
            if len(frame) < 24 or frame[8:16] != header[16:24]:
                return committed
            number, commit = struct.unpack(">II", frame[:8])
            pending[number] = at + 24
            if commit:
                committed.update(pending)
                pending = {}
            at += 24 + self._size
            self._wal.seek(at)


def _page_size(header: bytes) -> int:
    """The page size that a file header names; the usual one if the header is damaged."""
    size = 4096
    if header.startswith(b"SQLite format 3\0"):
        size = int.from_bytes(header[16:18], "big")
    if size == 1:
        return 65536
    is_power_of_two = not size & (size - 1)
    return size if size >= 512 and is_power_of_two else 4096


def _cell_offsets(page: bytes, number: int) -> list[int]:
    start = 100 if number == 1 else 0
    if len(page) < start + 8 or page[start] != _TABLE_LEAF:
        return []
    (count,) = struct.unpack_from(">H", page, start + 3)
    if start + 8 + 2 * count > len(page):
        return []
    return list(struct.unpack_from(f">{count}H", page, start + 8))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _types(record: bytes) -> tuple[list[int], int]:
    end, at = _varint(record, 0)
    types: list[int] = []
    while at < end:
        kind, at = _varint(record, at)
        types.append(kind)
    return types, end


def _looks_like_event(record: bytes) -> bool:
    types, _ = _types(record)
    return (
        len(types) == len(ALL_COLUMNS)
        and types[0] == 0
        and types[ALL_COLUMNS.index("chain")] == _CHAIN_TYPE
    )


def _decode(record: bytes, errors: str = "strict") -> list[Any]:
    types, at = _types(record)
    values: list[Any] = []
    for kind in types:
        value: Any = None
        size = 0
        if kind in _INTEGERS:
            size = _INTEGERS[kind]
            value = int.from_bytes(record[at : at + size], "big", signed=True)
        elif kind in (8, 9):
            value = kind - 8
        elif kind >= 12:
            size = (kind - 12) // 2
            raw = record[at : at + size]
            value = raw.decode(errors=errors) if kind % 2 else raw
        elif kind:
            raise ValueError(f"serial type {kind} does not occur in a log")
        at += size
        values.append(value)
    if at != len(record):
        raise ValueError("the record is cut short")
    return values
