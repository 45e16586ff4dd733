"""Importing a file into a store: completely or not at all, and only once.

A file is read twice, unless it is small. The first pass only searches for faults; unless they may
be skipped, one fault is enough and nothing of the file is imported. The second pass appends in
batches. A run that is killed between two batches is completed by running it again, since recorded
events are recognised by their source keys.

Which session of the store a message goes to is decided in recorded.py.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from scroll_context.errors import BadInput, UnreadableMessages
from scroll_context.events import Progress
from scroll_context.importing.layouts import (
    EXPORT,
    OTHER_FORMATS,
    Layout,
    importers,
    layout_named,
    read,
)
from scroll_context.importing.recorded import (
    HostRecord,
    Matched,
    first_number,
    is_begun_by,
    is_open_to,
    numbered,
)
from scroll_context.importing.records import LISTED, Fault, Imported, ImportReport, Labels
from scroll_context.importing.sources import Part, open_source, utf8
from scroll_context.log.foreign import RESERVED_KINDS, ForeignWriter, Piece
from scroll_context.log.log import EventLog
from scroll_context.origin import SPEAKER, Origin
from scroll_context.store import Store
from scroll_context.upkeep.merge import merge_export
from scroll_context.upkeep.transfer import check_export

BATCH_EVENTS = 2_000
BATCH_BYTES = 16 << 20
# The messages of a file up to this size stay in memory between its two passes.
IN_MEMORY_BYTES = 16 << 20


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is to be read, and where its events go."""

    # Where messages belong that do not say so themselves.
    labels: Labels = Labels()
    # The name of the file's layout; None to recognise it.
    layout: str | None = None
    # Import the good messages of a file with bad ones.
    skip_bad: bool = False
    # Add to sessions of the same name that another source began.
    join: bool = False
    # Replace secrets by markers; a trusted export is restored exactly.
    redact: bool = True
    # Restore an export as one's own, with snapshots, forks and plans that take effect.
    trust: bool = False
    # The file is the user's own history, so its user turns count as theirs (origin.py).
    mine: bool = False


def import_file(
    store: Store,
    path: str | Path | IO[bytes],
    *,
    session_id: str = "",
    agent_id: str = "",
    task_id: str = "",
    kind: str = "conversation",
    layout: str | None = None,
    skip_bad: bool = False,
    join: bool = False,
    trust: bool = False,
    mine: bool = False,
    me: tuple[str, ...] = (),
    redact: bool = True,
    progress: Progress | None = None,
) -> ImportReport:
    """Import a file of messages, or an export of another store.

    `session_id`, `agent_id`, `task_id` and `kind` apply to messages without their own. Imported
    events can be searched at once; `store.index.catch_up()` indexes them now instead of at the
    first search. Nothing in the file counts as the user's own words, unless `mine` says that it is
    their own history, or `me` names the user among several speakers. Raises BadInput if nothing was
    imported.

    >>> from pathlib import Path
    >>> from scroll_context import Store, import_file
    >>> chat = Path("chat.jsonl")
    >>> _ = chat.write_text('{"role": "user", "content": "I always fly economy."}')
    >>> with Store("notes.scroll", create=True) as store:
    ...     import_file(store, chat).added, import_file(store, chat).added
    (1, 0)
    """
    options = ImportOptions(
        labels=Labels(session_id, agent_id, task_id, kind, me=me),
        layout=layout,
        skip_bad=skip_bad,
        join=join,
        trust=trust,
        mine=mine,
        redact=redact,
    )
    with ImportFile(path, options) as file:
        file.check(progress)
        return file.write(store, progress)


class ImportFile:
    """One file on its way into a store: opened, checked without a store, then written to one."""

    def __init__(self, path: str | Path | IO[bytes], options: ImportOptions) -> None:
        labels = options.labels
        if labels.kind in RESERVED_KINDS or not labels.kind:
            raise BadInput(
                f"kind {labels.kind!r} is reserved for what Scroll records itself; choose another"
            )
        self._options = options
        self._labels = Labels(
            session_id=utf8(labels.session_id),
            agent_id=utf8(labels.agent_id),
            task_id=utf8(labels.task_id),
            kind=utf8(labels.kind),
            me=labels.me,
        )
        self._cleanup = contextlib.ExitStack()
        layout = layout_named(options.layout) if options.layout else None
        try:
            self._source = open_source(path, layout, self._cleanup)
        except BaseException:
            self._cleanup.close()
            raise
        self.label = self._source.label
        self._sessions: dict[str, Layout] = {}
        self._shapes: set[str] = set()
        self._speakers: dict[str, None] = {}
        self._has_owner = False
        self.messages = 0
        self._bad = 0
        self._faults: list[Fault] = []
        self._skipped: list[Part] = []
        # The messages of a small file, between the two passes.
        self._in_memory: list[Imported | Fault] | None = None

    def __enter__(self) -> "ImportFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def _is_export(self) -> bool:
        return self._source.parts[0].layout is EXPORT

    def check(self, progress: Progress | None = None) -> None:
        """Read the complete file and write nothing. Raises BadInput if it cannot be imported."""
        if self._is_export:
            if self._labels != Labels(task_id="" if self._options.trust else self._labels.task_id):
                raise BadInput(
                    "an export names the session, agent, task and kind of each event; leave those "
                    "out"
                )
            with self._source.parts[0].path.open("rb") as lines:
                check_export(lines, progress)
            return
        self._in_memory = [] if self._source.size <= IN_MEMORY_BYTES else None
        tallies = {part.path: _Tally() for part in self._source.parts}
        for part, item in self._read(progress):
            if self._in_memory is not None:
                self._in_memory.append(item)
            tallies[part.path].add(item)
            if isinstance(item, Imported):
                self._note_message(part, item)
        for part in list(self._source.parts):
            self._check_part(part, tallies[part.path])
        if self._bad and not (self._options.skip_bad and self.messages):
            listed = tuple((fault.line, fault.reason) for fault in self._faults)
            if not self.messages and not importers():
                # An assistant's history looks like JSON Lines whose lines are not messages.
                raise BadInput(f"no line of it is a message that can be read. {OTHER_FORMATS}")
            raise UnreadableMessages(self.label, self.messages, self._bad, listed)
        if not self.messages:
            raise BadInput("there are no messages in it")
        if self._labels.me and not self._has_owner:
            raise BadInput(self._nobody())

    def _check_part(self, part: Part, tally: "_Tally") -> None:
        if self._source.is_archive and not tally.messages:
            # It is a file of settings or the like.
            self._skipped.append(part)
            self._source.parts.remove(part)
            return
        if self._labels.me and self._source.is_archive and not part.layout.names_speakers:
            # All turns of a user in it would count as turns of this user.
            raise BadInput(
                f"{part.inside} does not name its speakers, so it does not show which words "
                "are yours; take it out of the archive and import it separately"
            )
        self.messages += tally.messages
        self._bad += tally.bad
        self._faults += tally.faults[: LISTED - len(self._faults)]

    def _note_message(self, part: Part, message: Imported) -> None:
        self._sessions[message.session_id] = part.layout
        if message.shape:
            self._shapes.add(message.shape)
        if part.layout.names_speakers:
            self._note_speakers(message)

    def _note_speakers(self, message: Imported) -> None:
        for piece in message.pieces:
            if piece.draft.role == SPEAKER and len(self._speakers) < LISTED:
                self._speakers[piece.draft.name] = None
            elif piece.draft.role == "user":
                self._has_owner = True

    def _nobody(self) -> str:
        """Why nobody in it is the user.

        The import is refused, since the user's turns cannot be marked as such afterwards.
        """
        names = " or ".join(map(repr, self._labels.me))
        if not self._speakers:
            return (
                f"its speakers have no names, so nobody is {names}; "
                "if it is your own history, say `mine` instead"
            )
        return f"nobody in it is called {names}; its speakers are {', '.join(self._speakers)}"

    @property
    def _is_own(self) -> bool:
        """Whether the file is the user's own history."""
        return bool(self._options.mine or self._labels.me)

    def write(self, store: Store, progress: Progress | None = None) -> ImportReport:
        """Append the messages that are not in the store yet. The file must have passed check()."""
        if self._is_export:
            return self._write_export(store, progress)
        origin = Origin.CAPTURED if self._is_own else Origin.IMPORTED
        host = HostRecord(store.log)
        matched: Matched = {}
        added = 0
        repeated = 0
        with store.append_foreign(
            origin, self.label, task_id=self._labels.task_id, redact=self._options.redact
        ) as writer:
            renamed = self._hold(store.log, writer)
            for batch in batches(self._good(progress, renamed), BATCH_EVENTS, BATCH_BYTES):
                new, old = append_new(store, writer, pieces_of(batch), host, matched)
                added += new
                repeated += old
            tasks = tuple(sorted(writer.tasks))
        return ImportReport(
            file=self.label,
            format=self._source.described(self._shapes),
            messages=self.messages,
            added=added,
            known=repeated,
            skipped=tuple(part.inside for part in self._skipped),
            tasks=tasks,
            speakers=() if self._has_owner else tuple(self._speakers),
            bad=self._bad,
            faults=tuple(self._faults),
            renamed={name: numbered(name, number) for name, number in renamed.items()},
            redacted=writer.redacted,
        )

    def _hold(self, log: EventLog, writer: ForeignWriter) -> dict[str, int]:
        """Take the leases of the file's sessions. Returns new numbers for names that are taken.

        Another import may begin a session of the same name before ours is held, so the names are
        checked again afterwards.
        """
        renamed: dict[str, int] | None = None
        while True:
            names = {} if self._options.join or not log.last_seq() else self._names(log)
            if names == renamed:
                return names
            renamed = names
            writer.release()
            writer.hold({numbered(name, renamed.get(name)) for name in self._sessions})

    def _write_export(self, store: Store, progress: Progress | None) -> ImportReport:
        last = store.log.last_seq()
        with self._source.parts[0].path.open("rb") as lines:
            merged = merge_export(
                lines,
                store.log,
                self.label,
                progress,
                trust=self._options.trust,
                join=self._options.join,
                task_id=self._labels.task_id,
                redact=self._options.redact,
            )
        seqs = set(merged.seqs)
        new = sum(seq > last for seq in seqs)
        return ImportReport(
            file=self.label,
            format=self._source.described(set()),
            messages=len(merged.seqs),
            added=new,
            known=len(seqs) - new,
            renamed=merged.renamed,
            missing=merged.missing,
            tasks=merged.tasks,
            redacted=merged.redacted,
        )

    def _read(
        self, progress: Progress | None = None, renamed: dict[str, int] | None = None
    ) -> Iterator[tuple[Part, Imported | Fault]]:
        """Each message or fault of the file, with its part."""
        total = self._source.size
        before = 0
        count = 0
        for part in self._source.parts:
            session_id = self._labels.session_id or part.name
            labels = msgspec.structs.replace(self._labels, session_id=session_id)
            for item in read(part.path, part.layout, labels, renamed=(renamed or {}).get):
                if progress and count % 500 == 0:
                    progress(before + item.offset, total)
                count += 1
                if isinstance(item, Fault) and part.inside:
                    item = msgspec.structs.replace(item, reason=f"{part.inside}: {item.reason}")
                yield part, item
            before += part.path.stat().st_size

    def _items(
        self, progress: Progress | None = None, renamed: dict[str, int] | None = None
    ) -> Iterator[Imported | Fault]:
        """Each message or fault of a file that was checked, from memory if it is there."""
        if self._in_memory is None or renamed:
            for _, item in self._read(progress, renamed):
                yield item
            return
        for number, item in enumerate(self._in_memory):
            if progress and number % 500 == 0:
                progress(number, len(self._in_memory))
            yield item

    def _good(self, progress: Progress | None, renamed: dict[str, int]) -> Iterator[Imported]:
        """The messages that can be imported."""
        for item in self._items(progress, renamed):
            if isinstance(item, Imported):
                yield item
            elif not (self._options.skip_bad or self._skipped):
                raise BadInput(
                    f"it changed while it was read (line {item.line}: {item.reason}); import it "
                    "again"
                )

    def _names(self, log: EventLog) -> dict[str, int]:
        """The sessions of the file whose names are taken, with the number that each gets."""
        existing = {name for name in self._sessions if log.tail(1, session_id=name)}
        keys: dict[str, set[str]] = {
            name: set() for name in existing if not self._sessions[name].has_ids
        }
        if keys:
            for item in self._items():
                if isinstance(item, Imported) and item.session_id in keys:
                    keys[item.session_id].add(item.key)
        numbers: dict[str, int] = {}
        for name in existing:
            number = self._number_of(name, log, keys.get(name))
            if number is not None:
                numbers[name] = number
        return numbers

    def _number_of(self, name: str, log: EventLog, keys: set[str] | None) -> int | None:
        """The number of a session; `keys` are those of its messages if they have no ids."""
        if keys is not None:
            return first_number(lambda candidate: is_begun_by(log, candidate, keys), name)
        # An assistant's sessions have ids of its own, so any file of it may add to them.
        layout = self._sessions[name].name

        def is_free(candidate: str) -> bool:
            return is_open_to(log, candidate, layout, is_capture=self._is_own)

        return first_number(is_free, name)


class _Tally:
    """The messages and faults of one part."""

    def __init__(self) -> None:
        self.messages = 0
        self.bad = 0
        self.faults: list[Fault] = []

    def add(self, item: Imported | Fault) -> None:
        if isinstance(item, Imported):
            self.messages += 1
            return
        self.bad += 1
        if self.bad <= LISTED:
            self.faults.append(item)


def batches(
    messages: Iterable[Imported], events: int, size: int, *, keep_lines: bool = False
) -> Iterator[list[Imported]]:
    """Messages in batches of about `events` events or `size` bytes. The last batch may be empty.

    With `keep_lines`, a batch ends with the last message of a line.
    """
    batch: list[Imported] = []
    left, room = events, size
    for message in messages:
        batch.append(message)
        left -= len(message.pieces)
        room -= sum(piece.size for piece in message.pieces)
        if (left <= 0 or room <= 0) and (message.is_last or not keep_lines):
            yield batch
            batch, left, room = [], events, size
    yield batch


def pieces_of(batch: list[Imported]) -> list[Piece]:
    return list(itertools.chain.from_iterable(message.pieces for message in batch))


def append_new(
    store: Store, writer: ForeignWriter, pieces: list[Piece], host: HostRecord, matched: Matched
) -> tuple[int, int]:
    """Append events. Returns how many were new, and how many were recorded before."""
    last = store.log.last_seq()
    writer.hold({piece.draft.session_id for piece in pieces})
    missing = host.missing(pieces, matched)
    # Gemini writes a message again when its calls have ended: an event counts once, however often a
    # file has it.
    seqs = set(writer.append(missing))
    new = sum(seq > last for seq in seqs)
    return new, len(seqs) - new + len(pieces) - len(missing)
