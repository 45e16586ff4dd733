"""Defaults for the store and for other settings that the command line does not give.

A repository can never choose them for the user. Settings come from the environment
and from the user's own `scroll.toml` in their configuration folder; a file of that name in the
working folder is an ordinary file. The default store is the user's own, and a `.scroll` in the
working folder is opened only when it is named. This module is the one place that decides it.
"""

import os
from pathlib import Path
from typing import Any

from scroll_context.errors import BadInput
from scroll_context.files import config_folder, data_folder
from scroll_context.log.address import is_address

VARIABLE = "SCROLL_STORE"
SHORT_NAME = ".scroll"
# Any of these files shows that a folder is, or was, a store.
PARTS = ("log.db", "payloads", "index")

# Each setting is an option of one or more commands.
SETTINGS: dict[str, type] = {
    "store": str,
    "model": str,
    "base_url": str,
    "window": int,
    "ask": str,
    "tools": list,
    "mcp": list,
    "reach": str,
    "context": str,
    "agent": str,
    "task": str,
    "system": str,
}
AGENT_COMMANDS = ("chat", "run", "resume")
# Paths are relative to the folder of the file.
PATHS = ("store", "tools")


def default_store() -> Path:
    """`~/.scroll` if that is a store, else the user's folder for application data."""
    short = Path.home() / SHORT_NAME
    return short if is_store(short) else Path(data_folder())


def usual_store() -> str | Path:
    """The store of a command line that names none."""
    variable = os.environ.get(VARIABLE)
    return variable or settings_of("").get("store") or default_store()


def ignored_store() -> Path | None:
    """A store in the working folder that is not the user's own; it is opened only by name."""
    here = Path(SHORT_NAME)
    if not is_store(here):
        return None
    try:
        return None if here.samefile(default_store()) else here
    except OSError:
        return here


def is_store(folder: Path) -> bool:
    """Whether a folder has the parts of a store; opening it shows whether it is intact."""
    return any(os.path.lexists(folder / part) for part in PARTS)


def settings_of(command: str) -> dict[str, Any]:
    """The values of a command's options in the user's file."""
    file = user_file()
    settings = read(file) if file.is_file() else {}
    if command in AGENT_COMMANDS:
        return settings
    # An option such as --agent has another meaning in the other commands.
    return {name: value for name, value in settings.items() if name == "store"}


def user_file() -> Path:
    return Path(config_folder()) / "scroll.toml"


def read(file: Path) -> dict[str, Any]:
    """The settings in a file, with paths that are valid from here.

    Raises BadInput that names the fault.
    """
    import tomllib

    try:
        settings = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from error
    for name, value in settings.items():
        if name not in SETTINGS:
            names = ", ".join(SETTINGS)
            raise BadInput(f"{file} sets {name!r}, which is not a setting; there are {names}")
        texts = value if isinstance(value, list) else ()
        if not isinstance(value, SETTINGS[name]) or not all(
            isinstance(text, str) for text in texts
        ):
            kind = "a list of texts" if SETTINGS[name] is list else SETTINGS[name].__name__
            raise BadInput(f"{file} sets {name} to {value!r:.80}; it must be {kind}")
    for name in PATHS:
        if name not in settings:
            continue
        value = settings[name]
        if isinstance(value, list):
            settings[name] = [_beside(file, path) for path in value]
        else:
            settings[name] = _beside(file, value)
    return settings


def _beside(file: Path, path: str) -> str:
    if is_address(path):
        return path
    return str(file.parent / Path(path).expanduser())
