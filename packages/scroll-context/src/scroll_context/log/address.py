"""Where a store is: a folder of this machine, or an address such as `postgresql://host/database`.

The scheme of an address chooses the backend of the log (schemes.py). The meaning of an address is
the backend's business; this module knows only where its secrets stand: a password behind the user's
name, and the parameters in SECRETS. Every backend keeps to that, so an address can be printed
without asking its backend."""

import re
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

DISTRIBUTIONS = {"postgresql": "scroll-shared", "postgres": "scroll-shared"}
"""The distribution that opens a well-known scheme, for an error message when it is missing."""

SECRETS = ("password", "sslpassword")
"""Parameters of an address that are never printed."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
# `Path("postgresql://host")` has lost one of the slashes.
_SCHEME_OF_PATH = re.compile(rf"({'|'.join(DISTRIBUTIONS)}):/")


def scheme_of(place: object) -> str:
    """The scheme of an address; "" for a folder."""
    text = str(place)
    match = _SCHEME.match(text) or _SCHEME_OF_PATH.match(text)
    return match[1] if match else ""


def is_address(place: object) -> bool:
    """Whether this is the address of a store and not a folder."""
    return bool(scheme_of(place))


def split_address(address: object) -> SplitResult:
    """The parts of an address as a URL, with both slashes behind its scheme.

    Raises ValueError when it is not a URL.
    """
    return urlsplit(re.sub(r"^([a-z0-9+.-]+):/+", r"\1://", str(address)))


def printable_place(place: object) -> str:
    """Where a store is, as it may be printed: an address without its secrets, or a folder."""
    if not is_address(place):
        return str(place)
    parts = split_address(place)
    user, at, host = parts.netloc.rpartition("@")
    user_name, _, _password = user.partition(":")
    pairs = [pair for pair in parse_qsl(parts.query) if pair[0] not in SECRETS]
    query = urlencode(pairs, safe="/:")
    return f"{parts.scheme}://{user_name}{at}{host}{parts.path}?{query}"


def has_password(address: str) -> bool:
    """Whether an address holds a secret."""
    parts = split_address(address)
    if any(name in SECRETS and value for name, value in parse_qsl(parts.query)):
        return True
    user, _, _host = parts.netloc.rpartition("@")
    _user_name, _, password = user.partition(":")
    return bool(password)
