"""A store is its owner's: no other user of the machine can read any of it, whatever the umask is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.events import Draft
from scroll_context.store import Store
from scroll_context.upkeep.salvage import salvage
from scroll_context.upkeep.transfer import backup


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def open_to_others(folder: Path, *, but: tuple[str, ...] = ()) -> list[str]:
    paths = [folder, *folder.rglob("*")]
    return [
        f"{path.relative_to(folder)} {stat.S_IMODE(path.stat().st_mode):o}"
        for path in paths
        if stat.S_IMODE(path.stat().st_mode) & 0o077 and not any(part in but for part in path.parts)
    ]


def test_a_store_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "store"
    with Store(folder, create=True) as store:
        store.append(Draft(content="secret words " * 10_000))
        store.index.catch_up()
        assert list(folder.glob("log.db-*"))
        assert stat.S_IMODE((folder / "index").stat().st_mode) == 0o700
        assert not open_to_others(folder, but=("index",))
        backup(store.log, tmp_path / "copy")
    assert not open_to_others(folder, but=("index",))
    assert not open_to_others(tmp_path / "copy")
    salvage(folder)
    assert not open_to_others(folder, but=("index",))


def test_a_store_that_was_open_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with Store(folder, create=True) as store:
        store.append(Draft(content="x" * 100_000))
        store.index.catch_up()
    for path in (folder, folder / "payloads", folder / "index"):
        path.chmod(0o755)
    (folder / "log.db").chmod(0o644)
    with Store(folder):
        assert not [line for line in open_to_others(folder) if "/" not in line]


def test_a_folder_that_may_not_be_written_stays_so(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    Store(folder, create=True).close()
    folder.chmod(0o555)
    try:
        with Store(folder):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o500
    finally:
        folder.chmod(0o700)
