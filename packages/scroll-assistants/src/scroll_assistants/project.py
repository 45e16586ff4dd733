"""The project that a coding assistant works in, as a task of the store, and the marks around texts
that Scroll gives to the assistant.
"""

import functools
import hashlib
import os
import re

from scroll_context.projects import project_task as project_task

OPENING, CLOSING = "<scroll-context>", "</scroll-context>"
"""Marks around the text that an assistant gets at the start of a session, so that a capture does
not take it for the user's words.
"""


@functools.lru_cache(maxsize=256)
def task_of(folder: str) -> str:
    """The task of a working folder. A path of another operating system is not looked up here."""
    try:
        if os.path.isabs(folder):
            return project_task(folder)
    except (OSError, ValueError):
        pass
    if not folder:
        return ""
    name = re.split(r"[\\/]", folder.rstrip("\\/"))[-1]
    label = re.sub(r"[^\w.-]+", "-", name).strip("-") or "root"
    digest = hashlib.sha256(folder.encode("utf-8", "replace")).hexdigest()
    return f"{label}-{digest[:8]}"
