"""Encryption at rest: payloads and saved variables of a store, each readable only for the sessions that it belongs to.

A body is encrypted with a random key of its own, in chunks of 64 KiB that can be read one by one (AES-256-GCM; the
nonce of a chunk is random for the file, counts the chunks and marks the last, so that chunks cannot be swapped, left
out or cut off). That key is wrapped with the key of each session that the payload belongs to (keys.py), bound to the
store, the session and the digest. So there are two kinds of objects in the place:

    DIGEST-TOKEN    a body, encrypted
    DIGEST.TAG      a link: the token of the body, and its key as the session with this tag can unwrap it

A fork gets links of its own to what it inherits. When the key of a session is destroyed, its links are worthless, here
and in every backup, and so are bodies that no other session has a link to. Digests are keyed: without the key ring no
guess at a body can be tried out. What is not encrypted: the rows of the log, with the first 2,000 characters of a long
text, and the search index, which holds the words of rows and none of what only a payload holds.

Encrypting a plain store changes the names of its payloads, since digests become keyed. The rows that name them change
in one transaction, in which the log is chained anew from the first of them and marked as encrypted; the event of kind
`encryption` that records it holds both heads. A process that is killed before leaves a plain store, and one that is
killed after leaves an encrypted one whose plain files the next opening removes. Others who have the store open cannot
write to it any more until they open it again, with its key.
"""

import contextlib
import datetime as dt
import getpass
import hashlib
import hmac
import os
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput, KeyDestroyed, KeyWrong, PayloadDamaged, PayloadMissing, StoreDamaged
from scroll_context.events import STORE_SESSION, Draft, Event, Kind, Payload, Progress
from scroll_context.store import schema
from scroll_context.store.copies import forks_of, inherited_payloads
from scroll_context.store.erase import add_chores, chain_anew, finish, rewriting
from scroll_context.store.integrity import verify
from scroll_context.store.journal import require_idle
from scroll_context.store.keys import (
    KEY_BYTES,
    KeyRing,
    MasterKey,
    cipher,
    keyring_folder,
    master_key,
    new_key,
    unwrap,
    wrap,
    write_private,
)
from scroll_context.store.log import EventLog
from scroll_context.store.merge import as_draft, with_payloads
from scroll_context.store.payloads import Hasher, PayloadFolder, PayloadPlace, PayloadStore, damaged, missing
from scroll_context.store.rows import prepare
from scroll_context.store.schema import utc_now
from scroll_context.store.writer import INSERT, head_of

if TYPE_CHECKING:
    from scroll_context.store.log import EventLog
    from scroll_context.store.store import Store


FOLDER = "encrypted"  # of a store, where its bodies lie instead of in `payloads`
Key = bytes | str | Path
"""What Store takes as its key: the master key itself, or the path of a key file."""

CHUNK = 64 << 10
_TAG = 16  # bytes that a chunk grows by
_MAGIC = b"SCRLENC1"
_PREFIX = 7  # random bytes of the nonce; 4 count the chunks, 1 marks the last
_HEADER = len(_MAGIC) + _PREFIX
_TOKEN = 8  # bytes


class StoreKeyFile(msgspec.Struct, frozen=True):
    """The file `encrypted/store.json`: which key ring the store needs."""

    store: str
    version: int = 1


class EncryptedPayloads(PayloadStore):
    """Bodies that are encrypted before they reach their place. The keys are looked for when they are first needed."""

    is_encrypted = True

    def __init__(self, place: Path | PayloadPlace, store_id: str, key: Key | None = None) -> None:
        super().__init__(place)
        self.store_id = store_id
        self._key = key
        self._ring: KeyRing | None = None
        self._lock = threading.Lock()
        self._unclaimed: dict[str, tuple[str, bytes]] = {}  # bodies that no session has yet: their token and key

    @property
    def ring(self) -> KeyRing:
        """The keys; raises KeyMissing or KeyWrong, which say what to do."""
        with self._lock:
            if self._ring is None:
                self._ring = KeyRing(self.store_id, lambda: master_key(self._key))
            return self._ring

    def unlock(self) -> None:
        _ = self.ring

    def sweep(self) -> None:
        """Remove plain bodies too: of before the store was encrypted, and of processes that did not know it yet."""
        super().sweep()
        if isinstance(self.place, PayloadFolder):
            shutil.rmtree(self.place.folder.with_name("payloads"), ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            if self._ring is not None:
                self._ring.close()
            self._ring = None

    def claim(self, digests: Iterable[str], session_id: str) -> None:
        for digest in digests:
            try:
                self._link(digest, session_id)
            except (PayloadMissing, PayloadDamaged):
                continue  # an event may name a payload that is gone; reading it says so

    def piece(self, digest: str, start: int, size: int) -> bytes:
        """Some bytes of the body; only the chunks that hold them are decrypted, and each is verified by itself."""
        first = start // CHUNK
        found = bytearray()
        for chunk in self._decrypted(digest, first):
            found += chunk
            if len(found) >= start - first * CHUNK + size:
                break
        return bytes(found[start - first * CHUNK :][:size])

    def check_once(self, digest: str) -> None:
        """Every piece shows damage by itself."""

    def remove(self, digest: str) -> None:
        for name in list(self.place.names(self._checked(digest))):
            self.place.remove(name)
        self._bytes = None

    def stored_size(self, digest: str) -> int:
        return sum(map(self.place.size, list(self.place.names(digest))))

    def digests(self) -> Iterator[str]:
        yield from dict.fromkeys(name[:64] for name in self.place.names() if name[64:65] in ("-", "."))

    def copy(self, digest: str, target: PayloadStore) -> None:
        """Copy a payload as it is, with the links of all its sessions."""
        self.check(digest)
        for name in list(self.place.names(digest)):
            with self.place.open(name) as file:
                target.place.write(iter(lambda file=file: file.read(1 << 20), b""), lambda name=name: name)  # type: ignore[misc]

    def shred(self, session_id: str) -> tuple[bool, int]:
        """Destroy the key of a session for good; whether it had one, and how many payloads nothing opens any more."""
        tags = set(self.ring.tags_of(session_id))
        had_one = self.ring.destroy(session_id)
        lost = 0
        for digest in {name[:64] for name in self.place.names() if name[65:] in tags}:
            try:
                self._content_key(digest)
            except KeyDestroyed:
                lost += 1
        return had_one, lost

    # below: what PayloadStore does with plain bytes ------------------------------------------------------

    def _hasher(self) -> Hasher:
        return hmac.new(self.ring.digest_key, digestmod=hashlib.sha256)

    def _stored_pieces(self, digest: str) -> Iterator[bytes]:
        return self._decrypted(digest)

    def _keep(self, digest: str, session_id: str) -> None:
        if session_id:
            self._link(digest, session_id)

    def _write(self, pieces: Iterable[bytes], media_type: str, session_id: str) -> Payload:
        hasher, key, token = self._hasher(), new_key(), secrets.token_hex(_TOKEN)
        size = 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for piece in pieces:
                hasher.update(piece)
                size += len(piece)
                yield piece

        def name() -> str | None:
            return None if self._is_intact(hasher.hexdigest()) else f"{hasher.hexdigest()}-{token}"

        stored = self.place.write(_encrypt(counted(), key), name)
        digest = hasher.hexdigest()
        if f"{digest}-{token}" in self.place.names(digest):
            if self._bytes is not None:
                self._bytes += stored
            self._adopt(digest, token, key)
        self._keep(digest, session_id)
        return Payload(digest, size, media_type)

    def _adopt(self, digest: str, token: str, key: bytes) -> None:
        """Let a new body take the place of one that was damaged, for every session that had that one.

        The damaged one stays until its event is erased: another process may be about to link to it.
        """
        self._unclaimed[digest] = token, key
        for name in list(self.place.names(digest)):
            if name[64] == "." and (outer := self.ring.key_of(name[65:])) is not None:
                self._write_link(digest, name[65:], outer, token, key)

    # keys -----------------------------------------------------------------------------------------------

    def _link(self, digest: str, session_id: str) -> None:
        tag, outer = self.ring.key_for(session_id)
        name = f"{self._checked(digest)}.{tag}"
        if name in self.place.names(digest):
            self.place.sync(name)
        else:
            token, key = self._content_key(digest)
            self._write_link(digest, tag, outer, token, key)
        self._unclaimed.pop(digest, None)

    def _write_link(self, digest: str, tag: str, outer: bytes, token: str, key: bytes) -> None:
        link = bytes.fromhex(token) + wrap(outer, key, self._bound_to(digest, tag, token))
        self.place.write((link,), lambda: f"{digest}.{tag}")

    def _bound_to(self, digest: str, tag: str, token: str) -> str:
        return f"{self.store_id} {tag} {digest} {token}"

    def _content_key(self, digest: str) -> tuple[str, bytes]:
        """The token and the key of a body, through any link that opens."""
        if (found := self._unclaimed.get(self._checked(digest))) is not None:
            return found
        names = list(self.place.names(digest))
        links = [name for name in names if name[64] == "."]
        destroyed, is_damaged = "", False
        for name in links:
            tag = name[65:]
            if (outer := self.ring.key_of(tag)) is None:
                destroyed = max(destroyed, self.ring.destroyed_at(tag))
                continue
            with self.place.open(name) as file:
                link = file.read(256)
            token = link[:_TOKEN].hex()
            key = unwrap(outer, link[_TOKEN:], self._bound_to(digest, tag, token))
            if key is not None and len(key) == KEY_BYTES and f"{digest}-{token}" in names:
                return token, key
            is_damaged = is_damaged or key is None
        if is_damaged:
            raise damaged(digest)
        if destroyed:
            raise KeyDestroyed(
                f"payload {digest[:12]}… cannot be read any more: the key of its session was destroyed on "
                f"{destroyed[:10]}. The event and its preview are intact."
            )
        if not links or any(self.ring.key_of(name[65:]) is not None for name in links):
            raise missing(digest)
        raise PayloadMissing(
            f"payload {digest[:12]}… cannot be read: the key of its session is not in {self.ring.path}. "
            "The event and its preview are intact; bring back a newer copy of the key ring."
        )

    def _decrypted(self, digest: str, first: int = 0) -> Iterator[bytes]:
        """The chunks of a body from one on, each verified."""
        from cryptography.exceptions import InvalidTag

        token, key = self._content_key(digest)
        name = f"{digest}-{token}"
        try:
            last = max(0, (self.place.size(name) - _HEADER - 1) // (CHUNK + _TAG))
            with self.place.open(name) as file:
                header = file.read(_HEADER)
            opener = cipher(key)
            with self.place.open(name, _HEADER + first * (CHUNK + _TAG)) as file:
                for number in range(first, last + 1):
                    sealed = file.read(CHUNK + _TAG)
                    nonce = header[len(_MAGIC) :] + number.to_bytes(4, "big") + bytes([number == last])
                    yield opener.decrypt(nonce, sealed, header)
        except FileNotFoundError as error:
            raise missing(digest) from error
        except (InvalidTag, ValueError) as error:
            raise damaged(digest) from error


def _encrypt(pieces: Iterable[bytes], key: bytes) -> Iterator[bytes]:
    """A header and chunks, however the body is cut into pieces. An empty body is one empty chunk."""
    header = _MAGIC + os.urandom(_PREFIX)
    yield header
    sealer = cipher(key)
    held, number = bytearray(), 0
    for piece in pieces:
        held += piece
        while len(held) > CHUNK:  # the last chunk is known only when nothing follows
            nonce = header[len(_MAGIC) :] + number.to_bytes(4, "big") + b"\0"
            yield sealer.encrypt(nonce, bytes(held[:CHUNK]), header)
            del held[:CHUNK]
            number += 1
    yield sealer.encrypt(header[len(_MAGIC) :] + number.to_bytes(4, "big") + b"\1", bytes(held), header)


def read_store_id(folder: Path) -> str:
    try:
        return msgspec.json.decode((folder / "store.json").read_bytes(), type=StoreKeyFile).store
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreDamaged(
            f"{folder / 'store.json'} cannot be read ({error}), so the key ring of this encrypted store is not known. "
            "Restore the file from a backup."
        ) from error


# what an operator does ----------------------------------------------------------------------------------


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
            store_id = _prepare_keys(log, master_key(key))
            with rewriting(log) as database:
                _switch(database, log, store_id, {})
            log.is_encrypted = True
        if not log.is_encrypted:
            raise BadInput(
                f"{log.path.parent} is not encrypted, and a key was given for it. Nothing was changed; "
                f"{schema.command('encrypt', log.path)} encrypts it."
            )
        folder = log.path.parent / FOLDER
        log.use_payloads(EncryptedPayloads(folder, read_store_id(folder), key))
    except BaseException:
        log.close()
        raise


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
        payload = (None, None, None) if event.payload is None else msgspec.structs.astuple(event.payload)
        if before[6:10] != (event.content, *payload):
            self.changed[event.seq] = before[6:10]


def _prepare_keys(log: EventLog, master: MasterKey) -> str:
    """The id of the store, with a key ring that the master key opens. A killed attempt has perhaps left both."""
    folder = schema.private_folder(log.path.parent / FOLDER)
    with contextlib.suppress(FileExistsError):
        write_private(folder / "store.json", msgspec.json.encode(StoreKeyFile(secrets.token_hex(16))).decode())
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
    forks = forks_of(store.log, [session_id])
    for fork in forks:
        if any(payloads.ring.key_of(tag) for tag in payloads.ring.tags_of(fork)):
            payloads.claim(inherited_payloads(store.log, fork), fork)
    _, lost = payloads.shred(session_id)
    facts = {"destroyed": session_id, "payloads": lost}
    seq = store.append(_record("the key of a session was destroyed", facts, by))
    return DestroyReport(payloads=lost, forks=tuple(forks), seq=seq)


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
