"""Read and replace the configuration files of other programs, as text that keeps every byte.

A file of a project comes with its repository, so it is not trusted to be a regular file.
"""

import os
import stat
from pathlib import Path

from scroll_context.errors import BadInput
from scroll_context.files import READ_FILE, complete_file

# In bytes. Claude Code keeps the history of prompts in its settings, so they can be large.
LONGEST_FILE = 64 << 20


def read_settings(file: Path) -> str | None:
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


def write_settings(file: Path, text: str | None, *, private: bool = False) -> None:
    """Replace a file atomically, or the target of a link; None removes it."""
    target = file.resolve()
    if text is None:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
    with complete_file(target, replace=True, mode=mode) as opened:
        opened.write(text.encode("utf-8", "surrogateescape"))
