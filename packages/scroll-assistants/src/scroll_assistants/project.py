"""The project that a coding assistant works in, as a task of the store, and the marks around what
Scroll tells it.
"""

import functools
import hashlib
import os
import re

from scroll_context.projects import project_task as project_task

OPENING, CLOSING = "<scroll-context>", "</scroll-context>"
"""Around the text that an assistant is given at the start of a session, so that it is not captured
as the user's.
"""


@functools.lru_cache(maxsize=256)
def task_of(folder: str) -> str:
    """The task of a working folder; one of another system is named without asking this one's disk."""
    try:
        if os.path.isabs(folder):
            return project_task(folder)
    except (OSError, ValueError):
        pass
    name = (
        re.sub(r"[^\w.-]+", "-", re.split(r"[\\/]", folder.rstrip("\\/"))[-1]).strip("-") or "root"
    )
    return (
        f"{name}-{hashlib.sha256(folder.encode('utf-8', 'replace')).hexdigest()[:8]}"
        if folder
        else ""
    )
