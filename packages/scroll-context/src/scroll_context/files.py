"""Files that get their name only when they are complete, so that no reader meets half of one."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from scroll_context.system import HAS_FOLDER_HANDLES, READ_FOLDER, set_mode


@contextlib.contextmanager
def complete_file(
    target: Path,
    *,
    replace: bool = False,
    mode: int = 0o600,
    prefix: str = ".",
    durable: bool = True,
) -> Iterator[IO[bytes]]:
    """A new file beside `target` that gets its name at the end, and is removed after a failure.

    Without `replace`, FileExistsError is raised if a file has the name by then; that file stays.
    `prefix` begins the name of the unfinished file. With `durable`, the file survives a power cut
    once the context has ended.
    """
    handle, stage = tempfile.mkstemp(dir=target.parent, prefix=f"{prefix}{target.name}.")
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            set_mode(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        if replace:
            os.replace(stage, target)
        else:
            os.link(stage, target)
    finally:
        Path(stage).unlink(missing_ok=True)
    if durable:
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or link in `folder` durable, where the system can."""
    if not HAS_FOLDER_HANDLES:
        return
    handle = os.open(folder, READ_FOLDER)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
