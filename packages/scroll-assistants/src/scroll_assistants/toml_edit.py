"""Insert a table into another program's TOML file, or remove it, and leave the rest as it is.

If the outer table is written with headers, appending a header to the file is enough and changes no
other byte. A header cannot extend an inline table (`mcp_servers = { … }`): a program that reads
such a file refuses to start. So every result is parsed before it is returned, and if the simple
edit is not valid, tomlkit edits the table in its own notation.
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
    """The text with a new table at a path."""
    if value_at(text, path) is not None:
        raise BadInput(f"{'.'.join(path)} already exists")
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
    """The text without the table at a path; unchanged if there is no such table."""
    if value_at(text, path) is None:
        return text
    expected = _parsed(text)
    del expected[path[0]][path[1]]
    # An outer table that consists of headers of inner tables vanishes with the last of them.
    without_outer = {name: value for name, value in expected.items() if name != path[0] or value}
    cut = _header(path).sub("", text)
    if _is_one_of(cut, expected, without_outer):
        return cut
    import tomlkit

    document = tomlkit.parse(text)
    del document[path[0]][path[1]]
    return _verified(tomlkit.dumps(document), expected, without_outer)


def _with_header(text: str, path: Path, table: dict[str, Any]) -> str:
    """The text followed by the table. JSON notation for strings and lists is valid in TOML."""
    lines = [f"[{'.'.join(path)}]\n"]
    for name, value in table.items():
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}\n")
    gap = ""
    if text:
        gap = "\n" if text.endswith("\n") else "\n\n"
    return text + gap + "".join(lines)


def _header(path: Path) -> "re.Pattern[str]":
    """Matches a table that has its own header, and the empty line before it."""
    name = re.escape(".".join(path))
    return re.compile(rf"\n?^\[{name}\]\n(?:(?!\[).*(?:\n|\Z))*", re.MULTILINE)


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
