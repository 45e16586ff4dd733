"""The hash chain: each row's hash covers the row and the hash before it.

A row that is changed, removed or slipped in breaks the chain at its seq. The chain is not keyed: it proves that
the log is whole and unaltered against accident and against editing in place, not against somebody who rewrites
the file from that point on. Compare `scroll stats` heads kept elsewhere to detect that.
"""

import hashlib
from collections.abc import Sequence

import msgspec

GENESIS = bytes(32)

_encode = msgspec.msgpack.Encoder().encode


def link(previous: bytes, columns: Sequence[str | int | None]) -> bytes:
    """The chain value of a row: SHA-256 over the previous value and the row's columns up to, not with, `chain`."""
    return hashlib.sha256(previous + _encode(columns)).digest()
