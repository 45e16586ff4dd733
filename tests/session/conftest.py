"""Real sessions for the tests of the session layer."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scroll_context.session.session import Session
from scroll_context.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", create=True) as store:
        yield store


@pytest.fixture
def opened(store: Store) -> Iterator[Callable[..., Session]]:
    """Opens sessions that are closed when the test ends."""
    sessions: list[Session] = []

    def open_session(session_id: str = "s", **options: object) -> Session:
        sessions.append(Session.open(store, session_id=session_id, **options))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()
