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

from scroll_context.log.rows import ALL_COLUMNS, TableRow

_TABLE_LEAF = 0x0D
# The serial type of a 32-byte blob.
_CHAIN_TYPE = 12 + 2 * 32
_CHAIN_AT = ALL_COLUMNS.index("chain")
# The bytes of an integer by its serial type.
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

_UNREADABLE = (IndexError, ValueError, struct.error)
"""What decoding a damaged cell raises."""

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

    def cells(self, number: int) -> Iterator[tuple[Place, int, bytes]]:
        """The cells on a page that can be read: place, rowid and record."""
        page = self.page(number)
        for offset in _cell_offsets(page, number):
            try:
                rowid, record = self._cell(page, offset)
            except _UNREADABLE:
                continue
            yield (number, offset), rowid, record

    def row(self, place: Place, errors: str = "strict") -> TableRow:
        """The complete row at a place, as SQLite would return it.

        `errors` says what to do with text that is not UTF-8.
        """
        number, offset = place
        seq, record = self._cell(self.page(number), offset)
        _, *columns = _decode(record, errors)
        return TableRow(seq, *columns)

    def _cell(self, page: bytes, offset: int) -> tuple[int, bytes]:
        """A leaf cell's rowid and its complete record, overflow pages included."""
        length, offset = _varint(page, offset)
        rowid, offset = _varint(page, offset)
        local = self._local_bytes(length)
        record = bytearray(page[offset : offset + local])
        overflow = 0
        if local < length:
            (overflow,) = struct.unpack_from(">I", page, offset + local)
        left = length - local
        while left > 0:
            piece = self.page(overflow) if overflow else b""
            if len(piece) < self._size:
                raise ValueError("the overflow chain is broken")
            overflow = int.from_bytes(piece[:4], "big")
            record += piece[4 : 4 + left]
            left -= self._size - 4
        return rowid, bytes(record)

    def _local_bytes(self, length: int) -> int:
        """How many bytes of a record are on its leaf page; the others are on overflow pages.

        Scroll reserves no bytes at the end of a page, so all of it is usable.
        """
        most = self._size - 35
        if length <= most:
            return length
        least = (self._size - 12) * 32 // 255 - 23
        local = least + (length - least) % (self._size - 4)
        return local if local <= most else least

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


def is_event(record: bytes) -> bool:
    """Whether a record looks like an event row."""
    try:
        types, _ = _types(record)
    except _UNREADABLE:
        return False
    is_complete = len(types) == len(ALL_COLUMNS)
    return is_complete and types[0] == 0 and types[_CHAIN_AT] == _CHAIN_TYPE


def pair(record: bytes) -> tuple[str, Any] | None:
    """A row of a table with two columns: the newest seq of "event", or a chore."""
    try:
        match _decode(record):
            case [str(name), value]:
                return name, value
    except _UNREADABLE:
        pass
    return None


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
