"""Insert a value into another program's JSON file, or remove it, and change no other byte.

Assistants keep their settings in JSON that people also edit by hand, with an indentation, an order
and sometimes comments of their own. Parsing and rewriting such a file would change all of it. This
module locates the values in the text and makes one insertion or one cut. Inserting a value and
removing it again leaves the text as it was.

A path is a sequence of names. Comments (// and /* */) and commas before a closing bracket are
ignored: the search uses a copy of the text in which they are blank, so every value has the same
offset in both.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scroll_context.errors import BadInput
from scroll_context.importing.text_files import items

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*[\s\S]*?\*/")
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")

_decode = json.JSONDecoder().raw_decode


class _Item(NamedTuple):
    """A member of an object or an element of a list, with the offsets of its start, its value and
    its end.
    """

    name: str
    start: int
    value: int
    end: int


def value_at(text: str, path: Sequence[str]) -> Any:
    """The value at a path; None when there is none."""
    plain = _plain(text)
    at = _find(plain, path)
    if at is None:
        return None
    return _decode(plain, at)[0]


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with a new member at a path. Missing objects on the way are created."""
    plain = _plain(text)
    for depth in range(len(path)):
        outer = _find(plain, path[:depth])
        assert outer is not None
        _require(plain, outer, "{", path[:depth])
        if _find(plain, path[: depth + 1]) is None:
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            return _insert(text, outer, path[depth], value)
    raise BadInput(f"{'.'.join(path)} already exists")


def append(text: str, path: Sequence[str], value: Any) -> str:
    """The text with one more element at the end of the list at a path, created if needed."""
    plain = _plain(text)
    at = _find(plain, path)
    if at is None:
        return put(text, path, [value])
    _require(plain, at, "[", path)
    return _insert(text, at, "", value)


def remove(text: str, path: Sequence[str], is_ours: Callable[[Any], bool], before: str = "") -> str:
    """The text without the value at a path, or, if the value is a list, without our elements.

    An object or list that becomes empty is removed too, unless `before`, the text before our first
    change, has it.
    """
    plain = _plain(text)
    at = _find(plain, path)
    if at is None:
        return text
    value = _decode(plain, at)[0]
    if isinstance(value, list):
        for number in reversed(range(len(value))):
            if is_ours(value[number]):
                text = _cut(text, at, number)
    elif is_ours(value):
        text = _without(text, path)
        path = path[:-1]
    while path and value_at(text, path) in ({}, []) and not _is_in(before, path):
        text = _without(text, path)
        path = path[:-1]
    return text


def _is_in(text: str, path: Sequence[str]) -> bool:
    try:
        return bool(text.strip()) and _find(_plain(text), path) is not None
    except BadInput:
        return False


# changing -----------------------------------------------------------------------------------------


def _insert(text: str, container: int, name: str, value: Any) -> str:
    """The text with one more item at the end of a container, laid out like the others."""
    members = _items(_plain(text), container)
    # The indentation of the line of the last item, or of the container.
    neighbour = members[-1].start if members else container
    line = text.rfind("\n", 0, neighbour) + 1
    indent = _indent_at(text, line)
    # The first indented line of the file shows one level of indentation.
    level = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    step = level[1] if level else "  "
    if not members:
        margin = indent + step
        text = _without_blank(text, container)
        at = container + 1
        item = _written(text, container, name, value, step).replace("\n", f"\n{margin}")
        return f"{text[:at]}\n{margin}{item}\n{indent}{text[at:]}"
    at = members[-1].end
    if line + len(indent) == members[-1].start:
        item = _written(text, container, name, value, step).replace("\n", f"\n{indent}")
        return f"{text[:at]},\n{indent}{item}{text[at:]}"
    item = _written(text, container, name, value, None)
    return f"{text[:at]}, {item}{text[at:]}"


def _indent_at(text: str, line: int) -> str:
    """The white space at the start of a line."""
    match = re.match(r"[ \t]*", text[line:])
    assert match is not None
    return match[0]


def _without_blank(text: str, container: int) -> str:
    """The text without white space inside an empty container. Comments inside it remain."""
    start = container + 1
    end = _decode(_plain(text), container)[1] - 1
    if text[start:end].strip():
        return text
    return text[:start] + text[end:]


def _written(text: str, container: int, name: str, value: Any, indent: str | None) -> str:
    """An item as JSON, with its name if the container is an object."""
    body = json.dumps(value, ensure_ascii=False, indent=indent)
    if text[container] != "{":
        return body
    return f"{json.dumps(name, ensure_ascii=False)}: {body}"


def _without(text: str, path: Sequence[str]) -> str:
    plain = _plain(text)
    outer = _find(plain, path[:-1])
    assert outer is not None
    names = [item.name for item in _items(plain, outer)]
    return _cut(text, outer, names.index(path[-1]))


def _cut(text: str, container: int, number: int) -> str:
    """The text without one item of a container, and without the comma that belonged to the item."""
    plain = _plain(text)
    members = _items(plain, container)
    opening = container + 1
    closing = _decode(plain, container)[1] - 1
    start = members[number].start
    end = members[number].end
    if number:
        start = members[number - 1].end
    elif len(members) > 1:
        end = members[1].start
    elif not (text[opening:start] + text[end:closing]).strip(" \t\r\n,"):
        start = opening
        end = closing
    return text[:start] + text[end:]


# reading ------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """The text as JSON of the same length, without comments and trailing commas.

    Raises BadInput if it is not one object.
    """

    def blank(match: re.Match[str]) -> str:
        if match[0].startswith('"'):
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    plain = _COMMENT.sub(blank, text)
    plain = _LAST_COMMA.sub(blank, plain)
    try:
        if not isinstance(json.loads(plain), dict):
            raise BadInput("it is not one JSON object")
    except (ValueError, RecursionError) as error:
        raise BadInput(f"it is not JSON ({error})") from error
    return plain


def _find(plain: str, path: Sequence[str]) -> int | None:
    """Where the value at a path begins."""
    at = plain.index("{")
    for name in path:
        if plain[at] != "{":
            return None
        places = (value for member, _, value in items(plain, at) if member == name)
        place = next(places, None)
        if place is None:
            return None
        at = place
    return at


def _items(plain: str, container: int) -> list[_Item]:
    """The items of the object or list at an offset."""
    return [
        _Item(name, start, at, _decode(plain, at)[1]) for name, start, at in items(plain, container)
    ]


def _require(plain: str, at: int, opening: str, path: Sequence[str]) -> None:
    if plain[at] != opening:
        expected = "an object" if opening == "{" else "a list"
        raise BadInput(f"{'.'.join(path)} is not {expected}, which the assistant requires")
