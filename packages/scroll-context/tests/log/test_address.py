"""Addresses of stores: which backend they choose, and what of them may be printed."""

import sys
from pathlib import Path

import pytest

from scroll_context import Draft, Store
from scroll_context.errors import BadInput
from scroll_context.log.address import has_password, is_address, printable_place, scheme_of

NOTEBOOK = """
from pathlib import Path

from scroll_context.log.file_backend import FileBackend


class NotebookScheme:
    def check(self, address):
        pass

    def open(self, address, *, create, limits):
        folder = Path(address.removeprefix("notebook:/"))
        return FileBackend(folder, create=create, limits=limits)

    def examine(self, address):
        return []


NOTEBOOK = NotebookScheme()
"""


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package of ours is installed beside the core."""
    installed = [path for path in sys.path if not list(Path(path).glob("scroll_*.dist-info"))]
    monkeypatch.setattr(sys, "path", installed)


@pytest.mark.parametrize(
    ("place", "scheme"),
    [
        ("postgresql://me@db.example/agents?store=main", "postgresql"),
        (Path("postgresql://me@db.example/agents"), "postgresql"),
        ("notebook:///home/me", "notebook"),
        ("history", ""),
        ("/home/me/history", ""),
        (Path("odd:/folder"), ""),
    ],
)
def test_scheme_tells_addresses_from_folders(place: object, scheme: str) -> None:
    assert scheme_of(place) == scheme
    assert is_address(place) == bool(scheme)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:hunter2@db.example/agents?store=main",
        "postgresql:/me:hunter2@db.example/agents?store=main",
        "postgresql://me@db.example/agents?store=main&password=hunter2",
    ],
)
def test_secrets_of_an_address_are_recognised_and_never_printed(address: str) -> None:
    assert has_password(address)
    assert printable_place(address) == "postgresql://me@db.example/agents?store=main"


def test_address_without_secrets_is_printed_as_it_is() -> None:
    address = "postgresql://me@db.example/agents?store=main&payloads=s3://bucket/x"
    assert not has_password(address)
    assert printable_place(address) == address
    assert printable_place(Path("/home/me/history")) == "/home/me/history"


@pytest.mark.usefixtures("without_packages")
def test_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(BadInput, match=r"pip install ./packages/scroll-shared"):
        Store("postgresql://me@db.example/agents?store=main")


def test_unknown_scheme_is_refused_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="no installed package opens carrier-pigeon:// addresses"):
        Store("carrier-pigeon://loft/store", create=True)
    assert list(tmp_path.iterdir()) == []


def test_installed_package_opens_the_scheme_that_it_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    metadata = site / "notebook-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "entry_points.txt").write_text(
        "[scroll_context.stores]\nnotebook = notebook_stores:NOTEBOOK\n"
    )
    (site / "notebook_stores.py").write_text(NOTEBOOK)
    monkeypatch.syspath_prepend(str(site))
    with Store(f"notebook:/{tmp_path}/log", create=True) as store:
        store.append(Draft(kind="conversation", session_id="s", content="through a package"))
    with Store(tmp_path / "log") as store:
        assert store.log.get(1).content == "through a package"
