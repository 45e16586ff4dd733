"""The servers that the other tests stand on do what their names say."""

import os
from pathlib import Path

import obstore
import psycopg
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import from_url

from servers import Postgres


def test_each_test_has_a_database_of_its_own(postgres: Postgres, database: str) -> None:
    with psycopg.connect(database) as one, psycopg.connect(postgres.database()) as other:
        one.execute("CREATE TABLE here ()")
        with pytest.raises(psycopg.errors.UndefinedTable):
            other.execute("SELECT FROM here")


def test_a_killed_server_loses_what_it_had_not_flushed_and_only_that(
    killed_postgres: Postgres,
) -> None:
    server = killed_postgres
    server.execute("CREATE TABLE kept (n int)")
    server.execute("INSERT INTO kept VALUES (1)")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("INSERT INTO kept VALUES (2)")
        server.kill()
    assert server.start().execute("SELECT n FROM kept") == [(1,)]


def test_tls_is_checked_against_the_authority(tls_postgres: tuple[Postgres, Path]) -> None:
    server, authority = tls_postgres
    secure = f"sslmode=verify-full&sslrootcert={authority}"
    address = server.url().replace("sslmode=disable", secure)
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        psycopg.connect(address)
    with psycopg.connect(address.replace("127.0.0.1", "localhost")) as connection:
        assert connection.execute(
            "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        ).fetchall() == [(True,)]


def test_the_object_server_keeps_the_first_of_two_puts(bucket: str) -> None:
    store = from_url(bucket)
    obstore.put(store, "a", b"one", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a", b"two", mode="create")
    assert bytes(obstore.get(store, "a").bytes()) == b"one"


def test_the_servers_do_not_run_as_root(postgres: Postgres) -> None:
    owner = (
        Path(f"/proc/{(postgres.folder / 'postmaster.pid').read_text().split()[0]}").stat().st_uid
    )
    assert owner != 0 or os.geteuid() != 0
