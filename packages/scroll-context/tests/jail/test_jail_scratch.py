"""A scratch folder after hostile code: measured without being fooled, removed whatever is in it."""

from __future__ import annotations

import os
from pathlib import Path

import jailed
import pytest

from scroll_context.jail.scratch import remove_scratch, space_used

_NAME, _DEEPER_THAN_A_PATH = "d" * 200, 30


def dig(folder: Path, depth: int) -> None:
    """Nest folders deeper than any path name reaches."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(_NAME, dir_fd=here)
        below = os.open(_NAME, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_a_nest_too_deep_for_paths_is_removed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    dig(scratch, _DEEPER_THAN_A_PATH)
    with pytest.raises(OSError, match="too long"):
        space_used(str(scratch))
    remove_scratch(str(scratch))
    assert not scratch.exists()


def test_closed_folders_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (scratch / "closed/inner").mkdir(parents=True)
    (scratch / "closed/inner/file").write_text("text")
    (scratch / "link").symlink_to(outside)
    (scratch / "closed").chmod(0)
    remove_scratch(str(scratch))
    assert not scratch.exists()
    assert (outside / "kept").read_text() == "kept"


def test_the_folder_itself_may_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match="link"):
        remove_scratch(str(tmp_path / "link"))
    assert (tmp_path / "real").exists()


def test_space_counts_blocks_and_names(tmp_path: Path) -> None:
    assert space_used(str(tmp_path)) == 0
    (tmp_path / "empty").touch()
    one_name = space_used(str(tmp_path))
    assert one_name > 0
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/full").write_bytes(b"x" * 100_000)
    assert space_used(str(tmp_path)) >= 3 * one_name + 100_000


def test_a_kernel_that_digs_too_deep_is_ended(tmp_path: Path) -> None:
    jailed.need("kernel-only")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = f"""
enter_jail()
for _ in range({_DEEPER_THAN_A_PATH}):
    os.mkdir({_NAME!r})
    os.chdir({_NAME!r})
while True: sum(range(1000))
"""
    assert jailed.run(source, scratch, "kernel-only").returncode == -9
    remove_scratch(str(scratch))
