"""The task of a project: subfolders and worktrees of a git repository share it, a renamed folder
keeps it, and a clone gets it only from the user.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scroll_context import projects
from scroll_context.projects import (
    join_projects,
    project_folder,
    project_of,
    project_task,
    projects_with_remote_of,
    remember_project,
    remote_of,
    task_of_path,
)

REMOTE = "git@example.org:acme/shop.git"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


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


def test_a_link_to_a_repository_needs_the_consent_of_the_repository(
    repository: Path, tmp_path: Path
) -> None:
    """The folder brings its own administration of a worktree, whose link back is right."""
    hostile = tmp_path / "hostile"
    administration = hostile / "administration"
    administration.mkdir(parents=True)
    (hostile / ".git").write_text("gitdir: administration\n")
    (administration / "commondir").write_text("../../shop/.git\n")
    (administration / "gitdir").write_text("../.git\n")
    assert project_folder(hostile) == str(hostile)


@pytest.mark.parametrize("is_repository", [True, False])
def test_a_renamed_folder_keeps_its_project(
    repository: Path, tmp_path: Path, is_repository: bool
) -> None:
    if not is_repository:
        shutil.rmtree(repository / ".git")
    task = remember_project(repository).task
    repository.rename(tmp_path / "store")
    assert project_task(tmp_path / "store") == task
    # It is found under its old name too, as in transcripts that are imported later.
    assert project_task(repository) == task
    remember_project(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "warehouse")
    assert project_task(tmp_path / "warehouse") == task


def test_another_folder_in_the_old_place_is_another_project(
    repository: Path, tmp_path: Path
) -> None:
    task = remember_project(repository).task
    repository.rename(tmp_path / "store")
    remember_project(tmp_path / "store")
    git(tmp_path, "init", "shop")
    new = remember_project(tmp_path / "shop")
    assert new.task != task and task not in new.earlier
    assert project_of(tmp_path / "shop") == new
    assert project_task(tmp_path / "store") == task


def test_a_folder_that_was_made_again_is_the_same_project(repository: Path) -> None:
    task = remember_project(repository).task
    shutil.rmtree(repository)
    repository.mkdir()
    git(repository, "init")
    assert project_task(repository) == task


def test_earlier_sessions_of_a_subfolder_and_a_worktree_are_found(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", str(tmp_path / "fix"), "-b", "fix")
    part = repository / "src" / "cart"
    for folder in (part, tmp_path / "fix"):
        project = project_of(folder)
        assert task_of_path(str(folder)) in project.earlier and project.task.startswith("shop-")
        remember_project(folder)
    earlier = {task_of_path(str(folder)) for folder in (part, tmp_path / "fix")}
    assert earlier <= set(project_of(repository).earlier)


def test_a_repository_in_a_known_subfolder_is_a_project_of_its_own(repository: Path) -> None:
    part = repository / "src" / "cart"
    outer = remember_project(part).task
    git(part, "init")
    assert project_task(part) != outer and outer not in project_of(part).earlier


def test_a_second_clone_shares_the_project_once_the_user_joins_it(
    repository: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", str(repository), "copy")
    original, clone = remember_project(repository), remember_project(tmp_path / "copy")
    assert clone.task != original.task and clone.task not in original.earlier
    assert [known.folder for known in projects_with_remote_of(clone.folder)] == [str(repository)]
    joined = join_projects(tmp_path / "copy", repository)
    assert joined.task == original.task and clone.task in joined.earlier
    assert clone.task in project_of(repository).earlier
    assert not projects_with_remote_of(tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "spare")
    assert project_task(tmp_path / "spare") == original.task


def test_a_repository_cannot_claim_a_project_by_its_remote(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "remote", "add", "origin", REMOTE)
    private = remember_project(repository)
    # An archive brings the configuration of git with it, and everything else that a file can say.
    hostile = tmp_path / "hostile"
    shutil.copytree(repository, hostile)
    assert remote_of(str(hostile)) == remote_of(str(repository)) == "example.org/acme/shop"
    own = remember_project(hostile)
    assert own.task != private.task and private.task not in own.earlier
    assert own.task not in project_of(repository).earlier
    # The claim is seen, and reported to the user only.
    (claimed,) = projects_with_remote_of(hostile)
    assert claimed.task == private.task
    # If the folder were recognised by anything that it says itself, it would get the history.
    monkeypatch.setattr(projects, "stamp_of", lambda folder: remote_of(folder))
    monkeypatch.setattr("scroll_context.projects.stamp_of", lambda folder: remote_of(folder[:-5]))
    (tmp_path / "state" / "scroll" / "projects.jsonl").unlink()
    assert remember_project(repository).task == remember_project(hostile).task


def test_a_linked_git_folder_does_not_bring_its_project(repository: Path, tmp_path: Path) -> None:
    private = remember_project(repository).task
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / ".git").symlink_to(repository / ".git")
    assert project_task(hostile) != private and private not in project_of(hostile).earlier


@pytest.mark.parametrize(
    "url",
    [
        "git@example.org:acme/shop.git",
        "https://token@Example.org/acme/shop",
        "ssh://git@example.org:22/acme/shop.git",
    ],
)
def test_spellings_of_a_remote_are_one(repository: Path, url: str) -> None:
    git(repository, "remote", "add", "origin", url)
    assert remote_of(str(repository)) == "example.org/acme/shop"


def test_without_a_birth_time_a_renamed_folder_is_new(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projects, "_birth", lambda *_: "")
    task = remember_project(repository).task
    assert project_task(repository) == task
    repository.rename(tmp_path / "store")
    assert project_task(tmp_path / "store") != task


def test_a_torn_list_of_folders_is_read_up_to_its_lines(repository: Path, state: Path) -> None:
    task = remember_project(repository).task
    with (state / "scroll" / "projects.jsonl").open("a") as file:
        file.write('{"folder": "/x", "task"\n{"other": 1}\n[]\n')
    assert project_task(repository) == task
