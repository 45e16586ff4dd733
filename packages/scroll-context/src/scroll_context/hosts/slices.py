"""JSON as slices of bytes: where each field of an object and each item of a list begins and ends.

A request body is edited without being encoded again: a part that changes is replaced, and all
other bytes stay as the client wrote them, with their spaces, escapes and order of keys. msgspec
finds the values and checks that they are JSON; their offsets follow from their lengths, since
between two values of a list there is only space and a comma.
"""

import re
from typing import Any, NamedTuple

import msgspec

_SPACE = re.compile(rb"[ \t\n\r]*")
_COMMA = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_NAME = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])

_CHUNK = 1 << 16

encode = msgspec.json.encode


class UnreadableBody(ValueError):
    """A request body that is not understood. It is sent on as it came."""


class Span(NamedTuple):
    """Where a value stands in the bytes around it."""

    start: int
    end: int

    def of(self, data: bytes) -> bytes:
        return data[self.start : self.end]


def decode(data: bytes) -> Any:
    """The value of a piece of JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableBody(f"not readable as JSON: {error}") from error


def field_spans(data: bytes) -> dict[str, Span]:
    """The fields of a JSON object, each with the span of its value."""
    try:
        values = _fields.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableBody(f"not a JSON object: {error}") from error
    spans = {}
    position = _after_space(data, 0) + 1
    for name, value in values.items():
        key = _NAME.match(data, position)
        if key is None or decode(key[1]) != name:
            raise UnreadableBody("a JSON object with a key that stands in it twice")
        spans[name] = Span(key.end(), key.end() + len(memoryview(value)))
        comma = _COMMA.match(data, spans[name].end)
        position = comma.end() if comma else spans[name].end
    if data[_after_space(data, position) : _after_space(data, position) + 1] != b"}":
        raise UnreadableBody("a JSON object with a key that stands in it twice")
    return spans


def item_spans(data: bytes, start: int = 0, end: int | None = None) -> list[Span]:
    """The items of the JSON list that stands between two offsets."""
    try:
        values = _items.decode(data[start:end])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableBody(f"not a JSON list: {error}") from error
    spans = []
    position = _after_space(data, start) + 1
    position = _after_space(data, position)
    for value in values:
        span = Span(position, position + len(memoryview(value)))
        spans.append(span)
        comma = _COMMA.match(data, span.end)
        if comma is not None:
            position = comma.end()
    return spans


def with_field(data: bytes, name: str, value: bytes) -> bytes:
    """A JSON object with another value of one field; a field that it lacks is added at its end."""
    spans = field_spans(data)
    span = spans.get(name)
    if span is not None:
        return data[: span.start] + value + data[span.end :]
    closing = data.rindex(b"}")
    comma = b"," if spans else b""
    return data[:closing] + comma + encode(name) + b":" + value + data[closing:]


def without_fields(data: bytes, names: set[str]) -> bytes:
    """A JSON object without some of its fields."""
    spans = field_spans(data)
    if not names & spans.keys():
        return data
    remaining = [
        encode(name) + b":" + span.of(data) for name, span in spans.items() if name not in names
    ]
    return b"{" + b",".join(remaining) + b"}"


def with_longer_text(data: bytes, text: str) -> bytes:
    """A JSON string with more text at its end."""
    return data[:-1] + encode(text)[1:]


def common_prefix(first: bytes, second: bytes) -> int:
    """How many bytes two byte strings share at their beginning."""
    shorter = min(len(first), len(second))
    start = 0
    while start < shorter and first[start : start + _CHUNK] == second[start : start + _CHUNK]:
        start += _CHUNK
    if start >= shorter:
        return shorter
    # The difference is in this chunk: halve it until it is found.
    low, high = start, min(start + _CHUNK, shorter)
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def after_comma(data: bytes, position: int) -> int:
    """Where the next item of a list begins, or its closing bracket."""
    comma = _COMMA.match(data, position)
    return comma.end() if comma else _after_space(data, position)


def _after_space(data: bytes, position: int) -> int:
    match = _SPACE.match(data, position)
    assert match is not None
    return match.end()
