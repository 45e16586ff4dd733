"""A served inspector over the store of the demonstration, or over any other."""

import fcntl
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from forms import form
from large_store import build
from scroll_context.demo.stage import Stage
from scroll_context.demo.story import Story
from scroll_context.events import EVERYTHING, Grant
from scroll_context.session.past import Past
from scroll_context.store import Store
from served import Serve, Site


@pytest.fixture
def serve() -> Serve:
    @contextmanager
    def served(folder: Path, grant: Grant = EVERYTHING) -> Iterator[Site]:
        with Store(folder, read_only=True) as store:
            site = Site(store, grant)
            try:
                yield site
            finally:
                site.close()

    return served


def _made_once(
    factory: pytest.TempPathFactory, worker: str, name: str, make: Callable[[Path], object]
) -> Path:
    """A folder that the first of the workers of this run makes, and that all of them read."""
    root = factory.getbasetemp() if worker == "master" else factory.getbasetemp().parent
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder / "store"


@pytest.fixture(scope="session")
def demo_store(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The store that `scroll demo` leaves."""

    def make(folder: Path) -> None:
        story = Story(
            Stage(Console(file=io.StringIO()), paced=False),
            folder / "store",
            folder / "bookings.jsonl",
        )
        assert story.play() == 0

    return _made_once(tmp_path_factory, worker_id, "inspector-demo", make)


@pytest.fixture(scope="session")
def large_store(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A store of 20,000 events, or of 100,000 in `make test-long`."""
    events = form(20_000, 100_000)
    return _made_once(
        tmp_path_factory,
        worker_id,
        "inspector-large",
        lambda folder: build(folder / "store", events),
    )


@pytest.fixture
def demo(serve: Serve, demo_store: Path) -> Iterator[Site]:
    with serve(demo_store) as site:
        yield site


@pytest.fixture
def past(demo_store: Path) -> Iterator[Past]:
    """The past of the long session of the demonstration."""
    with Store(demo_store, read_only=True) as store:
        found = Past(store, "trip-4-september")
        found.catch_up()
        yield found
