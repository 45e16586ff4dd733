"""Connect coding assistants to a store: their own configuration files get an MCP server and hooks,
and lose them again.

Each assistant is a table of entries: which file, where in it, what value. A file is changed by
inserting these entries and nothing else (json_edit.py). What a file held before, and the hash of
what it became, are kept in the user's state folder. So uninstalling puts back the exact bytes when
the file was not edited since, and otherwise takes out only what is ours. Installing again first
undoes, in memory, what is there: it is idempotent, and changes options in place.

The folders are those of the assistants on Linux, macOS and Windows, which are the same below the
user's home. Entries hold absolute paths of this machine, so in a project they go to files that are
not shared where the assistant has such.
"""

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
from scroll_context.errors import BadInput, ScrollError
from scroll_context.files import complete_file
from scroll_context.folders import state_folder
from scroll_context.log.address import printable_place
from scroll_context.store import open_log

SettingsScope = Literal["user", "project"]
NAME = "scroll"  # of our MCP server in every configuration
HOOK_SECONDS = 10  # after which an assistant gives up on a hook

_OUR_HOOK = re.compile(rf"\bhook ({'|'.join(ASSISTANTS)})\b.* --store\b")
_CLAUDE_EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PostToolUse",
    "Stop",
    "SubagentStop",
    "PreCompact",
    "SessionEnd",
)
_CODEX_EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "PreCompact")
_GEMINI_EVENTS = ("SessionStart", "AfterTool", "AfterAgent", "PreCompress", "SessionEnd")


class StoreLink(msgspec.Struct, frozen=True, kw_only=True):
    """What an assistant is connected to."""

    store: str  # an absolute folder, or the address of a shared store
    reach: str = "task"
    tokens: int = TOKENS


LONGEST_FILE = 64 << 20  # bytes; Claude Code keeps the history of prompts in its settings
NOWHERE = StoreLink(store="")  # for the places of entries, whatever they hold


class Entry(msgspec.Struct, frozen=True):
    """A value of ours and its place in a file: a member of an object, or an element of the list at
    the path.
    """

    file: Path
    path: tuple[str, ...]
    value: Any
    in_list: bool = False


class Change(msgspec.Struct, frozen=True):
    """One file, as it is and as it is to be; None stands for no file."""

    file: Path
    old: str | None
    new: str | None
    before: str | None  # what it held before anything of ours was in it

    @property
    def diff(self) -> str:
        old, new = ((text or "").splitlines(keepends=True) for text in (self.old, self.new))
        names = [
            str(self.file) if text is not None else "(no file)" for text in (self.old, self.new)
        ]
        shown = difflib.unified_diff(old, new, names[0], names[1])
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in shown)


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What of ours is in an assistant's files, and whether it works."""

    assistant: str
    scope: str = ""  # "" when nothing is installed
    files: tuple[str, ...] = ()  # that hold something of ours
    store: str = ""
    captured: str = (
        ""  # when a hook of this assistant last recorded something; an import does not count
    )
    missing: tuple[str, ...] = ()  # in words, each with its remedy

    @property
    def title(self) -> str:
        return self.assistant

    @property
    def state(self) -> str:
        if not self.scope:
            return "on this machine, not connected" if self.missing else "not on this machine"
        place = printable_place(self.store)
        if self.scope == "project":
            return f"connected (project) to {place}, which a file of this project names, so it was not opened"
        when = f"last captured {self.captured[:19]}" if self.captured else "nothing captured yet"
        return f"connected ({self.scope}) to {place}, {when}"


# entries ------------------------------------------------------------------------------------------------


def entries(assistant: str, scope: SettingsScope, project: Path, to: StoreLink) -> list[Entry]:
    """What is to stand in the files of an assistant."""
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
            return _claude_code(scope, project, hook, {"type": "stdio", **mcp, "alwaysLoad": True})
        case "codex":
            home = (
                Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
                if scope == "user"
                else project / ".codex"
            )
            found = [Entry(home / "config.toml", ("mcp_servers", NAME), mcp)]
            return found + _hooks(home / "hooks.json", _CODEX_EVENTS, hook, HOOK_SECONDS)
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
            return [
                Entry(home / "mcp.json", ("mcpServers", NAME), mcp),
                Entry(home / "hooks.json", ("version",), 1),
                Entry(
                    home / "hooks.json", ("hooks", "sessionStart"), {"command": hook}, in_list=True
                ),
            ]
    raise BadInput(f"there is no assistant {assistant!r}; there are {', '.join(ASSISTANTS)}")


def _claude_code(
    scope: SettingsScope, project: Path, hook: str, mcp: dict[str, Any]
) -> list[Entry]:
    moved = os.environ.get("CLAUDE_CONFIG_DIR")
    home = Path(moved) if moved else Path.home() / ".claude"
    servers = home / ".claude.json" if moved else Path.home() / ".claude.json"
    if scope == "user":
        found = [Entry(servers, ("mcpServers", NAME), mcp)]
        return found + _hooks(home / "settings.json", _CLAUDE_EVENTS, hook, HOOK_SECONDS)
    # A server of the project that is this user's own; those in .mcp.json are shared, and each user
    # must approve them.
    found = [Entry(servers, ("projects", str(project), "mcpServers", NAME), mcp)]
    return found + _hooks(
        project / ".claude" / "settings.local.json", _CLAUDE_EVENTS, hook, HOOK_SECONDS
    )


def _hooks(file: Path, events: tuple[str, ...], hook: str, timeout: int) -> list[Entry]:
    value = {"hooks": [{"type": "command", "command": hook, "timeout": timeout}]}
    return [Entry(file, ("hooks", event), value, in_list=True) for event in events]


def scroll_command() -> list[str]:
    """How this Scroll is started, with absolute paths: an assistant has another PATH."""
    beside = Path(sys.executable).with_name("scroll.exe" if os.name == "nt" else "scroll")
    if beside.is_file():
        return [str(beside)]
    if found := shutil.which("scroll"):
        return [str(Path(found).absolute())]
    # With -P the interpreter imports nothing from the project that it is started in.
    return [sys.executable, "-P", "-c", "from scroll_context.cli.main import main; main()"]


# changes ------------------------------------------------------------------------------------------------


def plan_install(
    assistant: str, scope: SettingsScope, project: Path, to: StoreLink
) -> list[Change]:
    """The files that would change, each as it would become.

    None of them: everything is there already.
    """
    wanted = entries(assistant, scope, project, to)
    _check_places(wanted, scope, project)
    changes = [_inserted(change, wanted) for change in _undone(wanted)]
    return [change for change in changes if change.new != change.old]


def plan_uninstall(assistant: str, scope: SettingsScope, project: Path) -> list[Change]:
    """The files that would change to hold nothing of ours."""
    present = entries(assistant, scope, project, NOWHERE)
    _check_places(present, scope, project)
    return [change for change in _undone(present) if change.new != change.old]


def _check_places(wanted: list[Entry], scope: SettingsScope, project: Path) -> None:
    """Refuse a file of a project that is a link out of it: the repository would choose what is
    written to.

    The user's own configuration may be linked, as people do who keep it in a repository.
    """
    inside = project.resolve()
    for file in {entry.file for entry in wanted}:
        if (
            scope == "project"
            and file.is_relative_to(project)
            and not file.resolve().is_relative_to(inside)
        ):
            raise BadInput(
                f"{file} is a link to {file.resolve()}, outside of the project. Nothing was changed. "
                "Replace the link by a file, or install with --scope user."
            )


def apply(changes: list[Change]) -> None:
    """Write the files; each is whole at any moment.

    What a file held before is kept until ours is out of it again.
    """
    for change in changes:
        if _read(change.file) != change.old:
            raise BadInput(
                f"{change.file} has just been changed by another program; nothing was written, try again"
            )
        if change.new == change.before:
            _write(change.file, change.new)
            _record_of(change.file).unlink(missing_ok=True)
        else:
            assert change.new is not None
            record = {"file": str(change.file), "before": change.before, "after": _hash(change.new)}
            _write(_record_of(change.file), json.dumps(record), private=True)
            _write(change.file, change.new)


def _undone(wanted: list[Entry]) -> Iterator[Change]:
    """Each file without anything of ours."""
    for file in dict.fromkeys(entry.file for entry in wanted):
        text, record = _read(file), _recorded(file)
        before = text
        if text is not None and record is not None and record["after"] == _hash(text):
            before = record["before"]
        elif text is not None:
            was = (record or {}).get("before")
            before = _removed(text, [entry for entry in wanted if entry.file == file], was or "")
            if record is not None and was is None and _is_bare(file, before):
                before = None  # it was made by us, and nothing else has come into it
        yield Change(file, text, before, before)


def _removed(text: str, wanted: list[Entry], before: str) -> str:
    try:
        for entry in wanted:
            if entry.file.suffix == ".toml":
                if _is_ours(_value_at(text, entry)):
                    text = toml_edit.remove(text, (entry.path[0], entry.path[1]))
            elif isinstance(entry.value, dict):
                text = json_edit.remove(text, entry.path, _is_ours, before)
            elif before and json_edit.value_at(before, entry.path) is None:
                text = json_edit.remove(text, entry.path, lambda value: bool(value), before)
    except BadInput as error:
        raise BadInput(
            f"{wanted[0].file} cannot be read: {error}. Fix it; nothing was changed."
        ) from error
    return text


def _is_bare(file: Path, text: str) -> bool:
    """Whether a file says nothing; the version of its format says nothing either."""
    return not text.strip() or (
        file.suffix == ".json" and json_edit.value_at(text, ()) in ({}, {"version": 1})
    )


def _inserted(change: Change, wanted: list[Entry]) -> Change:
    text = change.before
    here = [entry for entry in wanted if entry.file == change.file]
    try:
        for entry in here:
            text = _with(text, entry)
        # The assistant must be able to read the file, so the text is parsed once more before it is
        # written.
        if not all(_is_at_its_place(text or "", entry) for entry in here):
            raise BadInput("our entries cannot be placed in it")
    except BadInput as error:
        raise BadInput(
            f"{change.file} cannot be changed: {error}. Fix it; nothing was changed."
        ) from error
    return msgspec.structs.replace(change, new=text)


def _is_at_its_place(text: str, entry: Entry) -> bool:
    there = _value_at(text, entry)
    if entry.in_list:
        return isinstance(there, list) and entry.value in there
    return there == entry.value or not isinstance(entry.value, dict)


def _with(text: str | None, entry: Entry) -> str:
    there = _value_at(text or "", entry)
    if there is not None and isinstance(entry.value, dict) and not entry.in_list:
        raise BadInput(f"another server is called {NAME!r} there; rename it first")
    if entry.file.suffix == ".toml":
        return toml_edit.put(text or "", (entry.path[0], entry.path[1]), entry.value)
    text = text if text and text.strip() else "{}\n"
    if entry.in_list:
        return json_edit.append(text, entry.path, entry.value)
    # A version number that is there already stays.
    return json_edit.put(text, entry.path, entry.value) if there is None else text


def _value_at(text: str, entry: Entry) -> Any:
    """The value at the place of an entry; None when there is none."""
    if entry.file.suffix == ".toml":
        return toml_edit.value_at(text, (entry.path[0], entry.path[1]))
    return json_edit.value_at(text if text.strip() else "{}", entry.path)


def _is_ours(value: Any) -> bool:
    """Whether a value of a configuration file was written by us: a hook that calls us, or our
    server.
    """
    if not isinstance(value, dict):
        return False
    hooks = value.get("hooks")
    if isinstance(hooks, list):
        return any(_is_ours(hook) for hook in hooks)
    command, args = value.get("command"), value.get("args")
    if isinstance(args, list):
        return "mcp" in args and "--store" in args
    return isinstance(command, str) and _OUR_HOOK.search(command) is not None


# what is there ------------------------------------------------------------------------------------------


def examine_assistants(project: Path) -> list[Installed]:
    """Each assistant: in which scopes it is connected, or that it is not."""
    found: list[Installed] = []
    for assistant in ASSISTANTS:
        scopes: tuple[SettingsScope, ...] = ("user", "project")
        there = [
            one for scope in scopes if (one := _installed(assistant, scope, project)) is not None
        ]
        connected = list(
            {one.files: one for one in reversed(there)}.values()
        )  # one, where the home is the project
        home = entries(assistant, "user", project, NOWHERE)[-1].file.parent
        remedy = (f"its entries: `scroll install {assistant}`",) if home.is_dir() else ()
        found += connected or [Installed(assistant=assistant, missing=remedy)]
    return found


def _installed(assistant: str, scope: SettingsScope, project: Path) -> Installed | None:
    """What of ours an assistant's files of one scope hold; None when there is nothing."""
    values = [(entry, _ours_at(entry)) for entry in entries(assistant, scope, project, NOWHERE)]
    present = [(entry, value) for entry, value in values if isinstance(value, dict)]
    if not present:
        return None
    server = next((value for entry, value in present if not entry.in_list), {})
    call = next((str(_command_of(value)) for entry, value in present if entry.in_list), "")
    words = _words(call)
    store = _word_behind("--store", server.get("args") or words)
    missing = [
        f"{'.'.join(e.path)} in {e.file}: `scroll install {assistant}`"
        for e, value in values
        if value is None
    ]
    program = str(server.get("command") or (words or [""])[0])
    if not Path(program).exists():
        missing.append(f"the program {program}: `scroll install {assistant}` names the one of now")
    captured = _last_capture(assistant, store)
    # A file of the project may have come with a repository: the store that it names is shown and
    # never opened.
    if scope == "user":
        try:
            open_log(store).close()
        except ScrollError as error:
            missing.append(str(error))
    if fault := _last_fault(captured):
        missing.append(f"the last hook failed: {fault} ({log_file()})")
    files = tuple(dict.fromkeys(str(entry.file) for entry, _ in present))
    return Installed(
        assistant=assistant,
        scope=scope,
        files=files,
        store=store,
        captured=captured,
        missing=tuple(missing),
    )


def connected_scopes(assistant: str, project: Path) -> list[SettingsScope]:
    """The scopes whose files hold something of ours. No store is opened."""
    scopes: tuple[SettingsScope, ...] = ("user", "project")
    return [
        scope
        for scope in scopes
        if any(
            isinstance(_ours_at(entry), dict)
            for entry in entries(assistant, scope, project, NOWHERE)
        )
    ]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation that does not end: not what we write
        return []


def _command_of(value: dict[str, Any]) -> Any:
    hooks = value.get("hooks")
    return value.get("command") if not hooks else hooks[0].get("command")


def _word_behind(option: str, words: list[str]) -> str:
    return str(words[words.index(option) + 1]) if option in words[:-1] else ""


def _last_capture(assistant: str, store: str) -> str:
    try:
        seconds = Path(last_capture(assistant, store)).stat().st_mtime
    except OSError:
        return ""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()


def _last_fault(since: str) -> str:
    """The last line in the log of hooks, if it is newer than the last capture."""
    try:
        line = Path(log_file()).read_text("utf-8", "replace").splitlines()[-1]
    except (OSError, IndexError):
        return ""
    return line if line[:19] > since[:19] else ""


def _ours_at(entry: Entry) -> Any:
    try:
        found = _value_at(_read(entry.file) or "", entry)
    except (BadInput, OSError):
        return None
    if entry.in_list:
        return (
            next((one for one in found if _is_ours(one)), None) if isinstance(found, list) else None
        )
    return (
        found
        if _is_ours(found) or (found is not None and not isinstance(entry.value, dict))
        else None
    )


# files --------------------------------------------------------------------------------------------------


def _record_of(file: Path) -> Path:
    """Where we keep what a file held before."""
    return (
        Path(state_folder(), "installed")
        / f"{hashlib.sha256(os.fsencode(file)).hexdigest()[:32]}.json"
    )


def _recorded(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(_record_of(file).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"before", "after"} <= set(found) else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _read(file: Path) -> str | None:
    """The text of a file, each byte kept; None when there is no file.

    Files of a project come with its repository: one may be a link to a device that never ends, or
    a named pipe that never answers.
    """
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST_FILE:
        os.close(handle)
        raise BadInput(
            f"{file} is not a settings file: it is a folder or a device, or has more than "
            f"{LONGEST_FILE >> 20} MiB. Nothing was changed; replace it by a file."
        )
    with open(handle, "rb") as opened:
        return opened.read(LONGEST_FILE).decode("utf-8", "surrogateescape")


def _write(file: Path, text: str | None, *, private: bool = False) -> None:
    """Replace a file at once, through a link if it is one; None removes it."""
    target = file.resolve()
    if text is None:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
    with complete_file(target, replace=True, mode=mode) as opened:
        opened.write(text.encode("utf-8", "surrogateescape"))
