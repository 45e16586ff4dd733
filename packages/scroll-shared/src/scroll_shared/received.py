"""Rows as the server sends them, turned into rows of this host's copy.

The chain proves that a row is the one that was appended, not that it is an event: a member of the
store may append any bytes. A row that cannot be read becomes a placeholder. It keeps its address,
its session and its place in the chain, shows `[unreadable]` and has no effect, so that one bad row
never stops a host. An erased row, which its hash does not cover any more, is stored blank whatever
the server has in its place.
"""

import datetime as dt
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any

import msgspec

from scroll_context.events import Kind
from scroll_context.log.chain import body_of, leaf_of
from scroll_context.log.payloads import is_digest
from scroll_context.log.rows import (
    ERASED,
    ERASED_METADATA,
    METADATA_LIMIT,
    UNREADABLE,
    UNREADABLE_METADATA,
)
from scroll_context.log.schema import utc_now
from scroll_context.log.writer import ERASED_KEY
from scroll_context.upkeep.erase import blanked

SENT = "seq, session_id, agent_id, task_id, nonce, body, leaf, chain, source_bytes"
"""The columns of the server's table that `table_row` takes."""

TableRow = tuple[Any, ...]
"""A row with all columns of the event table."""

_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None
_Text = str | None
_Columns = tuple[
    str,
    str,
    str,
    str,
    str,
    str,
    str,
    _Text,
    _Number,
    _Text,
    str,
    str,
    str,
    _Number,
    _Number,
    _Number,
    str,
    str,
    str,
    _Text,
]
_is_erased_key = re.compile(f"{ERASED_KEY}[0-9a-f]{{40}}").fullmatch
_decode = msgspec.msgpack.Decoder(_Columns).decode
_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode
_RESERVED = (
    "erased",
    "unreadable",
)  # keys of metadata with which only this module and an erasure mark events


def table_row(sent: Sequence[Any]) -> TableRow:
    """The row of the copy for a row of the server: as it is, blank, or a placeholder."""
    seq, session_id, agent_id, task_id, nonce, body, leaf, chain, source_bytes = sent
    columns = readable_columns(body)
    if columns is not None and [name.encode() for name in columns[:3]] != [
        session_id,
        agent_id,
        task_id,
    ]:
        columns = None
    if leaf is None and columns is not None and _length_of(columns[19]) != source_bytes:
        # The server compares only the end of a body with the source key that was sent beside it,
        # and a long key can end with the packed form of a shorter one.
        columns = None
    if leaf is None and columns is not None and columns[16] != ERASED_METADATA:
        return (seq, *columns, chain, nonce, None)
    if leaf is not None and columns is not None:
        key = columns[19] if _is_erased_key(str(columns[19])) else None
        return (seq, *blanked((seq, *columns, chain, None, leaf), key), chain, None, leaf)
    names = [name.decode(errors="replace") for name in (session_id, agent_id, task_id)]
    if leaf is not None:
        return (seq, *_placeholder(names, ERASED, ERASED_METADATA), chain, None, leaf)
    unreadable = _placeholder(names, UNREADABLE, UNREADABLE_METADATA)
    return (seq, *unreadable, chain, nonce, sha256(nonce + body).digest())


def as_unreadable(row: TableRow) -> TableRow:
    """The placeholder for a row that can be read and that the copy cannot hold.

    An erased row stays as it is, without a source key.
    """
    if row[22] is None:
        return (*row[:20], None, *row[21:])
    columns = _placeholder(row[1:4], UNREADABLE, UNREADABLE_METADATA)
    return (row[0], *columns, row[21], row[22], leaf_of(row[22], row[1:21]))


def readable_columns(body: bytes) -> Sequence[Any] | None:
    """The columns of a body; None when these are not exactly the bytes that Scroll writes for an
    event.
    """
    try:
        columns: Sequence[Any] = _decode(body)
        if len(columns[16].encode()) > METADATA_LIMIT:
            return None
        dt.datetime.fromisoformat(columns[17])
        dt.datetime.fromisoformat(columns[18])
        metadata = _decode_metadata(columns[16]) if columns[16] != "{}" else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if body_of(columns) != body or (columns[7] is not None and not is_digest(columns[7])):
        return None
    is_reserved = columns[16] != ERASED_METADATA and not metadata.keys().isdisjoint(_RESERVED)
    return None if is_reserved else columns


def _length_of(source_key: str | None) -> int | None:
    return None if source_key is None else len(source_key.encode())


def _placeholder(names: Sequence[str], content: str, metadata: str) -> tuple[str | None, ...]:
    """Columns without anything of the row's own but its names.

    Its times are those of its arrival here.
    """
    now = utc_now()
    empty = (
        "",
        "",
        content,
        None,
        None,
        None,
        "",
        "",
        "",
        None,
        None,
        None,
        metadata,
        now,
        now,
        None,
    )
    return (*names, str(Kind.FOREIGN), *empty)
