"""Files of the index that are not as the engine wrote them are named; those of a sound index never
are.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from damage import replace_with
from scroll_context.events import Draft
from scroll_context.search.index_files import damaged_files, footer
from scroll_context.store import Store

DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: replace_with(file, b""),
    "cut": lambda file: replace_with(file, file.read_bytes()[:-1]),
    "only a footer": lambda file: replace_with(file, file.read_bytes()[-8:]),
    "longer": lambda file: replace_with(file, file.read_bytes() + b"x"),
    "flipped": lambda file: replace_with(
        file, bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]
    ),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.fixture
def index(folder: Path) -> Path:
    with Store(folder, create=True) as store:
        for number in range(3):
            store.append(Draft(content=f"harbour {number}"))
            store.index.catch_up()
    return folder / "index"


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("part", ["fast", "fieldnorm", "idx", "pos", "store", "term"])
def test_each_damage_to_each_file_is_named(index: Path, part: str, damage: str) -> None:
    assert damaged_files(index) == []
    file = sorted(index.glob(f"v*/*.{part}"))[1]
    DAMAGE[damage](file)
    assert damaged_files(index) == [file.name]


def test_a_flipped_bit_anywhere_in_a_body_is_named(index: Path) -> None:
    file = sorted(index.glob("v*/*.fieldnorm"))[0]
    whole = file.read_bytes()
    with file.open("rb") as handle:
        end, _ = footer(handle)
    assert 0 < end < len(whole)
    for at in range(end):
        replace_with(file, whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        assert damaged_files(index) == [file.name], at
    version = whole.index(b'"version"')
    replace_with(file, whole[: version + 1] + b"V" + whole[version + 2 :])
    assert damaged_files(index) == []  # says nothing about the body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"segments": 3}', b'{"segments": [{}]}'])
def test_a_damaged_meta_file_is_named(index: Path, body: bytes) -> None:
    (meta,) = index.glob("v*/meta.json")
    meta.write_bytes(body)
    assert damaged_files(index) == ["meta.json"]


def test_files_that_are_merged_away_meanwhile_are_no_damage(folder: Path, index: Path) -> None:
    over = threading.Event()

    def write() -> None:
        with Store(folder) as store:
            for number in range(40):
                store.append(Draft(content=f"lighthouse {number}"))
                store.index.catch_up()
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    found = []
    while not over.is_set():
        found += damaged_files(index)
    writer.join()
    assert found == []
