"""Who may do what on the server: every refusal, encrypted connections, and passwords that are never
repeated.
"""

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from proxy import Proxy
from scroll_context import Draft, Store
from scroll_context.errors import NotAStore, ScrollError, StoreFull, StoreReadOnly, StoreUnreachable
from scroll_context.events import Scope
from scroll_context.log.address import printable_place
from scroll_context.log.journal import Journal
from scroll_shared import admin
from scroll_shared.address import parse
from scroll_shared.backend import shared_backend
from servers import Postgres
from stores import hosts_of

SECRET = "p@ss/w%rd"
TABLES = (
    "event",
    "event_0",
    "head",
    "store",
    "source",
    "writer",
    "session",
    "tombstone",
    "member",
    "replica",
    "migration",
)


class Site:
    """Two stores in one database, and a login for each kind of member."""

    def __init__(self, database: str, folder: Path) -> None:
        self.owner = database
        self.folder = folder
        for name in ("main", "other"):
            admin.init(parse(self.url(name)))
        self.name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
        for role in ("writer", "reader", "tenant", "outsider"):
            self.sql(f"CREATE ROLE {self.login(role)} LOGIN PASSWORD '{SECRET}'")
        admin.grant(parse(self.url("main")), self.login("writer"))
        admin.grant(parse(self.url("main")), self.login("reader"), can_append=False)
        admin.grant(parse(self.url("other")), self.login("tenant"))

    def login(self, role: str) -> str:
        return f"{role}_{self.name}"

    def url(self, store: str, role: str = "") -> str:
        base = self.owner
        if role:
            rest = self.owner.partition("@")[2]
            base = f"postgresql://{self.login(role)}:p%40ss%2Fw%25rd@{rest}"
        replica = self.folder / f"{role or 'owner'}-{store}"
        return (
            f"{base}&store={store}&payloads={self.folder / 'payloads'}&replica={replica}&timeout=5"
        )

    def connect(self, role: str) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(
            self.url("main", role).partition("&store")[0] if role else self.owner, autocommit=True
        )

    def sql(self, statement: str, role: str = "") -> list[tuple[object, ...]]:
        with self.connect(role) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []


@pytest.fixture
def site(database: str, tmp_path: Path) -> Iterator[Site]:
    made = Site(database, tmp_path)
    with Store(made.url("main")) as store, Store(made.url("other")) as other:
        store.append(Draft(content="ours"))
        other.append(Draft(content="theirs"))
    yield made
    for role in ("writer", "reader", "tenant", "outsider"):
        made.sql(f"DROP OWNED BY {made.login(role)}")
        made.sql(f"DROP ROLE {made.login(role)}")


def test_no_member_changes_a_table(site: Site) -> None:
    for role in ("writer", "reader", "tenant", "outsider"):
        with site.connect(role) as connection:
            assert_changes_no_table(connection)


def assert_changes_no_table(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    for table in TABLES:
        column = {"event": "seq", "event_0": "seq", "migration": "number", "store": "name"}.get(
            table, "store_id"
        )
        for statement in (
            f"INSERT INTO scroll.{table} DEFAULT VALUES",
            f"UPDATE scroll.{table} SET {column} = {column}",
            f"DELETE FROM scroll.{table}",
            f"TRUNCATE scroll.{table}",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
    for statement in (
        "SELECT * FROM scroll.source",
        "SELECT * FROM scroll.writer",
        "SELECT * FROM scroll.session",
        "SELECT * FROM scroll.member",
        "SELECT * FROM scroll.event_0",
        "SELECT secret FROM scroll.store",
        "SELECT scroll.ensure_partition(7)",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
        "CREATE TABLE scroll.mine (x int)",
        "DROP TABLE scroll.event",
        "ALTER TABLE scroll.event DISABLE ROW LEVEL SECURITY",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_a_member_reads_and_appends_in_its_own_store_only(site: Site) -> None:
    with Store(site.url("main", "writer")) as store:
        assert store.log.get(1).content == "ours"
        assert store.append(Draft(content="mine")) == 2
    assert site.sql("SELECT count(*) FROM scroll.event", "writer") == [(2,)]
    assert site.sql("SELECT count(*) FROM scroll.event", "tenant") == [(1,)]
    assert site.sql("SELECT name FROM scroll.store", "tenant") == [("other",)]
    assert site.sql("SELECT last_seq FROM scroll.head", "tenant") == [(1,)]
    with pytest.raises(NotAStore):
        Store(site.url("main", "tenant"))
    with pytest.raises(ScrollError):
        Store(site.url("main", "outsider"))
    main = site.sql("SELECT store_id FROM scroll.store WHERE name = 'main'")[0][0]
    empty = "'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'"
    for statement in (
        f"CALL scroll.record({main}, gen_random_uuid(), 1, 0, NULL, {empty}, NULL, NULL, NULL, NULL)",
        f"SELECT scroll.append({main}, gen_random_uuid(), 1, 0, NULL, {empty})",
        f"SELECT scroll.settle({main}, gen_random_uuid(), 1)",
        f"SELECT scroll.claim({main}, 's'::bytea, 'me', sha256('x'), interval '1 minute')",
        f"SELECT scroll.renew({main}, '{{}}', '{{}}', '{{}}', interval '1 minute')",
        f"SELECT scroll.release({main}, 's'::bytea, 1, sha256('x'))",
        f"SELECT scroll.holder({main}, 's'::bytea)",
        f"SELECT scroll.report({main}, sha256('x'), 'host', 1, 1)",
    ):
        with pytest.raises(psycopg.Error) as refused:
            site.sql(statement, "tenant")
        assert refused.value.sqlstate == "SC001", statement


def test_no_login_can_hold_appends_up(site: Site) -> None:
    held = "SELECT pg_advisory_lock(1396920908, n) FROM generate_series(0, 9) n"
    with site.connect("outsider") as outsider, site.connect("writer") as writer:
        outsider.execute(held.encode())
        for statement in (
            "SELECT FROM scroll.head FOR UPDATE",
            "SELECT FROM scroll.head FOR KEY SHARE",
            "DO $$ BEGIN LOCK TABLE scroll.head IN SHARE MODE; END $$",
            "DO $$ BEGIN LOCK TABLE scroll.event IN SHARE UPDATE EXCLUSIVE MODE; END $$",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                writer.execute(statement.encode())
        with Store(site.url("main")) as store:
            assert store.append(Draft(content="goes on")) == 2


def test_a_reader_reads_and_does_nothing_else(site: Site) -> None:
    with Store(site.url("main", "reader")) as store:
        assert store.log.get(1).content == "ours"
        with pytest.raises(StoreReadOnly):
            store.append(Draft(content="not allowed"))
        with pytest.raises(StoreReadOnly):
            Journal(store.log, Scope("s"))
    admin.grant(parse(site.url("main")), site.login("reader"))
    with Store(site.url("main", "reader")) as store:
        assert store.append(Draft(content="allowed now")) == 2
    assert admin.revoke(parse(site.url("main")), site.login("reader"))
    with pytest.raises(NotAStore):
        Store(site.url("main", "reader"))


def test_a_group_may_be_a_member(site: Site) -> None:
    group = f"group_{site.name}"
    site.sql(f"CREATE ROLE {group}")
    try:
        admin.grant(parse(site.url("main")), group)
        site.sql(f"GRANT {group} TO {site.login('outsider')}")
        with Store(site.url("main", "outsider")) as store:
            assert store.append(Draft(content="by a member of the group")) == 2
    finally:
        site.sql(f"DROP OWNED BY {group}")
        site.sql(f"DROP ROLE {group}")


def test_a_store_that_is_full_refuses_and_keeps(database: str, tmp_path: Path) -> None:
    with hosts_of(database, tmp_path) as hosts:
        admin.init(parse(hosts.url), max_bytes=1_000)
        store = hosts.open("a")
        with pytest.raises(StoreFull, match="may hold 1000"):
            for _ in range(100):
                store.append(Draft(content="filler"))
        assert store.log.last_seq() == len(list(store.log.iterate())) > 1


def test_no_error_and_no_log_has_a_password(
    site: Site, postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good = site.url("main", "writer")
    bad = (
        good.replace("p%40ss%2Fw%25rd", "wr0ng-p%40ss%2Fw%25rd"),
        good.replace(f":{postgres.port}/", ":1/"),
        good.replace("127.0.0.1", "no.such.host.invalid"),
        good.replace("sslmode=disable", "sslmode=verify-full"),
        good.replace(site.name, "nosuchdatabase"),
        good + "&nosuchoption=1",
        good.replace("store=main", "store=nosuchstore"),
    )
    for n, url in enumerate(bad):
        with pytest.raises(ScrollError) as refused:
            Store(
                url.replace("timeout=5", "timeout=0.5").replace(
                    "replica=", f"replica={tmp_path}/bad-{n}-"
                )
            )
        said = (
            "".join(traceback.format_exception(refused.value))
            + str(refused.value)
            + repr(refused.value)
        )
        assert SECRET not in said and "p%40ss" not in said, url
    with Store(good) as store:
        store.append(Draft(content="x"))
        assert SECRET not in repr(shared_backend(store.log).address) + str(
            shared_backend(store.log).address
        )
    assert SECRET not in caplog.text and "p%40ss" not in caplog.text
    assert "p%40ss" not in printable_place(good) and site.login("writer") in printable_place(good)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert (
                SECRET.encode() not in file.read_bytes() and b"p%40ss" not in file.read_bytes()
            ), file


def test_connections_are_encrypted_and_checked_unless_asked_otherwise(
    tls_postgres: tuple[Postgres, Path], postgres: Postgres, tmp_path: Path
) -> None:
    server, authority = tls_postgres
    plain = f"{server.database()}&store=main&payloads={tmp_path / 'payloads'}&replica={tmp_path / 'replica'}&timeout=5"
    named = plain.replace("sslmode=disable&", "").replace("127.0.0.1", "localhost")
    with Store(f"{named}&sslrootcert={authority}", create=True) as store:
        store.append(Draft(content="in secret"))
        used = shared_backend(store.log).server.call(
            "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        )
        assert used == [(True,)]
    elsewhere = named.replace("replica=", "replica=other-")
    with pytest.raises(StoreReadOnly, match="certificate"):  # an authority that nobody here knows
        Store(elsewhere)
    with pytest.raises(StoreReadOnly, match="certificate"):  # the certificate names another host
        Store(f"{elsewhere.replace('localhost', '127.0.0.1')}&sslrootcert={authority}")
    with pytest.raises((StoreReadOnly, StoreUnreachable), match="SSL"):  # a server without TLS
        Store(elsewhere.replace(f":{server.port}/", f":{postgres.port}/"))
    with Store(plain) as store:  # asked for
        assert store.log.last_seq() == 1


def test_an_encrypted_connection_that_breaks_is_a_server_that_is_away(
    tls_postgres: tuple[Postgres, Path], tmp_path: Path
) -> None:
    server, authority = tls_postgres
    between = Proxy(server.port)
    url = server.database().replace("sslmode=disable", f"sslrootcert={authority}")
    url = url.replace(f"127.0.0.1:{server.port}", f"localhost:{between.port}")
    try:
        with hosts_of(url, tmp_path, timeout=30) as hosts:
            store = hosts.open("a", create=True)
            for n in range(1, 6):
                assert store.append(Draft(content=f"event {n}")) == n
                between.cut()  # the next append meets a broken connection, and opens another
    finally:
        between.close()
