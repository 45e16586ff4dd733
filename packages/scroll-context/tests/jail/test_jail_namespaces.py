"""The namespaces alone, without landlock and seccomp: a layer that holds by itself what it is there
for.
"""

from __future__ import annotations

import os
from pathlib import Path

import jailed

_ALONE = """
import errno
from scroll_context.jail import linux
declared, outside = sys.argv[3:5]
spec = JailSpec(read_only=(*default_read_only(), declared), scratch=scratch, limits=JailLimits(scratch_bytes=1 << 20))
linux.unshare()
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
linux.build_root(spec)
def outcome(act):
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno]
"""


def ask(tmp_path: Path, *acts: str) -> list[str]:
    """What each expression gives inside, or the name of its error."""
    jailed.need("full")
    for name in ("declared", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    (tmp_path / "declared/link").symlink_to(tmp_path / "outside/file")
    arguments = f"sys.argv += [{str(tmp_path / 'declared')!r}, {str(tmp_path / 'outside')!r}]\n"
    questions = "".join(f"print(outcome(lambda: {act}))\n" for act in acts)
    result = jailed.run(arguments + _ALONE + questions, tmp_path / "scratch", "full")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_declared_paths_are_readable_and_their_mounts_read_only(tmp_path: Path) -> None:
    read, append, make = (
        "open(declared + '/file').read()",
        "open(declared + '/file', 'a')",
        "os.mkdir(declared + '/new')",
    )
    assert ask(tmp_path, read, append, make) == ["text", "EROFS", "EROFS"]
    assert (tmp_path / "declared/file").read_text() == "text"


def test_what_is_not_declared_has_no_name(tmp_path: Path) -> None:
    paths = (
        "outside",
        "outside + '/file'",
        "declared + '/link'",
        "'/proc'",
        "'/sys'",
        "'/etc/passwd'",
        "'/.old'",
    )
    assert ask(tmp_path, *(f"os.stat({path})" for path in paths)) == ["ENOENT"] * len(paths)


def test_the_root_itself_is_read_only(tmp_path: Path) -> None:
    paths = ("/new", "/dev/new", "/usr/new")
    assert ask(tmp_path, *(f"open('{path}', 'w')" for path in paths)) == ["EROFS"] * len(paths)


def test_no_mount_has_devices_or_programs_with_privileges(tmp_path: Path) -> None:
    flags = [
        f"os.statvfs({path}).f_flag & (os.ST_NOSUID | os.ST_NODEV)"
        for path in ("declared", "'/'", "scratch")
    ]
    executable = "os.statvfs(scratch).f_flag & os.ST_NOEXEC != 0"
    both = str(os.ST_NOSUID | os.ST_NODEV)
    assert ask(tmp_path, *flags, executable) == [both, both, both, "True"]


def test_the_scratch_is_private_and_its_size_is_fixed(tmp_path: Path) -> None:
    small, big = (
        "open(scratch + '/small', 'w').write('x')",
        "open(scratch + '/big', 'wb').write(bytes(2 << 20))",
    )
    assert ask(tmp_path, small, big) == ["1", "ENOSPC"]
    assert not (tmp_path / "scratch").exists()


def test_network_names_and_numbers_are_not_the_hosts(tmp_path: Path) -> None:
    connect = "socket.create_connection(('127.0.0.1', 9))"
    assert ask(tmp_path, connect, "os.uname().nodename", "os.getpid()") == [
        "ENETUNREACH",
        "scroll",
        "1",
    ]
