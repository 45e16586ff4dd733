"""Results of tools as plain values, and the shapes of those.

`plain` makes any common Python result JSON-like, plus bytes, dates and datetimes, which cross to a
cell as they are: dataclasses, structs and models become dicts; sets, tuples and iterators become
lists. Decimals, times and UUIDs become text. A data frame, a series and an array arrive in the cell
as such: this process pickles them, and the worker unpickles them inside the jail. In the log, and
in a kernel that lacks the library, a data frame is a list of records (its index is dropped) and an
array is nested lists. NaN stays NaN, in the log too, where it is written as Python's json module
writes it. Anything else is refused by name.

The shape of a value is what a model must know before it writes a loop over it: keys, types and
lengths. The first result of each type that a tool returns is described. The description is recorded
with the result, so a resumed session knows it, and an erasure of the result removes it. `help(f)`
shows it in the kernel. The listing stands with the variables at the end of a request and not in the
system prompt: it grows with the work, and a change at the beginning of a request would make
everything behind it expensive again.
"""

import base64
import collections.abc as abc
import datetime as dt
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec

from scroll_context.events import Kind
from scroll_context.kernel.values import Pickled
from scroll_context.log.journal import Journal
from scroll_context.messages import Media
from scroll_context.text.printable import printable
from scroll_context.text.words import clip

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


# shapes -------------------------------------------------------------------------------------------

SHAPE_CHARS = 600
LINE_CHARS = 160
LISTING_CHARS = 1_000
KEYS = 12
KEY_CHARS = 40
DEPTH = 3
HEADING = "(shapes of tool results so far; help(f) has the complete text)"


def shape_text(value: Any) -> str:
    """The type, length and keys of a plain value, and those of its first items."""
    return clip(_shape(value, 0), SHAPE_CHARS)


def table_shape(table: Any) -> str:
    """The shape of a data frame, a series or an array."""
    columns = [printable(str(column)[:KEY_CHARS]) for column in getattr(table, "columns", ())]
    more = f" with columns {', '.join(columns[:KEYS])}" if columns else f" of {table.dtype}"
    return f"{type(table).__name__} of shape {table.shape}{more}"


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, Pickled):
        return value.shape or value.type
    kind = type(value).__name__
    if isinstance(value, str | bytes):
        return f"{kind} of length {len(value):,}"
    if isinstance(value, dict) and value and depth < DEPTH:
        fields = [
            f"{str(key)[:KEY_CHARS]!r}: {_shape(item, depth + 1)}"
            for key, item in list(value.items())[:KEYS]
        ]
        more = ", …" if len(value) > KEYS else ""
        return f"{kind} {{{', '.join(fields)}{more}}}"
    if isinstance(value, list | tuple) and value and depth < DEPTH:
        return f"{kind} of {len(value):,}: {_shape(value[0], depth + 1)}"
    if isinstance(value, dict | list | tuple):
        return f"{kind} of {len(value):,}"
    return kind


class _Observed(NamedTuple):
    """A shape, and the event of the first result that has it."""

    seq: int
    text: str


class ObservedShapes:
    """The first shape of each type that each tool of a session returned."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._erasure = -1
        # By the tool's name and the type of the result.
        self._shapes: dict[tuple[str, str], _Observed] = {}

    def facts(self, name: str, shape: str) -> dict[str, str]:
        """The metadata of a result: its shape, if it is the first of its type."""
        with self._lock:
            self._refresh()
            return {} if _key(name, shape) in self._shapes else {"shape": shape}

    def add(self, name: str, shape: str, seq: int) -> None:
        """Remember the shape of a recorded result."""
        with self._lock:
            self._shapes.setdefault(_key(name, shape), _Observed(seq, shape))

    def of(self, name: str) -> tuple[str, ...]:
        """The shapes that the results of a tool had."""
        with self._lock:
            self._refresh()
            return tuple(shape.text for (tool, _), shape in self._shapes.items() if tool == name)

    def listing(self) -> tuple[str, tuple[int, ...]]:
        """One line for each tool and type, the newest if there are many, and the seqs behind it."""
        with self._lock:
            self._refresh()
            observed = sorted(
                (shape.seq, f"{name}: {clip(shape.text, LINE_CHARS)}")
                for (name, _), shape in self._shapes.items()
            )
        room = LISTING_CHARS - len(HEADING)
        lines: list[str] = []
        seqs: list[int] = []
        for seq, line in reversed(observed):
            room -= len(line) + 1
            if room < 0:
                break
            lines.insert(0, line)
            seqs.insert(0, seq)
        return ("\n".join((HEADING, *lines)), tuple(seqs)) if lines else ("", ())

    def _refresh(self) -> None:
        """Read the shapes from the log: when they are first needed, and after an erasure."""
        erasure = self._journal.log.newest_erasure()
        if erasure == self._erasure:
            return
        self._erasure = erasure
        rows = self._journal.log.query(
            """SELECT seq FROM event WHERE session_id = ? AND kind = ? AND source_key IS NULL
            AND metadata LIKE '%"shape"%' ORDER BY seq""",
            [self._journal.session_id, str(Kind.TOOL_RESULT)],
        )
        self._shapes = {}
        for event in self._journal.log.get_many([seq for (seq,) in rows]):
            shape = event.metadata.get("shape")
            if isinstance(shape, str) and not (event.is_erased or event.is_foreign):
                self._shapes.setdefault(_key(event.name, shape), _Observed(event.seq, shape))


def _key(name: str, shape: str) -> tuple[str, str]:
    return name, shape.partition(" ")[0]
