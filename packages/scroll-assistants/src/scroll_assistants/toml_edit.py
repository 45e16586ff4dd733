"""Put a table into a TOML file of another program, or take it out again, and leave the rest as it
is.

Where the outer table is written with headers, a header of ours at the end of the file is enough and
changes no other byte. A header cannot extend a table that is written inline (`mcp_servers = { …
}`): a program that reads such a file refuses to start. So every result is parsed before it is
returned, and where the simple edit does not hold, tomlkit edits the table in the form in which it
is written.
"""

import json
import re
import tomllib
from typing import Any

from scroll_context.errors import BadInput

Path = tuple[str, str]
"""The name of a table, and the name of a table in it."""


def value_at(text: str, path: Path) -> Any:
    """The value at a path; None when there is none."""
    outer = _parsed(text).get(path[0], {})
    if not isinstance(outer, dict):
        raise BadInput(f"{path[0]} is not a table")
    return outer.get(path[1])


def put(text: str, path: Path, table: dict[str, Any]) -> str:
    """The text with a table at a path, which must not be there yet."""
    if value_at(text, path) is not None:
        raise BadInput(f"{'.'.join(path)} is there already")
    expected = _parsed(text)
    expected.setdefault(path[0], {})[path[1]] = table
    appended = _with_header(text, path, table)
    if _is_one_of(appended, expected):
        return appended
    import tomlkit

    document = tomlkit.parse(text)
    document[path[0]][path[1]] = table
    return _verified(tomlkit.dumps(document), expected)


def remove(text: str, path: Path) -> str:
    """The text without the table at a path; as it was, if the table is not there."""
    if value_at(text, path) is None:
        return text
    expected = _parsed(text)
    del expected[path[0]][path[1]]
    # An outer table that has only headers of inner tables goes with the last of them.
    without_outer = {name: value for name, value in expected.items() if name != path[0] or value}
    cut = _header(path).sub("", text)
    if _is_one_of(cut, expected, without_outer):
        return cut
    import tomlkit

    document = tomlkit.parse(text)
    del document[path[0]][path[1]]
    return _verified(tomlkit.dumps(document), expected, without_outer)


def _with_header(text: str, path: Path, table: dict[str, Any]) -> str:
    """The text with the table behind it. JSON writes strings and lists as TOML does."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in table.items()]
    gap = "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{gap if text else ''}[{'.'.join(path)}]\n{''.join(lines)}"


def _header(path: Path) -> "re.Pattern[str]":
    """A table that begins with a header of its own, and the empty line before it."""
    return re.compile(rf"\n?^\[{re.escape('.'.join(path))}\]\n(?:(?!\[).*(?:\n|\Z))*", re.MULTILINE)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"it is not TOML ({error})") from error


def _is_one_of(text: str, *expected: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) in expected
    except tomllib.TOMLDecodeError:
        return False


def _verified(text: str, *expected: dict[str, Any]) -> str:
    if not _is_one_of(text, *expected):
        raise BadInput(
            "its tables are written in a form that cannot be edited safely; edit it by hand"
        )
    return text
