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
from scroll_context.log.payload_folder import PayloadFolder
from scroll_context.log.payloads import CHUNK, PayloadStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

# The largest size of the local folder of payloads.
CACHE_BYTES = 4 << 30
# The local folders of obstore are not among them, since it does not sync them to disk.
SCHEMES = ("s3", "gs", "az")

# obstore raises the one or the other.
_ABSENT = (FileNotFoundError, faults.NotFoundError)
# In bytes. Larger objects are uploaded in parts, which cannot be create-only but carry the same
# bytes.
_SINGLE = 16 << 20
_PATIENCE: "ClientConfig" = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "3600s"}
_RETRY: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


class Stored(NamedTuple):
    """An object in the bucket. Its age is in seconds, by the clock of the object store."""

    key: str
    size: int
    age: float


class NoObject(Exception):
    """No object has this key."""


class Bucket:
    """The objects of one store below one address, with obstore's errors turned into Scroll's."""

    def __init__(self, url: str, uid: str) -> None:
        scheme = url.partition("://")[0]
        if scheme not in SCHEMES:
            raise BadInput(
                f"payloads={url!r:.80}: "
                "the address of an object store begins with s3://, gs:// or az://"
            )
        self.url = url
        self._prefix = f"stores/{uid}/"
        options = _PATIENCE.copy()
        # Because options are passed, obstore does not read this variable itself.
        options["allow_http"] = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        try:
            self._store: ObjectStore = from_url(url, client_options=options, retry_config=_RETRY)
        except (faults.BaseError, ValueError) as error:
            raise BadInput(f"payloads={url!r:.80} cannot be used: {_cause(error)}") from error

    def create(self, key: str, body: Path | bytes) -> bool:
        """Put a new object. Returns False if it exists. It is durable when this returns."""
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
                body = obstore.get(self._store, self._prefix + key)
            except _ABSENT as error:
                raise NoObject(key) from error
            for piece in body.stream(min_chunk_size=CHUNK):
                yield bytes(piece)

    def size(self, key: str) -> int | None:
        """The size of an object in bytes; None when there is none."""
        with self._faults("read"):
            try:
                return obstore.head(self._store, self._prefix + key)["size"]
            except _ABSENT:
                return None

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. A missing object is not an error."""
        paths = [self._prefix + key for key in keys]
        with self._faults("delete"):
            try:
                obstore.delete(self._store, paths)
            except _ABSENT:
                # Some services delete one by one and stop at a missing object.
                for path in paths:
                    with contextlib.suppress(*_ABSENT):
                        obstore.delete(self._store, path)

    def list(self, key: str) -> Iterator[Stored]:
        """The objects whose keys begin with these folders, page by page."""
        with self._faults("list"):
            for page in obstore.list(self._store, self._prefix + key):
                for item in page:
                    modified = item["last_modified"]
                    age = (modified.now(modified.tzinfo) - modified).total_seconds()
                    yield Stored(item["path"].removeprefix(self._prefix), item["size"], age)

    @contextlib.contextmanager
    def _faults(self, action: str) -> Iterator[None]:
        try:
            yield
        except (faults.PermissionDeniedError, faults.UnauthenticatedError) as error:
            raise StoreReadOnly(
                f"the object store refuses to {action} objects below {self.url}; nothing was lost. "
                "Check the credentials in the environment and their permissions."
            ) from error
        except (faults.BaseError, ValueError) as error:
            raise StoreUnreachable(
                f"the object store did not {action} objects below {self.url} ({_cause(error)}). "
                "Acknowledged events are safe; try again."
            ) from error


class ObjectPlace:
    """A place for payloads: objects in a bucket, and a folder with copies of some of them.

    The folder may be deleted.
    """

    def __init__(self, bucket: Bucket, folder: Path, cache_bytes: int = CACHE_BYTES) -> None:
        self.bucket = bucket
        self.cache = PayloadFolder(folder)
        self.cache_bytes = cache_bytes
        # The generations of objects that were put again.
        self.generations: dict[str, int] = {}
        # The names that this process has uploaded in their generation.
        self._uploaded: set[str] = set()
        # The bytes in the folder, as far as this process knows.
        self._cached: int | None = None

    def write(self, pieces: Iterable[bytes], name: Callable[[], str | None]) -> int:
        names: list[str | None] = []

        def noted() -> str | None:
            names.append(name())
            return names[0]

        size = self.cache.write(pieces, noted)
        if names[0] is not None:
            self.sync(names[0])
            self._make_room(names[0], size)
        return size

    def sync(self, name: str) -> None:
        """Make sure that the object store has a local file: another process may have died before
        its upload.
        """
        if name in self._uploaded:
            return
        key = key_of(name, self.generations.get(name, 0))
        file = self.cache.path(name)
        if not self.bucket.create(key, file) and self.bucket.size(key) != file.stat().st_size:
            self.bucket.replace(key, file)
        self._uploaded.add(name)

    def open(self, name: str, start: int = 0) -> IO[bytes]:
        with contextlib.suppress(FileNotFoundError):
            file = self.cache.open(name, start)
            # The time of the file is that of its last use.
            with contextlib.suppress(OSError):
                os.utime(self.cache.path(name))
            return file
        for key in self._keys(name):
            with contextlib.suppress(NoObject):
                size = self.cache.write(self.bucket.read(key), lambda: name)
                self._make_room(name, size)
                return self.cache.open(name, start)
        raise FileNotFoundError(name)

    def size(self, name: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self.cache.size(name)
        for key in self._keys(name):
            size = self.bucket.size(key)
            if size is not None:
                return size
        raise FileNotFoundError(name)

    def _keys(self, name: str) -> list[str]:
        """The keys under which a body may be: its first one, and those of later generations."""
        first = key_of(name)
        return [first, *(stored.key for stored in self.bucket.list(first))]

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
        self._uploaded.discard(name)
        self.cache.remove(name)
        self._cached = None

    def sweep(self) -> None:
        self.cache.sweep()

    def put_again(self, name: str, generation: int) -> None:
        """Upload a local body under the name of a new generation."""
        self._uploaded.discard(name)
        self.generations[name] = generation
        self.sync(name)

    def _make_room(self, name: str, size: int) -> None:
        """Remove the least recently used files, but not this one, down to 4/5 of the bound."""
        if self._cached is not None and self._cached + size <= self.cache_bytes:
            self._cached += size
            return
        files = [(_stat(self.cache.path(other)), other) for other in self.cache.names()]
        self._cached = sum(stat.st_size for stat, _ in files)
        if self._cached <= self.cache_bytes:
            return
        for stat, other in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if self._cached <= self.cache_bytes * 4 // 5:
                break
            if other != name:
                self.cache.remove(other)
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
        """Upload bodies again after one was deleted, as `append` reported with this generation."""
        for digest in digests:
            # This fetches the body if it is not here but another host has put it.
            self.check(digest)
            self.place.put_again(digest, generation)

    def chunks(self, digest: str) -> Iterator[bytes]:
        has_begun = False
        try:
            for piece in super().chunks(digest):
                yield piece
                has_begun = True
        except PayloadDamaged:
            # The next read fetches the object.
            self.place.remove(digest)
            if has_begun:
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
        """Whether the body is here. A body in the object store need not be fetched to be put."""
        return self.place.cache.path(digest).exists() and super()._is_intact(digest)


def key_of(name: str, generation: int = 0) -> str:
    """The key of a payload's object, below its store."""
    key = f"payloads/{name[:2]}/{name}"
    return f"{key}/{generation}" if generation else key


def _stat(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except FileNotFoundError:
        # Another process trims the same folder.
        return os.stat_result((0,) * 10)


def _cause(error: Exception) -> str:
    """The error text without the address, the time it took and the structure behind it."""
    return str(error).strip().partition("\n")[0].rpartition(" - ")[2][:200]
