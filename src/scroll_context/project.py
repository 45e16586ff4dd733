"""The project that a coding assistant works in, as a task of the store."""

import hashlib
import re
from pathlib import Path


def project_task(folder: Path) -> str:
    """The task of a project: the folder's name and a short hash of its path, since many folders are called `api`."""
    whole = str(folder.resolve())
    name = re.sub(r"[^\w.-]+", "-", folder.resolve().name).strip("-") or "root"
    return f"{name}-{hashlib.sha256(whole.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
