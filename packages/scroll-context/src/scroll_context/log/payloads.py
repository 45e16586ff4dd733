"""Payloads: bodies too large for a row, as immutable files named by their SHA-256.

A body is written to a temporary file, synced, renamed to its digest, and the folder synced, before
anyone may refer to it; so an event never names a payload that a crash can take away. Equal bodies
are one file. Every read checks the digest: a body comes back exact or not at all. Digests come from
rows and from model code, so they are untrusted: only 64 hex digits ever become a path.

A `PayloadRef` is a handle for programs that use a store: size, type and address of a body, which is
loaded when asked for.
"""

import codecs
import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from scroll_context.contents import Snapshot
from scroll_context.errors import (
    BadInput,
    PayloadDamaged,
    PayloadMissing,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from scroll_context.events import Event, Excerpt, Kind, Payload
from scroll_context.log.payload_folder import PayloadFolder, PayloadPlace
from scroll_context.log.schema import command
from scroll_context.work import check as check_work

CHUNK = 1 << 20
TEXT = "text/plain; charset=utf-8"

_DIGEST = re.compile(r"[0-9a-f]{64}")


class PayloadStore:
    """Content-addressed bodies in a place. Safe for any number of processes and threads."""

    def __init__(self, place: Path | PayloadPlace) -> None:
        self.place: PayloadPlace = PayloadFolder(place) if isinstance(place, Path) else place
        # The bytes of the complete place, as far as this process knows.
        self._bytes: int | None = None

    @property
    def folder(self) -> Path:
        """The folder of a store on this machine."""
        if not isinstance(self.place, PayloadFolder):
            raise StoreError("these payloads are not in a folder on this machine")
        return self.place.folder

    def path(self, digest: str) -> Path:
        """The file of a body that lies in a folder of this machine, as it is."""
        return self.folder / self._checked(digest)[:2] / digest

    def sweep(self) -> None:
        """Remove what killed writers left behind."""
        self.place.sweep()

    def put(self, body: bytes | str | IO[bytes] | Iterable[bytes], media_type: str) -> Payload:
        """Store a body; it is durable when this returns.

        A file or an iterable of pieces is streamed. Text is stored as UTF-8, encoded piece by piece
        so that a large one is not held twice.
        """
        with self._faults():
            if isinstance(body, bytes):
                payload = Payload(hashlib.sha256(body).hexdigest(), len(body), media_type)
                if self._is_intact(payload.digest):
                    # The file's name may still be in another process's unsynced folder.
                    self.place.sync(payload.digest)
                    return payload
            hasher = hashlib.sha256()
            size = self.place.write(hashed(_pieces(body), hasher), hasher.hexdigest)
            if self._bytes is not None:
                self._bytes += size
            return Payload(hasher.hexdigest(), size, media_type)

    def put_text(self, text: str, media_type: str = TEXT) -> Payload:
        return self.put(text, media_type)

    def read(self, digest: str) -> bytes:
        """The complete body, verified."""
        return b"".join(self.chunks(digest))

    def text(self, digest: str) -> str:
        """The complete body as text, verified; bytes that are not UTF-8 become U+FFFD."""
        return "".join(self.text_pieces(digest))

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The body in pieces.

        The last piece comes only after the complete body has been verified.
        """
        hasher = hashlib.sha256()
        held: bytes | None = None
        for piece in self._stored_pieces(digest):
            check_work()
            hasher.update(piece)
            if held is not None:
                yield held
            held = piece
        if hasher.hexdigest() != digest:
            raise damaged(digest)
        if held is not None:
            yield held

    def check(self, digest: str) -> None:
        """Read the body for its digest only: raises PayloadMissing or PayloadDamaged."""
        for _ in self.chunks(digest):
            pass

    def piece(self, digest: str, start: int, size: int) -> bytes:
        """Some bytes of the body.

        They are not verified: `check` it once, then read it in pieces.
        """
        with self._open(digest, start) as file:
            return file.read(size)

    def text_pieces(self, digest: str) -> Iterator[str]:
        """The body as text in pieces, split between characters."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in self.chunks(digest):
            yield decoder.decode(chunk)
        rest = decoder.decode(b"", final=True)
        if rest:
            yield rest

    def save_as(self, digest: str, target: Path) -> None:
        """Copy the body to a new file that only its owner can read.

        An existing file is never overwritten. If the body is damaged, no copy remains.
        """
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                for piece in self.chunks(digest):
                    file.write(piece)
            except BaseException:
                target.unlink()
                raise

    def named_by(self, kind: str, content: str, digest: str | None) -> list[str]:
        """The payloads that an event names: its own, and for a snapshot those of its variables."""
        digests = [] if digest is None else [digest]
        if kind == Kind.SNAPSHOT:
            digests += self._of_snapshot(content, digest)
        return digests

    def _of_snapshot(self, content: str, digest: str | None) -> list[str]:
        try:
            text = content if digest is None else self.text(digest)
        except (PayloadMissing, PayloadDamaged):
            return []
        variables = Snapshot.decode_readable(text).variables
        return [variable.digest for variable in variables if is_digest(variable.digest)]

    def remove(self, digest: str) -> None:
        """Delete a body that no event needs any more."""
        self.place.remove(self._checked(digest))
        self._bytes = None

    def bytes_used(self) -> int:
        """The size of everything in the place.

        It is counted once; from then on, this process adds what it writes.
        """
        if self._bytes is None:
            self._bytes = sum(self.stored_sizes().values())
        return self._bytes

    def stored_sizes(self) -> dict[str, int]:
        """The bytes that each payload takes in the place."""
        return {digest: self.stored_size(digest) for digest in self.digests()}

    def stored_size(self, digest: str) -> int:
        """The bytes that a payload takes in the place; 0 when it is not there."""
        try:
            return self.place.size(digest)
        except FileNotFoundError:
            return 0

    def lacks(self, digest: str) -> bool:
        """Whether a body is missing in its folder.

        A place elsewhere keeps track of deletions itself.
        """
        if not isinstance(self.place, PayloadFolder):
            return False
        return next(self.place.names(digest), None) is None

    def digests(self) -> Iterator[str]:
        """Every stored payload."""
        return filter(is_digest, self.place.names())

    def copy(self, digest: str, target: "PayloadStore") -> None:
        """Copy a payload to another place, verified."""
        target.put(self.chunks(digest), "")

    def _checked(self, digest: str) -> str:
        if not is_digest(digest):
            check = "`scroll verify`"
            if isinstance(self.place, PayloadFolder):
                check = command("verify", self.folder)
            raise PayloadMissing(
                f"there can be no payload {digest!r:.80}: a payload's name is 64 hex digits. The "
                f"event that names it is damaged; {check} says which."
            )
        return digest

    def _stored_pieces(self, digest: str) -> Iterator[bytes]:
        """The body as it was put, in pieces, not verified."""
        with self._open(digest) as file:
            while piece := file.read(CHUNK):
                yield piece

    def _open(self, digest: str, start: int = 0) -> IO[bytes]:
        try:
            return self.place.open(self._checked(digest), start)
        except FileNotFoundError as error:
            raise missing(digest) from error

    def _is_intact(self, digest: str) -> bool:
        try:
            self.check(digest)
        except (PayloadMissing, PayloadDamaged):
            return False
        return True

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        where = self.place.folder if isinstance(self.place, PayloadFolder) else "the store"
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreFull(
                    f"no room left for a payload in {where}: it was not stored, all earlier ones "
                    "are safe. Free some space and repeat the write."
                ) from error
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise StoreReadOnly(
                    f"{where} refuses writes: {error.strerror}. Nothing was changed."
                ) from error
            if error.errno == errno.EXDEV:
                # The soak mounts a read-only file system over a store between two of its folders.
                raise StoreReadOnly(
                    f"another file system was mounted at {where} during the write. The payload was "
                    "not stored; repeat the write."
                ) from error
            raise StoreError(
                f"the device failed while storing a payload in {where}: {error}"
            ) from error


def missing(digest: str) -> PayloadMissing:
    return PayloadMissing(
        f"payload {digest[:12]}… is missing. The event and its preview are intact; restore the "
        "file from a backup."
    )


def damaged(digest: str) -> PayloadDamaged:
    return PayloadDamaged(
        f"payload {digest[:12]}… no longer matches its digest: the file was altered or cut short. "
        "The event and its preview are intact; restore the file from a backup."
    )


def excerpt(pieces: Iterable[str], most: int) -> Excerpt:
    """A text that comes in pieces: all of it up to `most` characters, else its two ends.

    The beginning gets two thirds of the characters, the end one third.
    """
    head, tail = "", ""
    longest_head = most * 2 // 3
    longest_tail = most - longest_head
    length = 0
    for piece in pieces:
        length += len(piece)
        room = longest_head - len(head)
        head += piece[:room]
        # Twice as much as needed stays, so that a long text is not copied for each of its pieces.
        tail += piece[room:]
        if len(tail) > 2 * longest_tail + CHUNK:
            tail = tail[-longest_tail:]
    tail = tail[max(0, len(tail) - longest_tail) :]
    return Excerpt(head + tail, len(head), length - len(head) - len(tail))


def is_digest(name: object) -> bool:
    """Whether this can be the name of a payload."""
    return isinstance(name, str) and _DIGEST.fullmatch(name) is not None


def hashed(pieces: Iterable[bytes], hasher: "hashlib._Hash") -> Iterator[bytes]:
    """The pieces, as they go into a hash."""
    for piece in pieces:
        hasher.update(piece)
        yield piece


def _pieces(body: bytes | str | IO[bytes] | Iterable[bytes]) -> Iterable[bytes]:
    if isinstance(body, bytes):
        return (body,)
    if isinstance(body, str):
        return (body[at : at + CHUNK].encode() for at in range(0, len(body), CHUNK))
    if hasattr(body, "read"):
        return iter(lambda: body.read(CHUNK), b"")
    return body


# handles ------------------------------------------------------------------------------------------


class PayloadRef:
    """The base of every handle: where the body belongs, how large it is, and how it begins."""

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
    """Text: a tool's result, a long message, a cell's complete output."""

    def text(self) -> str:
        return self._payloads.text(self.digest)

    def json(self) -> Any:
        try:
            return json.loads(self.text())
        except ValueError as error:
            raise BadInput(
                f"the payload of seq {self.seq} is not JSON ({error}); read it with .text()"
            ) from error

    def lines(self) -> Iterator[str]:
        """The lines, one at a time, without holding the complete text."""
        rest = ""
        for piece in self._payloads.text_pieces(self.digest):
            *lines, rest = (rest + piece).split("\n")
            yield from lines
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
