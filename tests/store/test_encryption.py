"""Encryption at rest: bodies come back exact or not at all, keys can be destroyed, and a kill leaves old or new."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forms import form
from killed_at import run_killed

pytest.importorskip("cryptography")

from scroll_context.errors import (
    BadInput,
    KeyDestroyed,
    KeyMissing,
    KeyWrong,
    PayloadDamaged,
    PayloadMissing,
    StoreDamaged,
    StoreError,
    StoreTooNew,
)
from scroll_context.events import Draft, Event, Kind, Payload
from scroll_context.importers import import_file
from scroll_context.store import keys, schema
from scroll_context.store.encryption import (
    CHUNK,
    EncryptedPayloads,
    encrypt_store,
    read_store_id,
    replace_lost_key,
    rotate,
)
from scroll_context.store.grep import Scan, pattern
from scroll_context.store.integrity import salvage, verify
from scroll_context.store.log import EventLog
from scroll_context.store.merge import merge_export
from scroll_context.store.payloads import PayloadFolder, PayloadStore
from scroll_context.store.store import Store
from scroll_context.store.transfer import backup, export

KEY = bytes(range(32))
SECRET = "heron-4711-zebra"
LEAD = "a line that anybody may read\n" * 100  # longer than the preview that stays in the row


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys lie outside the store, and outside the home of whoever runs the tests."""
    folder = tmp_path / "elsewhere"
    monkeypatch.setenv("SCROLL_KEY_FILE", str(folder / "key"))
    monkeypatch.setenv("SCROLL_KEYRING", str(folder / "keys"))
    for name in (keys.KEY, keys.KEY_FILE, keys.KEY_COMMAND):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store(folder, create=True, key=KEY) as store:
        yield store


def long_text(word: str = SECRET) -> str:
    return LEAD + f"the code is {word}\n" * 3_000


def fill(store: Store) -> None:
    store.log.append_many(Draft(session_id="plain", content=f"short {n}") for n in range(5))
    for session in ("a", "b"):
        store.append(Draft(kind=Kind.TOOL_RESULT, session_id=session, content=long_text(f"{SECRET}-{session}")))
    image = store.payloads.put(b"\x89PNG" + SECRET.encode() * 9_000, "image/png")
    store.append(Draft(kind=Kind.ARTIFACT, session_id="a", content="a picture", payload=image))
    blob = store.payloads.put(b"pickled " + SECRET.encode() * 500, "application/octet-stream", "b").digest
    saved = f'{{"cell":1,"python":"3","saved":[{{"name":"v","digest":"{blob}"}}]}}'
    store.append(Draft(kind=Kind.SNAPSHOT, session_id="b", content=saved))
    store.index.catch_up()


def texts(log: EventLog) -> dict[int, tuple[str, bytes]]:
    """Everything that a store holds, by address: texts, and the bodies of payloads and of saved variables."""
    found = {}
    for event in log.iterate():
        if event.kind in (Kind.ENCRYPTION, Kind.ERASURE, Kind.SALVAGE):
            continue
        digest = event.payload.digest if event.payload else None
        bodies = [log.payloads.read(one) for one in log.payloads.named_by(event.kind, event.content, digest)]
        content = "" if event.kind == Kind.SNAPSHOT else event.content
        found[event.seq] = content, b"".join(bodies)
    return found


def holding(folder: Path, word: str = SECRET) -> list[str]:
    forms = [word.encode(), word.encode("utf-16-le")]
    return [
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and any(form in file.read_bytes() for form in forms)
    ]


def body_file(store: Store, event: Event) -> Path:
    assert event.payload is not None
    (file,) = store.payloads.folder.rglob(f"{event.payload.digest}-*")
    return file


# bodies -------------------------------------------------------------------------------------------------


@settings(max_examples=form(12, 25), deadline=None)
@given(
    st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 17]),
    st.integers(1, 2 * CHUNK),
    st.integers(0, 4 * CHUNK),
    st.integers(0, 2 * CHUNK),
)
def test_a_body_comes_back_whole_and_in_slices(
    tmp_path_factory: pytest.TempPathFactory, size: int, cut: int, start: int, count: int
) -> None:
    folder = tmp_path_factory.mktemp("bodies")
    keys.KeyRing.create("one", KEY)
    payloads = EncryptedPayloads(folder, "one", KEY)
    body = bytes(n * 31 % 251 for n in range(size))
    stored = payloads.put((body[at : at + cut] for at in range(0, size, cut)), "x/y", "s")
    assert stored.size == size and payloads.read(stored.digest) == body
    assert payloads.piece(stored.digest, start, count) == body[start : start + count]
    assert payloads.put(body, "x/y", "s") == stored  # the same name, however it came
    assert len([name for name in payloads.place.names() if "-" in name]) == 1
    payloads.close()


def test_a_slice_decrypts_only_its_own_chunks_and_every_change_is_noticed(store: Store) -> None:
    body = b"".join(bytes([n]) * CHUNK for n in range(5))
    payload = store.payloads.put(body, "x/y", "s")
    event = store.log.get(store.append(Draft(session_id="s", content="five chunks", payload=payload)))
    file = body_file(store, event)
    whole = bytearray(file.read_bytes())
    sealed = CHUNK + 16
    header = len(whole) - 5 * sealed

    def written(data: bytes) -> None:
        file.chmod(0o600)
        file.write_bytes(data)

    flipped = bytearray(whole)
    flipped[header + 4 * sealed + 100] ^= 1
    written(flipped)
    assert store.payloads.piece(payload.digest, CHUNK - 3, 6) == b"\0\0\0\1\1\1"  # the fifth chunk was not looked at
    with pytest.raises(PayloadDamaged):
        store.payloads.piece(payload.digest, 4 * CHUNK, 10)
    first, second = whole[header : header + sealed], whole[header + sealed : header + 2 * sealed]
    for changed in (
        whole[:header] + second + first + whole[header + 2 * sealed :],  # swapped
        whole[: header + 4 * sealed],  # cut between two chunks
        whole[:-1],
        whole[:header] + whole[header + sealed :],  # the first left out
        b"X" + whole[1:],
        b"",
    ):
        written(bytes(changed))
        with pytest.raises(PayloadDamaged):
            store.payloads.check(payload.digest)
    assert [seq for seq, _ in verify(store.log).bad] == [event.seq]
    store.payloads.put(body, "x/y", "s")  # heals it
    assert store.payloads.read(payload.digest) == body and verify(store.log).ok


def test_a_body_or_a_link_in_the_place_of_another_does_not_open(store: Store) -> None:
    one = store.payloads.put(b"one " * 30_000, "x/y", "s")
    two = store.payloads.put(b"two " * 30_000, "x/y", "s")
    folder = store.payloads.folder
    (body_1,), (body_2,) = (list(folder.rglob(f"{digest.digest}-*")) for digest in (one, two))
    (link_1,), (link_2,) = (list(folder.rglob(f"{digest.digest}.*")) for digest in (one, two))
    kept = body_2.read_bytes()
    body_2.write_bytes(body_1.read_bytes())
    with pytest.raises(PayloadDamaged):
        store.payloads.read(two.digest)
    body_2.write_bytes(kept)
    link_2.write_bytes(link_1.read_bytes())
    with pytest.raises(PayloadDamaged):
        store.payloads.read(two.digest)
    body_1.unlink()
    with pytest.raises(PayloadMissing, match="missing"):
        store.payloads.read(one.digest)


def test_nothing_of_a_payload_is_plain_in_any_file_and_it_is_still_found(store: Store, folder: Path) -> None:
    fill(store)
    with pytest.raises(StoreTooNew, match="format 258"):  # what a Scroll without encryption says
        schema_check_of_format_2(store.log)
    assert holding(folder) == []
    assert [row.seq for row in Scan(store.log).rows([pattern(SECRET)])] == [7, 8]
    assert [hit.seq for hit in store.index.search("anybody may read")] == [7, 8]
    assert verify(store.log).ok and store.stats().unused_payloads == 0
    assert not (folder / "payloads").exists()


def schema_check_of_format_2(log: EventLog) -> None:
    version = log.query("PRAGMA user_version")[0][0]
    if version > schema.FORMAT_VERSION:
        raise StoreTooNew(f"format {version}")


# an existing store --------------------------------------------------------------------------------------


def test_an_existing_store_is_encrypted_with_its_addresses_and_its_history(folder: Path, tmp_path: Path) -> None:
    with Store(folder, create=True) as plain:
        fill(plain)
        before, head = texts(plain.log), plain.stats().head
        assert holding(folder)
        stale = Store(folder)
    report = encrypt_store(folder, KEY)
    assert report.payloads == 4 and report.unfinished == "" and holding(folder) == []
    assert not report.key_ring.is_relative_to(folder)
    with pytest.raises(StoreError, match="encrypted by another process"):
        stale.append(Draft(content=long_text("too late")))
    stale.close()
    assert holding(folder, "too late")
    with Store(folder, key=KEY) as store:
        assert holding(folder, "too late") == []
        assert texts(store.log) == before and verify(store.log).ok
        record = store.log.get(report.seq)
        assert record.kind == Kind.ENCRYPTION and record.metadata["old_head"] == head
        assert store.append(Draft(content=long_text("more"))) == report.seq + 1
    with pytest.raises(BadInput, match="encrypted already"):
        encrypt_store(folder, KEY)
    with Store(tmp_path / "other", create=True) as other:
        other.append(Draft(content="plain"))
    with pytest.raises(BadInput, match="is not encrypted"):
        Store(tmp_path / "other", key=KEY)


def test_a_store_that_is_not_whole_is_not_encrypted(folder: Path) -> None:
    with Store(folder, create=True) as store:
        fill(store)
        payload = store.log.get(6).payload
        assert payload is not None
        store.payloads.path(payload.digest).write_bytes(b"altered")
    with pytest.raises(StoreDamaged, match="seq 6"):
        encrypt_store(folder, KEY)
    with Store(folder) as store:
        assert not store.log.is_encrypted and store.log.get(7).payload is not None


OPENED = """
import sys
from pathlib import Path
from scroll_context.store.encryption import encrypt_store
from scroll_context.store.store import Store
with Store(Path(sys.argv[1])):
    pass
"""


def encrypt_killed(folder: Path, at: int) -> "subprocess.CompletedProcess[str]":
    return run_killed(OPENED, "encrypt_store(Path(sys.argv[1]), bytes(range(32)))", str(folder), at=at)


def test_a_kill_while_encrypting_leaves_a_plain_store_or_an_encrypted_one(tmp_path: Path) -> None:
    with Store(tmp_path / "first", create=True) as store:
        fill(store)
        before = texts(store.log)
    for number in range(copies := form(5, 40)):
        with Store(tmp_path / "first") as store:
            backup(store.log, tmp_path / str(number))
    done = encrypt_killed(tmp_path / "first", 0)
    assert done.returncode == 0, done.stderr
    outcomes = set()
    for number in range(copies):
        folder = tmp_path / str(number)
        ended = encrypt_killed(folder, int(done.stdout) * (2 * number + 1) // (2 * copies))
        assert ended.returncode in (-signal.SIGKILL, 0), ended.stderr  # how many calls it takes varies a little
        log = EventLog(folder, PayloadStore(folder / "payloads"))
        is_new = log.is_encrypted
        log.close()
        outcomes.add(is_new)
        with Store(folder, key=KEY if is_new else None) as store:
            assert texts(store.log) == before and verify(store.log).ok
        if is_new:
            assert holding(folder) == []
        else:
            encrypt_store(folder, KEY)
            with Store(folder, key=KEY) as store:
                assert texts(store.log) == before and verify(store.log).ok and store.stats().unused_payloads == 0
            assert holding(folder) == []
    assert False in outcomes


# keys ---------------------------------------------------------------------------------------------------


def test_the_key_is_found_where_the_environment_says(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    store.close()
    with pytest.raises(KeyMissing, match=keys.KEY_COMMAND):
        Store(folder)
    with pytest.raises(KeyWrong, match="does not open this store"):
        Store(folder, key=bytes(32))
    file = tmp_path / "my.key"
    keys.write_key_file(file, [bytes(32), KEY])
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="never overwritten"):
        keys.write_key_file(file, [KEY])
    for name, value in (
        (keys.KEY, KEY.hex()), (keys.KEY_FILE, str(file)), (keys.KEY_COMMAND, f"cat '{file}'"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with Store(folder) as opened:
                assert verify(opened.log).ok
    keys.write_key_file(keys.default_file(), [KEY])
    with Store(folder) as opened:
        assert verify(opened.log).ok
    for name, value, error in (
        (keys.KEY, "not hex", BadInput), (keys.KEY_COMMAND, "false", KeyMissing),
        (keys.KEY_COMMAND, "no-such-program-here", KeyMissing), (keys.KEY_FILE, str(tmp_path / "none"), KeyMissing),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
        with pytest.raises(error):
            Store(folder)
        monkeypatch.delenv(name)
    monkeypatch.setenv("SCROLL_KEYRING", str(tmp_path / "nowhere"))
    with pytest.raises(KeyMissing, match="key ring"):
        Store(folder)


def test_destroying_a_key_reaches_backups_and_leaves_other_sessions_alone(store: Store, tmp_path: Path) -> None:
    fill(store)
    shared = long_text("shared by two")
    seqs = [store.append(Draft(session_id=session, content=shared)) for session in ("a", "b")]
    report = backup(store.log, tmp_path / "backup")
    assert report.payloads == 5 and report.missing == () and holding(tmp_path / "backup") == []
    done = store.destroy_key("a", by="ticket 4711")
    assert done.payloads == 2 and done.forks == ()
    with Store(tmp_path / "backup", key=KEY) as copy:
        for opened in (store, copy):
            with pytest.raises(KeyDestroyed, match="was destroyed on"):
                opened.log.text(opened.log.get(7))
            assert f"{SECRET}-b" in opened.log.text(opened.log.get(8))
            assert [opened.log.text(opened.log.get(seq)) for seq in seqs] == [shared, shared]  # b has a link of its own
            verdict = verify(opened.log)
            assert verdict.ok and [seq for seq, _ in verdict.known] == [7, 9]
    record = store.log.get(done.seq)
    assert record.metadata["destroyed"] == "a" and record.metadata["by"] == "ticket 4711"
    again = store.append(Draft(session_id="a", content=long_text("new")))  # a session may go on, with another key
    assert "new" in store.log.text(store.log.get(again))
    assert store.destroy_key("a").payloads == 3
    with pytest.raises(BadInput, match="no session"):
        store.destroy_key("nobody")
    raw = store.payloads.ring.path.read_bytes()  # type: ignore[attr-defined]
    assert raw.count(b"\0") and KEY not in raw


def test_a_rotation_can_be_cut_short_anywhere(store: Store, folder: Path, tmp_path: Path) -> None:
    fill(store)
    before = texts(store.log)
    store.close()
    file, new = tmp_path / "my.key", bytes(range(1, 33))
    keys.write_key_file(file, [KEY])
    keys.write_key_file(file, [new, KEY], replace=True)
    with Store(folder, key=file) as opened:  # the file has both keys, the ring the old one
        assert texts(opened.log) == before
        with Store(folder, key=KEY) as stale:
            done, others = rotate(keys.master_key(KEY), new)
            assert len(done) == 1 and others == []
            with pytest.raises(KeyWrong, match="does not open"):  # its key must not wrap anything any more
                stale.append(Draft(session_id="another", content=long_text()))
        seq = opened.append(Draft(session_id="new", content=long_text()))  # its file has the new key too
        assert opened.log.text(opened.log.get(seq)) == long_text()
        before = texts(opened.log)
    with Store(folder, key=file) as opened:  # both keys, and the ring the new one
        assert texts(opened.log) == before
    keys.write_key_file(file, [new], replace=True)
    with Store(folder, key=file) as opened:
        assert texts(opened.log) == before and verify(opened.log).ok
    with pytest.raises(KeyWrong):
        Store(folder, key=KEY)
    assert rotate(keys.master_key(KEY), new)[0] != []  # a second time does no harm


def test_a_store_goes_on_after_its_key_was_lost(store: Store, folder: Path) -> None:
    fill(store)
    store.close()
    aside = replace_lost_key(folder, bytes(32))
    assert aside is not None and aside.name.startswith("encrypted.lost-")
    with Store(folder, key=bytes(32)) as opened:
        verdict = verify(opened.log)
        assert verdict.ok and len(verdict.known) == 4
        assert opened.log.get(7).content == long_text()[:2_000]
        seq = opened.append(Draft(content=long_text("goes on")))
        assert "goes on" in opened.log.text(opened.log.get(seq)) and verify(opened.log).ok


# copies, repairs and erasures ---------------------------------------------------------------------------


def exported(log: EventLog) -> bytes:
    out = io.BytesIO()
    export(log, out)
    return out.getvalue()


def bodies(found: dict[int, tuple[str, bytes]]) -> list[bytes]:
    return [body for _, body in found.values() if body]


@pytest.mark.parametrize("trust", [True, False])
def test_exports_go_between_plain_and_encrypted_stores(store: Store, tmp_path: Path, trust: bool) -> None:
    fill(store)
    before = bodies(texts(store.log))
    lines = exported(store.log).splitlines(keepends=True)
    with Store(tmp_path / "plain", create=True) as plain:
        for _ in range(2):
            merge_export(lines, plain.log, trust=trust)
            kept = texts(plain.log)
            assert [body for body in before if body not in bodies(kept)] == ([] if trust else before[3:])
            assert verify(plain.log).ok and plain.log.last_seq() == 9
            assert plain.stats().unused_payloads == (0 if trust else 1)  # a foreign snapshot has no effect
        back = exported(plain.log).splitlines(keepends=True)
    with Store(tmp_path / "again", create=True, key=bytes(32)) as again:
        for _ in range(2):
            merge_export(back, again.log, trust=trust)
            assert [body for body in bodies(kept) if body not in bodies(texts(again.log))] == []
            assert verify(again.log).ok and holding(tmp_path / "again") == []
        assert again.destroy_key("a").payloads == 2  # what was imported belongs to its session
    damaged = [line.replace(b'"sha256":"', b'"sha256":"0', 1) for line in lines]
    with Store(tmp_path / "damaged", create=True) as target, pytest.raises(BadInput, match="does not match"):
        merge_export(damaged, target.log, trust=trust)


def test_a_transcript_with_attachments_is_imported_into_an_encrypted_store(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(f'{{"role": "user", "content": "{"word " * 9_000}{SECRET}", "session_id": "s"}}\n')
    for _ in range(2):
        import_file(store, file)
    (event,) = store.log.iterate(role="user")
    assert SECRET in store.log.text(event) and holding(store.folder) == [] and store.stats().unused_payloads == 0
    assert store.destroy_key(event.session_id).payloads == 1


def test_an_encrypted_store_is_not_pushed_to_a_server(store: Store, folder: Path) -> None:
    pytest.importorskip("psycopg")
    from scroll_context.store.shared.address import parse
    from scroll_context.store.shared.push import push

    with pytest.raises(BadInput, match="Nothing was pushed"):
        push(folder, parse("postgresql://nowhere/db?store=x"))
    with pytest.raises(BadInput, match="cannot be encrypted"):
        Store("postgresql://nowhere/db?store=x", key=KEY)


def test_a_salvaged_store_is_still_encrypted(store: Store, folder: Path) -> None:
    fill(store)
    before = texts(store.log)
    store.close()
    salvage(folder)
    with Store(folder, key=KEY) as opened:
        assert opened.log.is_encrypted and texts(opened.log) == before and verify(opened.log).ok
    with pytest.raises(KeyMissing):
        Store(folder)


def test_an_erasure_removes_encrypted_bodies_and_links(store: Store, folder: Path) -> None:
    fill(store)
    report = store.erase(session_id="a", copies=True)
    assert report.payloads >= 2 and report.unfinished == "" and verify(store.log).ok
    kept = {one for event in store.log.iterate() for one in named(store, event)}
    assert {name[:64] for name in store.payloads.place.names() if len(name) > 64} == kept


class ErasedMeanwhile(PayloadFolder):
    """A folder in which something happens once, after a link was stored and before its event is appended."""

    then: Callable[[], object] | None = None

    def sync(self, name: str) -> None:
        super().sync(name)
        if self.then is not None and name[64] == ".":
            then, self.then = self.then, None
            then()


def test_a_body_that_is_stored_while_an_equal_one_is_erased_is_not_lost(store: Store, folder: Path) -> None:
    seq = store.append(Draft(session_id="old", content=long_text()))
    with Store(folder, key=KEY) as other:
        place = ErasedMeanwhile(folder / "encrypted")
        other.log.use_payloads(EncryptedPayloads(place, read_store_id(folder / "encrypted"), KEY))
        place.then = lambda: store.erase(seqs=[seq])
        again = other.append(Draft(session_id="new", content=long_text()))
        assert store.log.get(seq).is_erased and other.log.text(other.log.get(again)) == long_text()
        assert verify(other.log).ok
        other.log.payloads.close()


def named(store: Store, event: Event) -> list[str]:
    return store.payloads.named_by(event.kind, event.content, event.payload.digest if event.payload else None)


def test_a_draft_may_name_a_payload_that_is_gone(store: Store) -> None:
    seq = store.append(Draft(content="gone", payload=Payload("ab" * 32, 5, "x/y")))
    with pytest.raises(PayloadMissing):
        store.payloads.read("ab" * 32)
    assert [bad for bad, _ in verify(store.log).bad] == [seq]


def test_without_the_extra_the_error_says_what_to_install(tmp_path: Path, elsewhere: Path) -> None:
    code = f"""
import sys
sys.modules["cryptography"] = None
from scroll_context import Store
Store({str(tmp_path / "new")!r}, create=True).close()
try:
    Store({str(tmp_path / "other")!r}, create=True, key=bytes(32))
except Exception as error:
    print(error)
"""
    environment: dict[str, Any] = {**os.environ, "SCROLL_KEYRING": str(elsewhere)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "scroll-context[encryption]" in done.stdout
