"""Sessions of an encrypted store: variables and results survive a resume, and a fork survives its parent's key."""

from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from scroll_context.errors import KeyDestroyed, SessionBusy
from scroll_context.events import Kind
from scroll_context.session.session import Session, fork
from scroll_context.store.encryption import encrypt_store
from scroll_context.store.integrity import verify
from scroll_context.store.store import Store
from scroll_context.store.transfer import backup

KEY = bytes(range(32))
SECRET = "heron-4711-zebra"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCROLL_KEY_FILE", str(tmp_path / "elsewhere" / "key"))


def work(store: Store) -> int:
    """A session with a large result and a large variable; the last seq of it."""
    with Session.open(store, session_id="parent") as session:
        session.say("remember it")
        session.run(f"v = '{SECRET[:5]}' + '{SECRET[5:]}' * 4_000")
        session.record(Kind.TOOL_RESULT, role="tool", content="a line\n" * 500 + SECRET * 4_000)
    return store.log.tail(1, session_id="parent")[0].seq


def has_variable(session: Session) -> bool:
    return session.run("print(len(v) > 10_000)").content == "True"


def check_after_the_parents_key_is_gone(store: Store, tmp_path: Path, result: int) -> None:
    backup(store.log, tmp_path / "backup")
    for folder in (store.folder, tmp_path / "backup"):
        assert not [one for one in folder.rglob("*") if one.is_file() and SECRET.encode() * 2 in one.read_bytes()]
    with Session.resume(store, "parent") as session:
        assert has_variable(session)
        with pytest.raises(SessionBusy):  # who works with the key is not robbed of it
            store.destroy_key("parent")
    report = store.destroy_key("parent")
    assert report.forks == ("child", "grandchild") and verify(store.log).ok
    with Session.resume(store, "grandchild") as session:
        assert has_variable(session) and SECRET in store.log.text(store.log.get(result))
    for name in ("child", "grandchild"):
        store.destroy_key(name)
    with Store(tmp_path / "backup", key=KEY) as copy:
        for opened in (store, copy):
            with pytest.raises(KeyDestroyed):
                opened.log.text(opened.log.get(result))
            assert verify(opened.log).ok and verify(opened.log).known
    with Session.resume(store, "grandchild") as session:  # without its variables, and with another key
        assert "NameError" in session.run("print(v)").content
        session.run("w = 'x' * 100_000")
    with Session.resume(store, "grandchild") as session:
        assert session.run("print(len(w))").content == "100000"
    assert verify(store.log).ok


def test_a_fork_has_keys_of_its_own(folder: Path, tmp_path: Path) -> None:
    with Store(folder, create=True, key=KEY) as store:
        last = work(store)
        result = next(store.log.iterate(session_id="parent", kind=Kind.TOOL_RESULT)).seq
        fork(store, "parent", last, session_id="child").close()
        at = store.log.tail(1, session_id="child")[0].seq
        fork(store, "child", at, session_id="grandchild").close()
        check_after_the_parents_key_is_gone(store, tmp_path, result)


def test_forks_of_a_store_that_is_encrypted_later_have_keys_of_their_own(folder: Path, tmp_path: Path) -> None:
    with Store(folder, create=True) as store:
        last = work(store)
        result = next(store.log.iterate(session_id="parent", kind=Kind.TOOL_RESULT)).seq
        fork(store, "parent", last, session_id="child").close()
        fork(store, "child", store.log.tail(1, session_id="child")[0].seq, session_id="grandchild").close()
    encrypt_store(folder, KEY)
    with Store(folder, key=KEY) as store:
        check_after_the_parents_key_is_gone(store, tmp_path, result)
