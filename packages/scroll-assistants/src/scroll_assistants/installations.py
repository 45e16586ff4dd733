"""The assistants that are connected to a store, and whether their connections work.

This reads configuration files, the hook log and the times of captures. A store is opened only if
the user's own configuration names it: a file of a project may have come with a repository.
"""

import contextlib
import datetime as dt
import shlex
from pathlib import Path
from typing import Any

import msgspec

from scroll_assistants.hooks import ASSISTANTS, last_capture, log_file
from scroll_assistants.kept_transcripts import deleted_sessions
from scroll_assistants.settings_entries import (
    NOWHERE,
    SCOPES,
    Entry,
    SettingsScope,
    entries,
    is_ours,
    value_at,
)
from scroll_assistants.settings_files import read_settings
from scroll_context.errors import BadInput, ScrollError
from scroll_context.log.address import printable_place
from scroll_context.store import open_log


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """Our entries in an assistant's files of one scope, and whether they work."""

    assistant: str
    # "" if nothing is installed.
    scope: str = ""
    # The files with entries of ours.
    files: tuple[str, ...] = ()
    store: str = ""
    # The time when a hook of this assistant last recorded something. An import does not count.
    captured: str = ""
    # The recorded sessions whose transcripts the assistant has deleted.
    deleted: int = 0
    # Sentences about what is missing, each with its remedy.
    missing: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.assistant

    @property
    def state(self) -> str:
        if not self.scope:
            return "on this machine, not connected" if self.missing else "not on this machine"
        place = printable_place(self.store)
        if self.scope == "project":
            return (
                f"connected (project) to {place}, which a file of this project names, "
                "so it was not opened"
            )
        when = f"last captured {self.captured[:19]}" if self.captured else "nothing captured yet"
        text = f"connected ({self.scope}) to {place}, {when}"
        if not self.deleted:
            return text
        sessions = "1 session" if self.deleted == 1 else f"{self.deleted:,} sessions"
        return f"{text}; {sessions} recorded here that it has deleted"


def examine_assistants(project: Path) -> list[Installed]:
    """The connections of each assistant, or an item that says that it has none."""
    installations: list[Installed] = []
    for assistant in ASSISTANTS:
        # If the home folder is the project, both scopes have the same files; the user's counts.
        connected: dict[tuple[str, ...], Installed] = {}
        for scope in SCOPES:
            installation = _installed(assistant, scope, project)
            if installation is not None:
                connected.setdefault(installation.files, installation)
        if connected:
            # The project's entries come first.
            installations += reversed(connected.values())
            continue
        home = entries(assistant, "user", project, NOWHERE)[-1].file.parent
        remedy = (f"its entries: `scroll install {assistant}`",) if home.is_dir() else ()
        installations.append(Installed(assistant=assistant, missing=remedy))
    return installations


def _installed(assistant: str, scope: SettingsScope, project: Path) -> Installed | None:
    """Our entries in an assistant's files of one scope; None when there are none."""
    values = [(entry, _ours_at(entry)) for entry in entries(assistant, scope, project, NOWHERE)]
    present = [(entry, value) for entry, value in values if isinstance(value, dict)]
    if not present:
        return None
    server = next((value for entry, value in present if not entry.in_list), {})
    call = next((str(_command_of(value)) for entry, value in present if entry.in_list), "")
    words = _words(call)
    store = _word_after("--store", server.get("args") or words)
    missing = [
        f"{'.'.join(entry.path)} in {entry.file}: `scroll install {assistant}`"
        for entry, value in values
        if value is None
    ]
    program = str(server.get("command") or (words or [""])[0])
    if not Path(program).exists():
        missing.append(f"the program {program}: `scroll install {assistant}` updates the path")
    captured = _last_capture(assistant, store)
    deleted = 0
    # A file of the project may have come with a repository: the store that it names is printed and
    # never opened.
    if scope == "user":
        try:
            with contextlib.closing(open_log(store)) as log:
                if assistant == "claude-code":
                    deleted = deleted_sessions(log)
        except ScrollError as error:
            missing.append(str(error))
    fault = _last_fault(captured)
    if fault:
        missing.append(f"the last hook failed: {fault} ({log_file()})")
    files = tuple(dict.fromkeys(str(entry.file) for entry, _ in present))
    return Installed(
        assistant=assistant,
        scope=scope,
        files=files,
        store=store,
        captured=captured,
        deleted=deleted,
        missing=tuple(missing),
    )


def connected_scopes(assistant: str, project: Path) -> list[SettingsScope]:
    """The scopes whose files contain entries of ours. No store is opened."""
    scopes: list[SettingsScope] = []
    for scope in SCOPES:
        values = map(_ours_at, entries(assistant, scope, project, NOWHERE))
        if any(isinstance(value, dict) for value in values):
            scopes.append(scope)
    return scopes


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        # A quotation that does not end: we do not write such commands.
        return []


def _command_of(value: dict[str, Any]) -> Any:
    hooks = value.get("hooks")
    return value.get("command") if not hooks else hooks[0].get("command")


def _word_after(option: str, words: list[str]) -> str:
    return str(words[words.index(option) + 1]) if option in words[:-1] else ""


def _last_capture(assistant: str, store: str) -> str:
    try:
        seconds = Path(last_capture(assistant, store)).stat().st_mtime
    except OSError:
        return ""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()


def _last_fault(since: str) -> str:
    """The last line of the hook log, if it is newer than the last capture."""
    try:
        line = Path(log_file()).read_text("utf-8", "replace").splitlines()[-1]
    except (OSError, IndexError):
        return ""
    return line if line[:19] > since[:19] else ""


def _ours_at(entry: Entry) -> Any:
    """Our value at the place of an entry; None if there is none, or another program's."""
    try:
        value = value_at(read_settings(entry.file) or "", entry)
    except (BadInput, OSError):
        return None
    if entry.in_list:
        elements = value if isinstance(value, list) else []
        return next(filter(is_ours, elements), None)
    if isinstance(entry.value, dict) and not is_ours(value):
        return None
    return value
