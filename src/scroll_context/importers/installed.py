"""The assistants on this machine: where each keeps its history on Linux, macOS and Windows, and what is there.

An assistant is a row of a table: its name, its folder, and patterns of the files in it. Environment variables that the
assistants themselves obey are obeyed here too. Nothing is opened: a listing looks at names, sizes and times.
"""

import datetime as dt
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from scroll_context.errors import ScrollError
from scroll_context.events import Progress
from scroll_context.importers.capture import capture
from scroll_context.importers.run import ImportReport
from scroll_context.store.store import Store


class InstalledHistory(msgspec.Struct, frozen=True):
    """What one assistant has kept on this machine."""

    assistant: str
    folder: str
    files: tuple[str, ...]  # the oldest first, by the time of the last change
    bytes: int
    first: str  # dates of the oldest and the newest change
    last: str


def places(
    home: Path | None = None, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[tuple[str, Path, tuple[str, ...]]]:
    """The name of each assistant, the folder in which it keeps its history, and patterns of the files."""
    home = home or Path.home()

    def folder(variable: str, *default: str) -> Path:
        return Path(environ[variable]) if environ.get(variable) else home.joinpath(*default)

    if platform == "win32":
        settings = folder("APPDATA", "AppData", "Roaming")
    elif platform == "darwin":
        settings = home / "Library" / "Application Support"
    else:
        settings = folder("XDG_CONFIG_HOME", ".config")
    gemini = Path(environ["GEMINI_CLI_HOME"]) if environ.get("GEMINI_CLI_HOME") else home
    return [
        ("Claude Code", folder("CLAUDE_CONFIG_DIR", ".claude") / "projects", ("*/*.jsonl",)),
        ("Codex", folder("CODEX_HOME", ".codex"),
         ("sessions/**/rollout-*.jsonl", "archived_sessions/**/rollout-*.jsonl")),
        ("Gemini CLI", gemini / ".gemini" / "tmp", ("*/chats/**/*.json", "*/chats/**/*.jsonl")),
        ("opencode", folder("XDG_DATA_HOME", ".local", "share") / "opencode", ("opencode*.db",)),
        ("Cursor", settings / "Cursor" / "User", ("globalStorage/state.vscdb", "workspaceStorage/*/state.vscdb")),
        ("Cursor agent", folder("CURSOR_CONFIG_DIR", ".cursor") / "projects", ("*/agent-transcripts/**/*.jsonl",)),
        ("QwenPaw", folder("QWENPAW_WORKING_DIR", ".qwenpaw"), ("**/history.db",)),
    ]  # fmt: skip


def installed(
    home: Path | None = None, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[InstalledHistory]:
    """The assistants that have kept something here."""
    found = (_history(*place) for place in places(home, environ, platform))
    return [history for history in found if history.files]


def _history(assistant: str, folder: Path, patterns: tuple[str, ...]) -> InstalledHistory:
    files = []
    for path in {path for pattern in patterns for path in folder.glob(pattern)}:
        try:
            status = path.stat()
        except OSError:  # it has just been removed
            continue
        if path.is_file() and status.st_size:
            files.append((status.st_mtime, str(path), status.st_size))
    files.sort()
    days = [dt.datetime.fromtimestamp(time, dt.UTC).date().isoformat() for time, _, _ in (*files[:1], *files[-1:])]
    return InstalledHistory(
        assistant=assistant, folder=str(folder), files=tuple(path for _, path, _ in files),
        bytes=sum(size for _, _, size in files), first=days[0] if days else "", last=days[-1] if days else "",
    )  # fmt: skip


def capture_all(
    store: Store,
    files: Iterable[str],
    *,
    redact: bool = True,
    wait: float = 0.1,
    progress: Progress | None = None,
    told: Callable[[ImportReport], None] | None = None,
) -> None:
    """Capture each file, and tell of it. What is wrong with one file does not keep the others from being read."""
    sizes = [(path, Path(path).stat().st_size if Path(path).exists() else 0) for path in files]
    done, total = 0, sum(size for _, size in sizes)
    for path, size in sizes:
        if progress:
            progress(done, total)
        try:
            report = capture(store, path, wait=wait, redact=redact)
        except ScrollError as error:
            report = ImportReport(file=path, error=str(error))
        if told:
            told(report)
        done += size
