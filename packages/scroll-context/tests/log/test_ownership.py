"""A store with a link, a foreign owner or an open mode is refused, and clean-up touches only our
own files.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scroll_context.errors import NotAStore, ScrollError, StoreUnsafe
from scroll_context.events import Draft
from scroll_context.store import Store, open_log
from scroll_context.upkeep.salvage import salvage

LARGE = "a large body " * 10_000
STRANGER = 54_321  # a user that is neither root nor the one who runs the tests

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def theirs(folder: Path) -> Path:
    """A closed store with a payload, an index and a lease folder."""
    with Store(folder, create=True) as store:
        store.append(Draft(content=LARGE))
        store.append(Draft(content="toll roads"))
        store.index.catch_up()
    (folder / "leases").mkdir(exist_ok=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Files of the user that nothing may touch, some with names as a store has them."""
    home = tmp_path / "home"
    for name in (
        "letter.txt",
        "v1/notes.txt",
        "v2",
        "trash-abcdefgh/x",
        "lock",
        "meta.json",
        "log.db",
    ):
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    return home


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder, with its mode and its bytes."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def use(folder: Path) -> None:
    """Whatever reads and writes a store."""
    with Store(folder) as store:
        store.append(Draft(content="another " + LARGE))
        store.index.search("toll roads")
        store.stats()
        store.erase(seqs=[1])


@pytest.mark.parametrize(
    "part",
    [
        "payloads",
        "payloads/tmp",
        "index",
        "index/v{version}",
        "leases",
        "log.db",
        "log.db-wal",
        "anything",
    ],
)
def test_a_linked_part_of_a_store_is_refused(part: str, theirs: Path, home: Path) -> None:
    version = next(theirs.glob("index/v*")).name
    path = theirs / part.format(version=version[1:])
    if path.exists():
        path.rename(home / "moved")
    path.symlink_to(home if path.name not in ("log.db", "log.db-wal") else home / "log.db")
    before = contents(home)
    with pytest.raises(StoreUnsafe, match=r"is a link to .* remove the link"):
        use(theirs)
    assert contents(home) == before


def test_a_linked_folder_of_payloads_is_neither_read_nor_written(theirs: Path, home: Path) -> None:
    subfolder = next(theirs.glob("payloads/??"))
    digest = next(subfolder.iterdir()).name
    subfolder.rename(home / "objects")
    subfolder.symlink_to(home / "objects")
    before = contents(home)
    with Store(theirs) as store:
        for attempt in (
            lambda: store.payloads.read(digest),
            lambda: store.payloads.remove(digest),
            lambda: store.payloads.put(LARGE.encode(), "text/plain"),
            lambda: list(store.payloads.digests()),
        ):
            with pytest.raises(StoreUnsafe):
                attempt()
    assert contents(home) == before


def test_a_linked_payload_is_not_read(theirs: Path, home: Path) -> None:
    payload = next(theirs.glob("payloads/??/*"))
    payload.rename(home / "body")
    payload.symlink_to(home / "body")
    with Store(theirs) as store, pytest.raises((ScrollError, OSError)):
        store.payloads.read(payload.name)


def test_a_store_that_is_a_link_itself_is_refused(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(StoreUnsafe, match=str(theirs)):
        Store(tmp_path / "link")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreUnsafe):
        Store(tmp_path / "dangling", create=True)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("part", ["", "log.db", "payloads", "index"])
def test_a_part_that_others_can_write_is_refused(part: str, theirs: Path) -> None:
    (theirs / part).chmod(0o770 if (theirs / part).is_dir() else 0o660)
    with pytest.raises(StoreUnsafe, match=f"chmod -R go-w {theirs}"):
        Store(theirs)
    subprocess.run(["chmod", "-R", "go-w", theirs], check=True)
    use(theirs)


@as_root
@pytest.mark.parametrize("part", ["", "log.db", "payloads", "index"])
def test_a_part_of_another_user_is_refused(part: str, theirs: Path) -> None:
    os.chown(theirs / part, STRANGER, -1)
    with pytest.raises(StoreUnsafe, match=f"another user .uid {STRANGER}"):
        Store(theirs)


def test_a_named_pipe_in_a_store_is_refused_and_blocks_nobody(theirs: Path) -> None:
    os.mkfifo(theirs / "pipe")
    with pytest.raises(StoreUnsafe, match="neither a file nor a folder"):
        Store(theirs)


def test_a_named_pipe_as_a_payload_or_lease_blocks_nobody(theirs: Path) -> None:
    payload = next(theirs.glob("payloads/??/*"))
    payload.unlink()
    os.mkfifo(payload)
    with Store(theirs) as store, pytest.raises((ScrollError, OSError)):
        store.payloads.read(payload.name)


def test_a_sweep_removes_only_files_that_this_program_makes(theirs: Path, home: Path) -> None:
    unfinished = theirs / "payloads" / "tmp"
    unfinished.mkdir(exist_ok=True)
    ours = f"{'0123456789abcdef'}.part"
    (unfinished / ours).write_text("left by a killed writer")
    (unfinished / "thesis.tex").write_text("mine")
    (unfinished / f"{'a' * 16}.part").symlink_to(home / "letter.txt")
    os.link(home / "letter.txt", unfinished / f"{'b' * 16}.part")
    (unfinished / f"{'c' * 16}.part").mkdir()
    before = contents(home)
    Store(theirs).close()
    left = {path.name for path in unfinished.iterdir()}
    assert left == {"thesis.tex", f"{'a' * 16}.part", f"{'b' * 16}.part", f"{'c' * 16}.part"}
    assert contents(home) == before


def test_discarding_an_index_leaves_other_names_alone(theirs: Path) -> None:
    index = theirs / "index"
    for name in ("vacation/photo.jpg", "v1.txt", "trash-of-mine/x"):
        (index / name).parent.mkdir(parents=True, exist_ok=True)
        (index / name).write_text("mine")
    with Store(theirs) as store:
        assert store.index.discard()
        assert [hit.seq for hit in store.index.search("toll roads")] == [2]
    assert {"vacation", "v1.txt", "trash-of-mine"} <= {path.name for path in index.iterdir()}


def test_the_engine_removes_no_file_that_its_list_names_elsewhere(theirs: Path, home: Path) -> None:
    managed = next(theirs.glob("index/v*/.managed.json"))
    names = json.loads(managed.read_text())
    managed.write_text(json.dumps([*names, str(home / "letter.txt"), "../../../home/lock"]) + "\n")
    before = contents(home)
    with Store(theirs) as store:
        for number in range(3):
            store.append(Draft(content=f"toll roads {number}"))
            store.index.catch_up()
        assert len(store.index.search("toll roads")) == 4
    assert contents(home) == before


def test_an_index_with_a_linked_file_is_built_again(theirs: Path, home: Path) -> None:
    version = next(theirs.glob("index/v*"))
    (version / ".tantivy-writer.lock").unlink(missing_ok=True)
    (version / ".tantivy-writer.lock").symlink_to(home / "letter.txt")
    before = contents(home)
    with Store(theirs) as store:
        assert [hit.seq for hit in store.index.search("toll roads")] == [2]
    assert contents(home) == before and not (version / ".tantivy-writer.lock").is_symlink()


OPENERS: list[Callable[[Path], object]] = [
    Store,
    lambda folder: Store(folder, create=True),
    lambda folder: Store(folder, read_only=True),
    open_log,
    salvage,
]


@pytest.mark.parametrize("opener", OPENERS)
def test_every_way_to_open_a_store_checks_it(
    opener: Callable[[Path], object], theirs: Path, home: Path
) -> None:
    (theirs / "salvage.new").symlink_to(home)
    before = contents(home)
    with pytest.raises(StoreUnsafe):
        opener(theirs)
    assert contents(home) == before


def test_a_folder_of_other_things_is_not_called_an_unsafe_store(home: Path) -> None:
    (home / "log.db").unlink()
    (home / "link").symlink_to(home)
    with pytest.raises(NotAStore, match="holds other files, but no store"):
        Store(home)
