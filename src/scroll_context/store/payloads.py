"""Payloads: bodies too large for a row, as immutable files named by their SHA-256.

A body is written to a temporary file, synced, renamed to its digest, and the folder synced, before anyone may
refer to it; so an event never names a payload that a crash can take away. Equal bodies are one file. Every read
checks the digest: a body comes back exact or not at all. Digests come from rows and from model code, so they are
untrusted: only 64 hex digits ever become a path.

A handle (`ToolResultRef`, `ArtifactRef`) shows size, type and address of an event's payload and loads it when asked.
"""

import codecs
import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing, StoreError, StoreFull, StoreReadOnly
from scroll_context.events import Event, Payload
from scroll_context.store.schema import command, private_folder, sync_folder, try_lock

CHUNK = 1 << 20
TEXT = "text/plain; charset=utf-8"

_DIGEST = re.compile(r"[0-9a-f]{64}")


class PayloadStore:
    """A folder of content-addressed files. Safe for any number of processes and threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bytes: int | None = None  # in all files, as far as this process knows
        self._durable: set[Path] = set()  # folders whose own entry is known to be synced

    def sweep(self) -> None:
        """Remove temporary files that killed writers left behind: those that no living writer holds locked."""
        for file in (self.folder / "tmp").glob("*"):
            with contextlib.suppress(OSError), file.open("rb") as half:  # gone, or not ours to remove
                if try_lock(half.fileno()):
                    file.unlink()

    def put(self, body: bytes | IO[bytes] | Iterable[bytes], media_type: str) -> Payload:
        """Store a body, streamed when it is a file or an iterable of pieces; durable when this returns."""
        if isinstance(body, bytes):
            digest = hashlib.sha256(body).hexdigest()
            if self._is_intact(digest):
                return self._kept(Payload(digest, len(body), media_type))
            body = (body,)
        with self._faults():
            return self._write(_pieces(body), media_type)

    def put_text(self, text: str, media_type: str = TEXT) -> Payload:
        """Store text as UTF-8, encoded piece by piece so that a large one is not held twice."""
        pieces = (text[at : at + CHUNK].encode() for at in range(0, len(text), CHUNK))
        return self.put(pieces, media_type)

    def read(self, digest: str) -> bytes:
        """The whole body, verified."""
        return b"".join(self.chunks(digest))

    def text(self, digest: str) -> str:
        """The whole body as text, verified; bytes that are not UTF-8 become U+FFFD."""
        return "".join(self.text_pieces(digest))

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The body in pieces. The last piece is given out only after the whole has been verified."""
        hasher = hashlib.sha256()
        held: bytes | None = None
        with self._open(digest) as file:
            while piece := file.read(CHUNK):
                hasher.update(piece)
                if held is not None:
                    yield held
                held = piece
        if hasher.hexdigest() != digest:
            raise PayloadDamaged(
                f"payload {digest[:12]}… no longer matches its digest: the file was altered or cut short. "
                "The event and its preview are intact; restore the file from a backup."
            )
        if held is not None:
            yield held

    def check(self, digest: str) -> None:
        """Read the body for its digest only: raises PayloadMissing or PayloadDamaged."""
        for _ in self.chunks(digest):
            pass

    def piece(self, digest: str, start: int, size: int) -> bytes:
        """Some bytes of the body. They are not verified: `check` it once, then read it in pieces."""
        with self._open(digest) as file:
            file.seek(start)
            return file.read(size)

    def text_pieces(self, digest: str) -> Iterator[str]:
        """The body as text in pieces, split between characters."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in self.chunks(digest):
            yield decoder.decode(chunk)
        if rest := decoder.decode(b"", final=True):
            yield rest

    def save_as(self, digest: str, target: Path) -> None:
        """Copy the body to a new file, verified; an existing file is never overwritten, a bad copy never left."""
        with target.open("xb") as file:
            try:
                for piece in self.chunks(digest):
                    file.write(piece)
            except BaseException:
                target.unlink()
                raise

    def of_snapshot(self, content: str, digest: str | None) -> list[str]:
        """The payloads that a snapshot event names in its text: pickles of variables too large for it."""
        try:
            text = content if digest is None else self.text(digest)
            saved = msgspec.json.decode(text, type=_Saved).saved
        except (msgspec.MsgspecError, PayloadMissing, PayloadDamaged):
            return []
        return [variable.digest for variable in saved if is_digest(variable.digest)]

    def remove(self, digest: str) -> None:
        """Delete a body that no event needs any more."""
        self.path(digest).unlink(missing_ok=True)
        self._bytes = None

    def bytes_used(self) -> int:
        """The size of all files: counted once, and from then on by what this process adds."""
        if self._bytes is None:
            self._bytes = sum(self.path(digest).stat().st_size for digest in self.digests())
        return self._bytes

    def digests(self) -> Iterator[str]:
        """Every payload file that is there."""
        for file in sorted(self.folder.glob("??/*")):
            if is_digest(file.name):
                yield file.name

    def path(self, digest: str) -> Path:
        """Where a body lies."""
        if not is_digest(digest):
            raise PayloadMissing(
                f"there can be no payload {digest!r:.80}: a payload's name is 64 hex digits. The event that names it "
                f"is damaged; {command('verify', self.folder)} says which."
            )
        return self.folder / digest[:2] / digest

    def _open(self, digest: str) -> IO[bytes]:
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError as error:
            raise PayloadMissing(
                f"payload {digest[:12]}… is missing. The event and its preview are intact; "
                "restore the file from a backup."
            ) from error

    def _is_intact(self, digest: str) -> bool:
        try:
            self.check(digest)
        except (PayloadMissing, PayloadDamaged):
            return False
        return True

    def _kept(self, payload: Payload) -> Payload:
        """The file is there; its name may still be in another process's unsynced folder."""
        sync_folder(self.path(payload.digest).parent)
        return payload

    def _write(self, pieces: Iterable[bytes], media_type: str) -> Payload:
        hasher, size = hashlib.sha256(), 0
        handle, name = self._temporary()
        try:
            with open(handle, "wb") as file:  # locked against sweep() until it is closed
                for piece in pieces:
                    hasher.update(piece)
                    size += len(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                payload = Payload(hasher.hexdigest(), size, media_type)
                target = self.path(payload.digest)
                self._make_durable(target.parent)
                os.replace(name, target)
                if self._bytes is not None:
                    self._bytes += size
            return self._kept(payload)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _temporary(self) -> tuple[int, str]:
        """A new file, locked. A sweep may hold or remove it in the moment before it is locked; then another is made."""
        private_folder(self.folder)
        folder = private_folder(self.folder / "tmp")
        while True:
            handle, name = tempfile.mkstemp(dir=folder)
            os.fchmod(handle, 0o600)
            if try_lock(handle) and os.fstat(handle).st_nlink:
                return handle, name
            os.close(handle)

    def _make_durable(self, folder: Path) -> None:
        """Create a folder for digests, or make sure that the one another process created survives a crash."""
        if folder not in self._durable:
            private_folder(folder)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)
            self._durable.add(folder)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreFull(
                    f"no room left for a payload in {self.folder}: it was not stored, all earlier ones are safe. "
                    "Free some space and repeat."
                ) from error
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise StoreReadOnly(f"{self.folder} refuses writes: {error.strerror}. Nothing was changed.") from error
            raise StoreError(f"the device failed while storing a payload in {self.folder}: {error}") from error


class _SavedVariable(msgspec.Struct):
    digest: str = ""


class _Saved(msgspec.Struct):
    saved: tuple[_SavedVariable, ...] = ()


def is_digest(name: object) -> bool:
    """Whether this can be the name of a payload."""
    return isinstance(name, str) and _DIGEST.fullmatch(name) is not None


def _pieces(body: IO[bytes] | Iterable[bytes]) -> Iterable[bytes]:
    return body if not hasattr(body, "read") else iter(lambda: body.read(CHUNK), b"")


# handles -------------------------------------------------------------------------------------------------


class PayloadRef:
    """What every handle has: where the body belongs, how large it is, and how it begins."""

    def __init__(self, event: Event, payload: Payload, payloads: PayloadStore) -> None:
        self.seq = event.seq
        self.preview = event.content
        self.size = payload.size
        self.media_type = payload.media_type
        self.digest = payload.digest
        self._payloads = payloads

    def __repr__(self) -> str:
        return f"<{type(self).__name__} seq={self.seq} {self.media_type} {self.size:,} bytes>"


class ToolResultRef(PayloadRef):
    """Text: a tool's result, a long message, a cell's whole output."""

    def text(self) -> str:
        return self._payloads.text(self.digest)

    def json(self) -> Any:
        try:
            return json.loads(self.text())
        except ValueError as error:
            raise BadInput(f"the payload of seq {self.seq} is not JSON ({error}); read it with .text()") from error

    def lines(self) -> Iterator[str]:
        """The lines, one at a time, without holding the whole text."""
        rest = ""
        for piece in self._payloads.text_pieces(self.digest):
            *whole, rest = (rest + piece).split("\n")
            yield from whole
        if rest:
            yield rest


class ArtifactRef(PayloadRef):
    """Bytes: an image, an archive, a generated file."""

    def bytes(self) -> bytes:
        return self._payloads.read(self.digest)

    def save_as(self, target: str | Path) -> Path:
        """Write the body to a new file."""
        self._payloads.save_as(self.digest, Path(target))
        return Path(target)


def ref(event: Event, payloads: PayloadStore) -> ToolResultRef | ArtifactRef | None:
    """The handle of an event's payload, or None when the body is inline."""
    if event.payload is None:
        return None
    kind = ToolResultRef if event.payload.is_text else ArtifactRef
    return kind(event, event.payload, payloads)
