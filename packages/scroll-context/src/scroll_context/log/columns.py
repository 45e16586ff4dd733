"""The columns of the event table, in their order, with names.

`EventColumns` are those between seq and chain: the event itself, which its hash covers.
`TableRow` is a complete row. Both are plain tuples to SQLite and to MessagePack, so the order of
the fields is part of the file format (docs/FORMAT.md).
"""

from typing import Annotated, NamedTuple

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class EventColumns(NamedTuple):
    """An event itself: the columns between seq and chain."""

    session_id: str
    agent_id: str
    task_id: str
    kind: str
    role: str
    name: str
    content: str
    payload: str | None
    payload_size: Int64 | None
    payload_type: str | None
    tool_call_id: str
    tool_state: str
    headline: str
    reply_to: Int64 | None
    step_index: Int64 | None
    msg_index: Int64 | None
    metadata: str
    created_at: str
    recorded_at: str
    source_key: str | None


class TableRow(NamedTuple):
    """A row of the event table.

    It is made of what the file holds, so damage can give any field another type. A row with a leaf
    and without a nonce was erased.
    """

    seq: int
    session_id: str
    agent_id: str
    task_id: str
    kind: str
    role: str
    name: str
    content: str
    payload: str | None
    payload_size: int | None
    payload_type: str | None
    tool_call_id: str
    tool_state: str
    headline: str
    reply_to: int | None
    step_index: int | None
    msg_index: int | None
    metadata: str
    created_at: str
    recorded_at: str
    source_key: str | None
    chain: bytes
    nonce: bytes | None
    leaf: bytes | None

    @property
    def columns(self) -> EventColumns:
        """The event itself: the columns between seq and chain."""
        return EventColumns._make(self[1:21])


ALL_COLUMNS = TableRow._fields
"""Every column of the event table: the last two make a row erasable (see chain.py)."""

COLUMNS = ALL_COLUMNS[:-2]
"""The columns of an event: its address, what it says, and its chain value."""
