"""The hash chain: each row's chain value covers the row and the chain value before it.

A row that is changed, removed or slipped in breaks the chain at its seq. The chain is not keyed: it
proves that the log is complete and unaltered against accident and against editing in place, not
against somebody who rewrites the file from that point on. Compare `scroll stats` heads kept
elsewhere to detect that.

`leaf = SHA-256(nonce + body)` and `chain = SHA-256(previous + seq + leaf)`, where `body` is the
MessagePack array of the columns between seq and chain, and seq has 8 bytes, big-endian. An erased
row keeps only its leaf, so the chain holds, and the random nonce, gone with the body, keeps a short
content from being guessed by its hash.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

GENESIS = bytes(32)
NONCE_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode
_int8 = struct.Struct(">q").pack

# Nonces are drawn in advance, since each draw is a system call.
_nonces: list[bytes] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_nonces.clear)

Columns = Sequence[str | int | None]

Row = Any
"""A `TableRow` (rows.py), in which damage may have left any type."""

# A leaf covers these columns of a row: those between seq and chain.
_COVERED = slice(1, 21)


def new_nonce() -> bytes:
    """A random value that no other row has."""
    try:
        return _nonces.pop()
    except IndexError:
        drawn = os.urandom(256 * NONCE_BYTES)
        _nonces.extend(
            drawn[at : at + NONCE_BYTES] for at in range(NONCE_BYTES, len(drawn), NONCE_BYTES)
        )
        return drawn[:NONCE_BYTES]


def body_of(columns: Columns) -> bytes:
    """A row's columns between seq and chain, as the hash covers them."""
    return _encode(columns)


def leaf_of(nonce: bytes, body: Columns) -> bytes:
    """The hash of a row's columns between seq and chain."""
    return sha256(nonce + _encode(body)).digest()


def link(previous: bytes, seq: int, leaf: bytes) -> bytes:
    """The chain value of a row."""
    return sha256(previous + _int8(seq) + leaf).digest()


def expected(previous: bytes, row: Row) -> bytes:
    """The chain value that a row must have behind this one; empty when damage leaves none."""
    try:
        leaf = row.leaf
        if leaf is None:
            leaf = sha256(row.nonce + _encode(row[_COVERED])).digest()
        return sha256(previous + _int8(row.seq) + leaf).digest()
    except (TypeError, struct.error, msgspec.MsgspecError):
        return b""


def breaks(rows: Iterable[Row], seq: int, chain: bytes) -> Iterator[tuple[int, int]]:
    """The rows that do not follow from the row before, each with the seq before it.

    The first row follows the row at `seq` with this chain value. This does the same as `expected`
    without a call per row, since a check of the complete log consists of it.
    """
    for row in rows:
        at = row.seq
        if at != seq + 1:
            yield at, seq
        elif row.leaf is not None:
            if expected(chain, row) != row.chain:
                yield at, seq
        else:
            try:
                leaf = sha256(row.nonce + _encode(row[_COVERED])).digest()
                is_intact = sha256(chain + _int8(at) + leaf).digest() == row.chain
            except (TypeError, struct.error, msgspec.MsgspecError):
                is_intact = False
            if not is_intact:
                yield at, seq
        seq, chain = at, row.chain
