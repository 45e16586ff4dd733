"""What an operator does with encryption: encrypt a store, destroy the key of a session, rotate or replace a lost key.

Encrypting changes the names of payloads, since digests become keyed. The rows that name them change in one transaction,
in which the log is chained anew from the first of them and marked as encrypted; the event of kind `encryption` that
records it holds both heads. A process that is killed before leaves a plain store, and one that is killed after leaves
an encrypted one whose plain files the next opening removes. Others who have the store open cannot write to it any more
until they open it again, with its key.
"""

import contextlib
import datetime as dt
import getpass
import os
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput, KeyWrong, StoreDamaged
from scroll_context.events import STORE_SESSION, Draft, Event, Kind, Progress
from scroll_context.store import schema
from scroll_context.store.copies import inherited_payloads
from scroll_context.store.encrypted import FOLDER, EncryptedPayloads, Key, StoreKeyFile, payloads_of, read_store_id
from scroll_context.store.erase import add_chores, chain_anew, finish, rewriting
from scroll_context.store.journal import require_idle
from scroll_context.store.keys import KeyRing, MasterKey, keyring_folder, master_key
from scroll_context.store.log import EventLog, utc_now
from scroll_context.store.merge import as_draft, with_payloads
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.rows import prepare
from scroll_context.store.verify import verify
from scroll_context.store.writer import INSERT, head_of

if TYPE_CHECKING:
    from scroll_context.store.store import Store


class EncryptionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a store that was encrypted."""

    payloads: int
    seq: int  # of the event that records it
    key_ring: Path  # keep a copy of it apart from every backup
    unfinished: str = ""  # why some cleaning is left to the next opening of the store


class DestroyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became unreadable with the key of a session."""

    payloads: int
    forks: tuple[str, ...]  # sessions that continue it, and can still read what they inherited
    seq: int  # of the event that records it


def use_keys(log: EventLog, key: Key | None) -> None:
    """Let a log use its encrypted payloads. One that holds nothing yet, and is opened with a key, becomes encrypted."""
    try:
        if key is not None and not log.is_encrypted and log.last_seq() == 0:
            _begin(log, key)
        log.use_payloads(payloads_of(log, key))
    except BaseException:
        log.close()
        raise


def _begin(log: EventLog, key: Key) -> None:
    store_id = _prepare_keys(log, master_key(key))
    with rewriting(log) as database:
        _switch(database, log, store_id, {})
    log.is_encrypted = True


def encrypt_store(folder: Path, key: Key | None = None, progress: Progress | None = None) -> EncryptionReport:
    """Encrypt the payloads and saved variables of a store that has been plain so far."""
    from scroll_context.store.store import Store  # which imports this module

    with contextlib.closing(EventLog(folder, PayloadStore(folder / "payloads"))) as log:
        if log.is_encrypted:
            raise BadInput(f"{folder} is encrypted already")
    with Store(folder) as store:
        log = store.log
        if log.format() < schema.FORMAT_VERSION:
            log.upgrade()
        if (bad := verify(log, progress).bad) != ():
            raise StoreDamaged(
                f"{folder} is not whole, and encrypting it would hide that (seq {bad[0][0]}: {bad[0][1]}). Nothing was "
                f"changed. {schema.command('verify', log.path)} lists it; restore what is missing, or erase its event."
            )
        store_id = _prepare_keys(log, master_key(key))
        conversion = _Conversion(log, EncryptedPayloads(folder / FOLDER, store_id, key), progress)
        conversion.run()
        with rewriting(log) as database:
            conversion.run()  # what was appended meanwhile
            seq = _switch(database, log, store_id, conversion.changed)
    with Store(folder, key=key) as store:  # which may have begun to clean up
        unfinished = finish(store, progress)
        ring = store.payloads.ring.path if isinstance(store.payloads, EncryptedPayloads) else keyring_folder()
    return EncryptionReport(payloads=len(conversion.digests), seq=seq, key_ring=ring, unfinished=unfinished)


class _Conversion:
    """Payloads on their way into an encrypted place, and what the rows that name them will say."""

    def __init__(self, log: EventLog, encrypted: EncryptedPayloads, progress: Progress | None) -> None:
        self.digests: dict[str, str] = {}  # plain: keyed
        self.changed: dict[int, tuple[Any, ...]] = {}  # seq: content, payload, size, type
        self._log = log
        self._encrypted = encrypted
        self._progress = progress
        self._upto = 0

    def run(self) -> None:
        """Encrypt what the events name that were not looked at yet."""
        last = self._log.last_seq()
        for event in self._log.iterate(after=self._upto, until=last):
            if self._progress and event.seq % 1000 == 0:
                self._progress(event.seq, last)
            if event.payload is not None or event.kind == Kind.SNAPSHOT:
                self._take(event)
            if event.kind == Kind.FORK and not event.is_foreign:
                inherited = inherited_payloads(self._log, event.session_id)
                self._encrypted.claim([self.digests[one] for one in inherited if one in self.digests], event.session_id)
        self._upto = last

    def _take(self, event: Event) -> None:
        log, draft = self._log, as_draft(event)
        named = log.payloads.named_by(event.kind, event.content, event.payload.digest if event.payload else None)
        if event.kind == Kind.SNAPSHOT and event.payload is not None:
            named.remove(event.payload.digest)  # its text changes, so it becomes another payload
            draft = replace(draft, content=log.text(event), payload=None)
        for digest in named:
            if digest not in self.digests:
                body = log.payloads.chunks(digest)
                self.digests[digest] = self._encrypted.put(body, "", event.session_id).digest
        draft = with_payloads(draft, self.digests, lambda one: one.content)
        before = prepare(draft, event.recorded_at, self._encrypted).before
        if before[6:10] != (event.content, *_columns(event)):
            self.changed[event.seq] = before[6:10]


def _columns(event: Event) -> tuple[Any, ...]:
    return (None, None, None) if event.payload is None else msgspec.structs.astuple(event.payload)


def _prepare_keys(log: EventLog, master: MasterKey) -> str:
    """The id of the store, with a key ring that the master key opens. A killed attempt has perhaps left both."""
    folder = schema.private_folder(log.path.parent / FOLDER)
    file = folder / "store.json"
    if not file.exists():
        stage = folder / ".store.json"
        stage.touch(mode=0o600)
        stage.write_bytes(msgspec.json.encode(StoreKeyFile(secrets.token_hex(16))))
        os.replace(stage, file)
        schema.sync_folder(folder)
        schema.sync_folder(folder.parent)
    store_id = read_store_id(folder)
    KeyRing.create(store_id, master.keys[0])
    KeyRing(store_id, lambda: master).close()
    return store_id


def _switch(database: sqlite3.Connection, log: EventLog, store_id: str, changed: dict[int, tuple[Any, ...]]) -> int:
    """Let the rows name the encrypted payloads, and mark the store; the seq of the event that records it."""
    last, old_head = head_of(database, log.path)
    database.executemany(
        "UPDATE event SET content = ?, payload = ?, payload_size = ?, payload_type = ? WHERE seq = ?",
        [(*columns, seq) for seq, columns in changed.items()],
    )
    rechained, head = chain_anew(database, min(changed)) if changed else (0, old_head)
    facts = {"store": store_id, "rechained": rechained, "old_head": old_head.hex(), "new_head": head.hex()}
    draft = _record("the payloads of this store are encrypted from here on", facts)
    database.execute(INSERT, prepare(draft, utc_now(), log.payloads).placed(last + 1, head))
    add_chores(database)
    schema.set_encrypted(database)
    return last + 1


def _record(content: str, facts: dict[str, Any], by: str = "") -> Draft:
    metadata = facts | {"by": by or getpass.getuser()}
    return Draft(kind=Kind.ENCRYPTION, session_id=STORE_SESSION, content=content, metadata=metadata)


# keys ---------------------------------------------------------------------------------------------------


def destroy_key(store: "Store", session_id: str, by: str = "") -> DestroyReport:
    """Destroy the key of a session: what only that session has becomes unreadable for good, in every backup too.

    Forks keep what they inherited. The rows stay; `Store.erase` erases those.
    """
    payloads = store.payloads
    if not isinstance(payloads, EncryptedPayloads):
        raise BadInput(f"{store.folder} is not encrypted, so no session has a key; store.erase(session_id=...) erases")
    if not store.log.tail(1, session_id=session_id) and not payloads.ring.tags_of(session_id):
        raise BadInput(f"there is no session {session_id!r} in {store.folder}; nothing was destroyed")
    require_idle(store.log, session_id)
    forks = list(_forks(store.log, session_id))
    for fork in forks:
        if any(payloads.ring.key_of(tag) for tag in payloads.ring.tags_of(fork)):
            payloads.claim(inherited_payloads(store.log, fork), fork)
    _, lost = payloads.shred(session_id)
    facts = {"destroyed": session_id, "payloads": lost}
    seq = store.append(_record("the key of a session was destroyed", facts, by))
    return DestroyReport(payloads=lost, forks=tuple(forks), seq=seq)


def _forks(log: EventLog, session_id: str) -> Iterator[str]:
    """The sessions that continue this one, and those that continue them."""
    forks = [(event.session_id, event.metadata.get("session_id")) for event in log.iterate(kind=Kind.FORK)]
    found = [session_id]
    for parent in found:
        children = [child for child, named in forks if named == parent and child not in found]
        found += children
        yield from children


def rotate(master: MasterKey, new: bytes) -> tuple[list[Path], list[Path]]:
    """Wrap the keys of every store that this master key opens with another; the rings that were, and those of others.

    Each ring changes in one transaction, so each is opened by the old key or by the new one.
    """
    done: list[Path] = []
    others: list[Path] = []
    for path in sorted(keyring_folder().glob("*.db")):
        try:
            ring = KeyRing(path.stem, lambda: MasterKey((*master.keys, new), master.origin))
        except KeyWrong:
            others.append(path)
            continue
        try:
            ring.rotate(new)
        finally:
            ring.close()
        done.append(path)
    return done, others


def replace_lost_key(folder: Path, key: Key | None = None) -> Path | None:
    """Go on with a store whose master key or key ring is lost, under another master key.

    What was encrypted cannot be read any more. It is set aside, in case that the key is found; the rows and their
    previews stay. Returns the folder where it lies, or None when there was nothing.
    """
    log = EventLog(folder, EncryptedPayloads(folder / FOLDER, "", key))
    try:
        if not log.is_encrypted:
            raise BadInput(f"{folder} is not encrypted, so no key of it can be lost")
        master = master_key(key)
        aside: Path | None = None
        if (folder / FOLDER).exists():
            aside = folder / f"{FOLDER}.lost-{dt.datetime.now():%Y%m%d-%H%M%S}"
            os.rename(folder / FOLDER, aside)
            schema.sync_folder(folder)
        store_id = _prepare_keys(log, master)
        log.append(_record("the keys of all payloads before this were lost", {"lost": True, "store": store_id}))
    finally:
        log.close()
    return aside
