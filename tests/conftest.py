"""Fixtures that several layers share: real stores in temporary folders."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.store.log import EventLog
from scroll_context.store.payloads import PayloadStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a store may be created."""
    return tmp_path / "store"


@pytest.fixture
def log(folder: Path) -> Iterator[EventLog]:
    """An empty log on disk."""
    log = EventLog(folder, PayloadStore(folder / "payloads"), create=True)
    yield log
    log.close()
