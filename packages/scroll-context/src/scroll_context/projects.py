"""The task that stands for a project's folder in a store.

A subfolder of a git repository and a worktree of it belong to the project of the repository's main
folder. The files of git are read here, since a hook has no time to start a process. A folder may
have arrived with a `.git` file of somebody else's making, so it counts as a worktree only if the
repository that it names has a link back to it.
"""

import hashlib
import os
import re
import stat

# Bytes of a file of git that are read. They hold one path.
_LONGEST = 8_192


def project_task(folder: "str | os.PathLike[str]") -> str:
    """The task of a project: the folder's name and a short hash of its path, since many folders are
    called `api`.
    """
    path = project_folder(folder)
    name = re.sub(r"[^\w.-]+", "-", os.path.basename(path)).strip("-") or "root"
    return f"{name}-{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def project_folder(folder: "str | os.PathLike[str]") -> str:
    """The main folder of the git repository that a folder is in; without one, the folder itself."""
    start = os.path.realpath(folder)
    path = start
    while not os.path.lexists(os.path.join(path, ".git")):
        above = os.path.dirname(path)
        if above == path:
            return start
        path = above
    if os.path.isdir(os.path.join(path, ".git")):
        is_repository = os.path.isfile(os.path.join(path, ".git", "HEAD"))
        return path if is_repository else start
    return _main_folder(path) or path


def _main_folder(worktree: str) -> str:
    """The main folder of the repository that a worktree belongs to; "" for anything else, such as
    a submodule, which is a project of its own.
    """
    link = os.path.join(worktree, ".git")
    prefix, _, named = _line(link).partition(": ")
    if prefix != "gitdir":
        return ""
    administration = os.path.join(worktree, named)
    common = _line(os.path.join(administration, "commondir"))
    back = _line(os.path.join(administration, "gitdir"))
    if not common or not back:
        return ""
    if os.path.realpath(os.path.join(administration, back)) != link:
        return ""
    repository = os.path.realpath(os.path.join(administration, common))
    is_bare = os.path.basename(repository) != ".git"
    return repository if is_bare else os.path.dirname(repository)


def _line(path: str) -> str:
    """The first line of a small file; "" if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        text = os.read(handle, _LONGEST).decode("utf-8", "surrogateescape")
    finally:
        os.close(handle)
    return text.partition("\n")[0].strip()


def is_task_of(task: str, name: str) -> bool:
    """Whether a task stands for a folder of this name, wherever the folder is."""
    return task == name or re.fullmatch(re.escape(name) + "-[0-9a-f]{8}", task) is not None
