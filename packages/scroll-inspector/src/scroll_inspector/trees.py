"""JSON as a tree that folds, however large it is.

A page gets the upper part of a tree. Lists, objects and strings that are large stay closed, and
their content is loaded when a reader opens them: each has an address that names its place in the
value. A place is a row of numbers, the positions of the items that lead to it, so no key of a
stranger becomes part of an address. A list of many items is divided into ranges.
"""

import itertools
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from markupsafe import Markup

from scroll_context.text.json_bounds import bounded_loads
from scroll_context.text.printable import visible

LONGEST = 16 << 20
"""Characters of JSON that are shown as a tree."""
LONGEST_CACHED = 20_000
MOST_NODES = 5_000
"""Values of a tree that is shown completely, where nothing can be loaded later."""
SMALL = 30
"""A list or object with at most so many values in it is part of the page."""
RANGE = 100
"""Items of a list or object that are shown together."""
LONG_STRING = 2_000
OPEN_ITEMS = 6
"""A list or object of at most so many items is open at first."""

_PLACE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,1000}")


class Place(NamedTuple):
    """A part of a value: the positions that lead to it, and a range of its items."""

    steps: tuple[int, ...] = ()
    first: int = 0
    last: int | None = None

    @staticmethod
    def of(path: str, first: int, last: int) -> "Place":
        """The place that an address names; LookupError for one that is not ours."""
        if path and not _PLACE.fullmatch(path):
            raise LookupError(path)
        steps = tuple(map(int, path.split("."))) if path else ()
        return Place(steps, max(first, 0), last or None)

    def query(self) -> str:
        """The place as the end of an address."""
        query = "?path=" + ".".join(map(str, self.steps))
        return query if self.last is None else f"{query}&from={self.first}&to={self.last}"

    def item(self, position: int) -> "Place":
        return Place((*self.steps, position))


def json_value(text: str) -> dict[str, Any] | list[Any] | None:
    """The list or object in a text; None for a text that is something else, or too large."""
    if len(text) > LONGEST or not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = bounded_loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def text_tree(text: str, address: str = "") -> Markup | None:
    """A text as a tree; None if it is not JSON.

    `address` gives the parts that are not shown at first. Without one everything is shown, and a
    large text is None.
    """
    if len(text) <= LONGEST_CACHED:
        return cached_tree(text, address)
    return _text_tree(text, address)


def _text_tree(text: str, address: str) -> Markup | None:
    value = json_value(text)
    return None if value is None else tree(value, address)


cached_tree = lru_cache(maxsize=1024)(_text_tree)
"""The trees of texts that are not long, kept for the next load of their page."""


def tree(value: Any, address: str) -> Markup | None:
    """A value as a tree."""
    if not address and _is_larger(value, MOST_NODES):
        return None
    try:
        return Markup("").join(_Tree(address).branch(value, Place(), depth=0))
    except RecursionError:
        return None


def part_of(value: Any, place: Place, address: str) -> Markup:
    """The content of one part of a tree; LookupError if the value has no such part."""
    for position in place.steps:
        value = _item(value, position)
    if isinstance(value, str):
        return Markup('<pre class="text" tabindex="0">{}</pre>').format(visible(value))
    if not isinstance(value, dict | list):
        raise LookupError(place)
    return Markup("").join(_Tree(address).items(value, place, depth=1))


def _item(value: Any, position: int) -> Any:
    if isinstance(value, dict):
        values = list(itertools.islice(value.values(), position, position + 1))
        return values[0]
    if isinstance(value, list):
        return value[position]
    raise LookupError(position)


def _is_larger(value: Any, most: int) -> bool:
    """Whether more than `most` values are in a value. It stops counting there."""
    waiting = [value]
    count = 0
    while waiting:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict | list):
            if count + len(waiting) + len(value) > most:
                return True
            waiting += value.values() if isinstance(value, dict) else value
    return False


class _Tree:
    """Writes the HTML of a tree whose closed parts come from an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def branch(self, value: Any, place: Place, depth: int) -> Iterator[Markup]:
        """A value with everything in it that is shown at first."""
        if isinstance(value, str) and len(value) > LONG_STRING and self._address:
            beginning = json.dumps(value[:100], ensure_ascii=False)[:-1]
            yield self._closed(f"{beginning}…", f"{len(value):,} characters", place)
            return
        if not isinstance(value, dict | list) or not value:
            kind = "string" if isinstance(value, str) else "value"
            text = visible(json.dumps(value, ensure_ascii=False, default=str))
            yield Markup('<span class="json-{}">{}</span>').format(kind, text)
            return
        brackets = "{}" if isinstance(value, dict) else "[]"
        if depth and self._address and _is_larger(value, SMALL):
            yield self._closed(brackets, _items(len(value)), place)
            return
        is_open = depth == 0 or (len(value) <= OPEN_ITEMS and depth < 3)
        yield Markup("<details{}><summary>{} <small>{}</small></summary>").format(
            " open" if is_open else "", brackets, _items(len(value))
        )
        yield from self.items(value, place, depth + 1)
        yield Markup("</details>")

    def items(
        self, value: dict[str, Any] | list[Any], place: Place, depth: int
    ) -> Iterator[Markup]:
        """The items of a list or object, or ranges of them."""
        last = len(value) if place.last is None else min(place.last, len(value))
        yield Markup("<ul>")
        if last - place.first > RANGE and self._address:
            yield from self._ranges(place, last)
        else:
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            shown = itertools.islice(pairs, place.first, last)
            for position, (key, item) in enumerate(shown, place.first):
                yield Markup('<li><span class="json-key">{}</span> ').format(visible(str(key)))
                yield from self.branch(item, place.item(position), depth)
                yield Markup("</li>")
        yield Markup("</ul>")

    def _ranges(self, place: Place, last: int) -> Iterator[Markup]:
        width = RANGE
        while (last - place.first) > width * RANGE:
            width *= RANGE
        for first in range(place.first, last, width):
            end = min(first + width, last)
            part = Place(place.steps, first, end)
            label = f"{first:,} to {end - 1:,}"
            yield Markup("<li>{}</li>").format(self._closed(label, "", part))

    def _closed(self, label: str, extent: str, place: Place) -> Markup:
        """A part that is loaded when it is opened."""
        url = self._address + place.query()
        return Markup(
            '<details data-fill="{}"><summary>{} <small>{}</small></summary>'
            '<p class="more"><a href="{}">Open</a></p></details>'
        ).format(url, visible(label), extent, url)


def _items(count: int) -> str:
    return f"{count:,} {'item' if count == 1 else 'items'}"
