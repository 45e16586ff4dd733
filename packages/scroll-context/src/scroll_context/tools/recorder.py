"""The events of tool calls: a call before its tool starts, and its result before anyone reads it.

The complete result is recorded: text as it is, anything else as JSON text, bytes as a payload with
their media type. Bytes among other values are events of their own, and the JSON names their seqs,
so media are never in the log as base64 text and every part of a result has an address.

The cell gets the value that the tool returned. A result over `CROSSING` does not fit into one
message to the kernel, which loads it from the store instead: the cell then gets the value that the
text in the log spells (dates as text, bytes by their seqs). A result over `MAX_RESULT` is refused,
and it is the only one that is not kept.

A call without a result was running when its process ended. Whether it took effect is unknown. When
a session is resumed, each such call gets a result that says so, because a tool with effects must
never be called again as if nothing had happened. A call counts for the limit of its tool
(`max_calls`) unless its recorded state is `refused`. The toolbox counts the calls of a running
session by the same rule.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from scroll_context.errors import ToolFailed
from scroll_context.events import Event, Kind, Scope
from scroll_context.kernel.values import Portable, portable
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import TEXT
from scroll_context.log.rows import INLINE_LIMIT
from scroll_context.messages import Media, facts_of
from scroll_context.tools.handles import ResultRef, ref_of
from scroll_context.tools.plain import Plain, inline, json_text

REFUSED_CHARS = 2_000
"""Characters that are kept of the arguments of a call that never started, and of its error."""
CROSSING = 16 << 20
"""Bytes of JSON that cross to a cell. As msgpack they are less than twice as many, which fits into
a frame of the kernel's connection."""
MAX_RESULT = 256 << 20
"""Bytes of a result."""
INLINE_BYTES = 1024
"""Bytes inside a JSON result that stay in its text, as base64."""
JSON = "application/json"


class ToolOutcome(msgspec.Struct, frozen=True):
    """A result: the value itself, or for a large one only a reference to its place in the log.

    `sent` is the value as it crosses to a cell; `has_tables` says whether data frames or arrays
    are in it. `note` says how the value differs from what the tool returned, `shape` describes it.
    """

    value: Any
    call_seq: int
    result_seq: int
    ref: ResultRef | None = None
    sent: Portable | None = None
    has_tables: bool = False
    note: str = ""
    shape: str = ""

    def for_cell(self) -> dict[str, Any]:
        """The answer to the cell that made the call."""
        if self.ref is None:
            return {"value": self.sent, "tables": self.has_tables, "shape": self.shape}
        return {"handle": msgspec.to_builtins(self.ref), "note": self.note, "shape": self.shape}


class Recorder:
    """Writes the events of one call.

    `metadata` goes to the call and its result, `given` to the call alone. `call_seq` and
    `result_seq` are 0 until there is such an event, and `state`, how the call ended, is "" until
    there is a result.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        name: str,
        arguments: str,
        tool_call_id: str,
        metadata: dict[str, Any],
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._journal = journal
        self._name = name
        self._arguments = arguments
        self._tool_call_id = tool_call_id
        self._metadata = metadata
        self._given = given or {}
        self.call_seq = 0
        self.result_seq = 0
        self.state = ""

    def begin(self) -> None:
        """Record the call."""
        draft = self._journal.draft(
            Kind.TOOL_CALL,
            role="assistant",
            name=self._name,
            tool_call_id=self._tool_call_id,
            content=self._arguments,
            metadata={**self._metadata, **self._given},
        )
        self.call_seq = self._journal.append(draft).seq

    def fail(self, state: str, text: str) -> None:
        """Record that there is no result.

        If the call never began, only the beginning of its arguments is kept.
        """
        if not self.call_seq:
            if len(self._arguments) > REFUSED_CHARS:
                beginning = {
                    "characters": len(self._arguments),
                    "beginning": self._arguments[:REFUSED_CHARS],
                }
                self._arguments = json_text(beginning, inline)
            self.begin()
        self._record_result(state, text, {})

    def finish(
        self, result: Plain, origin: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> ToolOutcome:
        """Record a result, and return what the cell gets.

        `origin` says which events it was made from, and is recorded with its parts too. `facts`
        describe the complete result, so they are recorded with it alone.
        """
        self._metadata = {**self._metadata, **origin}
        if isinstance(result.value, bytes | bytearray | memoryview):
            return self._finish_media(result.media(result.value), facts)
        return self._finish_value(result, facts)

    def _finish_media(self, media: Media, facts: Mapping[str, Any]) -> ToolOutcome:
        size = len(media.data)
        self._check_size(size)
        if media.media_type.startswith("image/") and "inside_cell" not in self._metadata:
            # A tool that the model called itself shows it the image.
            facts = {"media": [msgspec.to_builtins(facts_of(media))], **facts}
        event = self._record_result("ok", _label(media), facts, media.data, media.media_type)
        if size > CROSSING:
            return ToolOutcome(None, self.call_seq, event.seq, ref_of(event))
        return ToolOutcome(media.data, self.call_seq, event.seq, sent=Portable(media.data))

    def _finish_value(self, result: Plain, facts: Mapping[str, Any]) -> ToolOutcome:
        try:
            value, text, size = self._as_text(result)
            self._check_size(size)
            # This checks every value as well, so an unusable one is not recorded as a result.
            crossing = Portable(portable(value)) if size <= CROSSING else None
        except (TypeError, ValueError, RecursionError) as error:
            unusable = f"{self._name} returned something that cannot be used: {error}"
            raise ToolFailed(unusable, kind="TypeError") from error
        media_type = TEXT if isinstance(value, str) else JSON
        # Small text beside large media goes as a reference too, and needs a body to refer to.
        is_inline = len(text.encode()) <= INLINE_LIMIT
        body = text if crossing is None and is_inline else None
        event = self._record_result("ok", text, facts, body, media_type)
        if crossing is None:
            note = _simplified(result, size)
            return ToolOutcome(None, self.call_seq, event.seq, ref_of(event), note=note)
        has_tables = bool(result.pickled)
        return ToolOutcome(value, self.call_seq, event.seq, sent=crossing, has_tables=has_tables)

    def _as_text(self, result: Plain) -> tuple[Any, str, int]:
        """The value, its text in the log, and the size of everything together."""
        value = result.value
        # The sizes of pickled tables, and of the media that are events of their own.
        sizes = [len(table.data) for table in result.pickled]

        def replace_bytes(data: bytes) -> Any:
            return self._record_part(result.media(data), sizes)

        text = value if isinstance(value, str) else json_text(value, replace_bytes)
        if not text.isascii():
            cleaned = text.encode("utf-8", "replace").decode()
            if cleaned != text:
                # It has a lone surrogate, which neither the log nor the wire can hold.
                text = cleaned
                value = text if isinstance(value, str) else json.loads(text)
        return value, text, len(text.encode()) + sum(sizes)

    def _record_part(self, media: Media, sizes: list[int]) -> dict[str, Any]:
        """The JSON that replaces bytes inside a result; large ones become events of their own."""
        size = len(media.data)
        if size <= INLINE_BYTES:
            return dict(inline(media.data))
        sizes.append(size)
        self._check_size(sum(sizes))
        event = self._append(
            Kind.ARTIFACT,
            _label(media),
            self._metadata,
            body=media.data,
            media_type=media.media_type,
        )
        return {"artifact": event.seq, "media_type": media.media_type, "size": size}

    def _record_result(
        self,
        state: str,
        content: str,
        facts: Mapping[str, Any],
        body: bytes | str | None = None,
        media_type: str = TEXT,
    ) -> Event:
        event = self._append(
            Kind.TOOL_RESULT,
            content,
            {**self._metadata, **facts},
            tool_state=state,
            body=body,
            media_type=media_type,
        )
        self.result_seq, self.state = event.seq, state
        return event

    def _append(
        self,
        kind: str,
        content: str,
        metadata: dict[str, Any],
        *,
        tool_state: str = "",
        body: bytes | str | None,
        media_type: str,
    ) -> Event:
        draft = self._journal.draft(
            kind,
            role="tool",
            name=self._name,
            tool_call_id=self._tool_call_id,
            tool_state=tool_state,
            reply_to=self.call_seq,
            content=content,
            metadata=metadata,
        )
        return self._journal.append(draft, body=body, media_type=media_type)

    def _check_size(self, size: int) -> None:
        if size > MAX_RESULT:
            raise ToolFailed(
                f"{self._name} returned {size:,} bytes; at most {MAX_RESULT:,} are accepted, and "
                "none of them were kept. Ask for less at a time.",
                kind="ValueError",
            )


def _simplified(result: Plain, size: int) -> str:
    """A note for the cell about a table that is too large to cross as such; "" without one."""
    if not result.pickled:
        return ""
    kinds = " and ".join(sorted({table.type for table in result.pickled}))
    return (
        f"the result has {size:,} bytes, so it arrives as the log has it:"
        f" {kinds} as lists, dates as text. Ask for less at a time to get the {kinds}."
    )


def _label(media: Media) -> str:
    return f"[{media.media_type}, {len(media.data):,} bytes]"


# calls in the log ---------------------------------------------------------------------------------


def unfinished_calls(log: EventLog, scope: Scope) -> list[Event]:
    """The tool calls of a session that were started here and have no result, oldest first.

    Imported calls never ran here and are left out.
    """
    rows = log.query(
        """SELECT seq FROM event
        WHERE session_id = :session AND agent_id = :agent AND kind = :call
        AND source_key IS NULL AND seq NOT IN (
            SELECT reply_to FROM event
            WHERE session_id = :session AND agent_id = :agent AND kind = :result
            AND reply_to IS NOT NULL
        ) ORDER BY seq""",
        _parameters(scope),
    )
    return [call for call in log.get_many([seq for (seq,) in rows]) if not call.is_foreign]


def close_unfinished_calls(journal: Journal) -> list[Event]:
    """Give every unfinished call a result of state "unknown", and return the calls."""
    calls = unfinished_calls(journal.log, journal.scope)
    journal.append_many(
        journal.draft(
            Kind.TOOL_RESULT,
            role="tool",
            name=call.name,
            tool_call_id=call.tool_call_id,
            reply_to=call.seq,
            tool_state="unknown",
            metadata=call.metadata,
            content=f"the process ended while {call.name} was running: whether it took effect is "
            "not known. Check before you call it again.",
        )
        for call in calls
    )
    return calls


def count_started_calls(journal: Journal, name: str) -> int:
    """How many calls of a tool this session has started. A refused call was not started."""
    ((count,),) = journal.log.query(
        """SELECT count(*) FROM event
        WHERE session_id = :session AND agent_id = :agent AND kind = :call
        AND name = :name AND source_key IS NULL AND seq NOT IN (
            SELECT reply_to FROM event
            WHERE session_id = :session AND agent_id = :agent AND kind = :result
            AND reply_to IS NOT NULL AND tool_state = 'refused'
        )""",
        {**_parameters(journal.scope), "name": name},
    )
    return int(count)


def _parameters(scope: Scope) -> dict[str, str]:
    return {
        "session": scope.session_id,
        "agent": scope.agent_id,
        "call": str(Kind.TOOL_CALL),
        "result": str(Kind.TOOL_RESULT),
    }
