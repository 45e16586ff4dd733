"""Put a value into a JSON file of somebody else, or take it out again, and touch no other byte of it.

Assistants keep their settings in JSON that people also edit by hand, with an indentation, an order and sometimes
comments of their own. Parsing and writing such a file anew would change all of it. Here the text is scanned for where
its values stand, and one insertion or one cut is made. What is inserted and then removed leaves the text as it was.

A path is a sequence of names. Comments (// and /* */) and commas before a closing bracket are read over.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scroll_context.errors import BadInput

_SPACE = re.compile(r"(?:\s|//[^\n]*|/\*[\s\S]*?\*/)*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR = re.compile(r"[^\s,:\[\]{}\"/]+")


class _Item(msgspec.Struct):
    """A member of an object or an element of a list, and where it begins: a member begins with its name."""

    start: int
    name: str
    node: "_Node"


class _Node(msgspec.Struct):
    """A value in the text: where it begins and ends, and what it holds."""

    start: int
    end: int
    items: list[_Item] | None = None  # None: a scalar

    def member(self, name: str) -> _Item | None:
        return next((item for item in self.items or () if item.name == name), None)


def value_at(text: str, path: Sequence[str]) -> Any:
    """The value at a path; None when there is none."""
    item = _find(text, path)
    return None if item is None else _value(text, item.node)


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with a member at a path, which must not be there yet. Objects on the way are made."""
    node = _parse(text)
    for depth, name in enumerate(path):
        item = node.member(name)
        if item is None:
            for outer in reversed(path[depth + 1 :]):
                value = {outer: value}
            return _insert(text, node, name, value)
        node = item.node
        _require(text, node, "{", path[: depth + 1])
    raise BadInput(f"{'.'.join(path)} is there already")


def append(text: str, path: Sequence[str], value: Any) -> str:
    """The text with one more element at the end of the list at a path; the list is made if there is none."""
    item = _find(text, path)
    if item is None:
        return put(text, path, [value])
    _require(text, item.node, "[", path)
    return _insert(text, item.node, "", value)


def remove(text: str, path: Sequence[str], is_ours: Callable[[Any], bool], before: str = "") -> str:
    """The text without the value at a path, or, where a list is there, without the elements that are ours.

    An object or list that becomes empty by that goes too, unless it is in `before`, the text as it once was.
    """
    item = _find(text, path)
    if item is None:
        return text
    if text[item.node.start] == "[":
        for at in reversed(range(len(item.node.items or ()))):
            if item.node.items and is_ours(_value(text, item.node.items[at].node)):
                text = _cut(text, item.node, at)
                item = _find(text, path)
                assert item is not None
    elif is_ours(_value(text, item.node)):
        text, path = _without(text, path), path[:-1]
    while path and (item := _find(text, path)) is not None and item.node.items == [] and not _is_in(before, path):
        text, path = _without(text, path), path[:-1]
    return text


def _is_in(text: str, path: Sequence[str]) -> bool:
    try:
        return bool(text.strip()) and _find(text, path) is not None
    except BadInput:
        return False


# changing -----------------------------------------------------------------------------------------------


def _insert(text: str, node: _Node, name: str, value: Any) -> str:
    """One more item behind the last one of a container, laid out as the others are."""
    items = node.items or []
    line = text.rfind("\n", 0, items[-1].start if items else node.start) + 1
    indent = re.match(r"[ \t]*", text[line:])
    assert indent is not None
    unit = _unit(text)
    if items:
        is_own_line = line + len(indent[0]) == items[-1].start
        margin = indent[0] if is_own_line else ""
        at, before, after = items[-1].node.end, f",\n{margin}" if is_own_line else ", ", ""
    else:
        is_own_line = True
        margin = indent[0] + unit
        at, before, after = node.start + 1, f"\n{margin}", f"\n{indent[0]}"
        text = text[:at] + text[node.end - 1 :] if not text[at : node.end - 1].strip() else text
    written = json.dumps(value, ensure_ascii=False, indent=unit if is_own_line else None)
    label = f"{json.dumps(name, ensure_ascii=False)}: " if text[node.start] == "{" else ""
    return text[:at] + before + label + written.replace("\n", f"\n{margin}") + after + text[at:]


def _unit(text: str) -> str:
    """What one level of indentation is in a text."""
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found[1] if found else "  "


def _without(text: str, path: Sequence[str]) -> str:
    node = _parse(text)
    for name in path[:-1]:
        item = node.member(name)
        assert item is not None
        node = item.node
    names = [item.name for item in node.items or ()]
    return _cut(text, node, names.index(path[-1]))


def _cut(text: str, node: _Node, at: int) -> str:
    """The text without one item of a container, and without the comma that belonged to it."""
    items = node.items or []
    start, end = items[at].start, items[at].node.end
    if at:
        start = items[at - 1].node.end
    elif len(items) > 1:
        end = items[1].start
    elif not (text[node.start + 1 : start] + text[end : node.end - 1]).strip(" \t\r\n,"):
        start, end = node.start + 1, node.end - 1
    return text[:start] + text[end:]


# reading ------------------------------------------------------------------------------------------------


def _find(text: str, path: Sequence[str]) -> _Item | None:
    item = _Item(0, "", _parse(text))
    for name in path:
        found = item.node.member(name)
        if found is None:
            return None
        item = found
    return item


def _value(text: str, node: _Node) -> Any:
    if node.items is None:
        return json.loads(text[node.start : node.end])
    if text[node.start] == "{":
        return {item.name: _value(text, item.node) for item in node.items}
    return [_value(text, item.node) for item in node.items]


def _require(text: str, node: _Node, opening: str, path: Sequence[str]) -> None:
    if text[node.start] != opening:
        wanted = "an object" if opening == "{" else "a list"
        raise BadInput(f"{'.'.join(path)} is not {wanted}, as the assistant expects it")


def _parse(text: str) -> _Node:
    """The values of a text, which must be one object."""
    try:
        node = _read(text, _skip(text, 0))
        if _skip(text, node.end) != len(text) or text[node.start] != "{":
            raise BadInput("it is not one JSON object")
    except (IndexError, RecursionError, ValueError) as error:
        raise BadInput(f"it is not JSON ({error})") from error
    return node


def _read(text: str, at: int) -> _Node:
    if text[at] not in "{[":
        found = (_STRING if text[at] == '"' else _SCALAR).match(text, at)
        if found is None:
            raise ValueError(f"no value at character {at}")
        json.loads(found[0])
        return _Node(at, found.end())
    node = _Node(at, at, [])
    assert node.items is not None
    closing = "}" if text[at] == "{" else "]"
    at = _skip(text, at + 1)
    while text[at] != closing:
        start, name = at, ""
        if closing == "}":
            found = _STRING.match(text, at)
            if found is None:
                raise ValueError(f"no name at character {at}")
            name = json.loads(found[0])
            at = _skip(text, found.end())
            if text[at] != ":":
                raise ValueError(f"no colon at character {at}")
            at = _skip(text, at + 1)
        value = _read(text, at)
        node.items.append(_Item(start, name, value))
        at = _skip(text, value.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != closing:
            raise ValueError(f"no comma at character {at}")
    node.end = at + 1
    return node


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
