"""Payloads of a shared store: immutable objects in an object store, with a bounded cache on each
host.

The object store is the truth. A body is written to the local folder first and then put under
`stores/<uid>/payloads/ab/<sha256>` unless that object exists; when `put` returns, the object store
has acknowledged it. A read takes the local file or fetches the object into it, and is verified as
in every payload store: a damaged local file is replaced, a damaged object is refused. Files that
were not used for longest make room for others.

Garbage collection (collect.py) may delete an object between a host's put and its append. So the
server counts deletions, and an object that is put again has the count of that moment, its
*generation*, in its name (`ab/<sha256>/<generation>`): a name is never used twice, and a deletion
that arrives late hits nothing that is in use. `append` sends the generation with which a body was
put, and is refused when the body was deleted since; `put_again` then uploads it once more. This
module stores opaque bytes and knows nothing of events.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import obstore
from obstore import exceptions as faults
from obstore.store import from_url

from scroll_context.errors import BadInput, PayloadDamaged, StoreReadOnly, StoreUnreachable
from scroll_context.log.payloads import CHUNK, PayloadFolder, PayloadStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

CACHE_BYTES = 4 << 30  # how large the local folder of payloads may get
SCHEMES = (
    "s3",
    "gs",
    "az",
)  # obstore's local folder does not sync to disk, so it is not one of them

_ABSENT = (FileNotFoundError, faults.NotFoundError)  # obstore raises the one or the other
_SINGLE = (
    16 << 20
)  # bytes; larger objects go up in parts, which cannot be create-only but carry the same bytes
_PATIENCE: "ClientConfig" = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "3600s"}
_RETRY: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


class Stored(NamedTuple):
    """An object that is there."""

    key: str
    size: int
    age: float  # seconds since it was written, by the clock of the object store


class NoObject(Exception):
    """No object has this key."""


class Bucket:
    """The objects of one store below one address, with obstore's errors told as Scroll's."""

    def __init__(self, url: str, uid: str) -> None:
        scheme = url.partition("://")[0]
        if scheme not in SCHEMES:
            raise BadInput(
                f"payloads={url!r:.80}: the address of an object store begins with s3://, gs:// or az://"
            )
        self.url = url
        self._prefix = f"stores/{uid}/"
        options = _PATIENCE.copy()
        # options of our own hide this variable from obstore
        options["allow_http"] = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        try:
            self._store: ObjectStore = from_url(url, client_options=options, retry_config=_RETRY)
        except (faults.BaseError, ValueError) as error:
            raise BadInput(f"payloads={url!r:.80} cannot be used: {_cause(error)}") from error

    def create(self, key: str, body: Path | bytes) -> bool:
        """Put an object that is not there yet; False when it is. Durable when this returns."""
        size = len(body) if isinstance(body, bytes) else body.stat().st_size
        with self._faults("write"):
            try:
                if size > _SINGLE:
                    obstore.put(self._store, self._prefix + key, body)
                else:
                    obstore.put(self._store, self._prefix + key, body, mode="create")
            except faults.AlreadyExistsError:
                return False
        return True

    def replace(self, key: str, body: Path | bytes) -> None:
        """Put an object in the place of whatever is there."""
        with self._faults("write"):
            obstore.put(self._store, self._prefix + key, body)

    def read(self, key: str) -> Iterator[bytes]:
        """The pieces of an object; raises NoObject when there is none."""
        with self._faults("read"):
            try:
                found = obstore.get(self._store, self._prefix + key)
            except _ABSENT as error:
                raise NoObject(key) from error
            for piece in found.stream(min_chunk_size=CHUNK):
                yield bytes(piece)

    def size(self, key: str) -> int | None:
        """How many bytes an object has; None when there is none."""
        with self._faults("read"):
            try:
                return obstore.head(self._store, self._prefix + key)["size"]
            except _ABSENT:
                return None

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is as good as removed."""
        paths = [self._prefix + key for key in keys]
        with self._faults("delete"):
            try:
                obstore.delete(self._store, paths)
            except _ABSENT:  # some services delete one by one and stop there
                for path in paths:
                    with contextlib.suppress(*_ABSENT):
                        obstore.delete(self._store, path)

    def list(self, key: str) -> Iterator[Stored]:
        """The objects whose keys begin with these folders, page by page."""
        with self._faults("list"):
            for page in obstore.list(self._store, self._prefix + key):
                for one in page:
                    modified = one["last_modified"]
                    age = (modified.now(modified.tzinfo) - modified).total_seconds()
                    yield Stored(one["path"].removeprefix(self._prefix), one["size"], age)

    @contextlib.contextmanager
    def _faults(self, action: str) -> Iterator[None]:
        try:
            yield
        except (faults.PermissionDeniedError, faults.UnauthenticatedError) as error:
            raise StoreReadOnly(
                f"the object store refuses to {action} objects below {self.url}; nothing was lost. Check the "
                "credentials in the environment and what they permit."
            ) from error
        except (faults.BaseError, ValueError) as error:
            raise StoreUnreachable(
                f"the object store did not {action} objects below {self.url} ({_cause(error)}). What was "
                "acknowledged is safe; try again."
            ) from error


class ObjectPlace:
    """A place for payloads: objects in a bucket, and a folder that holds some of them.

    The folder may be deleted.
    """

    def __init__(self, bucket: Bucket, folder: Path, cache_bytes: int = CACHE_BYTES) -> None:
        self.bucket = bucket
        self.cache = PayloadFolder(folder)
        self.cache_bytes = cache_bytes
        self.generations: dict[str, int] = {}  # of objects that were put again
        self._known: set[str] = set()  # what this process has put, in its generation
        self._cached: int | None = None  # bytes in the folder, as far as this process knows

    def write(self, pieces: Iterable[bytes], name: Callable[[], str | None]) -> int:
        given: list[str | None] = []

        def noted() -> str | None:
            given.append(name())
            return given[0]

        size = self.cache.write(pieces, noted)
        if given[0] is not None:
            self.sync(given[0])
            self._make_room(given[0], size)
        return size

    def sync(self, name: str) -> None:
        """Make sure that the object store has what lies here: another process may have died before
        its upload.
        """
        if name not in self._known:
            key, file = key_of(name, self.generations.get(name, 0)), self.cache.path(name)
            if not self.bucket.create(key, file) and self.bucket.size(key) != file.stat().st_size:
                self.bucket.replace(key, file)
            self._known.add(name)

    def open(self, name: str, start: int = 0) -> IO[bytes]:
        with contextlib.suppress(FileNotFoundError):
            file = self.cache.open(name, start)
            with contextlib.suppress(OSError):
                os.utime(self.cache.path(name))  # used just now
            return file
        for key in (key_of(name), *(stored.key for stored in self.bucket.list(key_of(name)))):
            with contextlib.suppress(NoObject):
                self._make_room(name, self.cache.write(self.bucket.read(key), lambda: name))
                return self.cache.open(name, start)
        raise FileNotFoundError(name)

    def size(self, name: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self.cache.size(name)
        for key in (key_of(name), *(stored.key for stored in self.bucket.list(key_of(name)))):
            if (size := self.bucket.size(key)) is not None:
                return size
        raise FileNotFoundError(name)

    def names(self, digest: str = "") -> Iterator[str]:
        """Every name that the object store has."""
        yield from dict.fromkeys(name for name, _, _ in self.objects() if name.startswith(digest))

    def objects(self) -> Iterator[tuple[str, int, Stored]]:
        """Every object in the bucket, with the name of the body and its generation."""
        for stored in self.bucket.list("payloads"):
            name, _, generation = stored.key.removeprefix("payloads/")[3:].partition("/")
            if not generation or generation.isdecimal():
                yield name, int(generation or 0), stored

    def remove(self, name: str) -> None:
        """Drop the local file. Garbage collection alone deletes objects."""
        self._known.discard(name)
        self.cache.remove(name)
        self._cached = None

    def sweep(self) -> None:
        self.cache.sweep()

    def put_again(self, name: str, generation: int) -> None:
        """Upload a body that lies here under the name of a new generation."""
        self._known.discard(name)
        self.generations[name] = generation
        self.sync(name)

    def _make_room(self, name: str, size: int) -> None:
        """Remove the files that were used longest ago, down to four fifths of the bound, but not
        this one.
        """
        if self._cached is not None and self._cached + size <= self.cache_bytes:
            self._cached += size
            return
        used = {one: _stat(self.cache.path(one)) for one in self.cache.names()}
        self._cached = sum(stat.st_size for stat in used.values())
        if self._cached <= self.cache_bytes:
            return
        for one, stat in sorted(used.items(), key=lambda item: item[1].st_mtime_ns):
            if self._cached <= self.cache_bytes * 4 // 5:
                break
            if one != name:
                self.cache.remove(one)
                self._cached -= stat.st_size


class SharedPayloads(PayloadStore):
    """The payloads of a shared store."""

    place: ObjectPlace

    def __init__(self, place: ObjectPlace) -> None:
        super().__init__(place)

    def generation(self, digests: Iterable[str]) -> int:
        """The generation to send with an event that names these bodies."""
        return min((self.place.generations.get(digest, 0) for digest in digests), default=0)

    def put_again(self, digests: Iterable[str], generation: int) -> None:
        """Upload bodies anew of which one was deleted, as `append` said with this generation."""
        for digest in digests:
            self.check(digest)  # here, or fetched from where another host has put it
            self.place.put_again(digest, generation)

    def chunks(self, digest: str) -> Iterator[bytes]:
        given = False
        try:
            for piece in super().chunks(digest):
                yield piece
                given = True
        except PayloadDamaged:
            self.place.remove(digest)  # the next read fetches the object
            if given:
                raise
            try:
                yield from super().chunks(digest)
            except PayloadDamaged:
                self.place.remove(digest)
                raise

    def stored_sizes(self) -> dict[str, int]:
        """The bytes that each payload takes in the object store, by listing it."""
        sizes: dict[str, int] = {}
        for name, _, stored in self.place.objects():
            sizes[name] = sizes.get(name, 0) + stored.size
        return sizes

    def _is_intact(self, digest: str) -> bool:
        """Whether the body lies here: what is only in the object store need not be fetched to be
        put.
        """
        return self.place.cache.path(digest).exists() and super()._is_intact(digest)


def key_of(name: str, generation: int = 0) -> str:
    """Where the object of a payload is, below its store."""
    return f"payloads/{name[:2]}/{name}" + (f"/{generation}" if generation else "")


def _stat(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except FileNotFoundError:  # another process trims the same folder
        return os.stat_result((0,) * 10)


def _cause(error: Exception) -> str:
    """What went wrong, without the address, the time it took and the structure behind it."""
    return str(error).strip().partition("\n")[0].rpartition(" - ")[2][:200]
