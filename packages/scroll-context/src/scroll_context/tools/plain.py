"""Results of tools as plain values.

`plain` makes any common Python result JSON-like, plus bytes, dates and datetimes, which cross to a
cell as they are: dataclasses, structs and models become dicts; sets, tuples and iterators become
lists. Decimals, times and UUIDs become text. A data frame, a series and an array arrive in the cell
as such: this process pickles them, and the worker unpickles them inside the jail. In the log, and
in a kernel that lacks the library, a data frame is a list of records (its index is dropped) and an
array is nested lists. NaN stays NaN, in the log too, where it is written as Python's json module
writes it. Anything else is refused by name.
"""

import base64
import collections.abc as abc
import datetime as dt
import json
import pickle
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import msgspec

from scroll_context.kernel.values import Pickled
from scroll_context.messages import Media
from scroll_context.tools.shapes import table_shape

OCTETS = "application/octet-stream"
_CROSSING = (bytes, bytearray, memoryview, dt.datetime, dt.date, Pickled)
_TABLES = {"pandas": ("DataFrame", "Series"), "numpy": ("ndarray",)}
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
)


class MediaBytes:
    """Bytes that know what they are.

    A tool returns this to name the media type; a cell gets the bytes.
    """

    def __init__(self, data: bytes | bytearray | memoryview, media_type: str = "") -> None:
        self.data = bytes(data)
        self.media_type = media_type or sniff(self.data)


class Plain(msgspec.Struct, frozen=True):
    """A value that can cross to a cell.

    `types` has the media types of the bytes in it, by their identity; `pickled` are the data frames
    and arrays in it.
    """

    value: Any
    types: dict[int, str]
    pickled: tuple[Pickled, ...] = ()

    def media(self, data: bytes | bytearray | memoryview) -> Media:
        """Bytes of the value with their media type."""
        typed = MediaBytes(data, self.types.get(id(data), ""))
        return Media(media_type=typed.media_type, data=typed.data)


def plain(value: Any, *, str_keys: bool = False) -> Plain:
    """The JSON-like form of a value.

    Raises TypeError, or RecursionError for what contains itself.
    """
    types: dict[int, str] = {}
    pickled: list[Pickled] = []

    def foreign(item: Any) -> Any:
        if isinstance(item, MediaBytes):
            # to_builtins passes the very same bytes on.
            types[id(item.data)] = item.media_type
            return item.data
        table = _pickle_table(item)
        if table is not None:
            pickled.append(table)
            return table
        return _unwrap(item)

    built = msgspec.to_builtins(value, builtin_types=_CROSSING, str_keys=str_keys, enc_hook=foreign)
    return Plain(built, types, tuple(pickled))


def _pickle_table(item: Any) -> Pickled | None:
    """A data frame, a series or an array for a cell; None for anything else.

    An array of objects may hold anything, so it becomes lists.
    """
    kind = type(item)
    library = kind.__module__.partition(".")[0]
    if kind.__name__ not in _TABLES.get(library, ()):
        return None
    if library == "numpy" and item.dtype.hasobject:
        return None
    try:
        data = pickle.dumps(item, protocol=5)
    except Exception:  # noqa: BLE001 - a frame may hold objects of foreign code
        return None
    return Pickled(kind.__name__, data, plain(_unwrap(item)).value, table_shape(item))


def json_text(value: Any, keep: Callable[[bytes], Any], *, sort_keys: bool = False) -> str:
    """A plain value as JSON; `keep` says what stands in the place of bytes."""

    def foreign(item: Any) -> Any:
        if isinstance(item, Pickled):
            return item.plain
        return item.isoformat() if isinstance(item, dt.date) else keep(item)

    return json.dumps(value, ensure_ascii=False, default=foreign, sort_keys=sort_keys)


def inline(data: bytes) -> dict[str, str]:
    """Bytes inside JSON."""
    return {"base64": base64.b64encode(data).decode()}


def sniff(data: bytes) -> str:
    """The media type of bytes whose maker did not say."""
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), OCTETS)


def _unwrap(item: Any) -> Any:
    """One step from a foreign object to plain values; msgspec comes back with what is foreign in
    the answer.
    """
    module = type(item).__module__.partition(".")[0]
    if hasattr(item, "model_dump"):
        return item.model_dump()
    if module == "pandas" and hasattr(item, "to_json"):
        return json.loads(item.to_json(orient="records", date_format="iso"))
    if module == "numpy" and hasattr(item, "tolist"):
        return item.tolist()
    if isinstance(item, PurePath):
        return str(item)
    if isinstance(item, dt.date):
        # A subclass such as pandas.Timestamp.
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
    if isinstance(
        item, abc.Iterator | abc.Sequence | abc.Set | abc.KeysView | abc.ValuesView | abc.ItemsView
    ):
        return list(item)
    name = f"{type(item).__module__}.{type(item).__qualname__}"
    raise TypeError(
        f"a value of type {name} cannot be given to a cell: "
        "return text, numbers, bytes, dates, dataclasses, or lists and dicts of them"
    )
