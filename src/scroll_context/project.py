"""The project that a coding assistant works in, as a task of the store."""

import hashlib
import os
import re


def project_task(folder: "str | os.PathLike[str]") -> str:
    """The task of a project: the folder's name and a short hash of its path, since many folders are called `api`."""
    whole = os.path.realpath(folder)
    name = re.sub(r"[^\w.-]+", "-", os.path.basename(whole)).strip("-") or "root"
    return f"{name}-{hashlib.sha256(whole.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
