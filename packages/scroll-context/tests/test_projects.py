"""The task of a project: a subfolder and a worktree of a git repository share it."""

import os
import subprocess
from pathlib import Path

import pytest

from scroll_context.projects import project_folder, project_task


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(
        ["git", *identity, "-c", "init.defaultBranch=main", *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "src" / "cart").mkdir(parents=True)
    git(folder, "init")
    git(folder, "commit", "--allow-empty", "-m", "Begin")
    return folder


def test_a_subfolder_and_a_worktree_share_the_project(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", str(tmp_path / "fix"), "-b", "fix")
    (tmp_path / "fix" / "docs").mkdir()
    folders = (repository / "src" / "cart", tmp_path / "fix", tmp_path / "fix" / "docs")
    assert {project_task(folder) for folder in folders} == {project_task(repository)}
    assert project_folder(repository) == str(repository)


def test_worktrees_of_a_bare_repository_share_the_project(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--bare", str(repository), "shop.git")
    for name in ("one", "two"):
        git(tmp_path / "shop.git", "worktree", "add", str(tmp_path / name), "-b", name)
    assert project_folder(tmp_path / "one") == str(tmp_path / "shop.git")
    assert project_task(tmp_path / "one") == project_task(tmp_path / "two")


def test_a_submodule_is_a_project_of_its_own(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repository), "lib")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", str(tmp_path / "lib"))
    assert project_folder(repository / "lib") == str(repository / "lib")


def test_a_folder_cannot_claim_to_be_a_worktree(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", str(tmp_path / "fix"), "-b", "fix")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / ".git").write_text((tmp_path / "fix" / ".git").read_text())
    assert project_folder(hostile) == str(hostile)


def test_a_folder_outside_of_git_is_a_project(tmp_path: Path) -> None:
    (tmp_path / "plain" / "deep").mkdir(parents=True)
    assert project_folder(tmp_path / "plain" / "deep") == str(tmp_path / "plain" / "deep")
    os.mkfifo(tmp_path / "plain" / ".git")
    assert project_folder(tmp_path / "plain") == str(tmp_path / "plain")
