"""Reading an export into a log: as one's own when it is trusted, as foreign text when it is not.

A trusted export, read into a log that is empty, gives the same seqs and the same chain. In a log
with a history of its own its events get new addresses, all addresses inside them are changed to
match, and `metadata.moved_from` keeps the old one.

An export that is not trusted is foreign: every event of it is marked (`Draft.is_foreign`), its
sessions stay apart from those of the store, its source keys are not taken over, and its bookkeeping
(snapshots, forks, plans, settings) is kept as events of kind `foreign`, which have no effect.
"""

import contextlib
from collections.abc import Container, Iterable
from typing import IO, Any

import msgspec
from msgspec.structs import replace

from scroll_context.events import (
    ABOUT_THE_LOG,
    BOOKKEEPING,
    IMPORTED,
    Draft,
    Event,
    Kind,
    Progress,
)
from scroll_context.log import schema
from scroll_context.log.erasing import remove_unnamed
from scroll_context.log.file_backend import INSERT
from scroll_context.log.foreign import (
    NOTE,
    PAYLOAD_MISSING,
    ForeignWriter,
    HeldLeases,
    Piece,
    by_sessions,
    is_reserved_session,
)
from scroll_context.log.log import EventLog
from scroll_context.log.rows import TableRow, event_from_row
from scroll_context.log.schema import PAGE
from scroll_context.origin import Origin
from scroll_context.upkeep.addresses import named_seqs, renumbered
from scroll_context.upkeep.transfer import ChainLinks, ExportReader


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
            if not part.keys().isdisjoint(named_seqs(event, self.text)):
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
