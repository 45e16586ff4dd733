"""Put a value into a JSON file of another program, or take it out again, and touch no other byte of
it.

Assistants keep their settings in JSON that people also edit by hand, with an indentation, an order
and sometimes comments of their own. Parsing and writing such a file anew would change all of it.
Here the text is searched for where its values stand, and one insertion or one cut is made. What is
inserted and then removed leaves the text as it was.

A path is a sequence of names. Comments (// and /* */) and commas before a closing bracket are read
over: the search goes through a copy of the text in which they are blank, so that every value stands
at the same place in both.
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
    """A member of an object or an element of a list: where it begins, where its value does, and
    where both end.
    """

    name: str
    start: int
    value: int
    end: int


def value_at(text: str, path: Sequence[str]) -> Any:
    """The value at a path; None when there is none."""
    plain = _plain(text)
    at = _find(plain, path)
    return None if at is None else _decode(plain, at)[0]


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with a member at a path, which must not be there yet.

    Objects on the way are made.
    """
    plain = _plain(text)
    for depth in range(len(path)):
        outer = _find(plain, path[:depth])
        assert outer is not None
        _require(plain, outer, "{", path[:depth])
        if _find(plain, path[: depth + 1]) is None:
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            return _insert(text, outer, path[depth], value)
    raise BadInput(f"{'.'.join(path)} is there already")


def append(text: str, path: Sequence[str], value: Any) -> str:
    """The text with one more element at the end of the list at a path; the list is made if there is
    none.
    """
    plain = _plain(text)
    at = _find(plain, path)
    if at is None:
        return put(text, path, [value])
    _require(plain, at, "[", path)
    return _insert(text, at, "", value)


def remove(text: str, path: Sequence[str], is_ours: Callable[[Any], bool], before: str = "") -> str:
    """The text without the value at a path, or, where a list is there, without the elements that
    are ours.

    An object or list that becomes empty by that goes too, unless it is in `before`, the text as it
    once was.
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
        text, path = _without(text, path), path[:-1]
    while path and value_at(text, path) in ({}, []) and not _is_in(before, path):
        text, path = _without(text, path), path[:-1]
    return text


def _is_in(text: str, path: Sequence[str]) -> bool:
    try:
        return bool(text.strip()) and _find(_plain(text), path) is not None
    except BadInput:
        return False


# changing -----------------------------------------------------------------------------------------------


def _insert(text: str, container: int, name: str, value: Any) -> str:
    """One more item behind the last one of the container at a place, laid out as the others are."""
    plain = _plain(text)
    found, end = _items(plain, container), _decode(plain, container)[1]
    line = text.rfind("\n", 0, found[-1].start if found else container) + 1
    indent = re.match(r"[ \t]*", text[line:])
    unit = re.search(r"^([ \t]+)\S", text, re.MULTILINE)  # one level of indentation
    assert indent is not None
    step = unit[1] if unit else "  "
    if found:
        is_own_line = line + len(indent[0]) == found[-1].start
        margin = indent[0] if is_own_line else ""
        at, before, after = found[-1].end, f",\n{margin}" if is_own_line else ", ", ""
    else:
        is_own_line = True
        margin = indent[0] + step
        at, before, after = container + 1, f"\n{margin}", f"\n{indent[0]}"
        text = text[:at] + text[end - 1 :] if not text[at : end - 1].strip() else text
    written = json.dumps(value, ensure_ascii=False, indent=step if is_own_line else None)
    label = f"{json.dumps(name, ensure_ascii=False)}: " if text[container] == "{" else ""
    return text[:at] + before + label + written.replace("\n", f"\n{margin}") + after + text[at:]


def _without(text: str, path: Sequence[str]) -> str:
    plain = _plain(text)
    outer = _find(plain, path[:-1])
    assert outer is not None
    return _cut(text, outer, [item.name for item in _items(plain, outer)].index(path[-1]))


def _cut(text: str, container: int, number: int) -> str:
    """The text without one item of the container at a place, and without the comma that belonged to
    it.
    """
    plain = _plain(text)
    found, closing = _items(plain, container), _decode(plain, container)[1] - 1
    start, end = found[number].start, found[number].end
    if number:
        start = found[number - 1].end
    elif len(found) > 1:
        end = found[1].start
    elif not (text[container + 1 : start] + text[end:closing]).strip(" \t\r\n,"):
        start, end = container + 1, closing
    return text[:start] + text[end:]


# reading ------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """The text as JSON of the same length, without comments and last commas.

    It must be one object.
    """

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    plain = _LAST_COMMA.sub(blank, _COMMENT.sub(blank, text))
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
        members = items(plain, at) if plain[at] == "{" else ()
        found = next((value for member, _, value in members if member == name), None)
        if found is None:
            return None
        at = found
    return at


def _items(plain: str, container: int) -> list[_Item]:
    """What the object or list at a place holds."""
    return [
        _Item(name, start, at, _decode(plain, at)[1]) for name, start, at in items(plain, container)
    ]


def _require(plain: str, at: int, opening: str, path: Sequence[str]) -> None:
    if plain[at] != opening:
        wanted = "an object" if opening == "{" else "a list"
        raise BadInput(f"{'.'.join(path)} is not {wanted}, as the assistant expects it")
