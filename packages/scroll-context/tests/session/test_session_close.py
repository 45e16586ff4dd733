"""Closing a session: it always gives back what the process holds, whatever the file system has
become.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLOSED_ON_READ_ONLY = """
import subprocess, sys
from pathlib import Path
from scroll_context.session.session import Session
from scroll_context.log import lease
from scroll_context.store import Store

folder, aside = Path(sys.argv[1]), Path(sys.argv[2])
aside.mkdir()

def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)

with Store(folder, create=True) as store:
    session = Session.open(store, session_id="s")
    session.say("hello")
    print(session.run("rows = list(range(200_000))\\nprint(len(rows))").content)
    session.environment.variables.wait_for_save()
    # A mount that somebody writes to cannot be made read-only itself, so a read-only one is laid over it.
    mount("--bind", folder, aside)
    mount("-o", "remount,ro,bind", aside)
    mount("--move", aside, folder)
    session.run("rows.append(4)")  # its variables cannot be saved any more
    session.close()
    print("closed; files left:", len(list((folder / "leases").iterdir())))
    print("held by", lease.holder_of(folder / "leases", "s"))
subprocess.run(["umount", "--lazy", str(folder)], check=True)
with Store(folder) as store, Session.resume(store, "s") as session:
    print(session.run("print(len(rows))").content)
print("files left:", len(list((folder / "leases").iterdir())))
"""

needs_mounts = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True
    ).returncode
    != 0,
    reason="needs mounts in a user namespace",
)


@needs_mounts
def test_a_session_is_closed_on_a_file_system_that_became_read_only(tmp_path: Path) -> None:
    command = [
        "unshare",
        "-rm",
        sys.executable,
        "-c",
        CLOSED_ON_READ_ONLY,
        tmp_path / "store",
        tmp_path / "aside",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["200000", "closed; files left: 1", "held by None"]
    assert lines[-2:] == ["200000", "files left: 0"]
