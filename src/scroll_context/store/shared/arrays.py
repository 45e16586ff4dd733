"""Arrays as Postgres takes them in binary, packed in one pass.

A batch of rows goes to the server as one array for each column. The driver's own lists are walked several times in
Python to find out what is in them, which took a quarter of the processor time of an append.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

_header = struct.Struct(">5i").pack
_length = struct.Struct(">i").pack
_int8 = struct.Struct(">q").pack
_NULL = _length(-1)
_EIGHT = _length(8)


class Array:
    """An array of one type, packed."""

    __slots__ = ("data",)
    oid = 0  # of the array
    element = 0  # of its elements

    def __init__(self, values: Sequence[Any]) -> None:
        parts = [_header(1, None in values, self.element, len(values), 1)]
        self._pack(values, parts)
        self.data = b"".join(parts) if values else _header(0, 0, self.element, 0, 0)[:12]

    def _pack(self, values: Sequence[Any], parts: list[bytes]) -> None:
        raise NotImplementedError


class Bytes(Array):
    """bytea[]"""

    __slots__ = ()
    oid, element = 1001, 17

    def _pack(self, values: Sequence[bytes | None], parts: list[bytes]) -> None:
        for value in values:
            parts += (_NULL,) if value is None else (_length(len(value)), value)


class Texts(Bytes):
    """text[], of texts that are encoded already"""

    __slots__ = ()
    oid, element = 1009, 25


class Numbers(Array):
    """bigint[]"""

    __slots__ = ()
    oid, element = 1016, 20

    def _pack(self, values: Sequence[int | None], parts: list[bytes]) -> None:
        for value in values:
            parts += (_NULL,) if value is None else (_EIGHT, _int8(value))


@cache
def dumpers() -> tuple[tuple[type[Array], Any], ...]:
    """What the driver needs to know of each kind of array. The driver is imported only when it is used."""
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    def dumper(kind: type[Array]) -> Any:
        class Packed(Dumper):
            format = Format.BINARY
            oid = kind.oid

            def dump(self, obj: Array) -> bytes:
                return obj.data

        return Packed

    return tuple((kind, dumper(kind)) for kind in (Bytes, Texts, Numbers))
