"""The task that stands for a project in a store.

A project is the main folder of a git repository, or a folder outside of git. Its subfolders and
worktrees belong to it, and so does the folder after it was renamed or moved. For that, a list of
the folders that were worked in is kept in the user's own state folder, with a line of JSON for each
folder. A line is added when a folder is new or when something about it changes, and the last line
about a folder counts. Lines are only appended, each in one write, so hooks that run at once lose
nothing.

A folder is recognised after it was renamed by its stamp: the device and inode number of the folder
and the moment of its birth. The system sets all three, so a folder that arrives from elsewhere
cannot have the stamp of another one, not even if it gets the inode number of one that was removed.

Whoever is in a project may read its history, so a folder must not be able to claim another project.
A repository may have arrived in an archive, with any `.git/config` and any links in it. So:

    a worktree counts only if the repository that it names lists it
    a renamed folder is recognised by its inode and birth time, which no archive can set
    a common remote is only reported; the user joins a second clone (`scroll project --join`)

The files of git are read here, since a hook has no time to start a process, and git itself runs
commands that a repository's configuration names.
"""

import hashlib
import json
import os
import re
import stat
import struct
import sys
from typing import Any, NamedTuple

from scroll_context.files import READ_FILE, state_folder

# known folders ------------------------------------------------------------------------------------

# A longer list is not read: nobody works in this many folders.
_MOST_BYTES = 4 << 20
# The constants of statx(2).
_HERE, _NO_LINK, _BIRTH = -100, 0x100, 0x800
_MASK_AT, _BIRTH_AT, _STATUS_BYTES = 0, 80, 256


class KnownFolder(NamedTuple):
    """A folder that was worked in."""

    folder: str
    task: str
    # "" if the system does not tell the moment of birth.
    stamp: str = ""
    # The remote repository that it names. A folder may name anything.
    remote: str = ""
    # Whether it is only a part of its project, such as a subfolder.
    is_part: bool = False


def known_folders() -> dict[str, KnownFolder]:
    """The folders by their paths, those that changed last at the end."""
    folders: dict[str, KnownFolder] = {}
    try:
        with open(_file(), encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return folders
    for line in text.splitlines():
        try:
            entry = KnownFolder(**json.loads(line))
        except (ValueError, TypeError):
            # A line that a killed process left torn is written again at the next start.
            continue
        folders.pop(entry.folder, None)
        folders[entry.folder] = entry
    return folders


def add_known_folder(entry: KnownFolder) -> None:
    """Add a line to the list. Without a list nothing is lost but the memory of names."""
    path = _file()
    fields: dict[str, Any] = {name: value for name, value in entry._asdict().items() if value}
    line = json.dumps(fields) + "\n"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            file.write(line.encode())
    except OSError:
        return


def _file() -> str:
    return os.path.join(state_folder(), "projects.jsonl")


def stamp_of(folder: str) -> str:
    """A mark that only this folder has on this machine, whatever its name; "" if unknown."""
    try:
        status = os.lstat(folder)
    except OSError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return ""
    birth = _birth(folder, status)
    return f"{status.st_dev}:{status.st_ino}:{birth}" if birth else ""


def _birth(folder: str, status: os.stat_result) -> str:
    """The moment at which a folder was made; "" if the system does not tell it."""
    known = getattr(status, "st_birthtime", None)
    if known is not None:
        return str(known)
    if sys.platform != "linux":
        return ""
    # Importing this takes longer than all else here, and most calls do not come so far.
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "statx"):
        return ""
    buffer = ctypes.create_string_buffer(_STATUS_BYTES)
    if library.statx(_HERE, os.fsencode(folder), _NO_LINK, _BIRTH, buffer) != 0:
        return ""
    (mask,) = struct.unpack_from("I", buffer, _MASK_AT)
    seconds, nanoseconds = struct.unpack_from("qI", buffer, _BIRTH_AT)
    is_known = mask & _BIRTH and seconds
    return f"{seconds}.{nanoseconds:09}" if is_known else ""


# projects -----------------------------------------------------------------------------------------

# Bytes of a file of git that are read.
_LONGEST = 65_536
# The most other tasks of a project.
_MOST_EARLIER = 50


class Project(NamedTuple):
    """A project, as it is known on this machine."""

    # Its main folder, as it is called now.
    folder: str
    # The task of its sessions.
    task: str
    # Other tasks that sessions of this project were recorded under: by its subfolders and worktrees
    # before they were recognised as such, and by clones before they were joined.
    earlier: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks of its sessions. Whoever reads the project reads these."""
        return (self.task, *self.earlier)


def project_task(folder: "str | os.PathLike[str]") -> str:
    """The task of the project that a folder belongs to."""
    return _task(project_folder(folder), known_folders())


def project_of(folder: "str | os.PathLike[str]") -> Project:
    """The project that a folder belongs to, with the tasks of its earlier sessions."""
    known = known_folders()
    main = project_folder(folder)
    task = _task(main, known)
    own = [path for path, member in known.items() if member.task == task]
    new = [path for path in (main, os.path.realpath(folder)) if path not in known]
    # The folder may have replaced another project, which continues elsewhere.
    others = {task, *(member.task for member in known.values())}
    tasks = dict.fromkeys(map(task_of_path, (*new, *own)))
    earlier = [name for name in tasks if name not in others]
    return Project(main, task, tuple(earlier[:_MOST_EARLIER]))


def tasks_of_project(task: str) -> tuple[str, ...]:
    """All tasks of the project that a task stands for."""
    for member in known_folders().values():
        if member.task == task and not member.is_part:
            project = project_of(member.folder)
            if project.task == task:
                return project.tasks
    return (task,)


def remember_project(folder: "str | os.PathLike[str]") -> Project:
    """The project that a folder belongs to. It is recognised later, also under another name."""
    known = known_folders()
    main = project_folder(folder)
    task = _task(main, known)
    entry = known.get(main)
    if entry is None or entry.task != task or not _is_same_folder(entry, main):
        add_known_folder(KnownFolder(main, task, stamp_of(_body(main)), remote_of(main)))
    start = os.path.realpath(folder)
    is_new = start not in known or known[start].task != task
    if start != main and is_new:
        add_known_folder(KnownFolder(start, task, is_part=True))
    return project_of(folder)


def join_projects(folder: "str | os.PathLike[str]", other: "str | os.PathLike[str]") -> Project:
    """Make a folder and all else of its project a part of the project of another folder."""
    joined = remember_project(folder)
    target = remember_project(other)
    for member in known_folders().values():
        if member.task == joined.task and joined.task != target.task:
            add_known_folder(member._replace(task=target.task))
    return project_of(folder)


def projects_with_remote_of(folder: "str | os.PathLike[str]") -> list[KnownFolder]:
    """Folders of other projects whose remote is the one that this folder names."""
    known = known_folders()
    main = project_folder(folder)
    remote = remote_of(main)
    task = _task(main, known)
    names = {remote, main} - {""}
    return [
        member
        for member in known.values()
        if member.task != task and (member.remote in names or member.folder == remote)
    ]


def _task(main: str, known: dict[str, KnownFolder]) -> str:
    """The task of a main folder."""
    entry = known.get(main)
    if entry is not None and entry.is_part:
        # It was a subfolder of a repository, and is a repository of its own now.
        entry = None
    if entry is not None and _is_same_folder(entry, main):
        return entry.task
    stamp = stamp_of(_body(main))
    for member in reversed(known.values()):
        if stamp and member.stamp == stamp and member.folder != main:
            return member.task
    if entry is None:
        return task_of_path(main)
    has_moved = any(
        member.stamp == entry.stamp and member.folder != main for member in known.values()
    )
    # The project went on under another name, and something else took its place.
    is_replaced = bool(entry.stamp) and has_moved and os.path.isdir(main)
    return _task_of_replacement(main) if is_replaced else entry.task


def _is_same_folder(entry: KnownFolder, main: str) -> bool:
    """Whether the folder is the one that was remembered, as far as a cheap look can say.

    A folder at the same path is the same project in any case, unless the one that was there is
    known to have moved. Then its inode number is in use elsewhere.
    """
    try:
        status = os.lstat(_body(main))
    except OSError:
        return False
    return entry.stamp.startswith(f"{status.st_dev}:{status.st_ino}:")


def _task_of_replacement(main: str) -> str:
    """The task of a folder that stands where another project was."""
    digest = hashlib.sha256(f"{main}\n{stamp_of(_body(main))}".encode("utf-8", "surrogateescape"))
    return f"{_name(main)}-{digest.hexdigest()[:8]}"


def task_of_path(path: str) -> str:
    """The task of a folder that nothing is known about: its name and a short hash of its path,
    since many folders are called `api`.
    """
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{_name(path)}-{digest[:8]}"


def _name(path: str) -> str:
    return re.sub(r"[^\w.-]+", "-", os.path.basename(path)).strip("-") or "root"


# git ----------------------------------------------------------------------------------------------


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
    administration = os.path.realpath(os.path.join(worktree, named))
    common = _line(os.path.join(administration, "commondir"))
    back = _line(os.path.join(administration, "gitdir"))
    if not common or not back:
        return ""
    if os.path.realpath(os.path.join(administration, back)) != link:
        return ""
    repository = os.path.realpath(os.path.join(administration, common))
    # The repository itself must list the worktree: the folder that the link names may be a part
    # of whatever arrived with the link, and could name any repository.
    if os.path.dirname(administration) != os.path.join(repository, "worktrees"):
        return ""
    is_bare = os.path.basename(repository) != ".git"
    return repository if is_bare else os.path.dirname(repository)


def _body(main: str) -> str:
    """The folder that makes a project the same project after it was renamed: the git folder, which
    git never replaces, or the folder itself.

    A link is not followed, since it could lead into another project.
    """
    git = os.path.join(main, ".git")
    try:
        return git if stat.S_ISDIR(os.lstat(git).st_mode) else main
    except OSError:
        return main


_SECTION = re.compile(r'^\s*\[\s*remote\s+"(?P<name>[^"\\]*)"\s*\]')
_URL = re.compile(r"^\s*url\s*=\s*\"?(?P<url>[^\"\s]+)", re.IGNORECASE)


def remote_of(main: str) -> str:
    """The remote repository that a main folder names, in one spelling; "" without one."""
    body = _body(main)
    text = _text(os.path.join(body, "config"))
    urls: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            heading = _SECTION.match(line)
            section = heading["name"] if heading else ""
        setting = _URL.match(line)
        if section and setting:
            urls.setdefault(section, setting["url"])
    url = urls.get("origin") or next(iter(urls.values()), "")
    return _spelled(url, main)


def _spelled(url: str, main: str) -> str:
    """A URL without its scheme, user and ending; a local path as the main folder that it names."""
    path = url.removeprefix("file://")
    is_local = path != url or ("://" not in url and not re.match(r"[^/]+:", url))
    if is_local:
        return project_folder(os.path.join(main, path)) if path else ""
    address = re.sub(r"^\w+://", "", url)
    address = re.sub(r"^[^@/]*@", "", address)
    # `host:path` is another spelling of `ssh://host/path`.
    host, _, rest = re.sub(r"^([^/:]+):(?:\d+/)?", r"\1/", address).partition("/")
    return f"{host.lower()}/{rest.strip('/').removesuffix('.git')}" if rest else ""


def _line(path: str) -> str:
    """The first line of a small file; "" if there is none."""
    return _text(path).partition("\n")[0].strip()


def _text(path: str) -> str:
    """The beginning of a plain file; "" if there is none."""
    try:
        handle = os.open(path, READ_FILE)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return os.read(handle, _LONGEST).decode("utf-8", "surrogateescape")
    finally:
        os.close(handle)


def is_task_of(task: str, name: str) -> bool:
    """Whether a task stands for a folder of this name, wherever the folder is."""
    return task == name or re.fullmatch(re.escape(name) + "-[0-9a-f]{8}", task) is not None
