"""Snapshots: a copy of a host's replica, log and search index, in the object store, from which new hosts start.

To read a million events row by row and to index them takes minutes; to fetch a snapshot takes seconds. A snapshot is
one object, a compressed tar file that is never changed. The server lists it with its digest and the chain value of its
last event, so a host believes what the server says and not what lies in the bucket. After the fetch the follower goes
on from the snapshot's last event and checks each link, as after any pause.

The newest two are kept. What was erased is still in older snapshots: those from before the newest erasure are deleted.
"""

import contextlib
import fcntl
import gzip
import hashlib
import io
import logging
import os
import re
import shutil
import tarfile
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import BadInput, StoreDamaged, StoreError, StoreLocked
from scroll_context.events import Progress
from scroll_context.store import schema
from scroll_context.store.erase import has_chores
from scroll_context.store.indexer import committed_files
from scroll_context.store.log import EventLog
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.shared.address import Address
from scroll_context.store.shared.objects import Bucket, NoObject, SharedPayloads
from scroll_context.store.shared.server import Server
from scroll_context.store.transfer import copy_database

_logger = logging.getLogger("scroll_context.store")

KEPT = 2
_STAGE = ".snapshot-"  # how the folder of a snapshot that is being unpacked begins
_PIECE = 1 << 20
_MEMBER = re.compile(r"log\.db|index/v\d+/[\w.-]+")


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that the server lists."""

    key: str
    seq: int
    chain: bytes
    bytes: int
    sha256: str
    created: Any = None


def snapshots(server: Server, store_id: int) -> list[Snapshot]:
    """Those that a host may start from, newest first."""
    rows = server.call(
        """SELECT key, seq, chain, bytes, sha256, created FROM scroll.snapshot WHERE store_id = %s
        ORDER BY seq DESC, created DESC""",
        [store_id],
    )
    return [Snapshot(*row) for row in rows]


def take(server: Server, store_id: int, bucket: Bucket, log: EventLog, index: Path) -> Snapshot | None:
    """Put a snapshot of this replica and its index into the object store; None when the log is empty."""
    with tempfile.TemporaryDirectory(prefix="scroll-snapshot-") as name:
        folder = Path(name)
        erased = log.newest_erasure()
        _copy_index(index, folder / "index")  # first: it may lag behind the log, never run ahead of it
        copy_database(log.path, folder / schema.LOG_NAME)
        head = _head(folder / schema.LOG_NAME)
        if head is None:
            return None
        if has_chores(log) or log.newest_erasure() > erased:
            raise StoreLocked("an erasure is being carried out on this host, so no snapshot was made. Try again.")
        packed = folder / "snapshot.tar.gz"
        with (
            gzip.open(packed, "wb", compresslevel=1) as out,
            tarfile.open(fileobj=out, mode="w|", bufsize=_PIECE) as tar,
        ):
            for file in (folder / schema.LOG_NAME, *sorted((folder / "index").rglob("*"))):
                if file.is_file():
                    tar.add(file, str(file.relative_to(folder)))
        with packed.open("rb") as whole:
            digest = hashlib.file_digest(whole, "sha256").hexdigest()
        key = f"snapshots/{head[0]:020d}-{uuid.uuid4().hex[:12]}.tar.gz"
        made = Snapshot(key, head[0], head[1], packed.stat().st_size, digest)
        bucket.create(key, packed)
    values = [store_id, key, made.seq, made.chain, made.bytes, made.sha256]
    if not server.call("SELECT scroll.add_snapshot(%s, %s, %s, %s, %s, %s)", values)[0][0]:
        bucket.delete([key])
        raise StoreDamaged(
            f"seq {made.seq} of this host's copy is not the one on the server, or events were erased after it; no "
            "snapshot was made of it"
        )
    prune(server, store_id, bucket, before=log.newest_erasure())
    return made


def take_of(url: str, progress: Progress | None = None) -> Snapshot | None:
    """Bring the replica of this host and its index up to date, and put a snapshot of them into the object store."""
    from scroll_context.store.shared.log import SharedLog
    from scroll_context.store.store import Store

    with Store(url) as store:
        log = store.log
        if not isinstance(log, SharedLog) or not isinstance(log.payloads, SharedPayloads):
            raise BadInput("snapshots are kept in the object store, and the payloads of this store are in a folder")
        while not log.follower.catch_up(log.address.timeout):
            pass
        store.index.catch_up(progress=progress)
        return take(log.server, log.facts.store_id, log.payloads.place.bucket, log, store.folder / "index")


def prune(server: Server, store_id: int, bucket: Bucket, *, before: int = 0) -> int:
    """Delete snapshots: all but the newest, and those that end before a seq; how many."""
    keys = [key for (key,) in server.call("SELECT scroll.drop_snapshots(%s, %s, %s)", [store_id, KEPT, before])]
    if keys:
        bucket.delete(keys)
    return len(keys)


def restore(snapshot: Snapshot, bucket: Bucket, folder: Path) -> None:
    """Put the log and the index of a snapshot into a folder that has none, the log last, whole or not at all."""
    stage = schema.private_folder(folder) / f"{_STAGE}{uuid.uuid4().hex[:8]}"
    schema.private_folder(stage)
    try:
        try:
            digest = _unpack(bucket.read(snapshot.key), stage)
        except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
            raise _unusable(snapshot, str(error)) from error
        if digest != snapshot.sha256 or _head(stage / schema.LOG_NAME) != (snapshot.seq, snapshot.chain):
            raise _unusable(snapshot, "it is not what the server lists")
        if (stage / "index").exists() and not (folder / "index").exists():
            os.rename(stage / "index", folder / "index")
        with contextlib.suppress(FileExistsError):  # another process of this host was first
            os.link(stage / schema.LOG_NAME, folder / schema.LOG_NAME)
        schema.sync_folder(folder)
    except NoObject as error:
        raise _unusable(snapshot, "the object is missing") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def begin_from_snapshot(address: Address, store_id: int, payloads: PayloadStore) -> bool:
    """Fill the empty folder of a new replica from the newest usable snapshot; False when there is none."""
    if not isinstance(payloads, SharedPayloads):
        return False
    with Server(address, "scroll snapshot") as server:
        listed = snapshots(server, store_id)
    if not listed:
        return False
    lock = os.open(
        schema.private_folder(address.folder) / "snapshot.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of a host that start at once fetch it once
        for stale in address.folder.glob(f"{_STAGE}*"):  # of a process that was killed
            shutil.rmtree(stale, ignore_errors=True)
        for snapshot in listed:
            if (address.folder / schema.LOG_NAME).exists():
                break
            try:
                restore(snapshot, payloads.place.bucket, address.folder)
            except StoreError as error:
                _logger.warning("%s", error)
    finally:
        os.close(lock)
    return (address.folder / schema.LOG_NAME).exists()


def _unusable(snapshot: Snapshot, why: str) -> StoreError:
    return StoreError(f"snapshot {snapshot.key} cannot be used: {why}. `scroll admin snapshot URL` makes another.")


class _Stream(io.RawIOBase):
    """Pieces of bytes as a file to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._piece = memoryview(piece)
        size = min(len(buffer), len(self._piece))
        buffer[:size], self._piece = self._piece[:size], self._piece[size:]
        return size


def _unpack(packed: Iterator[bytes], stage: Path) -> str:
    """Write the files of a snapshot; the digest of the whole object, which the caller must compare."""
    hasher, inflater = hashlib.sha256(), zlib.decompressobj(wbits=31)

    def inflated() -> Iterator[bytes]:
        for piece in packed:
            hasher.update(piece)
            yield inflater.decompress(piece)
        yield inflater.flush()

    pieces = inflated()
    with tarfile.open(fileobj=io.BufferedReader(_Stream(pieces), _PIECE), mode="r|", bufsize=_PIECE) as tar:
        for member in tar:
            body = tar.extractfile(member)
            if body is None or not _MEMBER.fullmatch(member.name):
                raise tarfile.TarError(f"unexpected entry {member.name!r:.80}")
            schema.private_folder((stage / member.name).parent)
            handle = os.open(stage / member.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as file:
                shutil.copyfileobj(body, file, _PIECE)
                file.flush()
                os.fsync(file.fileno())
    for _ in pieces:  # what is behind the last file belongs to the digest too
        pass
    return hasher.hexdigest()


def _head(log: Path) -> tuple[int, bytes] | None:
    with schema.Translated(log), contextlib.closing(schema.connect(log, writable=False)) as database:
        found = database.execute("SELECT seq, chain FROM event ORDER BY seq DESC LIMIT 1").fetchone()
    return None if found is None else (int(found[0]), bytes(found[1]))


def _copy_index(index: Path, target: Path) -> None:
    """The committed files of the index. They never change, but merges remove them: then the newer list is taken."""
    for meta in sorted(index.glob("v*/meta.json")):
        folder = target / meta.parent.name
        for _ in range(20):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                shutil.copy(meta, folder / meta.name)
                for file in committed_files(folder / meta.name):
                    shutil.copy(meta.parent / file.name, folder / file.name)
                break
            except FileNotFoundError:
                continue
        else:
            shutil.rmtree(folder)  # too busy: who restores it indexes by itself
