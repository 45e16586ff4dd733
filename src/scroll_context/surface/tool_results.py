"""What a tool returned: a plain value for the cell, and events in the log.

`plain` makes any common Python result JSON-like, plus bytes, dates and datetimes, which cross to a cell as they are:
dataclasses, structs and models become dicts; sets, tuples and iterators become lists; arrays become nested lists;
a data frame becomes a list of records (its index is dropped). Decimals, times and UUIDs become text. NaN stays NaN,
in the log too, where it is written as Python's json module writes it. Anything else is refused by name.

`Recorder` writes the events of one call. The whole result is recorded: text as it is, anything else as JSON text,
bytes as a payload with their media type. Bytes in the midst of other values are events of their own, and the JSON
names their seqs, so that media never lie in the log as base64 text and every part of a result has an address. The
cell gets what the tool returned, as a value. A result over `CROSSING` does not fit into one message to the kernel,
which loads it from the store instead; it is then what its text in the log says (dates as text, bytes by their seqs).
A result over `MAX_RESULT` is refused: it is the only one that is not kept.
"""

import base64
import collections.abc as abc
import datetime as dt
import json
import logging
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import msgspec

from scroll_context.errors import ToolFailed
from scroll_context.events import Event, Kind
from scroll_context.kernel.protocol import portable
from scroll_context.store.journal import Journal
from scroll_context.store.payloads import TEXT
from scroll_context.store.rows import INLINE_LIMIT

logger = logging.getLogger("scroll_context.tools")

REFUSED_CHARS = 2_000  # of the arguments of a call that never started, and of what is said of it
CROSSING = 16 << 20  # bytes of JSON; as msgpack that is less than twice as much, and fits into a frame of the wire
MAX_RESULT = 256 << 20  # bytes
JSON = "application/json"
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


class ResultRef(msgspec.Struct, frozen=True):
    """Where a body is in the store, and what is known of it without loading it."""

    seq: int
    size: int
    media_type: str
    text: bool  # whether it reads as text (JSON included) or only as bytes
    preview: str


def ref_of(event: Event) -> ResultRef | None:
    """Where the body of an event is; None when its content is all there is."""
    body = event.payload
    return ResultRef(event.seq, body.size, body.media_type, body.is_text, event.content) if body else None


class Recorder:
    """Writes the events of one call. `call_seq` and `result_seq` are 0 until there is such an event."""

    def __init__(
        self,
        journal: Journal,
        *,
        name: str,
        arguments: str,
        tool_call_id: str,
        metadata: dict[str, Any],
    ) -> None:
        self._journal = journal
        self._arguments = arguments
        self._common: dict[str, Any] = {"name": name, "tool_call_id": tool_call_id, "metadata": metadata}
        self.call_seq = 0
        self.result_seq = 0

    def begin(self) -> None:
        """Record the call."""
        self.call_seq = self._append(Kind.TOOL_CALL, role="assistant", content=self._arguments).seq

    def fail(self, state: str, text: str) -> None:
        """Record that there is no result. Of a call that never began, only the beginning of its arguments is kept."""
        if not self.call_seq:
            if len(self._arguments) > REFUSED_CHARS:
                kept = {"characters": len(self._arguments), "beginning": self._arguments[:REFUSED_CHARS]}
                self._arguments = json_text(kept, inline)
            self.begin()
        self._end(state, text)

    def finish(self, result: Plain) -> tuple[Any, ResultRef | None]:
        """Record a result; returns the value for the cell, or a reference when it is too large to cross."""
        value = result.value
        if isinstance(value, bytes | bytearray | memoryview):
            return self._finish_bytes(result.media(value))
        if isinstance(value, str):
            return self._finish_text(value, value, TEXT, 0)
        media: list[Media] = []
        try:
            text = json_text(value, lambda data: self._part(result.media(data), media))
        except (TypeError, ValueError, RecursionError) as error:
            raise self._unusable(error) from error
        return self._finish_text(value, text, JSON, sum(len(part.data) for part in media))

    def _finish_bytes(self, media: Media) -> tuple[Any, ResultRef | None]:
        self._check_size(len(media.data))
        event = self._end("ok", _label(media), body=media.data, media_type=media.media_type)
        return (media.data, None) if len(media.data) <= CROSSING else (None, ref_of(event))

    def _finish_text(self, value: Any, text: str, media_type: str, beside: int) -> tuple[Any, ResultRef | None]:
        if not text.isascii() and (cleaned := text.encode("utf-8", "replace").decode()) != text:
            text = cleaned  # a lone surrogate: neither the log nor the wire can hold it
            value = text if media_type == TEXT else json.loads(text)
        size = len(text.encode())
        self._check_size(size + beside)
        apart = size + beside > CROSSING
        if not apart:
            try:
                portable(value)
            except (TypeError, ValueError) as error:
                raise self._unusable(error) from error
        # small text beside large media goes as a reference too, and needs a body to refer to
        event = self._end("ok", text, body=text if apart and size <= INLINE_LIMIT else None, media_type=media_type)
        return (None, ref_of(event)) if apart else (value, None)

    def _part(self, media: Media, seen: list[Media]) -> Any:
        """What the JSON says in the place of bytes."""
        if len(media.data) <= INLINE_BYTES:
            return inline(media.data)
        seen.append(media)
        self._check_size(sum(len(part.data) for part in seen))
        event = self._append(
            Kind.ARTIFACT, media.data, media.media_type, role="tool", content=_label(media), reply_to=self.call_seq
        )
        return {"artifact": event.seq, "media_type": media.media_type, "size": len(media.data)}

    def _end(self, state: str, content: str, body: bytes | str | None = None, media_type: str = TEXT) -> Event:
        event = self._append(
            Kind.TOOL_RESULT,
            body,
            media_type,
            role="tool",
            content=content,
            reply_to=self.call_seq,
            tool_state=state,
        )
        self.result_seq = event.seq
        return event

    def _append(self, kind: str, body: bytes | str | None = None, media_type: str = TEXT, **fields: Any) -> Event:
        draft = self._journal.draft(kind, **fields, **self._common)
        return self._journal.append(draft, body=body, media_type=media_type)

    def _check_size(self, size: int) -> None:
        if size > MAX_RESULT:
            raise ToolFailed(
                f"{self._common['name']} returned {size:,} bytes; at most {MAX_RESULT:,} are taken, and nothing of it "
                "was kept. Ask for less at a time.",
                kind="ValueError",
            )

    def _unusable(self, error: Exception) -> ToolFailed:
        return ToolFailed(f"{self._common['name']} returned something that cannot be used: {error}", kind="TypeError")


def _label(media: Media) -> str:
    return f"[{media.media_type}, {len(media.data):,} bytes]"
