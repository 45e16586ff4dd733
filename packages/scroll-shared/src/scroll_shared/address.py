"""The address of a shared store: `postgresql://user@host/database?store=NAME`, a URL of libpq with
additional parameters.

These are `store` (its name), `payloads` (a folder that all hosts mount, or the URL of an object
store; by default the one that `scroll shared init` recorded), `replica` (the folder of the local
copy), `lease` and `timeout` (in seconds). Everything else goes to libpq. Connections are encrypted
and the server's name is checked (`sslmode=verify-full`), unless the URL says otherwise; a mode that
silently falls back to plaintext is refused. The text of an address never contains the password.
"""

import hashlib
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from scroll_context.errors import BadInput
from scroll_context.files import cache_folder
from scroll_context.log.address import SECRETS, split_address

# In seconds. The server grants no lease longer than LONGEST_LEASE.
LEASE = 30.0
LONGEST_LEASE = 3600.0
TIMEOUT = 10.0

_OURS = ("store", "payloads", "replica", "lease", "timeout")
_MODES = ("disable", "require", "verify-ca", "verify-full")


class Address(msgspec.Struct, frozen=True):
    """The place of a shared store, and how this host uses it.

    `conninfo` is for libpq and may contain a password. `shown` is for people and does not.
    """

    store: str
    conninfo: str
    shown: str
    secrets: tuple[str, ...] = ()
    payloads: str = ""
    replica: str = ""
    lease: float = LEASE
    timeout: float = TIMEOUT

    def __repr__(self) -> str:
        return f"Address({self.shown})"

    def __str__(self) -> str:
        return self.shown

    @property
    def folder(self) -> Path:
        """The folder of the local copy: from the address, or in the user's cache folder."""
        if self.replica:
            return Path(self.replica).expanduser()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.store)[:40]
        place = hashlib.sha256(self.shown.encode()).hexdigest()[:12]
        return Path(cache_folder()) / "replicas" / f"{name}-{place}"

    def clean(self, text: str) -> str:
        """A text without the secrets of this address."""
        for secret in self.secrets:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
        return text


def parse(url: str) -> Address:
    """The parts of an address, checked."""
    try:
        parts = split_address(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise BadInput(
            "the address of a shared store cannot be read; "
            "write postgresql://user@host/database?store=NAME"
        ) from None
    ours = {name: value for name, value in pairs if name in _OURS}
    rest = {name: value for name, value in pairs if name not in _OURS}
    secrets = [value for name, value in rest.items() if name in SECRETS and value]
    user, _, place = parts.netloc.rpartition("@")
    if ":" in user:
        user, _, password = user.partition(":")
        secrets.append(unquote(password))
    shown_netloc = f"{user}@{place}" if user else place
    host = rest.get("host", "") or place
    if "sslmode" not in rest:
        rest["sslmode"] = "disable" if host.startswith(("/", "%2F", "%2f")) else "verify-full"
    if rest["sslmode"] not in _MODES:
        raise BadInput(
            f"sslmode={rest['sslmode']} may send everything in plaintext; "
            "use verify-full (the default), verify-ca, require, or disable if you mean that"
        )
    if rest["sslmode"].startswith("verify") and "sslrootcert" not in rest:
        rest["sslrootcert"] = "system"
    if not ours.get("store"):
        raise BadInput("the address names no store; add ?store=NAME")
    shown_rest = {name: value for name, value in rest.items() if name not in SECRETS}
    shown_rest = {name: value for name, value in shown_rest.items() if not name.startswith("ssl")}
    query = urlencode({**shown_rest, "store": ours["store"]})
    return Address(
        store=ours["store"],
        conninfo=f"postgresql://{parts.netloc}{parts.path}?{urlencode(rest)}",
        shown=f"postgresql://{shown_netloc}{parts.path}?{query}",
        secrets=tuple(secret for secret in secrets if secret),
        payloads=ours.get("payloads", ""),
        replica=ours.get("replica", ""),
        lease=_seconds(ours, "lease", LEASE, LONGEST_LEASE),
        timeout=_seconds(ours, "timeout", TIMEOUT),
    )


def _seconds(parameters: dict[str, str], name: str, default: float, most: float = 86_400) -> float:
    try:
        value = float(parameters.get(name) or default)
    except ValueError:
        value = -1.0
    if not 0.5 <= value <= most:
        raise BadInput(
            f"{name} is a number of seconds from 0.5 to {most:g}, not {parameters[name]!r:.40}"
        )
    return value
