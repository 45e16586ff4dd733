"""Snapshots: the rows and the search index of a host's replica, in the object store, from which new
hosts start.

To read a million events from the server and to index them takes minutes; to fetch a snapshot takes
seconds. A snapshot is one object that is never changed: a compressed sequence of frames, each a row
or a piece of an index file. Only a role that may erase can have the server list one, with its
digest and the chain value of its last event.

A new host believes as little as possible. It writes the rows into a log of its own, and each must
continue the chain up to the value that the server has now; a row that its hash does not cover,
because it was erased or cannot be read, is fetched from the server. No file that others made is
opened as a database. The index has the digest for a witness, and can only change which events a
search finds, never what they say. After the fetch the follower goes on from the snapshot's last
event and checks each link, as after any pause.

The newest two are kept. What was erased is still in older snapshots: those from before the newest
erasure are deleted.
"""

import contextlib
import fcntl
import gzip
import hashlib
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import BadInput, StoreDamaged, StoreError, StoreLocked
from scroll_context.files import sync_folder
from scroll_context.log import schema
from scroll_context.log.chain import GENESIS, body_of, breaks
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import TableRow
from scroll_context.search.index_files import committed_files
from scroll_context.upkeep.erase import has_chores
from scroll_shared.address import Address
from scroll_shared.objects import Bucket, NoObject, SharedPayloads
from scroll_shared.received import SENT, readable_columns, table_row
from scroll_shared.replica import insert_rows
from scroll_shared.server import Numbers, Server

_logger = logging.getLogger("scroll_context.store")

KEPT = 2
# The beginning of the name of a folder into which a snapshot is unpacked.
_STAGE = ".snapshot-"
_PIECE = 1 << 20
# In bytes. The server accepts no body of nearly this size.
_LONGEST_FRAME = 32 << 20
# This many rows, or this many bytes, are checked and written at once.
_PAGE_ROWS = 2_000
_PAGE_BYTES = 32 << 20
_INDEX_FILE = re.compile(r"index/v\d{1,6}/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,100}")
# An index may have this many bytes, and four times those of the events.
_INDEX_BYTES = 64 << 20


class _Row(msgspec.Struct, frozen=True, array_like=True, tag="row"):
    """An event.

    One whose body is not in the snapshot has no nonce either: only the server vouches for it.
    """

    seq: int
    nonce: bytes | None
    body: bytes
    chain: bytes


class _File(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """A piece of an index file."""

    name: str
    piece: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row | _File).decode


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that the server lists."""

    key: str
    seq: int
    chain: bytes
    bytes: int
    sha256: str
    created: Any = None


def snapshots(server: Server, store_id: int) -> list[Snapshot]:
    """The snapshots that a host may start from, newest first."""
    rows = server.call(
        """SELECT key, seq, chain, bytes, sha256, created FROM scroll.snapshot WHERE store_id = %s
        ORDER BY seq DESC, created DESC""",
        [store_id],
    )
    return [Snapshot(*row) for row in rows]


def take(
    server: Server, store_id: int, bucket: Bucket, log: EventLog, index: Path
) -> Snapshot | None:
    """Put a snapshot of this replica and its index into the object store; None when the log is
    empty.
    """
    with tempfile.TemporaryDirectory(prefix="scroll-snapshot-") as name:
        folder = Path(name)
        erased = log.newest_erasure()
        # The index is copied first: it may lag behind the log, but never be ahead of it.
        _copy_index(index, folder / "index")
        packed = folder / "snapshot.gz"
        with gzip.open(packed, "wb", compresslevel=1) as out:
            last = _pack_rows(log, out)
            _pack_index(folder, out)
        if last is None:
            return None
        if has_chores(log) or log.newest_erasure() > erased:
            raise StoreLocked(
                "an erasure is being carried out on this host, so no snapshot was made. Try again."
            )
        with packed.open("rb") as whole:
            digest = hashlib.file_digest(whole, "sha256").hexdigest()
        key = f"snapshots/{last.seq:020d}-{uuid.uuid4().hex[:12]}.gz"
        snapshot = Snapshot(key, last.seq, last.chain, packed.stat().st_size, digest)
        bucket.create(key, packed)
    values = [store_id, key, snapshot.seq, snapshot.chain, snapshot.bytes, snapshot.sha256]
    try:
        is_listed = server.call("SELECT scroll.add_snapshot(%s, %s, %s, %b, %s, %s)", values)[0][0]
    except StoreError:
        bucket.delete([key])
        raise
    if not is_listed:
        bucket.delete([key])
        raise StoreDamaged(
            f"seq {snapshot.seq} of this host's copy is not the one on the server, or events were "
            "erased after it; no snapshot was made of it"
        )
    prune(server, store_id, bucket, before=log.newest_erasure())
    return snapshot


def _pack_rows(log: EventLog, out: gzip.GzipFile) -> _Row | None:
    """Write the rows that the copy has now. Returns the last one."""
    until = log.applied_seq()
    last = None
    seq = 0
    while rows := log.rows(seq, until, _PAGE_ROWS):
        for row in rows:
            if row.leaf is None:
                last = _Row(row.seq, row.nonce, body_of(row.columns), row.chain)
            else:
                last = _Row(row.seq, None, b"", row.chain)
            _write_frame(out, last)
        seq = rows[-1].seq
    return last


def _pack_index(folder: Path, out: gzip.GzipFile) -> None:
    for path in sorted((folder / "index").rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    _write_frame(out, _File(str(path.relative_to(folder)), piece))


def _write_frame(out: gzip.GzipFile, frame: _Row | _File) -> None:
    encoded = _encode(frame)
    out.write(len(encoded).to_bytes(4, "big") + encoded)


def prune(server: Server, store_id: int, bucket: Bucket, *, before: int = 0) -> int:
    """Delete all but the newest snapshots, and those that end before a seq. Returns how many."""
    values = [store_id, KEPT, before]
    rows = server.call("SELECT scroll.drop_snapshots(%s, %s, %s)", values)
    keys = [key for (key,) in rows]
    if keys:
        bucket.delete(keys)
    return len(keys)


def restore(
    server: Server, store_id: int, snapshot: Snapshot, bucket: Bucket, folder: Path
) -> None:
    """Put the log and the index of a snapshot into a folder that has none, the log last, complete
    or not at all.
    """
    stage = schema.private_folder(folder) / f"{_STAGE}{uuid.uuid4().hex[:8]}"
    schema.private_folder(stage)
    try:
        try:
            Restoring(server, store_id, snapshot, stage).run(bucket.read(snapshot.key))
        except (zlib.error, msgspec.MsgspecError, OSError) as error:
            raise unusable(snapshot, str(error)) from error
        if (stage / "index").exists() and not (folder / "index").exists():
            os.rename(stage / "index", folder / "index")
        # Another process of this host may have been first.
        with contextlib.suppress(FileExistsError):
            os.link(stage / schema.LOG_NAME, folder / schema.LOG_NAME)
        sync_folder(folder)
    except NoObject as error:
        raise unusable(snapshot, "the object is missing") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


class Restoring:
    """Makes a log and an index of a snapshot's frames, in a folder that is thrown away if anything
    is wrong.
    """

    def __init__(self, server: Server, store_id: int, snapshot: Snapshot, stage: Path) -> None:
        self._server = server
        self._store_id = store_id
        self._snapshot = snapshot
        self._stage = stage
        # The seq and chain value of the last checked row.
        self._seq = 0
        self._chain = GENESIS
        # The name of the index file that is being written.
        self._index_name = ""
        self._hasher = hashlib.sha256()

    def run(self, packed: Iterator[bytes]) -> None:
        """Write everything, and refuse it unless it is exactly what the server vouches for."""
        snapshot = self._snapshot
        ((size,),) = self._server.call(
            "SELECT bytes FROM scroll.head WHERE store_id = %s", [self._store_id]
        )
        self._index_left = _INDEX_BYTES + 4 * size
        head = self._server.call(
            "SELECT chain FROM scroll.event WHERE store_id = %s AND seq = %s",
            [self._store_id, snapshot.seq],
        )
        if not head or head[0][0] != snapshot.chain:
            raise unusable(snapshot, "the server has another history")
        frames = _frames(self._hashed(packed))
        schema.create(self._stage, lambda database: self._fill(database, frames))
        if (self._seq, self._chain) != (snapshot.seq, snapshot.chain):
            raise unusable(snapshot, "its rows do not end where the server says")
        if self._hasher.hexdigest() != snapshot.sha256:
            raise unusable(snapshot, "its digest is not the one that the server lists")
        for path in (self._stage / "index").rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def _hashed(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        for piece in packed:
            self._hasher.update(piece)
            yield piece

    def _fill(self, database: sqlite3.Connection, frames: Iterator[_Row | _File]) -> None:
        database.execute("BEGIN")
        page: list[_Row] = []
        size = 0
        for frame in frames:
            if isinstance(frame, _File):
                self._add_to_index(frame)
                continue
            page.append(frame)
            size += len(frame.body)
            if len(page) == _PAGE_ROWS or size > _PAGE_BYTES:
                self._add_rows(database, page)
                page, size = [], 0
        self._add_rows(database, page)
        database.execute("COMMIT")

    def _add_rows(self, database: sqlite3.Connection, page: list[_Row]) -> None:
        rows: dict[int, TableRow] = {}
        erased = self._erased(page)
        for sent in page:
            if sent.seq in erased:
                continue
            columns = readable_columns(sent.body) if sent.nonce is not None else None
            if columns is not None:
                rows[sent.seq] = TableRow(sent.seq, *columns, sent.chain, sent.nonce, None)
        rows |= self._fetch([sent.seq for sent in page if sent.seq not in rows])
        ordered = [rows[seq] for seq in sorted(rows)]
        for at, _ in breaks(ordered, self._seq, self._chain):
            raise unusable(self._snapshot, f"seq {at} in it is not the one on the server")
        if ordered:
            self._seq, self._chain = ordered[-1].seq, ordered[-1].chain
        insert_rows(database, ordered, self._stage / schema.LOG_NAME)

    def _erased(self, page: list[_Row]) -> set[int]:
        """The rows of a page that are erased on the server.

        The chain confirms an erased row as it was before, too, so a snapshot could bring it back.
        """
        if not page:
            return set()
        erased = self._server.call(
            """SELECT seq FROM scroll.event
            WHERE store_id = %s AND seq BETWEEN %s AND %s AND leaf IS NOT NULL""",
            [self._store_id, page[0].seq, page[-1].seq],
        )
        return {seq for (seq,) in erased}

    def _fetch(self, seqs: list[int]) -> dict[int, TableRow]:
        """Rows that the snapshot cannot vouch for, from the server."""
        if not seqs:
            return {}
        sent = self._server.call(
            f"SELECT {SENT} FROM scroll.event WHERE store_id = %s AND seq = ANY(%s)",
            [self._store_id, Numbers(seqs)],
        )
        rows = [table_row(row) for row in sent]
        return {row.seq: row for row in rows}

    def _add_to_index(self, file: _File) -> None:
        self._index_left -= len(file.piece)
        if self._index_left < 0 or not _INDEX_FILE.fullmatch(file.name):
            raise unusable(self._snapshot, f"unexpected entry {file.name!r:.80}")
        path = self._stage / file.name
        schema.private_folder(path.parent.parent)
        schema.private_folder(path.parent)
        is_next = os.O_APPEND if file.name == self._index_name else os.O_EXCL | os.O_CREAT
        self._index_name = file.name
        with open(os.open(path, os.O_WRONLY | is_next, 0o600), "wb") as out:
            out.write(file.piece)


def begin_from_snapshot(address: Address, store_id: int, payloads: PayloadStore) -> bool:
    """Fill the empty folder of a new replica from the newest usable snapshot; False when there is
    none.
    """
    if not isinstance(payloads, SharedPayloads):
        return False
    with Server(address, "scroll snapshot") as server:
        listed = snapshots(server, store_id)
        if listed:
            _begin(server, address, store_id, payloads.place.bucket, listed)
    return (address.folder / schema.LOG_NAME).exists()


def _begin(
    server: Server, address: Address, store_id: int, bucket: Bucket, listed: list[Snapshot]
) -> None:
    """Restore the newest snapshot that can be used; a warning says why others could not."""
    lock = os.open(
        schema.private_folder(address.folder) / "snapshot.lock",
        os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
        0o600,
    )
    try:
        # Processes of a host that start at the same time fetch the snapshot once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A killed process may have left a folder.
        for stale in address.folder.glob(f"{_STAGE}*"):
            shutil.rmtree(stale, ignore_errors=True)
        for snapshot in listed:
            if (address.folder / schema.LOG_NAME).exists():
                break
            try:
                restore(server, store_id, snapshot, bucket, address.folder)
            except (StoreError, BadInput) as error:
                _logger.warning("%s", error)
    finally:
        os.close(lock)


def unusable(snapshot: Snapshot, why: str) -> StoreError:
    return StoreError(
        f"snapshot {snapshot.key} cannot be used: {why}. `scroll shared snapshot URL` makes "
        "another one."
    )


def _frames(packed: Iterator[bytes]) -> Iterator[_Row | _File]:
    """The frames of a compressed snapshot.

    However well it compresses, a bounded part is in memory.
    """
    buffer = bytearray()
    for piece in _inflated(packed):
        buffer += piece
        at = 0
        while len(buffer) >= at + 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if end - at > _LONGEST_FRAME:
                raise msgspec.DecodeError("a frame is too long")
            if len(buffer) < end:
                break
            yield _decode(bytes(buffer[at + 4 : end]))
            at = end
        del buffer[:at]
    if buffer:
        raise msgspec.DecodeError("it ends inside a frame")


def _inflated(packed: Iterator[bytes]) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    for piece in packed:
        rest = piece
        while rest:
            yield inflater.decompress(rest, _PIECE)
            rest = inflater.unconsumed_tail
    if not inflater.eof:
        raise zlib.error("it is cut off")


def _copy_index(index: Path, target: Path) -> None:
    """The committed files of the index.

    They never change, but merges remove them: then the newer list is taken.
    """
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
            # The index changes too fast. A host that restores the snapshot builds its own.
            shutil.rmtree(folder)
