"""Values that cross between a cell and the host. Worker and host.

They are JSON-like values, bytes, dates and datetimes; and, to a cell only, data frames and arrays
that the host has pickled. `portable` checks a value before it is sent and rewrites the few types
that msgpack lacks; `revive` is the decoder's hook for them. Everything else is refused on the
sending side with a TypeError that says what to pass instead. `count_items` bounds what a hostile
frame can cost the host: one byte of msgpack can become a container of more than sixty, and keys can
be chosen so that all of them have one hash; so the structure is counted before it is decoded.
"""

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

_encoder = msgspec.msgpack.Encoder()

MAX_ITEMS = 100_000
"""The most values, nested ones included, that one call may carry from a cell to the host."""

_DATETIME, _DATE, _BIG_INTEGER, _PICKLED = 1, 2, 3, 4
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_ATOMS: Final = frozenset({type(None), bool, float, str, bytes})
_ADVICE = "pass text, numbers, bytes, dates, or lists and dicts of them"


class Portable(msgspec.Struct, frozen=True):
    """A value that `portable` has checked already, and does not check again."""

    value: Any


class Pickled:
    """A data frame or an array on its way to a cell: pickled by the host, unpickled in the jail.

    `plain` is its JSON-like form, for the log and for a kernel that lacks the library; `shape`
    describes it and stays on the host. A host never
    accepts one of these: `revive` knows nothing of them. It is not a struct, because msgspec would
    take it apart.
    """

    __slots__ = ("data", "plain", "shape", "type")

    def __init__(self, type_name: str, data: bytes, plain: Any, shape: str = "") -> None:
        self.type = type_name
        self.data = data
        self.plain = plain
        self.shape = shape


def portable(value: Any) -> Any:
    """`value` itself when it can cross as it is, else a copy that can.

    Raises TypeError or ValueError.
    """
    try:
        return _portable(value)
    except RecursionError:
        raise ValueError(
            "the value is nested too deeply, or contains itself, and cannot be sent"
        ) from None


def explain(error: UnicodeEncodeError) -> ValueError:
    """A text for the sender of text that cannot be encoded."""
    return ValueError(
        f"the text contains a lone surrogate ({error.object[error.start]!a}), which is not valid "
        "Unicode; send text.encode('utf-8', 'replace').decode() instead"
    )


def _portable(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is int:
        return (
            value
            if _INT_MIN <= value <= _INT_MAX
            else msgspec.msgpack.Ext(_BIG_INTEGER, b"%d" % value)
        )
    if kind is list or kind is tuple:
        return _portable_items(value, enumerate(value), list)
    if kind is dict:
        for key in value:
            if type(key) is not str and type(key) is not int:
                raise TypeError(
                    f"a dict key of type {type(key).__name__} cannot be sent: use text or integers "
                    "as keys"
                )
        return _portable_items(value, value.items(), dict)
    if kind is dt.datetime:
        return msgspec.msgpack.Ext(_DATETIME, value.isoformat().encode())
    if kind is dt.date:
        return msgspec.msgpack.Ext(_DATE, value.isoformat().encode())
    if kind is Portable:
        return value.value
    if kind is Pickled:
        sent = [value.type, value.data, _portable(value.plain)]
        return msgspec.msgpack.Ext(_PICKLED, _encoder.encode(sent))
    return _portable_subclass(value, kind)


def _portable_items(
    value: Any, items: Iterable[tuple[Any, Any]], copy: Callable[[Any], Any]
) -> Any:
    """A container itself, unless one of its items must change; then a copy with the changed ones in
    place.
    """
    changed: Any = None
    for place, item in items:
        kind = type(item)
        if kind in _ATOMS or (kind is int and _INT_MIN <= item <= _INT_MAX):
            continue
        sent = _portable(item)
        if sent is not item:
            if changed is None:
                changed = copy(value)
            changed[place] = sent
    return value if changed is None else changed


def _portable_subclass(value: Any, kind: type) -> Any:
    """Subclasses of plain types travel as the plain type; anything else is refused by name."""
    for plain in (str, int, float, list, tuple, dict, bytes):
        if issubclass(kind, plain):
            return _portable(plain(value))
    if kind in (bytearray, memoryview):
        return bytes(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if kind in (set, frozenset):
        advice = "pass list(...) or sorted(...)"
    elif name.startswith("numpy."):
        advice = "pass .tolist() or .item()"
    elif name.startswith("pandas."):
        advice = "pass .to_dict('records') or .tolist()"
    else:
        advice = _ADVICE
    raise TypeError(f"a value of type {name} cannot be sent: {advice}")


def revive(code: int, data: memoryview) -> Any:
    """The decoder's hook for the types above. Raises ValueError on anything else."""
    text = bytes(data).decode("ascii")
    if code == _DATETIME:
        return dt.datetime.fromisoformat(text)
    if code == _DATE:
        return dt.date.fromisoformat(text)
    if code == _BIG_INTEGER:
        return int(text)
    raise ValueError(f"unknown extension type {code}")


def revive_in_jail(code: int, data: memoryview) -> Any:
    """Like `revive`, for the worker: it also accepts the host's pickles, and unpickles none yet."""
    if code != _PICKLED:
        return revive(code, data)
    return Pickled(*_pickled.decode(data))


_pickled = msgspec.msgpack.Decoder(tuple[str, bytes, Any], ext_hook=revive)


def _widths() -> tuple[list[int], list[int]]:
    """For each msgpack type byte: the bytes that follow directly, and the width of a length."""
    fixed, length = [0] * 256, [0] * 256
    # Short text.
    fixed[0xA0:0xC0] = range(32)
    # Numbers.
    fixed[0xCA:0xD4] = 4, 8, 1, 2, 4, 8, 1, 2, 4, 8
    # Extensions of fixed size.
    fixed[0xD4:0xD9] = 2, 3, 5, 9, 17
    # The count of a container, whose items follow as values of their own.
    fixed[0xDC:0xE0] = 2, 4, 2, 4
    # The type code of an extension.
    fixed[0xC7:0xCA] = 1, 1, 1
    # The length of bytes and extensions.
    length[0xC4:0xCA] = 1, 2, 4, 1, 2, 4
    # The length of text.
    length[0xD9:0xDC] = 1, 2, 4
    return fixed, length


_FIXED, _LENGTH = _widths()
_CONTAINERS = frozenset((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
_DICTS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
# Text, which each process hashes in its own way, and integers, of which at most a few have the same
# hash.
_KEYS = frozenset(
    (*range(0x80), *range(0xA0, 0xC0), *range(0xCC, 0xD4), 0xD9, 0xDA, 0xDB, *range(0xE0, 0x100))
)


def count_items(data: bytes | memoryview, limit: int = MAX_ITEMS) -> int:
    """How many values the msgpack in `data` holds; stops counting just above `limit`.

    Raises ValueError on a dict key that is neither text nor an integer.
    """
    count, position, end = 0, 0, len(data)
    # How many values the innermost container still has. A dict has keys and values in turn.
    left, in_dict = -1, False
    outer: list[tuple[int, bool]] = []
    while position < end and count <= limit:
        byte = data[position]
        if in_dict and left % 2 == 0 and byte not in _KEYS:
            raise ValueError("a dict key is neither text nor an integer")
        left -= 1
        count += 1
        if byte in _CONTAINERS:
            width = _FIXED[byte]
            size = byte & 0x0F
            if width:
                size = int.from_bytes(data[position + 1 : position + 1 + width], "big")
            outer.append((left, in_dict))
            left, in_dict = (2 * size, True) if byte in _DICTS else (size, False)
            position += 1 + width
        else:
            width = _LENGTH[byte]
            body = int.from_bytes(data[position + 1 : position + 1 + width], "big") if width else 0
            position += 1 + width + body + _FIXED[byte]
        while left == 0 and outer:
            left, in_dict = outer.pop()
    return count
