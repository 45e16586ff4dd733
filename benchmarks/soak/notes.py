"""What workers write down outside the store: acknowledged appends, and how their work went.

Both are lines, each written by one system call, into files of one process each, so that SIGKILL
leaves whole lines and at most a partial last one, which is passed over: what was not noted is not
claimed. An acknowledgement is the seq and a hash of everything the caller handed over;
`fingerprint` computes the same hash from an event that was read back, so "there, byte for byte" is
a comparison of two hashes.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from scroll_context.events import Draft
from scroll_context.log.backend import Written
from scroll_context.log.commits import Ticket
from scroll_context.log.rows import TableRow, event_from_row
from scroll_context.store import Store

NEWS = frozenset({"ok", "began", "clock jumped", "incomplete, and said so"})
"""What a worker may report at any time; all else is an error, and wants a fault that explains it.
"""


class Report(msgspec.Struct, frozen=True):
    """One line of a worker: `what` is one of NEWS, or the name of an error, or of something else
    that is wrong.
    """

    # The system's monotonic clock, which all processes share and no fault moves.
    at: float
    worker: str
    what: str
    detail: str = ""


def _open(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _hash(draft: Draft, body: str) -> str:
    fields = [
        draft.session_id,
        draft.agent_id,
        draft.task_id,
        str(draft.kind),
        draft.role,
        draft.name,
        body,
        draft.tool_call_id,
        draft.tool_state,
        draft.headline,
        draft.reply_to,
        draft.metadata,
    ]
    return hashlib.sha256(
        json.dumps(msgspec.to_builtins(fields), sort_keys=True).encode()
    ).hexdigest()


class Ledger:
    """Notes every append of this process that returned."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._handle = _open(folder / f"{worker}.{os.getpid()}.acks")

    def watch(self, store: Store) -> None:
        """From now on note the appends to this store."""
        commit = store.log.commits.commit

        def noting(
            ticket: Ticket, enqueue: Callable[[Ticket], None] | None = None
        ) -> list[Written]:
            written = commit(ticket, enqueue)
            events = [
                event_from_row(TableRow(at.seq, *row.columns, at.chain, row.nonce, None))
                for (row, _), at in zip(ticket.rows, written, strict=True)
            ]
            lines = (
                (
                    f"{event.seq} {event.payload.digest if event.payload else '-'} "
                    f"{_hash(event, event.content)}\n"
                )
                for event in events
            )
            os.write(self._handle, "".join(lines).encode())
            return written

        store.log.commits.commit = noting  # type: ignore[method-assign]


def acknowledged(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Every noted append: seq, digest of the payload that the caller had stored itself ("-" for
    none), hash.
    """
    for file in folder.glob("*.acks"):
        text = file.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            seq, payload, digest = line.split(" ")
            yield int(seq), payload, digest


def is_as_noted(store: Store, seq: int, payload: str, digest: str) -> bool:
    """Whether the event at `seq` is the one that was acknowledged, its whole body included."""
    for event in store.log.get_many([seq]):
        if payload != "-":
            is_stored = event.payload is not None and event.payload.digest == payload
            return (
                is_stored
                and bool(store.payloads.read(payload))
                and _hash(event, event.content) == digest
            )
        return _hash(event, store.log.text(event)) == digest
    return False


class Diary:
    """Where one worker reports. "ok" is written a few times a second at most; everything else at
    once.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._worker = worker
        self._handle = _open(folder / f"{worker}.{os.getpid()}.reports")
        self._last_ok = 0.0
        self._oks = 0

    def ok(self) -> None:
        self._oks += 1
        if time.monotonic() - self._last_ok > 0.2:
            self._last_ok = time.monotonic()
            self.tell("ok", str(self._oks))
            self._oks = 0

    def tell(self, what: str, detail: str = "") -> None:
        report = Report(time.monotonic(), self._worker, what, detail[:300])
        os.write(self._handle, msgspec.json.encode(report) + b"\n")


class Reports:
    """All reports so far, read from where the last look ended."""

    def __init__(self, folder: Path) -> None:
        self.all: list[Report] = []
        self._folder = folder
        self._read: dict[Path, int] = {}

    def refresh(self) -> list[Report]:
        """Take in what is new, and return it."""
        new: list[Report] = []
        for file in self._folder.glob("*.reports"):
            with file.open("rb") as source:
                source.seek(self._read.get(file, 0))
                text = source.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            new += [msgspec.json.decode(line, type=Report) for line in whole.splitlines()]
        self.all += new
        return new

    def since(self, moment: float) -> Iterator[Report]:
        """What was reported at or after a moment, in no order."""
        return (report for report in self.all if report.at >= moment)
