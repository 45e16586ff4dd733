"""Rows of the event table: their columns, and the way between values and rows.

`EventColumns` are the columns between seq and chain: the event itself, which its hash covers.
`TableRow` is a complete row. Both are plain tuples to SQLite and to MessagePack, so the order of
the fields is part of the file format (docs/FORMAT.md).

A draft is checked here, before it waits for the write lock, so that one caller's bad value never
spoils a commit that others share. Text over the inline limit moves to a payload and leaves a
preview. What SQLite cannot hold (lone surrogates) is replaced, and the row says so.
"""

import builtins
import datetime as dt
from operator import attrgetter, itemgetter
from typing import Annotated, Any, NamedTuple

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Event, Payload
from scroll_context.log.chain import leaf_of, link, new_nonce
from scroll_context.log.payloads import TEXT, PayloadStore, is_digest
from scroll_context.log.times import recorded
from scroll_context.origin import DAMAGED

# columns ------------------------------------------------------------------------------------------

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

# rows and events ----------------------------------------------------------------------------------

INLINE_LIMIT = 32 * 1024
"""The most bytes of UTF-8 that a row may hold."""
PREVIEW = 2_000
"""How many characters of a payload's text stay in the row."""
METADATA_LIMIT = 8 << 20
"""The most bytes of JSON in the metadata of a row."""
LONGEST_ID = 1_000
"""The most characters in a session name, an agent id or a task."""
ERASED = "[erased]"
"""The content of an erased row."""
ERASED_METADATA = '{"erased":true}'
IS_ERASED = "(leaf IS NOT NULL AND nonce IS NULL)"
"""The condition in SQL that a row of the log was erased."""
UNREADABLE = "[unreadable]"
"""The content of a row of a shared log that this host could not read."""
UNREADABLE_METADATA = '{"unreadable":true}'

_LABELS = (
    "kind",
    "session_id",
    "agent_id",
    "task_id",
    "role",
    "name",
    "tool_call_id",
    "tool_state",
    "headline",
    "created_at",
    "source_key",
)
_labels_of = attrgetter(*_LABELS)
_NUMBERS = ("reply_to", "step_index", "msg_index")
# The columns that always hold text.
_TEXT_COLUMNS = (
    "session_id",
    "agent_id",
    "task_id",
    "kind",
    "role",
    "name",
    "content",
    "tool_call_id",
    "tool_state",
    "headline",
    "metadata",
    "created_at",
    "recorded_at",
)
_texts_of = itemgetter(*map(TableRow._fields.index, _TEXT_COLUMNS))

_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode


class PreparedRow(msgspec.Struct, frozen=True):
    """A checked draft, complete but for its address and chain value."""

    columns: EventColumns
    nonce: builtins.bytes
    leaf: builtins.bytes
    # The body that became its payload; None if there is none, or the draft named a stored one.
    body: builtins.bytes | str | None = None

    def at(self, seq: int, previous: builtins.bytes) -> TableRow:
        """The row of the table at an address, behind a row with this chain value."""
        return TableRow(seq, *self.columns, link(previous, seq, self.leaf), self.nonce, None)

    @property
    def bytes(self) -> int:
        """The approximate size of the row in the log file."""
        text = "".join([value for value in self.columns if isinstance(value, str)])
        return len(text) if text.isascii() else len(text.encode())


def prepare(
    draft: Draft,
    now: str,
    payloads: PayloadStore,
    body: bytes | str | None = None,
    media_type: str = TEXT,
) -> PreparedRow:
    """Check a draft and make a row of it; its payload, if it needs one, is durable afterwards.

    This is the one place that decides between row and payload. `content` stays in the row up to the
    inline limit, and beyond it becomes a payload of `media_type` with a preview in the row. A
    `body` (bytes or text) always becomes a payload, and `content` is its preview.
    """
    _check(draft)
    metadata = draft.metadata
    content = draft.content
    if not content.isascii():
        content = without_surrogates(content)
        if content != draft.content:
            metadata = {**metadata, "replaced_surrogates": True}
    payload = draft.payload
    if isinstance(body, str):
        body = without_surrogates(body)
    elif body is None and payload is None and _is_over_inline_limit(content):
        body = content
        content = content[:PREVIEW]
    if body is not None:
        payload = payloads.put(body, media_type)
    columns = EventColumns(
        session_id=draft.session_id,
        agent_id=draft.agent_id,
        task_id=draft.task_id,
        kind=str(draft.kind),
        role=draft.role,
        name=draft.name,
        content=content,
        payload=payload.digest if payload else None,
        payload_size=payload.size if payload else None,
        payload_type=payload.media_type if payload else None,
        tool_call_id=draft.tool_call_id,
        tool_state=draft.tool_state,
        headline=draft.headline,
        reply_to=draft.reply_to,
        step_index=draft.step_index,
        msg_index=draft.msg_index,
        metadata=_encode_metadata(metadata),
        created_at=recorded(draft.created_at) if draft.created_at else now,
        recorded_at=now,
        source_key=draft.source_key or None,
    )
    nonce = new_nonce()
    return PreparedRow(columns, nonce, leaf_of(nonce, columns), body)


def _is_over_inline_limit(text: str) -> bool:
    """Whether a text needs too many bytes for a row. Short texts are not encoded to find out."""
    return len(text) > INLINE_LIMIT // 4 and len(text.encode()) > INLINE_LIMIT


def put_again(row: PreparedRow, payloads: PayloadStore) -> None:
    """Store the body of a recorded row again, if another process has just erased an equal one.

    That erasure found no event that named the body. From now on this row does, so no later erasure
    removes the body by mistake.
    """
    digest = row.columns.payload
    if digest is not None and row.body is not None and payloads.lacks(digest):
        payloads.put(row.body, "")


def is_blank(row: TableRow) -> bool:
    """Whether an erased row holds only what it may keep."""
    own_words = (row.name, row.headline)
    payload = (row.payload, row.payload_size, row.payload_type)
    return (
        row.nonce is None
        and row.content == ERASED
        and row.metadata == ERASED_METADATA
        and own_words == ("", "")
        and payload == (None, None, None)
    )


def is_unreadable(row: TableRow) -> bool:
    """Whether this is the placeholder for a row of a shared log that could not be read."""
    is_placeholder = row.leaf is not None and row.nonce is not None
    return is_placeholder and (row.content, row.metadata) == (UNREADABLE, UNREADABLE_METADATA)


def event_from_row(row: tuple[Any, ...]) -> Event:
    """The event that a row of the table stands for.

    Reads call this once per event with the plain tuples of SQLite, which are unpacked here: making
    a `TableRow` of each first would cost a sixth more.
    """
    if not _are_texts(_texts_of(row)):
        row = _legible(row)
    (
        seq,
        session_id,
        agent_id,
        task_id,
        kind,
        role,
        name,
        content,
        payload,
        payload_size,
        payload_type,
        tool_call_id,
        tool_state,
        headline,
        reply_to,
        step_index,
        msg_index,
        metadata,
        created_at,
        recorded_at,
        source_key,
        chain,
        nonce,
        leaf,
    ) = row
    return Event(
        seq=seq,
        session_id=session_id,
        agent_id=agent_id,
        task_id=task_id,
        kind=kind,
        role=role,
        name=name,
        content=content,
        payload=None if payload is None else _payload(payload, payload_size, payload_type),
        tool_call_id=tool_call_id,
        tool_state=tool_state,
        headline=headline,
        reply_to=reply_to,
        step_index=step_index,
        msg_index=msg_index,
        metadata=_metadata(metadata) if metadata != "{}" else {},
        created_at=created_at,
        recorded_at=recorded_at,
        source_key=source_key if isinstance(source_key, str) else _as_text(source_key),
        chain=chain if isinstance(chain, bytes) else b"",
        # What IS_ERASED says in SQL. A placeholder for a row that cannot be read keeps its nonce.
        is_erased=leaf is not None and nonce is None,
    )


def _are_texts(values: tuple[Any, ...]) -> bool:
    try:
        "".join(values)
    except TypeError:
        return False
    return True


def _legible(row: tuple[Any, ...]) -> TableRow:
    """A row in which damage has given a column another type, with text wherever text belongs."""
    values = TableRow._make(row)._asdict()
    values |= {column: _as_text(values[column]) for column in _TEXT_COLUMNS}
    return TableRow(**values)


def _payload(digest: Any, size: Any, media_type: Any) -> Payload:
    return Payload(_as_text(digest), size if isinstance(size, int) else 0, _as_text(media_type))


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def number_at(path: str) -> str:
    """SQL for a number in the metadata; NULL if there is none, or the metadata is not JSON.

    Metadata may have any shape after an import, and may be damaged. Each number has a limit, so
    that a sum cannot become infinite."""
    place = f"'$.{path}'"
    return (
        "CASE WHEN json_valid(metadata) THEN "
        f"CASE WHEN json_type(metadata, {place}) IN ('integer', 'real') "
        f"THEN max(0, min(json_extract(metadata, {place}), 1000000000000000)) END END"
    )


def text_at(path: str) -> str:
    """SQL for a text in the metadata; NULL if there is none, or the metadata is not JSON."""
    place = f"'$.{path}'"
    return (
        f"CASE WHEN json_valid(metadata) THEN CASE WHEN json_type(metadata, {place}) = 'text' "
        f"THEN json_extract(metadata, {place}) END END"
    )


def _metadata(text: str) -> dict[str, Any]:
    """The metadata of a row.

    Damaged metadata is returned as its text, since the rest of the row is still good.
    """
    try:
        return _decode_metadata(text)
    except (msgspec.DecodeError, RecursionError):
        return {DAMAGED: text}


def _check(draft: Draft) -> None:
    labels = _labels_of(draft)
    if not _are_plain(labels):
        for field, value in zip(_LABELS, labels, strict=True):
            _require_text(field, value)
            if without_surrogates(value) != value:
                raise BadInput(f"{field} has a lone surrogate and cannot be stored: {value[:80]!a}")
    _require_text("content", draft.content)
    if not (draft.reply_to is draft.step_index is draft.msg_index is None):
        for field in _NUMBERS:
            value = getattr(draft, field)
            if value is not None and (not isinstance(value, int) or abs(value) >= 1 << 63):
                raise BadInput(
                    f"{field} must be a whole number of at most 64 bits, not {value!r:.80}"
                )
    if len(draft.session_id) + len(draft.agent_id) + len(draft.task_id) > LONGEST_ID:
        for field in ("session_id", "agent_id", "task_id"):
            value = getattr(draft, field)
            if len(value) > LONGEST_ID:
                raise BadInput(
                    f"{field} has {len(value):,} characters, more than {LONGEST_ID:,}: "
                    f"{value[:40]!r}…"
                )
    if not draft.kind:
        raise BadInput("an event needs a kind")
    if draft.payload is not None and not is_digest(draft.payload.digest):
        raise BadInput(
            f"{draft.payload.digest!r:.80} is not the digest of a payload; store the body first, "
            "with put()"
        )
    if draft.created_at:
        try:
            dt.datetime.fromisoformat(draft.created_at)
        except ValueError as error:
            raise BadInput(
                f"created_at {draft.created_at[:80]!r} is not an ISO-8601 date or time"
            ) from error


def _are_plain(labels: tuple[Any, ...]) -> bool:
    """Whether all labels are ASCII text, which they nearly always are. One check instead of 11."""
    try:
        return "".join(labels).isascii()
    except TypeError:
        return False


def _require_text(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadInput(f"{field} must be text, not {type(value).__name__}")


def _encode_metadata(metadata: dict[str, Any]) -> str:
    if not metadata:
        return "{}"
    try:
        encoded = msgspec.json.encode(metadata)
    except (TypeError, ValueError, msgspec.MsgspecError, UnicodeError) as error:
        raise BadInput(f"metadata cannot be written as JSON: {error}") from error
    if not encoded.startswith(b"{"):
        raise BadInput(f"metadata must be a dict, not {type(metadata).__name__}")
    if len(encoded) > METADATA_LIMIT:
        raise BadInput(
            f"metadata of {len(encoded):,} bytes is over {METADATA_LIMIT:,}; store it as a payload"
        )
    return encoded.decode()


def without_surrogates(text: str) -> str:
    """The text as a row holds it: UTF-8 has no place for a lone surrogate."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
