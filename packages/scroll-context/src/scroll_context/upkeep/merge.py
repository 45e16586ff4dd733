"""Reading an export into a log: as one's own when it is trusted, as foreign text when it is not.

A trusted export, read into a log that is empty, gives the same seqs and the same chain. In a log
with a history of its own its events get new addresses, all addresses inside them are changed to
match, and `metadata.moved_from` keeps the old one.

An export that is not trusted is foreign: every event of it is marked (`Draft.is_foreign`), its
sessions stay apart from those of the store, its source keys are not taken over, and its bookkeeping
(snapshots, forks, plans, settings) is kept as events of kind `foreign`, which have no effect.
"""

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping
from typing import IO, Any, TypeVar

import msgspec
from msgspec.structs import replace

from scroll_context.contents import (
    EarlierWork,
    EvictionPlan,
    Retraction,
    Snapshot,
    Spans,
    Standing,
    media_of,
)
from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import (
    ABOUT_THE_LOG,
    BOOKKEEPING,
    IMPORTED,
    Draft,
    Event,
    Kind,
    Progress,
    unpacked_seqs,
)
from scroll_context.log import schema
from scroll_context.log.columns import TableRow
from scroll_context.log.foreign import (
    NOTE,
    ForeignWriter,
    HeldLeases,
    Piece,
    by_sessions,
    is_reserved_session,
)
from scroll_context.log.log import EventLog
from scroll_context.log.metadata_names import PAYLOAD_MISSING, SEQ_LIST_NAMES, SEQ_NAMES
from scroll_context.log.readers import PAGE
from scroll_context.log.references import remove_unnamed
from scroll_context.log.rows import event_from_row
from scroll_context.log.writer import INSERT
from scroll_context.origin import Origin
from scroll_context.upkeep.export_reader import ChainLinks, ExportReader


class MergeReport(msgspec.Struct, frozen=True):
    """The result of merging an export."""

    # The seqs of its events in this log, in the order of the export.
    seqs: list[int]
    # Sessions whose names were taken, and their names here.
    renamed: dict[str, str] = {}
    # Digests of payloads that the export names and does not contain.
    missing: tuple[str, ...] = ()
    # Tasks that the export names and that its events did not get.
    tasks: tuple[str, ...] = ()
    # Secrets that were replaced, by kind.
    redacted: dict[str, int] = {}


def merge_export(
    lines: IO[bytes],
    log: EventLog,
    source: str = "export",
    progress: Progress | None = None,
    *,
    trust: bool = False,
    join: bool = False,
    task_id: str = "",
    redact: bool = True,
) -> MergeReport:
    """Add the events of an export, which came from `source`, to a log. A second time adds nothing.

    Salvages and erasures name addresses of the other log, so they are left out when addresses
    change. Events of an export that is not trusted get the task `task_id`, and secrets in them are
    replaced unless `redact` is False.
    """
    reader = ExportReader(lines, log.payloads, progress)
    if trust and log.last_seq() == 0:
        seqs = _fill_vacant(reader, log)
        if seqs is not None:
            return MergeReport(seqs, {}, tuple(reader.missing))
    writer = None
    if not trust:
        writer = ForeignWriter(
            log,
            origin=Origin.IMPORTED,
            source=source,
            task_id=task_id,
            redact=redact,
            is_export=True,
        )
    leases = writer.leases if writer else HeldLeases(log, 0.0)
    with leases:
        merge = _Merge(log, writer, leases, reader.missing, join=join)
        for row in reader:
            merge.take(event_from_row(row))
        merge.flush()
    if writer is not None and log.backend.owns_file:
        # No event names the bodies of bookkeeping, or bodies in which secrets were replaced.
        remove_unnamed(log.backend, sorted(reader.stored))
    moved = merge.addresses
    return MergeReport(
        [moved[seq] for seq in sorted(moved)],
        merge.renamed,
        tuple(reader.missing),
        tuple(sorted(writer.tasks)) if writer else (),
        writer.redacted if writer else {},
    )


class _Merge:
    """An export on its way into a log with a history of its own, a page at a time.

    With a `writer` it is foreign: text to read. Without a writer it is trusted, and its events take
    effect.
    """

    def __init__(
        self,
        log: EventLog,
        writer: ForeignWriter | None,
        leases: HeldLeases,
        missing: Container[str],
        *,
        join: bool,
    ) -> None:
        # From seqs of the export to seqs of the log.
        self.addresses: dict[int, int] = {}
        self._log = log
        self._writer = writer
        self._leases = leases
        # Digests of payloads that the export names and does not contain.
        self._missing = missing
        self._join = join
        # From session names of the export to session names of the log.
        self._names: dict[str, str] = {}
        self._pending: dict[int, Event] = {}

    @property
    def renamed(self) -> dict[str, str]:
        return {there: here for there, here in self._names.items() if there != here}

    def take(self, event: Event) -> None:
        digest = event.payload.digest if event.payload is not None else None
        if self._writer is not None and digest is not None and digest in self._missing:
            # This store may have a body of that digest in another session, which the export must
            # not reach.
            event = replace(event, payload=None, metadata={**event.metadata, PAYLOAD_MISSING: True})
        if event.kind not in ABOUT_THE_LOG:
            self._pending[event.seq] = event
        if len(self._pending) == PAGE:
            self.flush()

    def flush(self) -> None:
        """Append the pending events.

        They go in parts, since an event needs the new addresses of the events that it names.
        """
        pending, self._pending = self._pending, {}
        part: dict[int, Event] = {}
        here = {event.seq: event.chain for event in self._log.get_many(list(pending))}
        for seq, event in pending.items():
            if here.get(seq) == event.chain:
                # The two logs begin with the same history.
                self.addresses[seq] = seq
                if self._writer is None:
                    self._names[event.session_id] = event.session_id
                continue
            if not part.keys().isdisjoint(_named_seqs(event, self.text)):
                self._append(part)
                part = {}
            part[seq] = event
        self._append(part)

    def _append(self, part: dict[int, Event]) -> None:
        if self._writer is not None:
            seqs = self._writer.append([self._piece(event) for event in part.values()])
        else:
            drafts = [self._draft(event) for event in part.values()]
            seqs = []
            for group in by_sessions(drafts, lambda draft: draft.session_id):
                self._leases.hold({draft.session_id for draft in group})
                seqs += self._log.append_many(group, self._leases.epochs)
        self.addresses.update(zip(part, seqs, strict=True))

    def _draft(self, event: Event) -> Draft:
        """An event of a trusted export, as it is recorded here."""
        draft = replace(
            as_draft(event),
            session_id=self._session(event),
            source_key=event.source_key or _key(event),
        )
        moved = {"moved_from": event.seq}
        if event.is_erased:
            return replace(
                draft,
                kind=Kind.FOREIGN,
                source_key=_key(event),
                metadata={"kind": str(event.kind), **moved},
            )
        draft = renumbered(draft, self.addresses, self.text)
        metadata = {**draft.metadata, **moved}
        parent = metadata.get("session_id")
        if event.kind == Kind.FORK and isinstance(parent, str):
            metadata["session_id"] = self._names.get(parent, parent)
        return replace(draft, metadata=metadata)

    def _piece(self, event: Event) -> Piece:
        """An event of a foreign export. Its source key means nothing here, and may be made up."""
        draft = replace(
            as_draft(event), session_id=self._session(event), source_key=IMPORTED + _key(event)
        )
        own: dict[str, Any] = {"moved_from": event.seq}
        if event.metadata.get(PAYLOAD_MISSING) is True:
            own[PAYLOAD_MISSING] = True
        if event.kind in BOOKKEEPING or event.is_erased:
            draft = replace(draft, kind=Kind.FOREIGN, reply_to=None)
            return Piece(draft, own={"kind": str(event.kind), **own})
        draft = renumbered(draft, self.addresses, self.text)
        if event.kind == NOTE:
            draft = replace(draft, kind="document")
            own["kind"] = NOTE
        return Piece(draft, own=own)

    def _session(self, event: Event) -> str:
        """The name of the event's session here: its own, unless another session has that name."""
        there = event.session_id
        if there not in self._names:
            first = there
            if self._writer is not None and is_reserved_session(there):
                first = f"imported-{there}"
            number, name = 1, first
            self._leases.hold({name})
            while not (self._join or self._is_begun_by(event, name)):
                number += 1
                name = f"{first}-{number}"
                self._leases.hold({name})
            self._names[there] = name
        return self._names[there]

    def _is_begun_by(self, event: Event, name: str) -> bool:
        first = next(self._log.iterate(session_id=name), None)
        if first is None:
            return True
        if self._writer is not None:
            return first.source_key == IMPORTED + _key(event)
        return first.source_key in (_key(event), event.source_key or _key(event))

    def text(self, event: Draft) -> str:
        if event.payload is None:
            return event.content
        return self._log.payloads.text(event.payload.digest)


def as_draft(event: Event) -> Draft:
    return Draft(**{field: getattr(event, field) for field in Draft.__struct_fields__})


def _key(event: Event) -> str:
    """The identity of an event of another store: its place in the chain there."""
    return f"scroll:{event.chain.hex()}"


# addresses inside events --------------------------------------------------------------------------

NAMED_THERE = "named_there"
"""Where a merged event keeps the parts that name events of other sessions, with their old seqs."""
Address = Callable[[int], int | None]
"""From an old seq to the new one; None if there is none."""
AnyEvent = TypeVar("AnyEvent", Draft, Event)
_OTHER_SHAPE = (BadInput, PayloadMissing, PayloadDamaged)
"""Errors for an event whose plan or snapshot is unreadable. It has no effect, and is unchanged."""


def renumbered(
    event: AnyEvent, addresses: Mapping[int, int], text: Callable[[AnyEvent], str]
) -> AnyEvent:
    """The event with new seqs in `reply_to`, metadata, plans and snapshots.

    A seq without a new one is left out. `text` returns the complete text of a snapshot.
    """
    changed = _readdressed(event, addresses.get, text)
    old_parts = {
        "earlier": event.metadata.get("earlier"),
        "standing": _dict(event.metadata.get("plan")).get("standing"),
    }
    named_there = {name: value for name, value in old_parts.items() if value}
    named_there |= _dict(event.metadata.get(NAMED_THERE))
    if named_there:
        changed = replace(changed, metadata={**changed.metadata, NAMED_THERE: named_there})
    upto = event.metadata.get("upto")
    if isinstance(upto, int) and upto not in addresses:
        # This is the last event that a model had read. Any event before it will do.
        nearest = max((seq for seq in addresses if seq < upto), default=None)
        new_upto = 0 if nearest is None else addresses[nearest]
        changed = replace(changed, metadata={**changed.metadata, "upto": new_upto})
    return changed


def as_recorded(events: list[Event], text: Callable[[Event], str]) -> list[Event]:
    """Events of a merged export with the seqs that they had where they were recorded."""
    there: dict[int, int] = {}
    for event in events:
        moved_from = event.metadata.get("moved_from")
        there[event.seq] = moved_from if isinstance(moved_from, int) else event.seq
    originals: list[Event] = []
    for event in events:
        original = replace(renumbered(event, there, text), seq=there[event.seq])
        named_there = _dict(event.metadata.get(NAMED_THERE))
        metadata = dict(original.metadata)
        if "earlier" in named_there:
            metadata["earlier"] = named_there["earlier"]
        if "standing" in named_there:
            plan = _dict(metadata.get("plan"))
            metadata["plan"] = {**plan, "standing": named_there["standing"]}
        originals.append(replace(original, metadata=metadata))
    return originals


def _named_seqs(event: Draft, text: Callable[[Draft], str]) -> set[int]:
    seqs: set[int] = set()

    def note(seq: int) -> int:
        seqs.add(seq)
        return seq

    _readdressed(event, note, text)
    return seqs


def _readdressed(event: AnyEvent, address: Address, text: Callable[[AnyEvent], str]) -> AnyEvent:
    values: dict[str, Any] = {}
    if event.reply_to is not None:
        values["reply_to"] = address(event.reply_to)
    metadata = dict(event.metadata)
    for field in SEQ_NAMES:
        if isinstance(metadata.get(field), int):
            metadata[field] = address(metadata[field])
    for field in SEQ_LIST_NAMES:
        if isinstance(metadata.get(field), list):
            metadata[field], is_complete = _packed(metadata[field], address)
            if not is_complete:
                metadata["unknown"] = True
    if isinstance(metadata.get("media"), list):
        media = [replace(facts, seq=address(facts.seq) or 0) for facts in media_of(event)]
        metadata["media"] = msgspec.to_builtins(media)
    with contextlib.suppress(*_OTHER_SHAPE):
        if event.kind == Kind.RETRACTION:
            retraction = Retraction.from_metadata(metadata)
            metadata |= replace(
                retraction,
                seqs=_addresses(retraction.seqs, address),
                order=_addresses(retraction.order, address),
            ).metadata()
        elif event.kind == Kind.EVICTION and "plan" in metadata:
            metadata |= _plan(EvictionPlan.from_metadata(metadata), address).metadata()
        elif event.kind == Kind.SESSION:
            earlier = EarlierWork.from_metadata(metadata)
            if earlier is not None:
                metadata |= _earlier(earlier, address).metadata()
        elif event.kind == Kind.SNAPSHOT:
            snapshot = _snapshot(Snapshot.decode(text(event)), address)
            values |= {"content": snapshot.encode(), "payload": None}
    if metadata != event.metadata:
        values["metadata"] = {name: value for name, value in metadata.items() if value is not None}
    return replace(event, **values)


def _packed(entries: list[Any], address: Address) -> tuple[list[int | list[int]], bool]:
    """A list of packed seqs with the new addresses, and whether every run in it is complete.

    If only one end of a run has a new address, nobody knows which of its events have one.
    """
    moved: list[int | list[int]] = []
    is_complete = True
    for first, last in unpacked_seqs(entries):
        new_first = address(first)
        new_last = address(last)
        if new_first is not None and new_last is not None:
            moved.append(new_first if new_first == new_last else [new_first, new_last])
        elif first != last:
            is_complete = False
    return moved, is_complete


def _addresses(seqs: Iterable[int], address: Address) -> tuple[int, ...]:
    new = (address(seq) for seq in seqs)
    return tuple(seq for seq in new if seq is not None)


def _plan(plan: EvictionPlan, address: Address) -> EvictionPlan:
    """An eviction plan with the new addresses."""
    clipped = [(address(seq), chars) for seq, chars in plan.clipped]
    evicted = [(address(lo), address(hi)) for lo, hi in plan.evicted]
    topics = [(address(topic.seq), topic) for topic in plan.topics]
    return replace(
        plan,
        folded=_addresses(plan.folded, address),
        clipped=tuple((seq, chars) for seq, chars in clipped if seq is not None),
        evicted=tuple((lo, hi or lo) for lo, hi in evicted if lo is not None),
        rules={rule: _addresses(seqs, address) for rule, seqs in plan.rules.items()},
        topics=tuple(replace(topic, seq=seq) for seq, topic in topics if seq is not None),
        standing=_standing(plan.standing, address) if plan.standing else plan.standing,
    )


def _earlier(earlier: EarlierWork, address: Address) -> EarlierWork:
    """The earlier work of a session with the new addresses."""
    topics = [replace(topic, spans=_spans(topic.spans, address)) for topic in earlier.topics]
    return replace(
        earlier,
        topics=tuple(topic for topic in topics if topic.spans),
        standing=_standing(earlier.standing, address),
    )


def _snapshot(snapshot: Snapshot, address: Address) -> Snapshot:
    """A snapshot with the new addresses of the events that its variables come from.

    Cells are numbered by their kernel. These numbers are not addresses, and stay.
    """

    def address_or_zero(seq: int) -> int | None:
        # Seq 0 stands for events that cannot be named.
        return address(seq) if seq else 0

    variables = [
        replace(variable, made_by=_addresses(variable.made_by, address_or_zero))
        for variable in snapshot.variables
    ]
    sources = {cell: _addresses(seqs, address) for cell, seqs in snapshot.sources.items()}
    return replace(snapshot, variables=tuple(variables), sources=sources)


def _standing(standing: Iterable[Standing], address: Address) -> tuple[Standing, ...]:
    moved = []
    for statement in standing:
        seq = address(statement.seq)
        later = address(statement.replaced_by) if statement.replaced_by else None
        if seq is not None:
            moved.append(replace(statement, seq=seq, replaced_by=later or 0))
    return tuple(moved)


def _spans(spans: Spans, address: Address) -> Spans:
    moved = [(address(first), address(last)) for first, last in spans]
    return tuple((first, last) for first, last in moved if first is not None and last is not None)


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _fill_vacant(rows: Iterable[TableRow], log: EventLog) -> list[int] | None:
    """Record a complete export, or nothing, in a log that was always empty.

    Returns None if the log has, or had, events.
    """
    if not log.backend.owns_file:
        return None
    with (
        schema.Translated(log.path),
        contextlib.closing(schema.connect(log.path, writable=True)) as database,
    ):
        database.execute("BEGIN IMMEDIATE")
        if database.execute("SELECT 1 FROM sqlite_sequence").fetchone() is not None:
            return None
        seqs: list[int] = []
        links = ChainLinks()
        for row in rows:
            links.check(row)
            database.execute(INSERT, row)
            seqs.append(row.seq)
        links.finish()
        database.execute("COMMIT")
    log.rows_appended()
    return seqs
