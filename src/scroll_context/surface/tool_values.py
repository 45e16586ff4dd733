"""What a tool returned, in the two forms that Scroll needs: plain values for the cell, and text for the log.

`plain` makes any common Python result JSON-like, plus bytes, dates and datetimes, which cross to a cell as they are:
dataclasses, structs and models become dicts; sets, tuples and iterators become lists; arrays become nested lists;
a data frame becomes a list of records (its index is dropped). Decimals, times and UUIDs become text. NaN stays NaN,
in the log too, where it is written as Python's json module writes it. Anything else is refused by name.
"""

import base64
import collections.abc as abc
import datetime as dt
import json
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import msgspec

OCTETS = "application/octet-stream"
INLINE_BYTES = 1024  # bytes inside a JSON result that stay in its text, as base64

_CROSSING = (bytes, bytearray, memoryview, dt.datetime, dt.date)
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
)


class Media:
    """Bytes that know what they are. A tool returns this to name the media type; a cell gets the bytes."""

    def __init__(self, data: bytes | bytearray | memoryview, media_type: str = "") -> None:
        self.data = bytes(data)
        self.media_type = media_type or sniff(self.data)


class Plain(msgspec.Struct, frozen=True):
    """A value that can cross to a cell; `types` has the media types of the bytes in it, by their identity."""

    value: Any
    types: dict[int, str]

    def media(self, data: bytes | bytearray | memoryview) -> Media:
        return Media(data, self.types.get(id(data), ""))


def plain(value: Any, *, str_keys: bool = False) -> Plain:
    """The JSON-like form of a value. Raises TypeError, or RecursionError for what contains itself."""
    types: dict[int, str] = {}

    def foreign(item: Any) -> Any:
        if isinstance(item, Media):
            types[id(item.data)] = item.media_type  # to_builtins passes the very same bytes on
            return item.data
        return _unwrap(item)

    return Plain(msgspec.to_builtins(value, builtin_types=_CROSSING, str_keys=str_keys, enc_hook=foreign), types)


def json_text(value: Any, keep: Callable[[bytes], Any], *, sort_keys: bool = False) -> str:
    """A plain value as JSON; `keep` says what stands in the place of bytes."""

    def foreign(item: Any) -> Any:
        return item.isoformat() if isinstance(item, dt.date) else keep(item)

    return json.dumps(value, ensure_ascii=False, default=foreign, sort_keys=sort_keys)


def inline(data: bytes) -> dict[str, str]:
    """Bytes in the midst of JSON."""
    return {"base64": base64.b64encode(data).decode()}


def sniff(data: bytes) -> str:
    """The media type of bytes whose maker did not say."""
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), OCTETS)


def _unwrap(item: Any) -> Any:
    """One step from a foreign object to plain values; msgspec comes back with what is foreign in the answer."""
    module = type(item).__module__.partition(".")[0]
    if hasattr(item, "model_dump"):
        return item.model_dump()
    if module == "pandas" and hasattr(item, "to_json"):
        return json.loads(item.to_json(orient="records", date_format="iso"))
    if module == "numpy" and hasattr(item, "tolist"):
        return item.tolist()
    if isinstance(item, PurePath):
        return str(item)
    if isinstance(item, dt.date):  # a subclass such as pandas.Timestamp
        return item.isoformat()
    if isinstance(item, str):
        return str(item)
    if isinstance(item, int):
        return int(item)
    if isinstance(item, float):
        return float(item)
    if isinstance(item, bytes):
        return bytes(item)
    if isinstance(item, abc.Mapping):
        return dict(item)
    if isinstance(item, abc.Iterator | abc.Sequence | abc.Set | abc.KeysView | abc.ValuesView | abc.ItemsView):
        return list(item)
    name = f"{type(item).__module__}.{type(item).__qualname__}"
    raise TypeError(
        f"a value of type {name} cannot be given to a cell: "
        "return text, numbers, bytes, dates, dataclasses, or lists and dicts of them"
    )
