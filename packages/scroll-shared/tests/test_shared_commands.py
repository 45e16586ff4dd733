"""scroll shared push, pull, doctor and admin snapshot, collect on real servers, as a user types them."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from scroll_context import Draft, Store
from scroll_context.cli.app import app
from servers import Postgres
from stores import FSYNC


def scroll(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def url(database: str, bucket: str, tmp_path: Path) -> str:
    return f"{database}&store=main&payloads={bucket}&replica={tmp_path / 'replica'}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store(tmp_path / "folder", create=True) as store:
        for n in range(5):
            store.append(Draft(content=f"event {n} " + "x" * (40_000 if n == 3 else 0)))
    return tmp_path / "folder"


def test_push_doctor_snapshot_collect_pull(url: str, folder: Path, tmp_path: Path) -> None:
    head = re.findall("head ([0-9a-f]{64})", scroll("shared", "push", str(folder), url))
    assert "5 events, " in scroll("shared", "snapshot", url)
    told = scroll("doctor", url, status=1 if FSYNC else 0)
    wrong = [line for line in told.splitlines() if line.startswith("NO")]
    assert len(wrong) == len(FSYNC) and all(
        "fsync" in line for line in wrong
    )  # the server of the short tests lacks it
    assert all(
        part in told
        for part in ("Postgres", "plaintext", "5 events", "never overwritten", "superuser")
    )
    with Store(f"{url}2") as second:  # another host, which begins from the snapshot
        assert second.log.last_seq() == 5
        second.payloads.put_text("never named")
    assert ", would be deleted" in scroll("shared", "collect", url, "--grace", "0", "--dry-run")
    assert "objects deleted" in scroll("shared", "collect", url, "--grace", "0", "--yes")
    assert "5 events and 1 payload," in scroll("shared", "pull", url, str(tmp_path / "pulled"))
    assert head[0] in scroll("verify", "--store", str(tmp_path / "pulled"))


def test_doctor_says_what_is_wrong_without_the_password(url: str, postgres: Postgres) -> None:
    assert "shared init" in scroll("doctor", url, status=1)
    for wrong in (
        url.replace(postgres.password, "not-it-either"),
        url.replace(f":{postgres.port}", ":1"),
    ):
        told = scroll("doctor", f"{wrong}&timeout=1", status=1)
        assert told.startswith("NO  server")
        assert "not-it-either" not in told and postgres.password not in told


def test_doctor_finds_tls(tls_postgres: tuple[Postgres, Path], bucket: str, tmp_path: Path) -> None:
    server, authority = tls_postgres
    secure = f"sslmode=verify-full&sslrootcert={authority}&store=main&payloads={bucket}&replica={tmp_path / 'replica'}"
    url = server.database().replace("sslmode=disable", secure).replace("127.0.0.1", "localhost")
    Store(url, create=True).close()
    assert re.search("TLSv1.[23], .*checked against its certificate", scroll("doctor", url))
