"""How foreign material enters a log: imports, captures, merged exports and hooks.

Whatever a file says about itself is data. So one class adds it, `ForeignWriter`, and for every
event

* the importing code says where it comes from (origin.py), never the file;
* metadata that means something to Scroll itself is set aside: it stays readable under `set_aside`
  and has no effect;
* kinds and sessions that mean something to Scroll are refused;
* the task of a file that somebody named is the one that the user gave, and no other;
* secrets are replaced by markers, unless that was declined;
* sizes are limited.

The lease of each session is held while events are added to it, so a session that is open elsewhere
never has events that its view does not know. What a host program sends, a trusted restore, push and
pull do not pass here: they are recorded exactly.

The names that mean something to Scroll are listed here, and nowhere else. Scroll's own exports may
bring those in EXPORTED, because they only describe what happened. SEQ_NAMES and SEQ_LIST_NAMES hold
seqs, which a merge changes to the addresses in the new log (upkeep/addresses.py). A test finds
names that the code reads and that are missing. The shapes of the values are in contents.py
(`_SHAPES`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import BOOKKEEPING, STORE_SESSION, Draft, Event, Kind, text_id
from scroll_context.log.lease import AnyLease
from scroll_context.log.log import EventLog
from scroll_context.log.redact import Redactor
from scroll_context.origin import DAMAGED, NOT_IMPORTED_SQL, UNREDACTED, Origin

# names in metadata --------------------------------------------------------------------------------

SET_ASIDE = "set_aside"
"""Where a foreign event keeps metadata under names that Scroll gives a meaning to."""

PAYLOAD_MISSING = "payload_missing"
"""Set for an event of a foreign export that names a body and does not bring it: it has none here.
"""

RESERVED = frozenset(
    (
        # Where an event comes from, and what happened to it on the way.
        "captured",
        "host_id",
        "imported",
        "moved_from",
        "named_there",
        "altered",
        "replaced_surrogates",
        DAMAGED,
        UNREDACTED,
        PAYLOAD_MISSING,
        SET_ASIDE,
        # Events that repeat history, and events of the log about itself.
        "echo",
        "erased",
        "rule",
        "spans",
        "kind",
        # Sessions, forks and settings.
        "session_id",
        "settings",
        "context",
        "earlier",
        "lost",
        "at_seq",
        # Requests, evictions and retractions.
        "digest",
        "hash",
        "plan",
        "renderer",
        "retraction",
        "tools",
        "window",
        "upto",
        # Messages of hosts in their exact bytes.
        "wire",
        "wire_seq",
        # The model reads a shape as a fact about the tool.
        "shape",
    )
)
"""Names that no import may use."""

EXPORTED = frozenset(
    (
        # Replies, cells and tool calls.
        "bound",
        "bytes",
        "continues",
        "cost",
        "cut",
        "effects",
        "tokens",
        "tool_calls",
        "unknown",
        "usage",
        "inside_cell",
        "made_from",
        "seqs",
    )
)
"""Names that only an export of a store may use."""

SEQ_NAMES = ("at_seq", "upto", "wire_seq", "inside_cell")
"""Names that hold one seq."""

SEQ_LIST_NAMES = ("made_from", "seqs")
"""Names that hold a list of packed seqs (`events.packed_seqs`)."""

# adding -------------------------------------------------------------------------------------------

NOTE = "note"
"""The kind of what an assistant noted with the MCP tool of that name; the hand-over shows it."""

RESERVED_KINDS = (frozenset(Kind) - {Kind.CONVERSATION, Kind.TOOL_CALL, Kind.TOOL_RESULT}) | {NOTE}
"""Kinds that only Scroll itself records: they mean something to a session, or to the hand-over."""

_OWN_SESSIONS = ("notes-", "mcp-")
"""How the session names begin that only Scroll itself gives."""

LONGEST_LABEL = 10_000
"""The most characters in a role, a kind, a tool name or another label."""

LONGEST_CONTENT = 256 << 20
"""The most characters in an event, and the most bytes in its body."""

CAPTURED_AGAIN = "~captured"
"""Follows the source key of an event whose own key an import used first."""

MOST_LEASES = 100
"""How many leases are held at once. Each needs a file descriptor, or a row on a server."""

AnyEvent = TypeVar("AnyEvent")
_labels_of = attrgetter("kind", "role", "name", "tool_call_id", "tool_state", "headline")


class Attachment(msgspec.Struct, frozen=True):
    """A body in bytes, not yet stored."""

    body: bytes
    media_type: str


class Piece(msgspec.Struct, frozen=True):
    """One event to be, with the body that becomes its payload, if it has one."""

    draft: Draft
    attachment: Attachment | None = None
    # Whether Scroll itself said this to an assistant; search leaves it out.
    is_echo: bool = False
    # Metadata that our own code adds.
    own: dict[str, Any] = {}

    @property
    def size(self) -> int:
        content = len(self.draft.content)
        return content if self.attachment is None else content + len(self.attachment.body)


def is_reserved_session(name: str) -> bool:
    """Whether only Scroll itself records in sessions of this name."""
    return name == STORE_SESSION or name.startswith(_OWN_SESSIONS)


def check_foreign(draft: Draft, kinds: Collection[str] = RESERVED_KINDS) -> None:
    """Raise BadInput for a draft that no import may contain."""
    if draft.kind in kinds:
        raise BadInput(
            f"kind {draft.kind!r} is reserved for what Scroll records itself; leave it out or "
            "choose another"
        )
    if is_reserved_session(draft.session_id):
        raise BadInput(
            f"session {draft.session_id!r:.80} is one of Scroll's own; choose another name"
        )
    longest = max(map(len, _labels_of(draft)))
    if longest > LONGEST_LABEL:
        raise BadInput(
            f"a label of {longest:,} characters, more than {LONGEST_LABEL:,}; this is not a message"
        )
    if len(draft.content) > LONGEST_CONTENT:
        raise BadInput(
            f"{len(draft.content):,} characters in one message, more than {LONGEST_CONTENT:,}"
        )


def as_foreign(draft: Draft, origin: Origin, source: str, *, is_export: bool = False) -> Draft:
    """The draft with the origin of its importer, and with reserved metadata set aside."""
    reserved = RESERVED if is_export else RESERVED | EXPORTED
    aside = {name: value for name, value in draft.metadata.items() if name in reserved}
    metadata = draft.metadata
    if aside:
        metadata = {name: value for name, value in metadata.items() if name not in reserved}
        metadata[SET_ASIDE] = aside
    return replace(draft, metadata={**metadata, str(origin): source})


class HeldLeases:
    """The leases of sessions that are written, each taken when needed and held to the end."""

    def __init__(self, log: EventLog, wait: float) -> None:
        self._log = log
        self._wait = wait
        self._held: dict[str, AnyLease] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def epochs(self) -> Mapping[str, int | None]:
        """The tokens that a server checks with each append, by session."""
        return {session: lease.epoch for session, lease in self._held.items()}

    def hold(self, sessions: set[str]) -> None:
        """Take the leases of at most MOST_LEASES sessions.

        Raises SessionBusy, which names the holder.
        """
        new = sorted(sessions - self._held.keys())
        if len(self._held) + len(new) > MOST_LEASES:
            self.release(keep=sessions)
        for session in new:
            self._held[session] = self._log.backend.take_lease(session, self._wait)

    def release(self, keep: Collection[str] = ()) -> None:
        for session in [session for session in self._held if session not in keep]:
            self._held.pop(session).release()


class ForeignWriter:
    """Adds events of one foreign source to a log. Leases are held until it is left."""

    def __init__(
        self,
        log: EventLog,
        *,
        origin: Origin,
        source: str,
        task_id: str = "",
        redact: bool = True,
        wait: float = 0.0,
        is_export: bool = False,
    ) -> None:
        self._log = log
        self._origin = origin
        self._source = source
        self._task_id = task_id
        self._is_export = is_export
        self._redactor = Redactor() if redact else None
        self.leases = HeldLeases(log, wait)
        self.tasks: set[str] = set()
        """Tasks that the file names and that its events did not get."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leases.release()

    @property
    def redacted(self) -> dict[str, int]:
        """How many secrets of each kind were replaced."""
        return dict(self._redactor.replaced) if self._redactor else {}

    def hold(self, sessions: set[str]) -> None:
        """Refuse now, before anything is recorded, if one of these sessions is open elsewhere."""
        if len(sessions) <= MOST_LEASES:
            self.leases.hold(sessions)
            return
        for session in sorted(sessions):
            self.leases.hold({session})
            self.leases.release()

    def release(self) -> None:
        """Let others have the sessions again."""
        self.leases.release()

    def append(self, pieces: Iterable[Piece]) -> list[int]:
        """Record the events that are not in the log yet. Returns the seqs of all of them.

        The events of up to MOST_LEASES sessions are recorded together or not at all.
        """
        seqs: list[int] = []
        for group in by_sessions(pieces, lambda piece: piece.draft.session_id):
            self.leases.hold({piece.draft.session_id for piece in group})
            drafts = [self._draft(piece) for piece in group]
            group_seqs = self._log.append_many(drafts, self.leases.epochs)
            if self._origin is Origin.CAPTURED:
                group_seqs = self._believed(drafts, group_seqs)
            seqs += group_seqs
        return seqs

    def _believed(self, drafts: list[Draft], seqs: list[int]) -> list[int]:
        """The seqs of captured events, recorded again where an imported file used their keys.

        Source keys consist of ids that the assistant assigned. An imported file may contain any
        id, so its use of a key must not make the user's words count as recorded.
        """
        is_other = self._log.column(NOT_IMPORTED_SQL, seqs)
        imported = sorted(seq for seq in is_other if not is_other[seq])
        events = {event.seq: event for event in self._log.get_many(imported)}
        again: dict[int, Draft] = {}
        for number, (draft, seq) in enumerate(zip(drafts, seqs, strict=True)):
            if seq in events and not self._is_same(events[seq], draft):
                again[number] = replace(draft, source_key=draft.source_key + CAPTURED_AGAIN)
        believed = list(seqs)
        new_seqs = self._log.append_many(again.values(), self.leases.epochs)
        for number, seq in zip(again, new_seqs, strict=True):
            believed[number] = seq
        return believed

    def _is_same(self, event: Event, draft: Draft) -> bool:
        """Whether an event says what a draft says, or said it before it was erased."""
        if event.is_erased:
            return True
        if _identity(event) != _identity(draft):
            return False
        if draft.payload is not None:
            return event.payload is not None and event.payload.digest == draft.payload.digest
        try:
            return self._log.text(event) == draft.content
        except (PayloadMissing, PayloadDamaged):
            return False

    def _draft(self, piece: Piece) -> Draft:
        """The event as it may be recorded, its body stored."""
        kinds = BOOKKEEPING - {Kind.FOREIGN} if self._is_export else RESERVED_KINDS
        check_foreign(piece.draft, kinds)
        draft = as_foreign(piece.draft, self._origin, self._source, is_export=self._is_export)
        own = dict(piece.own)
        if piece.is_echo and self._origin is Origin.CAPTURED:
            # A file that somebody named cannot hide what it says from search.
            own["echo"] = True
        if self._origin is Origin.IMPORTED and draft.task_id != self._task_id:
            self.tasks.add(draft.task_id)
            own[SET_ASIDE] = {**draft.metadata.get(SET_ASIDE, {}), "task_id": draft.task_id}
            draft = replace(draft, task_id=self._task_id)
        if own:
            draft = replace(draft, metadata={**draft.metadata, **own})
        if self._redactor is not None:
            draft = _redacted(draft, self._redactor)
        return self._with_body(draft, piece.attachment)

    def _with_body(self, draft: Draft, attachment: Attachment | None) -> Draft:
        """The draft with its body stored, and secrets in it replaced.

        The body is the attachment, or one that came with an export and is stored already.
        """
        payloads = self._log.payloads
        if attachment is not None:
            body, media_type = attachment.body, attachment.media_type
            if len(body) > LONGEST_CONTENT:
                raise BadInput(f"a body of {len(body):,} bytes, more than {LONGEST_CONTENT:,}")
        elif draft.payload is not None and self._redactor is not None:
            media_type = draft.payload.media_type
            try:
                body = payloads.read(draft.payload.digest)
            except (PayloadMissing, PayloadDamaged):
                return draft
        else:
            return draft
        redacted = body if self._redactor is None else self._redactor.body(body, media_type)
        if attachment is None and redacted == body:
            return draft
        return replace(draft, payload=payloads.put(redacted, media_type))


def _redacted(draft: Draft, redactor: Redactor) -> Draft:
    """The draft with secrets replaced.

    A hash of the words that it had remains: a host that has the same message knows it by that.
    """
    redacted = redactor.draft(draft)
    if redacted.content == draft.content:
        return redacted
    metadata = {**redacted.metadata, UNREDACTED: text_id(draft.content)}
    return replace(redacted, metadata=metadata)


def _identity(event: Draft) -> tuple[str, ...]:
    """The labels by which two records are the same message."""
    return (event.session_id, event.kind, event.role, event.name, event.tool_call_id)


def by_sessions(
    events: Iterable[AnyEvent], session_of: Callable[[AnyEvent], str]
) -> Iterator[list[AnyEvent]]:
    """The events in their order, in groups of at most MOST_LEASES sessions."""
    group: list[AnyEvent] = []
    sessions: set[str] = set()
    for event in events:
        session = session_of(event)
        sessions.add(session)
        if len(sessions) > MOST_LEASES:
            yield group
            group, sessions = [], {session}
        group.append(event)
    if group:
        yield group
