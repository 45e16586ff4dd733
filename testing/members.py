"""A member of a store that speaks to the server over a plain connection, with any bytes."""

import os
import uuid
from typing import Any

import msgspec
import psycopg

_APPEND = """SELECT o_seqs, o_states FROM scroll.append(
    %s, %s, 1, 0, NULL, %s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[], %s::text[], '{0}',
    %s::bigint[], %s::bytea[], %s::bytea[])"""

_COLUMNS: dict[str, Any] = {
    "session_id": "s",
    "agent_id": "",
    "task_id": "",
    "kind": "conversation",
    "role": "user",
    "name": "",
    "content": "words",
    "payload": None,
    "payload_size": None,
    "payload_type": None,
    "tool_call_id": "",
    "tool_state": "",
    "headline": "",
    "reply_to": None,
    "step_index": None,
    "msg_index": None,
    "metadata": "{}",
    "created_at": "2026-01-01T00:00:00+00:00",
    "recorded_at": "2026-01-01T00:00:00+00:00",
    "source_key": None,
}


def body(**changes: Any) -> bytes:
    """The body of an event, as every version of Scroll writes it, with some columns changed."""
    return msgspec.msgpack.encode([*{**_COLUMNS, **changes}.values()])


class Member:
    """A login of the server. It holds only the rights of that login."""

    def __init__(self, url: str, store: str = "main") -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        ((self.store_id,),) = self.sql("SELECT store_id FROM scroll.store WHERE name = %s", store)

    def sql(self, statement: str, *values: Any) -> list[Any]:
        cursor = self.connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def append(
        self,
        content: bytes,
        *,
        session_id: bytes = b"s",
        agent_id: bytes = b"",
        task_id: bytes = b"",
        source: bytes | None = None,
        epoch: int | None = None,
    ) -> int:
        """Append one row with this body; its seq."""
        row = (
            [session_id],
            [agent_id],
            [task_id],
            [source],
            [None],
            [epoch],
            [os.urandom(16)],
            [content],
        )
        ((seqs, states),) = self.sql(_APPEND, self.store_id, uuid.uuid4(), *row)
        assert states == [0], states
        return int(seqs[0])

    def close(self) -> None:
        self.connection.close()
