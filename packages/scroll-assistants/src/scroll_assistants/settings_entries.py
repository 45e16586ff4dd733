"""Scroll's entries in the configuration files of coding assistants: their places and values.

Each assistant is a table of entries: a file, a place in it, and a value, which is an MCP server, a
hook or a setting. The folders are those of the assistants on Linux, macOS and Windows, which are
the same below the user's home. Entries contain absolute paths of this machine, so in a project they
go to files that are not shared, if the assistant has such files. Nothing here is written to a file.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from scroll_assistants import json_edit, toml_edit
from scroll_assistants.hooks import ASSISTANTS, TOKENS
from scroll_assistants.kept_transcripts import SETTING, claude_folder
from scroll_context.errors import BadInput

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


def value_at(text: str, entry: Entry) -> Any:
    """The value at the place of an entry; None when there is none."""
    if entry.file.suffix == ".toml":
        return toml_edit.value_at(text, (entry.path[0], entry.path[1]))
    return json_edit.value_at(text if text.strip() else "{}", entry.path)


def is_ours(value: Any) -> bool:
    """Whether a value of a configuration file is a hook that calls Scroll, or our server."""
    if not isinstance(value, dict):
        return False
    hooks = value.get("hooks")
    if isinstance(hooks, list):
        return any(is_ours(hook) for hook in hooks)
    command, args = value.get("command"), value.get("args")
    if isinstance(args, list):
        return "mcp" in args and "--store" in args
    return isinstance(command, str) and _OUR_HOOK.search(command) is not None
