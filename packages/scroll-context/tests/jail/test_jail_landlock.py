"""Landlock alone, without namespaces and seccomp: a layer that holds by itself what it is there
for.
"""

from __future__ import annotations

from pathlib import Path

import jailed

_ALONE = """
import errno
from scroll_context.jail import linux
linux.forbid_new_privileges()
linux.restrict_paths(default_read_only(), scratch, linux.available_abi())
outside = sys.argv[3]
def bind(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
def outcome(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'done'
"""


def ask(tmp_path: Path, *acts: str) -> list[str]:
    """How each act ends inside: `done`, or the name of its error."""
    jailed.need("kernel-only")
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    for folder in (scratch, outside):
        folder.mkdir()
        (folder / "file").write_text("text")
        (folder / "program").write_text("#!/bin/true\n")
        (folder / "program").chmod(0o755)
    arguments = f"sys.argv += [{str(outside)!r}]\n"
    questions = "".join(f"print(outcome(lambda: {act}))\n" for act in acts)
    result = jailed.run(arguments + _ALONE + questions, scratch, "kernel-only")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_the_scratch_folder_takes_plain_files_and_folders(tmp_path: Path) -> None:
    acts = (
        "open(scratch + '/new', 'w').write('x')",
        "open(scratch + '/file', 'r+').truncate(1)",
        "os.mkdir(scratch + '/folder')",
        "os.rename(scratch + '/new', scratch + '/folder/new')",
        "os.unlink(scratch + '/folder/new')",
        "os.rmdir(scratch + '/folder')",
    )
    assert ask(tmp_path, *acts) == ["done"] * len(acts)


def test_the_scratch_folder_takes_no_links_sockets_pipes_or_programs(tmp_path: Path) -> None:
    acts = (
        "os.symlink('/etc', scratch + '/link')",
        "bind(scratch + '/socket')",
        "os.mkfifo(scratch + '/pipe')",
        "os.execv(scratch + '/program', ['program'])",
    )
    assert ask(tmp_path, *acts) == ["EACCES"] * len(acts)


def test_nothing_outside_can_be_opened_made_or_removed(tmp_path: Path) -> None:
    acts = (
        "open(outside + '/file')",
        "os.listdir(outside)",
        "open(outside + '/file', 'a')",
        "open(outside + '/new', 'w')",
        "os.mkdir(outside + '/folder')",
        "os.unlink(outside + '/file')",
        "open(os.__file__, 'a')",
    )
    assert ask(tmp_path, *acts) == ["EACCES"] * len(acts)
