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
"""

import hashlib
import hmac
import os
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from scroll_context.errors import BadInput, KeyDestroyed, PayloadDamaged, PayloadMissing, StoreDamaged
from scroll_context.events import Payload
from scroll_context.store import schema
from scroll_context.store.keys import KEY_BYTES, KeyRing, cipher, master_key, new_key, unwrap, wrap
from scroll_context.store.payloads import Hasher, PayloadFolder, PayloadPlace, PayloadStore, damaged, missing

if TYPE_CHECKING:
    from scroll_context.store.log import EventLog

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
                continue  # an event may name a payload that is gone; who reads it is told

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


# the payloads of a store --------------------------------------------------------------------------------


def payloads_of(log: "EventLog", key: Key | None = None) -> PayloadStore:
    """The payloads that belong to a log: encrypted ones when the log says so."""
    if not log.is_encrypted:
        if key is not None:
            raise BadInput(
                f"{log.path.parent} is not encrypted, and a key was given for it. Nothing was changed; "
                f"{schema.command('encrypt', log.path)} encrypts it."
            )
        return log.payloads
    folder = log.path.parent / FOLDER
    return EncryptedPayloads(folder, read_store_id(folder), key)


def read_store_id(folder: Path) -> str:
    try:
        return msgspec.json.decode((folder / "store.json").read_bytes(), type=StoreKeyFile).store
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreDamaged(
            f"{folder / 'store.json'} cannot be read ({error}), so the key ring of this encrypted store is not known. "
            "Restore the file from a backup."
        ) from error
