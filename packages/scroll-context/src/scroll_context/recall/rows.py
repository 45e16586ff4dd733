"""The one shape of rows: every call of `ms` that returns events returns these.

A row always has `seq, session_id, role, kind, created_at, content`. Calls that select events by a
part of their text add that part as `match` (search calls it `snippet`). Remarks about rows go into
the note beside them, never among them: a row of another shape breaks the model's loop.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from scroll_context.contents import MediaFacts, media_of
from scroll_context.events import Event
from scroll_context.kernel.results import CapabilityResult
from scroll_context.tools.handles import ResultRef, ref_of

# Bytes of the metadata in one row, as JSON.
METADATA_BYTES = 16 << 10
ROW_KEYS = ("seq", "session_id", "role", "kind", "created_at", "content")

Row = dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """The answer of a method of `ms`: rows, a note, and the events that they were made from."""

    rows: list[Row]
    note: str = ""
    # The events that it was made from; None for those in the rows.
    seqs: tuple[int, ...] | None = None
    # Whether it was made from more events than `seqs` names.
    is_unknown: bool = False
    # Whether rows were left out.
    truncated: bool = False

    def result(self) -> CapabilityResult:
        """The same for the kernel, with the provenance that the host records."""
        seqs: Sequence[int] = self.seqs or ()
        if self.seqs is None:
            seqs = [row["seq"] for row in self.rows]
        value = {"rows": self.rows, "note": self.note, "truncated": self.truncated}
        return CapabilityResult(value, tuple(dict.fromkeys(seqs)), self.is_unknown)


def event_row(event: Event, content: str | None = None, **more: Any) -> Row:
    """The row of an event, with another text than the one in the log if `content` is given."""
    row: Row = {
        "seq": event.seq,
        "session_id": event.session_id,
        "role": event.role,
        "kind": event.kind,
        "created_at": event.created_at,
        "content": event.content if content is None else content,
        "name": event.name,
        "agent_id": event.agent_id,
        "task_id": event.task_id,
        "step_index": event.step_index,
        "msg_index": event.msg_index,
        "headline": event.headline,
        "metadata": _short_metadata(event),
    }
    body = ref_of(event)
    if body is not None:
        row["payload"] = msgspec.to_builtins(body)
    media = [media_row(facts) for facts in media_of(event)]
    if media:
        row["media"] = media
    return row | more


def media_row(facts: MediaFacts) -> Row:
    """An image or a file of a message: a handle for its bytes, where they are recorded."""
    described: Row = {"seq": facts.seq, "media_type": facts.media_type, "name": facts.name}
    if facts.url:
        described["url"] = facts.url
    if facts.digest:
        ref = ResultRef(facts.seq, facts.size, facts.media_type, False, facts.label)
        described["payload"] = msgspec.to_builtins(ref)
    return described


def _short_metadata(event: Event) -> dict[str, Any]:
    """The metadata of an event, or where to read it: an import may bring megabytes of it."""
    size = len(msgspec.json.encode(event.metadata))
    if size <= METADATA_BYTES:
        return event.metadata
    query = f"SELECT substr(metadata, 1, 20000) AS part FROM hist.events WHERE seq = {event.seq}"
    return {"too_long": size, "read_with": f'ms.sql_query("{query}")'}
