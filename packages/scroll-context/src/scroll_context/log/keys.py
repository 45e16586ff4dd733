"""The user's secret, which belongs to a store and lies outside it and its backups.

It keys the hash of an erased event's source key (`erased_key`) and the fingerprint of a redacted
secret (redact.py), so that a store alone allows no guess at either. It is made when it is first
needed, in the file that SCROLL_KEY_FILE names, else `scroll/key` in the user's configuration
folder. Without it everything can be read; only an erased event that is imported again is no longer
recognised.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from scroll_context.errors import StoreReadOnly
from scroll_context.files import complete_file


def key_file() -> Path:
    """The file of the secret, whether it exists or not."""
    chosen = os.environ.get("SCROLL_KEY_FILE")
    if chosen:
        return Path(chosen)
    settings = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(settings) / "scroll" / "key"


def read_key() -> bytes | None:
    """The secret, or None when there is none yet or it cannot be read."""
    try:
        return bytes.fromhex(key_file().read_text().strip()) or None
    except (OSError, ValueError):
        return None


def make_key() -> bytes:
    """The secret, made now if there is none. Processes may race to make it."""
    path = key_file()
    key = read_key()
    if key is not None:
        return key
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with complete_file(path) as file:
                file.write(f"{secrets.token_hex(32)}\n".encode())
    except OSError as error:
        raise StoreReadOnly(
            f"the key file {path} cannot be written ({error.strerror}); nothing was changed. "
            "Set SCROLL_KEY_FILE to a file of your own, outside the store."
        ) from error
    key = read_key()
    if key is None:
        raise StoreReadOnly(
            f"the key file {path} cannot be read. Fix or remove it; nothing was changed."
        )
    return key


def keyed_hash(key: bytes, text: str) -> str:
    """40 hex digits that only somebody with the key can connect to the text."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:40]


# source keys of erased events ---------------------------------------------------------------------

ERASED_KEY = "erased:"
"""The prefix of an erased event's source key."""


def erased_key(source_key: str | None) -> str | None:
    """The source key of an erased event: a hash, by which a second import recognises the event."""
    return source_key and ERASED_KEY + keyed_hash(make_key(), source_key)
