"""The owner's commands: numbered migrations, applied once and in order, and hosts that refuse
another version.
"""

import threading
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from scroll_context import Store
from scroll_context.cli.app import app
from scroll_context.errors import BadInput, NotAStore, StoreLocked, StoreTooNew
from scroll_context.events import Kind, Scope
from scroll_context.log.journal import Journal
from scroll_shared import admin
from scroll_shared.address import parse


def test_migrations_are_applied_once_also_by_several_at_a_time(database: str) -> None:
    address = parse(f"{database}&store=main&payloads=/nowhere")
    applied: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: applied.append(admin.migrate(address))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = [step.number for step in admin.migrations()]
    assert steps == list(range(steps[0], admin.newest() + 1)) and steps[0] == 6, (
        "numbers never go back"
    )
    assert sorted(number for some in applied for number in some) == steps
    assert admin.migrate(address) == []


def test_a_step_that_fails_leaves_nothing_and_members_get_what_a_step_adds(
    database: str, tmp_path: Path
) -> None:
    url = f"{database}&store=main&payloads={tmp_path / 'payloads'}&replica={tmp_path / 'replica'}"
    address = parse(url)
    admin.init(address)
    known = admin.migrations()
    bad = admin.Migration(admin.newest() + 1, "bad", "CREATE TABLE half (x int); SELECT 1 / 0")
    with pytest.raises(Exception, match="division by zero"):
        admin.migrate(address, [*known, bad])
    with psycopg.connect(database, autocommit=True) as server:
        assert server.execute("SELECT to_regclass('scroll.half')").fetchone() == (None,)
        good = admin.Migration(bad.number, "good", "CREATE TABLE whole (x int)")
        assert admin.migrate(address, [*known, good]) == [good.number]
        assert server.execute("SELECT count(*) FROM scroll.whole").fetchone() == (0,)
        with pytest.raises(StoreTooNew, match="Upgrade scroll-context"):
            Store(url)


def test_a_schema_from_before_the_first_step_is_refused_and_not_changed(
    database: str, tmp_path: Path
) -> None:
    url = f"{database}&store=main&payloads={tmp_path / 'payloads'}&replica={tmp_path / 'replica'}"
    with psycopg.connect(database, autocommit=True) as server:
        server.execute("CREATE SCHEMA scroll")
        server.execute(
            "CREATE TABLE scroll.migration (number integer PRIMARY KEY, name text NOT NULL)"
        )
        server.execute("INSERT INTO scroll.migration VALUES (4, 'erasure'), (5, 'locks')")
        for attempt in (
            lambda: Store(url),
            lambda: Store(url, create=True),
            lambda: admin.migrate(parse(url)),
        ):
            with pytest.raises(NotAStore, match="scroll shared pull URL DIR"):
                attempt()
        assert server.execute("SELECT count(*) FROM scroll.migration").fetchone() == (2,)
        assert server.execute("SELECT to_regclass('scroll.event')").fetchone() == (None,)


def test_a_schema_that_lacks_a_step_names_the_command_that_brings_it(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{database}&store=main&payloads={tmp_path / 'payloads'}&replica={tmp_path / 'replica'}"
    admin.init(parse(url))
    steps = [
        *admin.migrations(),
        admin.Migration(admin.newest() + 1, "later", "CREATE TABLE later (x int)"),
    ]
    monkeypatch.setattr(admin, "migrations", lambda: steps)
    with pytest.raises(NotAStore, match="scroll shared migrate"):
        Store(url)
    assert admin.migrate(parse(url)) == [steps[-1].number]
    Store(url).close()


def test_no_login_can_hold_a_migration_up(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    address = parse(f"{database}&store=main&payloads=/nowhere")
    login = f"outsider_{name}"
    monkeypatch.setattr(admin, "_LOCK_TIMEOUT", "SET LOCAL lock_timeout = '1s'")
    with psycopg.connect(database, autocommit=True) as server:
        server.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'pw'".encode())
        try:
            rest = database.partition("@")[2]
            with psycopg.connect(f"postgresql://{login}:pw@{rest}", autocommit=True) as outsider:
                outsider.execute(
                    "SELECT pg_advisory_lock(1396920908, n) FROM generate_series(-9, 9) n"
                )
                admin.init(address)
                admin.grant(address, login, can_append=False)
                outsider.execute("BEGIN")
                outsider.execute("SELECT FROM scroll.migration")
                step = admin.Migration(admin.newest() + 1, "later", "CREATE TABLE later (x int)")
                assert admin.migrate(address, [*admin.migrations(), step]) == [step.number]
                waiting = admin.Migration(
                    step.number + 1, "waits", "ALTER TABLE migration ADD x int"
                )
                with pytest.raises(StoreLocked, match="another login holds a lock"):
                    admin.migrate(address, [*admin.migrations(), step, waiting])
        finally:
            server.execute(f"DROP OWNED BY {login}".encode())
            server.execute(f"DROP ROLE {login}".encode())


def test_the_commands_set_up_a_store(database: str, tmp_path: Path) -> None:
    url = f"{database}&store=main&payloads={tmp_path / 'payloads'}&replica={tmp_path / 'replica'}"

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["shared", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "made a store 'main'" in run("init", url)
    assert "there is already a store 'main'" in run("init", url)
    assert '"applied": []' in run("migrate", url, "--json").replace("\n", "").replace(
        "  ", " "
    ).replace("[ ]", "[]")
    assert "may read, append, erase" in run("grant", url, "postgres", "--erase")
    refused = CliRunner().invoke(app, ["shared", "grant", url, "nobody_of_this_name"])
    assert refused.exit_code == 1 and "CREATE ROLE" in refused.output
    done = CliRunner().invoke(app, ["stats", "--store", url])
    assert done.exit_code == 0 and "events" in done.output
    password = psycopg.conninfo.conninfo_to_dict(database)["password"]
    assert str(password) not in done.output + refused.output
    with pytest.raises(BadInput, match="no store"):
        admin.grant(parse(url.replace("store=main", "store=other")), "postgres")


def test_an_owner_who_is_no_superuser_is_enough(database: str, tmp_path: Path) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    owner, host = f"owner_{name}", f"host_{name}"
    with psycopg.connect(database, autocommit=True) as server:
        for role in (owner, host):
            server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'".encode())
        server.execute(f"GRANT CREATE ON DATABASE {name} TO {owner}".encode())
        rest = f"{database.partition('@')[2]}&store=main&payloads={tmp_path / 'payloads'}"
        try:
            admin.init(parse(f"postgresql://{owner}:pw@{rest}"))
            admin.grant(parse(f"postgresql://{owner}:pw@{rest}"), host)
            with Store(f"postgresql://{host}:pw@{rest}&replica={tmp_path / 'host'}") as store:
                journal = Journal(store.log, Scope("s"))
                assert journal.append(journal.draft(Kind.NOTICE, content="by a host")).seq == 1
                journal.close()
            with Store(f"postgresql://{owner}:pw@{rest}&replica={tmp_path / 'owner'}") as store:
                store.erase(seqs=[1])
                assert store.log.get(1).is_erased
        finally:
            for role in (host, owner):
                server.execute(f"DROP OWNED BY {role} CASCADE".encode())
                server.execute(f"DROP ROLE {role}".encode())
