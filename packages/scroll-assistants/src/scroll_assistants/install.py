"""Connect coding assistants to a store: add an MCP server and hooks to their configuration files,
and remove them.

Each assistant has a table of entries (settings_entries.py). A file is changed by inserting these
entries and nothing else (json_edit.py). The previous content of a file and the hash of its new
content are kept in the user's state folder. So uninstalling restores the exact bytes if the file
was not edited since, and otherwise removes only our entries. Installing again first undoes the
installation in memory: it is idempotent, and changes options in place. installations.py reports
what is installed.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_assistants import json_edit, toml_edit
from scroll_assistants.kept_transcripts import SETTING
from scroll_assistants.settings_entries import (
    NAME,
    NOWHERE,
    Entry,
    SettingsScope,
    StoreLink,
    entries,
    is_ours,
    value_at,
)
from scroll_assistants.settings_files import read_settings, write_settings
from scroll_context.errors import BadInput
from scroll_context.files import state_folder


class Change(msgspec.Struct, frozen=True):
    """The present and the planned content of a file; None means that there is no file.

    `before` is the content without our entries.
    """

    file: Path
    old: str | None
    new: str | None
    before: str | None

    @property
    def diff(self) -> str:
        lines = difflib.unified_diff(
            (self.old or "").splitlines(keepends=True),
            (self.new or "").splitlines(keepends=True),
            "(no file)" if self.old is None else str(self.file),
            "(no file)" if self.new is None else str(self.file),
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def plan_install(
    assistant: str, scope: SettingsScope, project: Path, to: StoreLink
) -> list[Change]:
    """The changes that add our entries; none if all entries exist already."""
    ours = entries(assistant, scope, project, to)
    _check_places(ours, scope, project)
    changes = [_inserted(change, ours) for change in _undone(ours)]
    return [change for change in changes if change.new != change.old]


def plan_uninstall(assistant: str, scope: SettingsScope, project: Path) -> list[Change]:
    """The changes that remove our entries."""
    ours = entries(assistant, scope, project, msgspec.structs.replace(NOWHERE, keep_days=1))
    _check_places(ours, scope, project)
    return [change for change in _undone(ours) if change.new != change.old]


def _check_places(ours: list[Entry], scope: SettingsScope, project: Path) -> None:
    """Refuse a project file that is a link out of the project: the repository would choose which
    file is written.

    The user's own configuration may be linked, since some people keep it in a repository.
    """
    if scope != "project":
        return
    for file in {entry.file for entry in ours}:
        target = file.resolve()
        if file.is_relative_to(project) and not target.is_relative_to(project.resolve()):
            raise BadInput(
                f"{file} is a link to {target}, outside the project. Nothing was changed. "
                "Replace the link with a file, or install with --scope user."
            )


def apply(changes: list[Change]) -> None:
    """Write the files. Each is complete at any moment.

    The previous content of a file is kept until our entries are removed from it.
    """
    for change in changes:
        if read_settings(change.file) != change.old:
            raise BadInput(
                f"{change.file} has just been changed by another program; "
                "nothing was written, try again"
            )
        if change.new == change.before:
            write_settings(change.file, change.new)
            _record_of(change.file).unlink(missing_ok=True)
        else:
            assert change.new is not None
            record = {"file": str(change.file), "before": change.before, "after": _hash(change.new)}
            write_settings(_record_of(change.file), json.dumps(record), private=True)
            write_settings(change.file, change.new)


def _undone(ours: list[Entry]) -> Iterator[Change]:
    """Each file without our entries."""
    for file in dict.fromkeys(entry.file for entry in ours):
        here = [entry for entry in ours if entry.file == file]
        text = read_settings(file)
        before = None if text is None else _without_entries(file, text, here)
        yield Change(file, text, before, before)


def _without_entries(file: Path, text: str, here: list[Entry]) -> str | None:
    """The content of a file before we changed it; None if we created it.

    If the file was edited since, its content without our entries.
    """
    record = _recorded(file)
    if record is None:
        # The file was never changed by us, so single values are the user's.
        return _removed(text, here, "")
    before: str | None = record["before"]
    if record["after"] == _hash(text):
        return before
    if before is not None:
        return _removed(text, here, before)
    rest = _removed(text, here, "{}")
    return None if _is_bare(file, rest) else rest


def _removed(text: str, here: list[Entry], before: str) -> str:
    try:
        for entry in here:
            if entry.file.suffix == ".toml":
                if is_ours(value_at(text, entry)):
                    text = toml_edit.remove(text, (entry.path[0], entry.path[1]))
            elif isinstance(entry.value, dict):
                text = json_edit.remove(text, entry.path, is_ours, before)
            elif before and json_edit.value_at(before, entry.path) is None:
                text = json_edit.remove(text, entry.path, lambda value: bool(value), before)
    except BadInput as error:
        raise BadInput(
            f"{here[0].file} cannot be read: {error}. Fix it; nothing was changed."
        ) from error
    return text


def _is_bare(file: Path, text: str) -> bool:
    """Whether a file has no content, apart from the version of its format."""
    if not text.strip():
        return True
    return file.suffix == ".json" and json_edit.value_at(text, ()) in ({}, {"version": 1})


def _inserted(change: Change, ours: list[Entry]) -> Change:
    text = change.before
    here = [entry for entry in ours if entry.file == change.file]
    try:
        for entry in here:
            text = _with(text, entry)
        # The assistant must be able to read the file, so the text is parsed again before it is
        # written.
        if not all(_is_at_its_place(text or "", entry) for entry in here):
            raise BadInput("our entries cannot be inserted")
    except BadInput as error:
        raise BadInput(
            f"{change.file} cannot be changed: {error}. Fix it; nothing was changed."
        ) from error
    return msgspec.structs.replace(change, new=text)


def _is_at_its_place(text: str, entry: Entry) -> bool:
    value = value_at(text, entry)
    if entry.in_list:
        return isinstance(value, list) and entry.value in value
    return value == entry.value or not isinstance(entry.value, dict)


def _with(text: str | None, entry: Entry) -> str:
    present = value_at(text or "", entry)
    if present is not None and isinstance(entry.value, dict) and not entry.in_list:
        raise BadInput(f"it already has another server called {NAME!r}; rename that one first")
    if entry.file.suffix == ".toml":
        return toml_edit.put(text or "", (entry.path[0], entry.path[1]), entry.value)
    if not text or not text.strip():
        text = "{}\n"
    if entry.in_list:
        return json_edit.append(text, entry.path, entry.value)
    if present is not None and entry.path == (SETTING,):
        raise BadInput(f"it already has {SETTING}: {present}; change that number there")
    if present is not None:
        # The file already has a version number, which remains.
        return text
    return json_edit.put(text, entry.path, entry.value)


# records of earlier contents ----------------------------------------------------------------------


def _record_of(file: Path) -> Path:
    """The file with the previous content of a configuration file."""
    digest = hashlib.sha256(os.fsencode(file)).hexdigest()
    return Path(state_folder(), "installed", f"{digest[:32]}.json")


def _recorded(file: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(_record_of(file).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(record, dict) and {"before", "after"} <= set(record):
        return record
    return None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
