"""The folders that were worked in, and the project of each, in the user's own state folder.

The list is a file with a line of JSON for each folder. A line is added when a folder is new or when
something about it changes, and the last line about a folder counts. Lines are only appended, each
in one write, so hooks that run at once lose nothing.

A folder is recognised after it was renamed by its stamp: the device and inode number of the folder
and the moment of its birth. The system sets all three, so a folder that arrives from elsewhere
cannot have the stamp of another one, not even if it gets the inode number of one that was removed.
"""

import json
import os
import stat
import struct
import sys
from typing import Any, NamedTuple

from scroll_context.folders import state_folder

# A longer list is not read: nobody works in this many folders.
_MOST_BYTES = 4 << 20
# The constants of statx(2).
_HERE, _NO_LINK, _BIRTH = -100, 0x100, 0x800
_MASK_AT, _BIRTH_AT, _STATUS_BYTES = 0, 80, 256


class KnownFolder(NamedTuple):
    """A folder that was worked in."""

    folder: str
    task: str
    # "" if the system does not tell the moment of birth.
    stamp: str = ""
    # The remote repository that it names. A folder may name anything.
    remote: str = ""
    # Whether it is only a part of its project, such as a subfolder.
    is_part: bool = False


def known_folders() -> dict[str, KnownFolder]:
    """The folders by their paths, those that changed last at the end."""
    folders: dict[str, KnownFolder] = {}
    try:
        with open(_file(), encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return folders
    for line in text.splitlines():
        try:
            entry = KnownFolder(**json.loads(line))
        except (ValueError, TypeError):
            # A line that a killed process left torn is written again at the next start.
            continue
        folders.pop(entry.folder, None)
        folders[entry.folder] = entry
    return folders


def add_known_folder(entry: KnownFolder) -> None:
    """Add a line to the list. Without a list nothing is lost but the memory of names."""
    path = _file()
    fields: dict[str, Any] = {name: value for name, value in entry._asdict().items() if value}
    line = json.dumps(fields) + "\n"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            file.write(line.encode())
    except OSError:
        return


def _file() -> str:
    return os.path.join(state_folder(), "projects.jsonl")


def stamp_of(folder: str) -> str:
    """A mark that only this folder has on this machine, whatever its name; "" if unknown."""
    try:
        status = os.lstat(folder)
    except OSError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return ""
    birth = _birth(folder, status)
    return f"{status.st_dev}:{status.st_ino}:{birth}" if birth else ""


def _birth(folder: str, status: os.stat_result) -> str:
    """The moment at which a folder was made; "" if the system does not tell it."""
    known = getattr(status, "st_birthtime", None)
    if known is not None:
        return str(known)
    if sys.platform != "linux":
        return ""
    # Importing this takes longer than all else here, and most calls do not come so far.
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "statx"):
        return ""
    buffer = ctypes.create_string_buffer(_STATUS_BYTES)
    if library.statx(_HERE, os.fsencode(folder), _NO_LINK, _BIRTH, buffer) != 0:
        return ""
    (mask,) = struct.unpack_from("I", buffer, _MASK_AT)
    seconds, nanoseconds = struct.unpack_from("qI", buffer, _BIRTH_AT)
    is_known = mask & _BIRTH and seconds
    return f"{seconds}.{nanoseconds:09}" if is_known else ""
