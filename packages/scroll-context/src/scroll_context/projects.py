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
