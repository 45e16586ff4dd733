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
from typing import Any

import msgspec

from scroll_context.events import Kind
from scroll_context.log.chain import body_of, leaf_of
from scroll_context.log.erasing import blanked
from scroll_context.log.keys import ERASED_KEY
from scroll_context.log.payloads import is_digest
from scroll_context.log.rows import (
    ERASED,
    ERASED_METADATA,
    METADATA_LIMIT,
    UNREADABLE,
    UNREADABLE_METADATA,
    EventColumns,
    TableRow,
)
from scroll_context.log.schema import utc_now

SENT = "seq, session_id, agent_id, task_id, nonce, body, leaf, chain, source_bytes"
"""The columns of the server's table that `table_row` takes."""

_is_erased_key = re.compile(f"{ERASED_KEY}[0-9a-f]{{40}}").fullmatch
_decode = msgspec.msgpack.Decoder(EventColumns).decode
_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode
# Keys of metadata with which only this module and an erasure mark events.
_RESERVED = ("erased", "unreadable")


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
    if leaf is None and columns is not None and _length_of(columns.source_key) != source_bytes:
        # The server compares only the end of a body with the source key that was sent beside it,
        # and a long key can end with the packed form of a shorter one.
        columns = None
    if leaf is None and columns is not None and columns.metadata != ERASED_METADATA:
        return TableRow(seq, *columns, chain, nonce, None)
    if leaf is not None and columns is not None:
        row = TableRow(seq, *columns, chain, None, leaf)
        key = columns.source_key if _is_erased_key(str(columns.source_key)) else None
        return TableRow(seq, *blanked(row, key), chain, None, leaf)
    names = [name.decode(errors="replace") for name in (session_id, agent_id, task_id)]
    if leaf is not None:
        return TableRow(seq, *_placeholder(names, ERASED, ERASED_METADATA), chain, None, leaf)
    unreadable = _placeholder(names, UNREADABLE, UNREADABLE_METADATA)
    return TableRow(seq, *unreadable, chain, nonce, sha256(nonce + body).digest())


def as_unreadable(row: TableRow) -> TableRow:
    """The placeholder for a row that can be read and that the copy cannot hold.

    An erased row stays as it is, without a source key.
    """
    if row.nonce is None:
        return row._replace(source_key=None)
    names = (row.session_id, row.agent_id, row.task_id)
    columns = _placeholder(names, UNREADABLE, UNREADABLE_METADATA)
    leaf = leaf_of(row.nonce, row.columns)
    return TableRow(row.seq, *columns, row.chain, row.nonce, leaf)


def readable_columns(body: bytes) -> EventColumns | None:
    """The columns of a body; None when these are not exactly the bytes that Scroll writes for an
    event.
    """
    try:
        columns = _decode(body)
        if len(columns.metadata.encode()) > METADATA_LIMIT:
            return None
        dt.datetime.fromisoformat(columns.created_at)
        dt.datetime.fromisoformat(columns.recorded_at)
        metadata = _decode_metadata(columns.metadata) if columns.metadata != "{}" else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if body_of(columns) != body:
        return None
    if columns.payload is not None and not is_digest(columns.payload):
        return None
    is_marked = not metadata.keys().isdisjoint(_RESERVED)
    return None if is_marked and columns.metadata != ERASED_METADATA else columns


def _length_of(source_key: str | None) -> int | None:
    return None if source_key is None else len(source_key.encode())


def _placeholder(names: Sequence[str], content: str, metadata: str) -> EventColumns:
    """Columns without anything of the row's own but its session, agent and task.

    Its times are those of its arrival here.
    """
    session_id, agent_id, task_id = names
    now = utc_now()
    return EventColumns(
        session_id=session_id,
        agent_id=agent_id,
        task_id=task_id,
        kind=str(Kind.FOREIGN),
        role="",
        name="",
        content=content,
        payload=None,
        payload_size=None,
        payload_type=None,
        tool_call_id="",
        tool_state="",
        headline="",
        reply_to=None,
        step_index=None,
        msg_index=None,
        metadata=metadata,
        created_at=now,
        recorded_at=now,
        source_key=None,
    )
