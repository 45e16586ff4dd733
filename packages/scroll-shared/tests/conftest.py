"""One Postgres and one S3 server for a test session, a new database and bucket for each test.

What cannot be had on a machine skips its tests by name.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servers import CannotStart, ObjectServer, Postgres, certificates, programs, server_folder
from stores import FSYNC


@pytest.fixture(scope="session")
def servers() -> Iterator[Path]:
    """The folder of this session's servers; all end with it."""
    with server_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres(servers: Path) -> Postgres:
    """The session's server.

    A test that kills it, or changes its settings, takes one of the others instead.
    """
    return _started(servers / "postgres", **FSYNC)


@pytest.fixture(scope="session")
def killable(servers: Path) -> Postgres:
    """A server that tests kill. Nothing but a flush that somebody asks for writes its log ahead."""
    settings = {
        "wal_writer_delay": "10000",
        "wal_writer_flush_after": "1GB",
        "checkpoint_timeout": "3600",
        **FSYNC,
    }
    return _started(servers / "killable", **settings)


@pytest.fixture
def killed_postgres(killable: Postgres) -> Postgres:
    """The session's server for tests that kill it: it runs when the test begins."""
    return killable if killable.is_running else killable.start()


@pytest.fixture
def own_postgres(servers: Path) -> Iterator[Callable[..., Postgres]]:
    """Start servers of this test's own: `own_postgres()`, with settings by name; all stop when the
    test ends.
    """
    started: list[Postgres] = []

    def start(**settings: str) -> Postgres:
        name = f"own-{len(list(servers.iterdir()))}"
        started.append(_started(servers / name, **FSYNC, **settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def database(postgres: Postgres) -> str:
    """The address of a new, empty database, as its superuser."""
    return postgres.database()


@pytest.fixture(scope="session")
def tls_postgres(servers: Path) -> tuple[Postgres, Path]:
    """A server with TLS, certified for the name localhost, and the file of the authority that
    vouches for it.
    """
    try:
        authority, settings = certificates(servers / "certificates")
        server = Postgres(servers / "tls", programs=programs(tls=True), settings=settings)
        return server.create().start(), authority
    except CannotStart as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def object_server(servers: Path) -> ObjectServer:
    try:
        return ObjectServer(servers)
    except CannotStart as error:
        pytest.skip(str(error))


@pytest.fixture
def bucket(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a new bucket; the environment says where its server is."""
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    return object_server.bucket()


def _started(folder: Path, **settings: str) -> Postgres:
    try:
        return Postgres(folder, programs=programs(), settings=settings).create().start()
    except CannotStart as error:
        pytest.skip(str(error))
