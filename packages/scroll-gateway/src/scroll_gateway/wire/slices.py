"""JSON as slices of bytes: where each field of an object and each item of a list begins and ends.

A request body is edited without being encoded again: a part that changes is replaced, and all
other bytes stay as the client wrote them, with their spaces, escapes and order of keys. msgspec
finds the values and checks that they are JSON; their offsets follow from their lengths, since
between two values of a list there is only space and a comma.

JavaScript cuts texts in the middle of an emoji and writes the half as an escape, which msgspec
refuses. It is read as U+FFFD, whose escape is as long, so the offsets hold for the client's bytes.
"""

import re
from typing import Any, NamedTuple, TypeVar

import msgspec

_SPACE = re.compile(rb"[ \t\n\r]*")
_COMMA = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_NAME = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in a JSON string: a surrogate pair, half of one, or any other."""

_T = TypeVar("_T")

_values = msgspec.json.Decoder()
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])

_CHUNK = 1 << 16

encode = msgspec.json.encode


class UnreadableBody(ValueError):
    """A request body that is not understood. It is sent on as it came."""


class KeptByProvider(UnreadableBody):
    """A request body whose list is not complete, because the provider keeps the conversation."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the provider keeps this conversation ({field})")
        # The field that says so.
        self.field = field


class Span(NamedTuple):
    """Where a value stands in the bytes around it."""

    start: int
    end: int

    def of(self, data: bytes) -> bytes:
        return data[self.start : self.end]


def decode(data: bytes) -> Any:
    """The value of a piece of JSON."""
    return _decoded(_values, data)


def _decoded(decoder: "msgspec.json.Decoder[_T]", data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        return _decoded_without_halves(decoder, data)
    except RecursionError as error:
        raise UnreadableBody("JSON that is nested too deeply") from error


def _decoded_without_halves(decoder: "msgspec.json.Decoder[_T]", data: bytes) -> _T:
    try:
        return decoder.decode(_ESCAPE.sub(_no_half, data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableBody(f"not the JSON that was expected: {error}") from error


def _no_half(escape: "re.Match[bytes]") -> bytes:
    return rb"\ufffd" if escape["half"] else escape[0]


def field_spans(data: bytes) -> dict[str, Span]:
    """The fields of a JSON object, each with the span of its value."""
    values = _decoded(_fields, data)
    spans = {}
    position = _after_space(data, 0) + 1
    for name, value in values.items():
        key = _NAME.match(data, position)
        if key is None or decode(key[1]) != name:
            raise UnreadableBody("a JSON object with a repeated key")
        spans[name] = Span(key.end(), key.end() + len(memoryview(value)))
        comma = _COMMA.match(data, spans[name].end)
        position = comma.end() if comma else spans[name].end
    if data[_after_space(data, position) : _after_space(data, position) + 1] != b"}":
        raise UnreadableBody("a JSON object with a repeated key")
    return spans


def item_spans(data: bytes, start: int = 0, end: int | None = None) -> list[Span]:
    """The items of the JSON list that stands between two offsets."""
    values = _decoded(_items, data[start:end])
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
    # `startswith` compares without copying, and the view cuts without copying.
    view = memoryview(first)[: len(second)]
    if second.startswith(view):
        return len(view)
    # The difference is in one of these chunks: halve it until it is found.
    low = 0
    while second.startswith(view[low : low + _CHUNK], low):
        low += _CHUNK
    high = min(low + _CHUNK, len(view))
    while low < high:
        middle = (low + high + 1) // 2
        if second.startswith(view[low:middle], low):
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
