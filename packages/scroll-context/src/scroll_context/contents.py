"""The contents of events that several layers read: usage, snapshot, eviction plan, earlier work.

Each is a struct with one decoder, here. On disk they are JSON, in the metadata of their event or
(a snapshot) in its text. JSON of any shape can stand in a log: a program that appends events
chooses it, another version may have written it, and a bit may have flipped. So there are two ways
to read it. A strict decoder refuses what it cannot read completely, for a reader that would act on
it. A tolerant decoder skips the fields that have another shape, for a reader that only looks.

This module holds values only: how a value is worded for a model is decided in `view/`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Event

Spans = tuple[tuple[int, int], ...]

_T = TypeVar("_T", bound=msgspec.Struct)


# usage ------------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens as the provider counted them.

    Cached tokens are part of `input_tokens`; 0 means not reported.

    >>> from scroll_context.hosts import Reply, Usage
    >>> Reply(text="4", usage=Usage(input_tokens=900, cache_read_tokens=800)).usage.is_known
    True
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the provider counted the prompt. If not, use a local estimate."""
        return self.input_tokens > 0


def usage_of(event: Event) -> Usage:
    """The usage that a reply, or an eviction with a summary, was recorded with."""
    return _readable_fields(Usage, event.metadata.get("usage"))


# images and files -------------------------------------------------------------------------------


class MediaFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image or a file of a message, as the metadata of its event describes it."""

    media_type: str
    name: str = ""
    url: str = ""
    # The event whose payload has the bytes, and their SHA-256; 0 and "" where only a URL is known.
    seq: int = 0
    digest: str = ""
    size: int = 0
    # What it costs in a request.
    tokens: int = 0

    @property
    def label(self) -> str:
        """A few words for a reader who cannot see it."""
        kind = "image" if self.media_type.startswith("image/") else "file"
        name = self.name or self.url[:80]
        size = f"{self.size:,} bytes" if self.size else ""
        facts = ", ".join(filter(None, (self.media_type, size)))
        return f"{kind} {name} ({facts})" if name else f"{kind} ({facts})"


def media_of(event: Draft) -> tuple[MediaFacts, ...]:
    """The images and files of a message; entries of another shape are skipped."""
    entries = event.metadata.get("media")
    if not isinstance(entries, list):
        return ()
    media = [_readable_fields(MediaFacts, entry) for entry in entries]
    body = event.payload
    if body is not None and not body.is_text:
        # Bytes that are a tool's complete result are the payload of the result itself.
        own = {"seq": getattr(event, "seq", 0), "digest": body.digest}
        media = [item if item.digest or item.url else replace(item, **own) for item in media]
    return tuple(media)


# snapshots --------------------------------------------------------------------------------------


class SnapshotVariable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One variable of a snapshot or a manifest, saved or not.

    A saved one is a pickle (a payload, or inline if small) or the name of a module; any other has
    the reason why it could not be saved. Variables with the same `group` are names of one object.
    `stale` is set when the value may have changed since it was pickled. `cells` are those whose
    events went into it. `made_by` are the events of the cells that bound it or changed it, by which
    an erasure finds what they had read in turn.
    """

    name: str
    group: int
    type: str = ""
    size: int = 0
    digest: str = ""
    inline: bytes = b""
    module: str = ""
    # A code of `kernel.results.REASONS`, and the built-in exception after a colon.
    reason: str = ""
    cell: int = 0
    cells: tuple[int, ...] = ()
    made_by: tuple[int, ...] = ()
    stale: bool = False


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of a snapshot event: the variables that changed since the previous snapshot."""

    cell: int
    python: str
    # Called "saved" in the log.
    variables: tuple[SnapshotVariable, ...] = msgspec.field(default=(), name="saved")
    gone: tuple[str, ...] = ()
    # The events that a cell was given, for cells where they are new or have changed.
    sources: dict[int, tuple[int, ...]] = {}

    def encode(self) -> str:
        """The text of the event."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "Snapshot":
        """The snapshot in a text; BadInput when it cannot be read completely."""
        try:
            return msgspec.json.decode(text, type=Snapshot)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise BadInput(
                f"this is not a readable snapshot ({error}). Its variables cannot be restored; "
                "the cells that made them are in the log."
            ) from error

    @staticmethod
    def decode_readable(text: str) -> "Snapshot":
        """As much of a snapshot as can be read: fields that have another shape are skipped."""
        try:
            return Snapshot.decode(text)
        except BadInput:
            pass
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return Snapshot(0, "")
        entries = value.get("saved") if isinstance(value, dict) else None
        variables: tuple[SnapshotVariable, ...] = ()
        if isinstance(entries, list):
            variables = tuple(_readable_fields(SnapshotVariable, entry) for entry in entries)
        return replace(_readable_fields(Snapshot, value), variables=variables)


# earlier work and eviction plans ----------------------------------------------------------------


class Standing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A statement of the user that binds later work, no longer shown where it was made."""

    seq: int
    words: str
    # Whether it was said in an imported history, and not to this agent.
    imported: bool = False
    # "" for a standing instruction, else "preference" or "decision".
    stance: str = ""
    # The seq of a later statement that repeats or contradicts it; 0 for none.
    replaced_by: int = 0


class Topic(msgspec.Struct, frozen=True, omit_defaults=True):
    """The topic of one or more earlier sessions."""

    spans: Spans
    turns: int
    sessions: int = 1
    # Dates of the first and the last turn.
    first: str = ""
    last: str = ""
    # Shown instead of the terms.
    title: str = ""
    terms: tuple[str, ...] = ()
    # The numbers of the first and the last session, as `outline` counts them; 0 if not known.
    numbers: tuple[int, int] = (0, 0)
    # Whether the dates contradict those of the sessions around it.
    is_misdated: bool = False

    def narrowed(self, width: int) -> "Topic":
        """The topic with at most this many terms."""
        return replace(self, terms=self.terms[:width]) if len(self.terms) > width else self


class EarlierWork(msgspec.Struct, frozen=True, omit_defaults=True):
    """The start of a session: recorded before its first request, and shown from then on."""

    topics: tuple[Topic, ...] = ()
    standing: tuple[Standing, ...] = ()
    # Standing instructions for which there was no room.
    unlisted: int = 0

    def metadata(self) -> dict[str, Any]:
        """For the metadata of the `session` event."""
        return {"earlier": msgspec.to_builtins(self)}

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> "EarlierWork | None":
        """The earlier work that a `session` event names; None if there is none, or it is
        unreadable.
        """
        try:
            return msgspec.convert(metadata.get("earlier"), EarlierWork)
        except msgspec.ValidationError:
            return None

    def summary(self) -> str:
        """One line for a person."""
        sessions = sum(topic.sessions for topic in self.topics)
        instructions = sum(not standing.stance for standing in self.standing)
        preferences = len(self.standing) - instructions
        counts = {
            "earlier session": sessions,
            "standing instruction": instructions,
            "preference": preferences,
        }
        parts = [f"{n:,} {name}{'' if n == 1 else 's'}" for name, n in counts.items() if n]
        return f"started from {', '.join(parts)}"


class EntryTopic(msgspec.Struct, frozen=True, array_like=True):
    """The topic of an evicted entry without the model's notes: a user turn, or a plain answer."""

    seq: int
    title: str
    terms: tuple[str, ...]


class EvictionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one eviction does to a view, and the numbers that explain why.

    It names seqs and sizes only, so applying it to the same view gives the same view, now and in
    any replay. Tokens are raw estimates, overhead included.
    """

    reason: str
    before: int
    after: int
    # What the view had to be within.
    limit: int
    # Whether the view is still above the limit and nothing more may leave.
    over_budget: bool = False
    # Results that become stubs, without those whose steps leave in the same plan.
    folded: tuple[int, ...] = ()
    # Seqs, and how many characters of each text remain.
    clipped: tuple[tuple[int, int], ...] = ()
    # Entries that move to the index, as the spans of their seqs.
    evicted: Spans = ()
    # The rule of `view/eviction.py` behind each of them: its name, and the first seqs. Older plans
    # do not have it.
    rules: dict[str, tuple[int, ...]] = {}
    # The topics of those evicted entries that have no notes of the model. Called "about" in the
    # log.
    topics: tuple[EntryTopic, ...] = msgspec.field(default=(), name="about")
    # All standing instructions and preferences, where the plan adds to them.
    standing: tuple[Standing, ...] | None = None
    # Standing instructions for which there is no room.
    unlisted: int = 0
    index_tokens: int
    ratio: float

    @property
    def shrinks(self) -> bool:
        """Whether applying it makes the view smaller.

        Only then is it worth repeating a request that was refused as too long.
        """
        return self.after < self.before

    def metadata(self) -> dict[str, Any]:
        """For the metadata of the `eviction` event."""
        return {"plan": msgspec.to_builtins(self)}

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> "EvictionPlan":
        """The plan of an `eviction` event; BadInput when it cannot be read completely."""
        try:
            return msgspec.convert(metadata.get("plan"), EvictionPlan)
        except msgspec.ValidationError as error:
            raise BadInput(
                f"an eviction event does not hold a readable plan ({error}). The log is intact: "
                "every event can still be expanded by its seq, but this view cannot be rebuilt "
                "beyond it."
            ) from error

    def summary(self) -> str:
        """One line for a person."""
        counts = {
            "folded": len(self.folded),
            "clipped": len(self.clipped),
            "evicted": len(self.evicted),
        }
        parts = [f"{count} {word}" for word, count in counts.items() if count]
        actions = ", ".join(parts) or "nothing to remove"
        over = f"; still above the limit of {self.limit:,}" if self.over_budget else ""
        return f"{self.reason}: {actions}; {self.before:,} → {self.after:,} tokens{over}"


class Retraction(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that a host took back, or put in another order.

    A host that rewinds, edits or deletes messages takes their words back: they leave the view and
    its index. A host that compacts its list only makes room: what it dropped moves to the index.
    """

    # The seqs of the messages, in the order of the list they were in.
    seqs: tuple[int, ...] = ()
    to_index: bool = False
    # Tokens that the index may have, if they move there.
    index_tokens: int = 0
    # All messages that remain, in the order of the host's list; empty if that is the order they
    # were recorded in.
    order: tuple[int, ...] = ()

    def metadata(self) -> dict[str, Any]:
        """For the metadata of the `retraction` event."""
        return {"retraction": msgspec.to_builtins(self)}

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> "Retraction":
        """The retraction of an event; an empty one when it cannot be read."""
        return _readable_fields(Retraction, metadata.get("retraction"))

    def summary(self) -> str:
        """One line for a person."""
        count = len(self.seqs)
        messages = "1 message" if count == 1 else f"{count:,} messages"
        if self.to_index:
            return f"the host compacted its list: {messages} moved to the index"
        return f"the host took back {messages}" if count else "the host reordered its messages"


def index_sources(event: Event) -> list[tuple[int, int]]:
    """The events that the plan or the earlier work of an event quotes, as spans.

    For a reader that only looks, so fields that have another shape are skipped.
    """
    plan = _readable_fields(EvictionPlan, event.metadata.get("plan"))
    earlier = _readable_fields(EarlierWork, event.metadata.get("earlier"))
    spans = [(entry.seq, entry.seq) for entry in plan.topics]
    for standing in (*(plan.standing or ()), *earlier.standing):
        spans.append((standing.seq, standing.seq))
    for topic in earlier.topics:
        spans += topic.spans
    return spans


# metadata of any event --------------------------------------------------------------------------


_Count = Annotated[int, Meta(ge=0, le=1 << 53)]


class _Tool(msgspec.Struct):
    name: str


_SHAPES: dict[str, Any] = {
    "usage": dict[str, _Count],
    "cost": Annotated[float, Meta(ge=0, le=1e12)] | None,
    "tokens": _Count,
    "window": _Count,
    "bytes": _Count,
    "tools": list[_Tool],
    "tool_calls": list[dict[str, Any]],
    "thinking": list[dict[str, Any]],
    "bound": list[str],
    "lost": list[str],
    "inside_cell": Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None,
    "at_seq": Annotated[int, Meta(ge=0, le=(1 << 63) - 1)],
    "session_id": str,
    "settings": dict[str, Any],
    "context": str,
    "digest": str,
    "hash": str,
    "plan": dict[str, Any],
    "model": str,
}
"""The metadata that this program itself writes, in the shape in which it writes it.

The names and what imports may do with them are in log/foreign.py.
"""


def well_formed(event: Event) -> Event:
    """The event without the metadata that has another shape than this program writes.

    Whoever looks at a session afterwards reads its events through this, so that a value of another
    shape counts as missing.
    """
    misshapen = [
        name
        for name, value in event.metadata.items()
        if name in _SHAPES and not _has_shape(value, _SHAPES[name])
    ]
    if not misshapen:
        return event
    metadata = {name: value for name, value in event.metadata.items() if name not in misshapen}
    return replace(event, metadata=metadata)


def _has_shape(value: object, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


_BLANKS: dict[Any, Any] = {str: "", int: 0, float: 0.0}
"""The value of a required field that cannot be read."""


def _readable_fields(struct: type[_T], value: object) -> _T:
    """A struct with the fields of a decoded JSON value that have the right shape.

    The others get their default.
    """
    try:
        return msgspec.convert(value, struct, str_keys=True)
    except msgspec.ValidationError:
        pass
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        if field.required:
            fields[field.name] = _BLANKS.get(field.type, ())
        if isinstance(value, dict) and field.encode_name in value:
            try:
                raw = value[field.encode_name]
                fields[field.name] = msgspec.convert(raw, field.type, str_keys=True)
            except msgspec.ValidationError:
                continue
    return struct(**fields)
