"""The project that a coding assistant works in, as a task of the store, and the marks around texts
that Scroll gives to the assistant.
"""

import functools
import hashlib
import os
import re

from scroll_context.projects import project_task as project_task

OPENING, CLOSING = "<scroll-context>", "</scroll-context>"
"""Marks around the texts that an assistant gets from Scroll, so that a capture does not take them
for the user's words.
"""

_END_MARK = re.compile(r"<\s*/\s*scroll-context\s*>", re.IGNORECASE)

_MARKED = re.compile(
    r"(?:<hook_context>)?(?:<|&lt;)scroll-context(?:>|&gt;)"
    r".*?(?:<|&lt;)/scroll-context(?:>|&gt;)(?:</hook_context>)?",
    re.DOTALL,
)

# Characters of a prompt that are read: a pasted text may have an opening mark on each line.
READ_PROMPT = 20_000


def without_marked(text: str) -> str:
    """A prompt without the texts that Scroll gave: Gemini CLI puts the hand-over, escaped and in a
    frame of its own, before the first prompt of a session.
    """
    return _MARKED.sub(" ", text[:READ_PROMPT])


def marked(text: str) -> str:
    """A text between the marks; "" for no text. A quoted message cannot end the text."""
    if not text:
        return ""
    return f"{OPENING}\n{_END_MARK.sub('(end)', text)}\n{CLOSING}"


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
