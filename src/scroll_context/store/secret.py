"""A secret of this user that lies outside every store, for hashes that nobody who has a store can guess at.

It keys the hash of an erased event's source key, and the fingerprint of a redacted secret. It is a file of its own,
made when it is first needed: the one that SCROLL_KEY_FILE names, else `scroll/key` in the user's configuration folder.
Without it everything can be read; only an erased event that is imported again is no longer recognised.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from scroll_context.errors import StoreReadOnly


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
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with open(handle, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        finally:
            Path(name).unlink()
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
