"""The protocol of host and worker: frames of bytes, the values in them, and two closed sets
of messages.

A frame is a four-byte big-endian length, then that many bytes of msgpack, over one stream socket.
The reader treats what it reads as hostile: a length above the cap is refused before anything is
allocated, a frame is handed out only when complete, and no more than one frame is held at a time.
Large frames are received in place.

Values that cross between a cell and the host are JSON-like ones, bytes, dates and datetimes; and,
to a cell only, data frames and arrays that the host has pickled.
`portable` checks a value before it is sent and rewrites the few types that msgpack lacks; `revive`
is the decoder's hook for them. Everything else is refused on the sending side with a TypeError that
says what to pass instead. `count_items` bounds what a hostile frame can cost the host: one byte of
msgpack can become a container of more than sixty, and keys can be chosen so that all of them have
one hash; so the structure is counted before it is decoded.

`ToWorker` is what the host sends, `ToHost` is what it accepts. Every list and text that the host
accepts has a bound here, except the arguments of a call, which stay undecoded until `count_items`
has measured them, and the bytes of outputs and blobs, which the receiver counts. A message that
does not fit its schema ends the kernel.
"""

import datetime as dt
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from scroll_context.jail.spec import Enforcement, JailSpec
from scroll_context.kernel.results import CellError, Name, Text, Variable

MAX_FRAME = 32 << 20
"""The largest frame, in bytes, that a kernel and its host send or accept."""

_PREFIX = struct.Struct(">I")
_SMALL = 1 << 16

_encoder = msgspec.msgpack.Encoder()


class FrameTooLarge(ValueError):
    """A message that does not fit into one frame."""


def encode_frame(message: msgspec.Struct, limit: int = MAX_FRAME) -> bytearray:
    """`message` with its length prefix, ready to be sent."""
    buffer = bytearray(_PREFIX.size)
    _encoder.encode_into(message, buffer, _PREFIX.size)
    size = len(buffer) - _PREFIX.size
    if size > limit:
        raise FrameTooLarge(f"{size:,} bytes do not fit into one frame of at most {limit:,}")
    _PREFIX.pack_into(buffer, 0, size)
    return buffer


class FrameReader:
    """Assembles frames of at most `limit` bytes from a non-blocking stream socket."""

    def __init__(self, sock: socket.socket, limit: int = MAX_FRAME) -> None:
        self._sock = sock
        self._limit = limit
        self._buffer = bytearray(_SMALL)
        self._view = memoryview(self._buffer)
        # The start of the bytes that were received and not yet returned.
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._filled = 0

    def take(self) -> memoryview | bytearray | None:
        """The next complete frame of the received bytes, valid until the next call; None when there
        is none yet.

        Raises ValueError on a length above the cap.
        """
        large = self._large
        if large is not None:
            if self._filled < len(large):
                return None
            self._large = None
            return large
        held = self._end - self._start
        if held < _PREFIX.size:
            return None
        (size,) = _PREFIX.unpack_from(self._buffer, self._start)
        if size > self._limit:
            raise ValueError(
                f"a frame of {size:,} bytes was announced; at most {self._limit:,} are allowed"
            )
        begin = self._start + _PREFIX.size
        if held - _PREFIX.size >= size:
            self._start = begin + size
            return self._view[begin : self._start]
        if size + _PREFIX.size > _SMALL:
            self._large = bytearray(size)
            self._filled = held - _PREFIX.size
            self._large[: self._filled] = self._view[begin : self._end]
            self._start = self._end = 0
        return None

    def receive(self) -> None:
        """Take once from the socket, which does not block.

        Raises EOFError at the end of the stream, and OSError.
        """
        if self._large is not None:
            count = self._sock.recv_into(memoryview(self._large)[self._filled :])
            self._filled += count
        else:
            if self._start:
                held = self._end - self._start
                self._buffer[:held] = self._buffer[self._start : self._end]
                self._start, self._end = 0, held
            count = self._sock.recv_into(self._view[self._end :])
            self._end += count
        if count == 0:
            raise EOFError("the other side closed the connection")


# values -------------------------------------------------------------------------------------------

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


# messages -----------------------------------------------------------------------------------------

Reason = Annotated[str, Meta(max_length=64)]
"""A code of `results.REASONS`, and the exception after a colon."""
Names = Annotated[tuple[Name, ...], Meta(max_length=20_000)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True):
    """The common form: a msgpack array that starts with the name of the message."""


# The requests of the host.


class KernelSettings(msgspec.Struct, frozen=True):
    """The settings of a new worker, which it has before it enters the jail."""

    spec: JailSpec
    allow_unsandboxed: bool
    """Whether the host's environment permits tier `none`."""


class Prelude(msgspec.Struct, frozen=True):
    """Trusted source that runs inside the jail before the first cell, as the importable module
    `name`.

    It finds `call(capability, *args, **kwargs)` among its globals. Each of `exports` is bound in
    the namespace of the cells: an attribute of the module, or the module itself where the export is
    the module's own name.
    """

    name: str
    source: str
    exports: tuple[str, ...] = ()


class Prepare(WireMessage, frozen=True, tag="setup"):
    preludes: tuple[Prelude, ...]
    output_bytes: int


class Execute(WireMessage, frozen=True, tag="execute"):
    cell: int
    source: str


class Describe(WireMessage, frozen=True, tag="describe"):
    """Asks for the facts about every variable."""


class Save(WireMessage, frozen=True, tag="save"):
    full: bool
    # Send everything, because the host could not store the previous save.
    again: bool
    # A variable whose pickle is larger is reported as lost.
    blob_bytes: int


class Load(WireMessage, frozen=True, tag="load"):
    """A piece of a pickled value, or a module name; `last` binds the value to all `names`."""

    names: tuple[str, ...]
    piece: bytes
    last: bool
    module: str = ""


class CallReply(WireMessage, frozen=True, tag="reply"):
    id: int
    value: Any


class CallRefusal(WireMessage, frozen=True, tag="refusal"):
    """The answer to a call that failed: `kind` names a built-in exception if one fits."""

    id: int
    kind: str
    text: str


ToWorker = Prepare | Execute | Describe | Save | Load | CallReply | CallRefusal


# The messages of the worker.


class Ready(WireMessage, frozen=True, tag="ready"):
    enforcement: Enforcement
    python: Name


class Failed(WireMessage, frozen=True, tag="failed"):
    """The jail could not be built, or a prelude did not run: no cell will."""

    text: Text


class Prepared(WireMessage, frozen=True, tag="prepared"):
    """The answer to Prepare."""


class Printed(WireMessage, frozen=True, tag="printed"):
    data: bytes


class CallRequest(WireMessage, frozen=True, tag="call"):
    id: Annotated[int, Meta(ge=1, lt=1 << 53)]
    capability: Name
    # A list of the positional and the keyword arguments.
    arguments: msgspec.Raw
    is_late: bool = False
    """Whether the calling thread was started before the running cell."""
    line: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    """The line of the cell that made the call, for display; 0 for a call of a thread."""


class Done(WireMessage, frozen=True, tag="done"):
    """The end of a cell."""

    cell: int
    error: CellError | None
    bound: Names
    changed: Names
    deleted: Names
    read: Names
    # Host names that the model had overwritten and that were put back before this cell.
    rebound: Names


class Facts(WireMessage, frozen=True, tag="facts"):
    variables: Annotated[tuple[Variable, ...], Meta(max_length=20_000)]


class Blob(WireMessage, frozen=True, tag="blob"):
    """A piece of the pickle that is being saved; the next SavedValue names its variables."""

    piece: bytes


class SavedValue(WireMessage, frozen=True, tag="kept"):
    """One value that a save examined. Blobs before it have the pickle, if it `changed`."""

    names: Names
    label: Name
    changed: bool
    size: Annotated[int, Meta(ge=0)]
    # Set when the value is a module, which is saved by its name.
    module: Name
    # Why it cannot be saved; "" when it is saved.
    reason: Reason


class Saved(WireMessage, frozen=True, tag="saved"):
    """The end of a save."""

    # Every existing variable, in order.
    names: Names
    # Those that may have changed since they were sent.
    unchecked: Names


class Loaded(WireMessage, frozen=True, tag="loaded"):
    """The answer to a Load that is last."""

    label: Name
    # Why it could not be restored; "" when it was.
    reason: Reason


ToHost = (
    Ready
    | Failed
    | Prepared
    | Printed
    | CallRequest
    | Done
    | Facts
    | Blob
    | SavedValue
    | Saved
    | Loaded
)
