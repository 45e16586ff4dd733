"""Scratch folders of kernels: owned while their host lives, removed by the next one when it died."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from scroll_context.jail.scratch import ScratchFolder

KILLED = """
import os, signal
from scroll_context.jail.scratch import ScratchFolder
folder = ScratchFolder()
open(folder.path + "/left", "w").close()
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_lives_as_long_as_its_owner_and_is_then_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = ScratchFolder()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True
    )
    dead = Path(killed.stdout.strip())
    assert dead.exists()
    ScratchFolder().close()
    assert dead.exists()  # it is young: its owner might be about to lock it
    old = time.time() - 3600
    for path in (dead, Path(living.path)):
        os.utime(path, (old, old))
    ScratchFolder().close()
    assert not dead.exists() and Path(living.path).exists()
    living.close()
    assert list(tmp_path.iterdir()) == []
