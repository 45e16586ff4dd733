"""JSON of strangers: how many values a text holds, before any of them is built.

A value takes two bytes of text and sixty of memory: 58 kB of gzip held 60 MB of `[],[],…`, which
took 2.8 GB to parse. So values are counted first, and a text with too many is refused. Counting
costs little: commas and brackets are counted as they are, and only a text with many is read
closely, without those inside strings.
"""

import json
import re
from typing import Any

# Values of one line, or of one column of a database.
MOST_VALUES = 1_000_000
# Bytes per value of a document. A document with more than MOST_VALUES values needs at least this.
BYTES_A_VALUE = 16

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# Text up to and including the next comma or bracket outside of strings.
_VALUE = rf'[^"\[{{,]*+(?:{_STRING}[^"\[{{,]*+)*+[\[{{,]'
_ONE_VALUE = re.compile(_VALUE, re.DOTALL)
# A loop in Python over single values takes twelve times as long.
_BATCH = 1_000
_BATCH_OF_VALUES = re.compile(f"(?:{_VALUE}){{{_BATCH}}}+", re.DOTALL)


class TooManyValues(ValueError):
    """A JSON text holds more values than a message, or a list of messages, can have."""


def check_values(text: str, most: int = MOST_VALUES) -> None:
    """Raise TooManyValues for a JSON text of more than about so many values."""
    if sum(map(text.count, ",[{")) <= most:
        return
    count, end = 0, 0
    # Nothing matches behind a string without an end. The parser reports it and builds nothing from
    # there on.
    for values, pattern in ((_BATCH, _BATCH_OF_VALUES), (1, _ONE_VALUE)):
        while match := pattern.match(text, end):
            count, end = count + values, match.end()
            if count > most:
                raise TooManyValues(f"more than {most:,} values in one text; this is not a message")


def check_line(line: bytes) -> None:
    """The same for a line that is not decoded yet."""
    if sum(map(line.count, (b",", b"[", b"{"))) > MOST_VALUES:
        check_values(line.decode("utf-8", "replace"), MOST_VALUES)


def bounded_loads(text: str | bytes, most: int = MOST_VALUES) -> Any:
    """The value of a JSON text that holds at most about so many values."""
    if isinstance(text, bytes):
        text = text.decode()
    if not isinstance(text, str):
        raise TypeError(f"JSON is text, not {type(text).__name__}")
    check_values(text, most)
    return json.loads(text)


def most_in_document(text: str) -> int:
    """How many values a complete document may hold."""
    return max(MOST_VALUES, len(text) // BYTES_A_VALUE)
