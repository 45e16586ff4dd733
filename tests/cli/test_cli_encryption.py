"""encrypt and key: what they make, ask, tell and refuse."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from scroll_context.events import Draft
from scroll_context.store import keys
from scroll_context.store.store import Store

SECRET = "heron-4711-zebra"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCROLL_KEY_FILE", str(tmp_path / "elsewhere" / "key"))
    monkeypatch.delenv("SCROLL_KEYRING", raising=False)
    for name in (keys.KEY, keys.KEY_FILE, keys.KEY_COMMAND):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "elsewhere"


@pytest.fixture
def encrypted(filled: Any, folder: Path) -> Any:
    with Store(folder) as store:
        store.append(Draft(session_id="long", content="public " * 400 + SECRET * 9_000))
        store.append(Draft(session_id="x", content="a short text"))
    done = filled("encrypt")
    assert done.exit_code == 0 and "1 payloads encrypted" in done.stdout and "apart from every backup" in done.stderr
    return filled


def test_every_command_works_on_an_encrypted_store(encrypted: Any, folder: Path, elsewhere: Path) -> None:
    assert (elsewhere / "master.key").stat().st_mode & 0o777 == 0o600
    seq = str(31)
    assert SECRET in encrypted("get", seq).stdout and encrypted("verify").exit_code == 0
    assert SECRET in encrypted("show", seq, "--full").stdout and encrypted("search", "public").exit_code == 0
    assert encrypted("backup", folder.with_name("copy")).exit_code == 0
    assert "not encrypted" in encrypted("export", folder.with_name("out.jsonl")).stderr
    assert (
        encrypted("import", folder.with_name("out.jsonl"), "--store", folder.with_name("new"), "--trust").exit_code == 0
    )
    assert encrypted("salvage").exit_code == 0 and encrypted("stats").exit_code == 0
    files = [one for root in (folder, folder.with_name("copy")) for one in root.rglob("*") if one.is_file()]
    assert not [one for one in files if SECRET.encode() in one.read_bytes()]
    facts = json.loads(encrypted("key", "show", "--json").stdout)
    assert facts["keys"] == 1 and facts["destroyed"] == 0 and facts["key_ring"].startswith(str(elsewhere))
    assert "sessions    1 keys" in encrypted("key", "show").stdout


def test_refusals_name_the_remedy(encrypted: Any, filled: Any, folder: Path, elsewhere: Path, tmp_path: Path) -> None:
    again = encrypted("encrypt")
    assert again.exit_code == 1 and "encrypted already" in again.stderr
    assert "has no keys of Scroll" in encrypted("encrypt", "--store", "postgresql://nowhere/x").stderr
    assert "takes no name" in encrypted("key", "show", "x").stderr
    assert "name the sessions" in encrypted("key", "destroy").stderr
    assert "--yes" in encrypted("key", "destroy", "long").stderr
    assert "no session" in encrypted("key", "destroy", "nobody", "--yes").stderr
    (elsewhere / "master.key").rename(tmp_path / "moved")
    refused = encrypted("get", "31")
    assert refused.exit_code == 1 and "SCROLL_MASTER_KEY_FILE" in refused.stderr
    assert encrypted("sessions").exit_code == 0  # rows need no key
    with Store(tmp_path / "plain", create=True) as store:
        store.append(Draft(content="x"))
    assert "is not encrypted" in encrypted("key", "show", "--store", tmp_path / "plain").stderr
    assert "is not encrypted" in encrypted("key", "lost", "--yes", "--store", tmp_path / "plain").stderr


def test_keys_are_rotated_destroyed_and_replaced(encrypted: Any, tmp_path: Path, monkeypatch: Any) -> None:
    old = keys.master_key().keys
    assert "1 key rings" in encrypted("key", "rotate").stdout
    assert len(keys.master_key().keys) == 1 and keys.master_key().keys != old
    assert SECRET in encrypted("get", "31").stdout
    moved = encrypted("key", "rotate", "--to", tmp_path / "new.key", "--json")
    assert json.loads(moved.stdout)["others"] == [] and "SCROLL_MASTER_KEY_FILE" in moved.stderr
    assert "does not open this store" in encrypted("get", "31").stderr
    monkeypatch.setenv(keys.KEY_FILE, str(tmp_path / "new.key"))
    assert SECRET in encrypted("get", "31").stdout
    with monkeypatch.context() as patch:
        patch.setenv(keys.KEY, keys.master_key().keys[0].hex())
        assert "--to FILE" in encrypted("key", "rotate").stderr
    assert "scroll key destroy x" in encrypted("erase", "--session", "x", "--yes").stderr
    done = encrypted("key", "destroy", "long", "--yes")
    assert "long: 1 payloads are unreadable now" in done.stdout and "scroll erase" in done.stderr
    assert "was destroyed on" in encrypted("get", "31").stderr and encrypted("verify").exit_code == 0
    (tmp_path / "new.key").write_text("00" * 32)
    assert "does not open" in encrypted("get", "31").stderr
    lost = encrypted("key", "lost", "--yes")
    assert lost.exit_code == 0 and "encrypted.lost-" in lost.stderr and encrypted("verify").exit_code == 0
