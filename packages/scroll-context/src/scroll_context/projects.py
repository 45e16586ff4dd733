"""The task that stands for a project's folder in a store."""

import hashlib
import os
import re


def project_task(folder: "str | os.PathLike[str]") -> str:
    """The task of a project: the folder's name and a short hash of its path, since many folders are
    called `api`.
    """
    path = os.path.realpath(folder)
    name = re.sub(r"[^\w.-]+", "-", os.path.basename(path)).strip("-") or "root"
    return f"{name}-{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def is_task_of(task: str, name: str) -> bool:
    """Whether a task stands for a folder of this name, wherever the folder is."""
    return task == name or re.fullmatch(re.escape(name) + "-[0-9a-f]{8}", task) is not None
