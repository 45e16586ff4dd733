"""Fixtures that several layers share, how hard the property tests try, and which test begins.

Every Hypothesis test carries the marker `fuzz`. In `make test` each runs its bounded number of
examples, the same ones every time, so that a red run means a change; `make test-long` runs more of
them (testing/forms.py). `make fuzz` sets FUZZ_MINUTES: each then begins anew with other examples
until its minutes are over, and what failed once is kept in .hypothesis and tried first next time.
"""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from forms import LONG, form
from scroll_context import store as opening
from scroll_context.log.file_backend import is_replica
from scroll_context.log.log import EventLog
from scroll_context.plugins import entry_points
from scroll_context.session.session import Session
from scroll_context.store import Store

FUZZ_SECONDS = 60 * float(os.environ.get("FUZZ_MINUTES") or 0)

hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize=True, print_blob=True, max_examples=form(40, 100)
)
hypothesis.settings.register_profile(
    "fuzz", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fuzz" if FUZZ_SECONDS else "tests")


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores Ctrl-C for its background jobs, and tests press it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "fuzz: draws its examples; every Hypothesis test has it")
    config.addinivalue_line("markers", "first: begins before all others, since it takes longest")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("fuzz")
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    until = time.monotonic() + FUZZ_SECONDS
    yield
    while item.get_closest_marker("fuzz") and time.monotonic() < until:
        item.runtest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a store may be created."""
    return tmp_path / "store"


@pytest.fixture
def log(folder: Path) -> Iterator[EventLog]:
    """An empty log on disk."""
    log = opening.open_log(folder, create=True)
    yield log
    log.close()


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(folder, create=True) as store:
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


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The secret that keys hashes, outside the store and outside the home of the person who runs
    the tests.
    """
    path = tmp_path / "elsewhere" / "key"
    monkeypatch.setenv("SCROLL_KEY_FILE", str(path))
    return path


# both logs --------------------------------------------------------------------------------------
#
# Tests of what is built on the log run twice with the same assertions: on a file, and on a Postgres
# server whose copy is in the folder that the test names. In `make test` these are the files of
# SHORT; `make test-long` takes the rest of BOTH. A test that works on the files themselves, or
# starts processes that do, has no second run: see ONE_LOG.

SHORT = (
    "log/test_backend.py",
    "recall/test_memory.py",
    "upkeep/test_transfer.py",
    "agent/test_paper_cells.py",
    "agent/test_earlier.py",
)
BOTH = (
    "log/test_backend.py",
    "recall/",
    "tools/",
    "agent/",
    "search/",
    "sql/",
    "upkeep/test_transfer.py",
)
# The processes of this test open the folder by themselves.
ONE_LOG = ("agent/test_kill.py",)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    _, _, name = metafunc.definition.nodeid.partition("tests/")
    chosen = BOTH if LONG else SHORT
    # Hypothesis uses one fixture for many examples.
    drawn = getattr(metafunc.function, "is_hypothesis_test", False)
    if name.startswith(chosen) and not name.startswith(ONE_LOG) and not drawn:
        metafunc.fixturenames.insert(0, "which_log")
        metafunc.parametrize("which_log", ["file", "postgres"], indirect=True)


@pytest.fixture(scope="session")
def database_of_both() -> Iterator[str]:
    if not any(point.name == "postgresql" for point in entry_points("scroll_context.stores")):
        pytest.skip("scroll-shared is not installed: pip install -e packages/scroll-shared")
    servers = pytest.importorskip("servers")
    with servers.server_folder() as folder:
        try:
            settings = form({"fsync": "off"}, {})
            server = (
                servers.Postgres(folder / "both", programs=servers.programs(), settings=settings)
                .create()
                .start()
            )
        except servers.CannotStart as error:
            pytest.skip(str(error))
        yield server.database()


@pytest.fixture
def which_log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On which log a test runs: with "postgres", opening a folder opens the store of which it is
    the copy.
    """
    which = str(request.param)
    if which == "postgres":
        database, open_log = request.getfixturevalue("database_of_both"), opening.open_log

        def open_shared(place: str | Path, *, create: bool = False, **options: Any) -> EventLog:
            folder = Path(place).absolute()
            if options.get("limits") or (not create and not is_replica(folder)):
                return open_log(place, create=create, **options)
            name = hashlib.sha256(str(folder).encode()).hexdigest()[:24]
            return open_log(
                f"{database}&store={name}&payloads={folder}/payloads&replica={folder}",
                create=create,
            )

        monkeypatch.setattr(opening, "open_log", open_shared)
    return which
