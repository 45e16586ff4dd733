"""Edits of files, which assistants record as the arguments of a tool call, shown as diffs."""

import difflib
from typing import Any

import msgspec

_FILE = ("file_path", "filePath", "path", "filename")
_OLD = ("old_string", "oldString", "old_str", "old_text")
_NEW = ("new_string", "newString", "new_str", "new_text")
_PATCH = ("patch", "input", "patchText", "patch_text")
_PATCH_BEGINS = ("*** Begin Patch", "--- ", "diff --git ")


def edit_as_diff(call: str) -> str | None:
    """The edit that a tool call makes, as a diff; None if the call is not an edit."""
    try:
        arguments = msgspec.json.decode(call)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    patch = _text(arguments, _PATCH)
    if patch is not None and patch.startswith(_PATCH_BEGINS):
        return patch
    several = arguments.get("edits")
    lines: list[str] = []
    for edit in several if isinstance(several, list) else [arguments]:
        if isinstance(edit, dict):
            lines += _changes(edit)
    if not lines:
        return None
    name = _text(arguments, _FILE) or "file"
    return "\n".join([f"--- {name}", f"+++ {name}", *lines])


def _changes(edit: dict[str, Any]) -> list[str]:
    old = _text(edit, _OLD)
    new = _text(edit, _NEW)
    if old is None or new is None:
        return []
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="")
    # The first two lines name the files.
    return list(lines)[2:]


def _text(arguments: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
    return None
