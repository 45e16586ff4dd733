"""Connect coding assistants to a store: add an MCP server and hooks to their configuration files,
and remove them.

Each assistant is a table of entries: a file, a place in it, and a value. A file is changed by
inserting these entries and nothing else (json_edit.py). The previous content of a file and the hash
of its new content are kept in the user's state folder. So uninstalling restores the exact bytes if
the file was not edited since, and otherwise removes only our entries. Installing again first undoes
the installation in memory: it is idempotent, and changes options in place.

The folders are those of the assistants on Linux, macOS and Windows, which are the same below the
user's home. Entries contain absolute paths of this machine, so in a project they go to files that
are not shared, if the assistant has such files.
"""

import contextlib
import datetime as dt
import difflib
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from scroll_assistants import json_edit, toml_edit
from scroll_assistants.hooks import ASSISTANTS, TOKENS, last_capture, log_file
from scroll_assistants.kept_transcripts import SETTING, claude_folder, deleted_sessions
from scroll_context.errors import BadInput, ScrollError
from scroll_context.files import complete_file
from scroll_context.folders import state_folder
from scroll_context.log.address import printable_place
from scroll_context.store import open_log
from scroll_context.system import READ_FILE

SettingsScope = Literal["user", "project"]
SCOPES: tuple[SettingsScope, ...] = ("user", "project")
# The name of our MCP server in every configuration.
NAME = "scroll"
# An assistant gives up on a hook after this time.
HOOK_SECONDS = 10

_OUR_HOOK = re.compile(rf"\bhook ({'|'.join(ASSISTANTS)})\b.* --store\b")
_CLAUDE_EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "Stop",
    "SubagentStop",
    "PreCompact",
    "SessionEnd",
)
# The tools that change files or run commands. The assistant calls no hook before the others.
_BRIEFED_TOOLS = "Edit|Write|MultiEdit|NotebookEdit|Bash"
_CODEX_EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "PreCompact")
_GEMINI_EVENTS = (
    "SessionStart",
    "BeforeAgent",
    "AfterTool",
    "AfterAgent",
    "PreCompress",
    "SessionEnd",
)


class StoreLink(msgspec.Struct, frozen=True, kw_only=True):
    """The store that an assistant is connected to, and the options of the connection.

    `store` is an absolute folder, or the address of a shared store.
    """

    store: str
    reach: str = "task"
    tokens: int = TOKENS
    # The days that Claude Code keeps its transcripts; 0 leaves its setting alone.
    keep_days: int = 0


# In bytes. Claude Code keeps the history of prompts in its settings, so they can be large.
LONGEST_FILE = 64 << 20
# Used where only the places of entries matter, not their values.
NOWHERE = StoreLink(store="")


class Entry(msgspec.Struct, frozen=True):
    """A value of ours and its place in a file: a member of an object, or an element of the list at
    the path.
    """

    file: Path
    path: tuple[str, ...]
    value: Any
    in_list: bool = False


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


# entries ------------------------------------------------------------------------------------------


def entries(assistant: str, scope: SettingsScope, project: Path, to: StoreLink) -> list[Entry]:
    """The entries for the files of an assistant."""
    command = scroll_command()
    server = [*command[1:], "mcp", "--assistant", assistant, "--store", to.store]
    call = [*command, "hook", assistant, "--store", to.store]
    if to.reach == "all":
        server += ["--reach", "all"]
        call += ["--reach", "all"]
    if to.tokens != TOKENS:
        call += ["--tokens", str(to.tokens)]
    hook = subprocess.list2cmdline(call) if os.name == "nt" else shlex.join(call)
    mcp: dict[str, Any] = {"command": command[0], "args": server}
    match assistant:
        case "claude-code":
            server_entry = {"type": "stdio", **mcp, "alwaysLoad": True}
            ours = _claude_code(scope, project, hook, server_entry)
            if to.keep_days:
                ours.append(Entry(ours[-1].file, (SETTING,), to.keep_days))
            return ours
        case "codex":
            home = project / ".codex"
            if scope == "user":
                home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
            return [
                Entry(home / "config.toml", ("mcp_servers", NAME), mcp),
                *_hooks(home / "hooks.json", _CODEX_EVENTS, hook, HOOK_SECONDS),
            ]
        case "gemini":
            file = (Path.home() if scope == "user" else project) / ".gemini" / "settings.json"
            milliseconds = HOOK_SECONDS * 1000
            return [
                Entry(file, ("mcpServers", NAME), mcp),
                *_hooks(file, _GEMINI_EVENTS, hook, milliseconds),
            ]
        case "cursor":
            home = (Path.home() if scope == "user" else project) / ".cursor"
            server += ["--project", "${workspaceFolder}" if scope == "user" else str(project)]
            hooks = home / "hooks.json"
            return [
                Entry(home / "mcp.json", ("mcpServers", NAME), mcp),
                Entry(hooks, ("version",), 1),
                Entry(hooks, ("hooks", "sessionStart"), {"command": hook}, in_list=True),
            ]
    raise BadInput(f"there is no assistant {assistant!r}; there are {', '.join(ASSISTANTS)}")


def _claude_code(
    scope: SettingsScope, project: Path, hook: str, mcp: dict[str, Any]
) -> list[Entry]:
    moved = os.environ.get("CLAUDE_CONFIG_DIR")
    home = claude_folder()
    servers = home / ".claude.json" if moved else Path.home() / ".claude.json"
    if scope == "user":
        return [
            Entry(servers, ("mcpServers", NAME), mcp),
            *_hooks(home / "settings.json", _CLAUDE_EVENTS, hook, HOOK_SECONDS),
        ]
    # Servers in .mcp.json are shared, and each user must approve them. So the server goes to the
    # user's own settings for this project.
    local = project / ".claude" / "settings.local.json"
    return [
        Entry(servers, ("projects", str(project), "mcpServers", NAME), mcp),
        *_hooks(local, _CLAUDE_EVENTS, hook, HOOK_SECONDS),
    ]


def _hooks(file: Path, events: tuple[str, ...], hook: str, timeout: int) -> list[Entry]:
    entries = []
    for event in events:
        value: dict[str, Any] = {
            "hooks": [{"type": "command", "command": hook, "timeout": timeout}]
        }
        if event == "PreToolUse":
            value = {"matcher": _BRIEFED_TOOLS, **value}
        entries.append(Entry(file, ("hooks", event), value, in_list=True))
    return entries


def scroll_command() -> list[str]:
    """The command that starts this Scroll, with absolute paths: assistants have another PATH."""
    beside = Path(sys.executable).with_name("scroll.exe" if os.name == "nt" else "scroll")
    if beside.is_file():
        return [str(beside)]
    program = shutil.which("scroll")
    if program:
        return [str(Path(program).absolute())]
    # With -P the interpreter imports nothing from the project that it is started in.
    return [sys.executable, "-P", "-c", "from scroll_context.cli.main import main; main()"]


# changes ------------------------------------------------------------------------------------------


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
        if _read(change.file) != change.old:
            raise BadInput(
                f"{change.file} has just been changed by another program; "
                "nothing was written, try again"
            )
        if change.new == change.before:
            _write(change.file, change.new)
            _record_of(change.file).unlink(missing_ok=True)
        else:
            assert change.new is not None
            record = {"file": str(change.file), "before": change.before, "after": _hash(change.new)}
            _write(_record_of(change.file), json.dumps(record), private=True)
            _write(change.file, change.new)


def _undone(ours: list[Entry]) -> Iterator[Change]:
    """Each file without our entries."""
    for file in dict.fromkeys(entry.file for entry in ours):
        text = _read(file)
        record = _recorded(file)
        before = text
        if text is not None and record is not None and record["after"] == _hash(text):
            before = record["before"]
        elif text is not None:
            previous = (record or {}).get("before")
            here = [entry for entry in ours if entry.file == file]
            # Without a record, the file was never changed by us, and single values are the user's.
            beginning = "{}" if record is not None and previous is None else previous or ""
            before = _removed(text, here, beginning)
            if record is not None and previous is None and _is_bare(file, before):
                # We created the file, and nothing else has been added to it.
                before = None
        yield Change(file, text, before, before)


def _removed(text: str, here: list[Entry], before: str) -> str:
    try:
        for entry in here:
            if entry.file.suffix == ".toml":
                if _is_ours(_value_at(text, entry)):
                    text = toml_edit.remove(text, (entry.path[0], entry.path[1]))
            elif isinstance(entry.value, dict):
                text = json_edit.remove(text, entry.path, _is_ours, before)
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
    value = _value_at(text, entry)
    if entry.in_list:
        return isinstance(value, list) and entry.value in value
    return value == entry.value or not isinstance(entry.value, dict)


def _with(text: str | None, entry: Entry) -> str:
    present = _value_at(text or "", entry)
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


def _value_at(text: str, entry: Entry) -> Any:
    """The value at the place of an entry; None when there is none."""
    if entry.file.suffix == ".toml":
        return toml_edit.value_at(text, (entry.path[0], entry.path[1]))
    return json_edit.value_at(text if text.strip() else "{}", entry.path)


def _is_ours(value: Any) -> bool:
    """Whether a value of a configuration file is a hook that calls Scroll, or our server."""
    if not isinstance(value, dict):
        return False
    hooks = value.get("hooks")
    if isinstance(hooks, list):
        return any(_is_ours(hook) for hook in hooks)
    command, args = value.get("command"), value.get("args")
    if isinstance(args, list):
        return "mcp" in args and "--store" in args
    return isinstance(command, str) and _OUR_HOOK.search(command) is not None


# what is there ------------------------------------------------------------------------------------


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
        value = _value_at(_read(entry.file) or "", entry)
    except (BadInput, OSError):
        return None
    if entry.in_list:
        elements = value if isinstance(value, list) else []
        return next(filter(_is_ours, elements), None)
    if isinstance(entry.value, dict) and not _is_ours(value):
        return None
    return value


# files --------------------------------------------------------------------------------------------


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


def _read(file: Path) -> str | None:
    """The text of a file, without any change to its bytes; None when there is no file.

    Files of a project come with its repository: one may be a link to an endless device, or a named
    pipe that never answers.
    """
    try:
        handle = os.open(file, READ_FILE)
    except FileNotFoundError:
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST_FILE:
        os.close(handle)
        raise BadInput(
            f"{file} is not a settings file: it is a folder or a device, or is larger than "
            f"{LONGEST_FILE >> 20} MiB. Nothing was changed; replace it with a regular file."
        )
    with open(handle, "rb") as opened:
        return opened.read(LONGEST_FILE).decode("utf-8", "surrogateescape")


def _write(file: Path, text: str | None, *, private: bool = False) -> None:
    """Replace a file atomically, or the target of a link; None removes it."""
    target = file.resolve()
    if text is None:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
    with complete_file(target, replace=True, mode=mode) as opened:
        opened.write(text.encode("utf-8", "surrogateescape"))
