"""The keys that belong to a store and lie outside it and its backups.

The *secret of the user* keys the hash of an erased event's source key and the fingerprint of a redacted secret, so that
a store alone allows no guess at either. It is made when it is first needed, in the file that SCROLL_KEY_FILE names,
else `scroll/key` in the user's configuration folder. Without it everything can be read; only an erased event that is
imported again is no longer recognised.

An encrypted store has two kinds more. The *master key* is the operator's: 32 random bytes as 64 hex digits, in a file,
an environment variable, or what a command prints. *Session keys* are Scroll's: one for each session, random, and
wrapped with the master key. They lie in the store's key ring, an SQLite file in a folder of their own (SCROLL_KEYRING).
When a session key is destroyed, everything that was encrypted for that session only is unreadable, in every backup too.

A key ring knows sessions by tags, which are keyed hashes of their names. A source of the master key may give several
keys: the first one that fits is used, so that a rotation can be cut short at any moment.
"""

import contextlib
import hashlib
import hmac
import itertools
import os
import re
import secrets
import shlex
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import BadInput, KeyMissing, KeyWrong, StoreReadOnly
from scroll_context.store.schema import private_folder, sync_folder, utc_now

KEY_BYTES = 32
KEY, KEY_FILE, KEY_COMMAND = "SCROLL_MASTER_KEY", "SCROLL_MASTER_KEY_FILE", "SCROLL_MASTER_KEY_COMMAND"

_NONCE = 12
_COMMAND_SECONDS = 60
_SCHEMA = """
CREATE TABLE ring (name TEXT PRIMARY KEY, wrapped BLOB NOT NULL) STRICT;
CREATE TABLE session_key (tag TEXT PRIMARY KEY, wrapped BLOB, made_at TEXT NOT NULL, destroyed_at TEXT) STRICT;
"""


def write_private(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file that only its owner can read, whole or not at all; FileExistsError unless it may replace one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, stage = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        (os.replace if replace else os.link)(stage, path)
    finally:
        Path(stage).unlink(missing_ok=True)
    sync_folder(path.parent)


# the secret of the user ---------------------------------------------------------------------------------


def key_file() -> Path:
    """Where the secret lies, or would."""
    if named := os.environ.get("SCROLL_KEY_FILE"):
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "scroll" / "key"


def read_key() -> bytes | None:
    """The secret, or None when there is none yet or it cannot be read."""
    try:
        return bytes.fromhex(key_file().read_text().strip()) or None
    except (OSError, ValueError):
        return None


def make_key() -> bytes:
    """The secret, made now if there is none. Processes may race to make it."""
    path = key_file()
    if (key := read_key()) is not None:
        return key
    try:
        with contextlib.suppress(FileExistsError):
            write_private(path, secrets.token_hex(32) + "\n")
    except OSError as error:
        raise StoreReadOnly(
            f"the key file {path} cannot be written ({error.strerror}); nothing was changed. "
            "Set SCROLL_KEY_FILE to a file of your own, outside the store."
        ) from error
    if (key := read_key()) is None:
        raise StoreReadOnly(f"the key file {path} cannot be read. Mend or remove it; nothing was changed.")
    return key


def keyed_hash(key: bytes, text: str) -> str:
    """40 hex digits that only somebody with the key can connect to the text."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:40]


# the master key -----------------------------------------------------------------------------------------


class MasterKey(msgspec.Struct, frozen=True):
    """The operator's keys as a source gives them, the newest first, and where they come from."""

    keys: tuple[bytes, ...]
    origin: str
    file: Path | None = None

    def __repr__(self) -> str:
        return f"<MasterKey from {self.origin}>"  # never the key


def master_key(given: bytes | str | Path | None = None) -> MasterKey:
    """The master key: 32 bytes or a key file as given, else what the environment names, else the default file."""
    if isinstance(given, bytes):
        if len(given) != KEY_BYTES:
            raise BadInput(f"a master key has {KEY_BYTES} bytes, not {len(given)}")
        return MasterKey((given,), "the caller")
    if given is not None:
        return _from_file(Path(given))
    if text := os.environ.get(KEY):
        return MasterKey(_parse(text, KEY), KEY)
    if name := os.environ.get(KEY_FILE):
        return _from_file(Path(name))
    if command := os.environ.get(KEY_COMMAND):
        return MasterKey(_parse(_printed_by(command), f"the command of {KEY_COMMAND}"), KEY_COMMAND)
    return _from_file(default_file())


def default_file() -> Path:
    """Where the master key lies when nothing names another place."""
    return key_file().with_name("master.key")


def write_key_file(path: Path, keys: Sequence[bytes], *, replace: bool = False) -> None:
    """Write a key file; one that is there is replaced only on request."""
    text = "# master key of Scroll's encrypted stores: keep a copy in a safe place, apart from every backup\n"
    text += "".join(f"{key.hex()}\n" for key in keys)
    try:
        write_private(path, text, replace=replace)
    except FileExistsError as error:
        raise BadInput(f"{path} is there already, and a key is never overwritten; name another file") from error
    except OSError as error:
        raise StoreReadOnly(f"the key file {path} cannot be written ({error.strerror}); nothing was changed") from error


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def _from_file(path: Path) -> MasterKey:
    try:
        text = path.read_text()
    except OSError as error:
        raise KeyMissing(
            f"the store is encrypted, and its master key cannot be read from {path} ({error.strerror}). Set {KEY_FILE} "
            f"to the key file, {KEY} to the key itself, or {KEY_COMMAND} to a command that prints it; from Python, "
            "Store(folder, key=...). If it is lost for good: `scroll key lost`."
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no key file: a key is 64 hex digits on a line") from error
    return MasterKey(_parse(text, str(path)), str(path), path)


def _parse(text: str, origin: str) -> tuple[bytes, ...]:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines or any(re.fullmatch(r"[0-9a-fA-F]{64}", line) is None for line in lines):
        raise BadInput(f"{origin} gives no master key: a key is 64 hex digits on a line")
    return tuple(map(bytes.fromhex, lines))


def _printed_by(command: str) -> str:
    import subprocess  # which few need, and which takes a while to import

    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        why = f"it ended with status {error.returncode}: {error.stderr.strip()[-200:]}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = str(error)
    else:
        return done.stdout
    raise KeyMissing(f"the command of {KEY_COMMAND} gave no master key ({why}); the store was not opened")


# wrapping -----------------------------------------------------------------------------------------------


def cipher(key: bytes) -> Any:
    """AES-256 in Galois/counter mode under a key."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise BadInput(
            "an encrypted store needs the encryption extra: pip install 'scroll-context[encryption]'"
        ) from error
    return AESGCM(key)


def wrap(key: bytes, inner: bytes, bound_to: str) -> bytes:
    """Encrypt a key with another. It can be unwrapped only for what it is bound to."""
    nonce = os.urandom(_NONCE)
    return nonce + bytes(cipher(key).encrypt(nonce, inner, bound_to.encode()))


def unwrap(key: bytes, wrapped: bytes, bound_to: str) -> bytes | None:
    """The inner key; None when the outer one does not fit, or the bytes were altered or bound to something else."""
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(cipher(key).decrypt(wrapped[:_NONCE], wrapped[_NONCE:], bound_to.encode()))
    except (InvalidTag, ValueError):
        return None


# the key ring -------------------------------------------------------------------------------------------


def keyring_folder() -> Path:
    """Where key rings lie: outside every store."""
    named = os.environ.get("SCROLL_KEYRING")
    return Path(named) if named else key_file().with_name("keys")


class KeyRing:
    """The wrapped session keys of one store. Safe for any number of processes and threads.

    Session keys are not cached: one that another process destroyed is gone here at once. When another process has
    rotated the master key, `source` is asked for the new one.
    """

    def __init__(self, store_id: str, source: Callable[[], MasterKey]) -> None:
        self.store_id = store_id
        self.path = keyring_folder() / f"{store_id}.db"
        self._lock = threading.Lock()
        if not self.path.is_file():
            raise KeyMissing(
                f"the store is encrypted, and its key ring {self.path} is not there. Bring it back from where you keep "
                "it, or set SCROLL_KEYRING to its folder. If it is lost for good: `scroll key lost`."
            )
        self._source = source
        self._database = _connect(self.path)
        try:
            self._master, self.digest_key = self._find_master()
        except BaseException:
            self._database.close()
            raise

    def _find_master(self) -> tuple[bytes, bytes]:
        """The master key that fits, and the key of digests."""
        master = self._source()
        (wrapped,) = self._database.execute("SELECT wrapped FROM ring WHERE name = 'digest'").fetchone()
        for key in master.keys:
            if (found := unwrap(key, wrapped, f"{self.store_id} digest")) is not None:
                return key, found
        raise KeyWrong(
            f"the master key of {master.origin} does not open this store (key ring {self.path}). Nothing was changed. "
            f"Give the right one: {KEY_FILE}, {KEY} or {KEY_COMMAND}; from Python, Store(folder, key=...)."
        )

    @staticmethod
    def create(store_id: str, key: bytes) -> None:
        """Make the key ring of a new store; one that is there stays."""
        folder = keyring_folder()
        path = folder / f"{store_id}.db"
        if path.is_file():
            return
        stage = folder / f".{store_id}.{secrets.token_hex(4)}"
        try:
            private_folder(folder)
            stage.touch(mode=0o600)
            database = _connect(stage)
            with contextlib.closing(database):
                database.executescript(_SCHEMA)
                database.execute("INSERT INTO ring VALUES ('digest', ?)", [wrap(key, new_key(), f"{store_id} digest")])
            with contextlib.suppress(FileExistsError):
                os.link(stage, path)
            sync_folder(folder)
        except OSError as error:
            raise StoreReadOnly(
                f"the key ring {path} cannot be written ({error.strerror}); nothing was changed. "
                "Set SCROLL_KEYRING to a folder of your own, outside the store."
            ) from error
        finally:
            stage.unlink(missing_ok=True)

    def key_for(self, session_id: str) -> tuple[str, bytes]:
        """The tag and the key to encrypt with for a session, made now if there is none."""
        for tag in self._tags(session_id):
            if self._row(tag) is None:
                with self._changing() as database:
                    self._master, _ = self._find_master()  # never wrap with a key that was rotated away
                    database.execute(
                        "INSERT OR IGNORE INTO session_key VALUES (?, ?, ?, NULL)",
                        [tag, wrap(self._master, new_key(), f"{self.store_id} {tag}"), utc_now()],
                    )
            if (key := self.key_of(tag)) is not None:
                return tag, key
        raise AssertionError("there is always another tag")

    def key_of(self, tag: str) -> bytes | None:
        """The key of a tag; None when it was destroyed, or never was in this ring."""
        row = self._row(tag)
        if row is None or row[0] is None:
            return None
        key = unwrap(self._master, row[0], f"{self.store_id} {tag}")
        if key is None:  # another process has rotated the master key since
            with self._lock:
                self._master, _ = self._find_master()
            key = unwrap(self._master, row[0], f"{self.store_id} {tag}")
        if key is None:
            raise KeyWrong(f"the key ring {self.path} is damaged at {tag}; bring back a copy of it")
        return key

    def destroyed_at(self, tag: str) -> str:
        """When a key was destroyed; "" when it was not."""
        row = self._row(tag)
        return (row[1] or "") if row is not None else ""

    def tags_of(self, session_id: str) -> list[str]:
        """Every tag that a session has had: after its key was destroyed, it gets another."""
        return list(itertools.takewhile(lambda tag: self._row(tag) is not None, self._tags(session_id)))

    def destroy(self, session_id: str) -> bool:
        """Destroy the key of a session for good; False when it has none."""
        tags = self.tags_of(session_id)
        with self._lock:
            done = self._database.executemany(
                "UPDATE session_key SET wrapped = NULL, destroyed_at = ? WHERE tag = ? AND wrapped IS NOT NULL",
                [(utc_now(), tag) for tag in tags],
            )
            return done.rowcount > 0

    def rotate(self, key: bytes) -> int:
        """Wrap everything with another master key, in one transaction; how many keys that were."""
        with self._changing() as database:
            master, _ = self._find_master()
            rows = database.execute("SELECT tag, wrapped FROM session_key WHERE wrapped IS NOT NULL").fetchall()
            changed = []
            for tag, wrapped in rows:
                inner = unwrap(master, wrapped, f"{self.store_id} {tag}")
                if inner is None:
                    raise KeyWrong(f"the key ring {self.path} is damaged at {tag}; nothing was changed")
                changed.append((wrap(key, inner, f"{self.store_id} {tag}"), tag))
            database.executemany("UPDATE session_key SET wrapped = ? WHERE tag = ?", changed)
            digest = wrap(key, self.digest_key, f"{self.store_id} digest")
            database.execute("UPDATE ring SET wrapped = ? WHERE name = 'digest'", [digest])
        self._master = key
        return len(rows)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise

    def counts(self) -> tuple[int, int]:
        """How many session keys there are, and how many were destroyed."""
        with self._lock:
            live, total = self._database.execute("SELECT count(wrapped), count(*) FROM session_key").fetchone()
        return live, total - live

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _tags(self, session_id: str) -> Iterator[str]:
        """The first tag of a session, and those that it gets when its keys were destroyed."""
        generation = 0
        while True:
            told = f"session {generation} {session_id}".encode(errors="surrogatepass")
            yield hmac.new(self.digest_key, told, hashlib.sha256).hexdigest()[:32]
            generation += 1

    def _row(self, tag: str) -> tuple[bytes | None, str | None] | None:
        with self._lock:
            row = self._database.execute("SELECT wrapped, destroyed_at FROM session_key WHERE tag = ?", [tag])
            found: tuple[bytes | None, str | None] | None = row.fetchone()
        return found


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA secure_delete = ON")
    database.execute("PRAGMA synchronous = EXTRA")
    return database
