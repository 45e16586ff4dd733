"""A served inspector over the store of the demonstration, or over any other."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from served import Serve, Site

from scroll_context.demo.stage import Stage
from scroll_context.demo.story import Story
from scroll_context.events import EVERYTHING, Grant
from scroll_context.store.store import Store


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


@pytest.fixture(scope="session")
def demo_store(tmp_path_factory: Any) -> Path:
    """The store that `scroll demo` leaves."""
    folder: Path = tmp_path_factory.mktemp("demo")
    story = Story(Stage(Console(file=io.StringIO()), paced=False), folder / "store", folder / "bookings.jsonl")
    assert story.play() == 0
    return folder / "store"


@pytest.fixture
def demo(serve: Serve, demo_store: Path) -> Iterator[Site]:
    with serve(demo_store) as site:
        yield site
