"""Copies of a store: backup (a second store) and export (one JSONL file), written and read.

A backup uses SQLite's backup API inside one read transaction, so writers continue and the copy
shows the log at one moment. It is built beside its target and renamed into place, so it is complete
or absent. An export has every column, every hash and every payload: a header; then for each event
its payload, if it was not written yet, in base64 parts, and the event; then an end line with the
head of the chain, so that a file which was cut short is noticed.

An export that is read may come from anywhere. Every line is checked before anything of it is built,
each payload against its digest, and each row against the hash of the row before it. merge.py adds
what is read to a store.
"""

import base64
import contextlib
import hashlib
import itertools
import os
import shutil
import sqlite3
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from scroll_context.errors import (
    BadInput,
    NotAStore,
    PayloadDamaged,
    PayloadMissing,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from scroll_context.events import Kind, Progress
from scroll_context.files import sync_folder
from scroll_context.log import schema
from scroll_context.log.chain import GENESIS, expected
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore, hashed
from scroll_context.log.rows import COLUMNS, TableRow, event_from_row, is_blank
from scroll_context.text.json_bounds import TooManyValues, check_line

EXPORT_VERSION = 2
_HASHES = ("chain", "nonce", "leaf")
# Bytes of a payload per line: a multiple of 3, so that base64 has no padding inside.
_PART = 3 << 18


class BackupReport(msgspec.Struct, frozen=True):
    """The content of a backup.

    A payload that is missing or damaged in the store is missing from the backup too.
    """

    events: int
    payloads: int
    bytes: int
    # The digests of those payloads.
    missing: tuple[str, ...] = ()


class ExportReport(msgspec.Struct, frozen=True):
    """The content of an export."""

    events: int
    # Digests of payloads that the store no longer has.
    missing: tuple[str, ...] = ()


def backup(log: EventLog, target: Path, progress: Progress | None = None) -> BackupReport:
    """Copy the log at one moment, with the payloads that it names, to a new store folder."""
    if not schema.is_vacant(target):
        raise NotAStore(f"{target} is not empty; nothing was written. Name a new folder.")
    stage = _stage(target)
    try:
        copy = stage / schema.LOG_NAME
        with schema.Translated(log.path):
            copy_database(log.path, copy, progress)
        payloads = PayloadStore(stage / "payloads")
        with contextlib.closing(sqlite3.connect(copy)) as copied:
            events = copied.execute("SELECT count(*) FROM event").fetchone()[0]
            rows = copied.execute(
                "SELECT kind, content, payload FROM event "
                "WHERE payload IS NOT NULL OR kind = 'snapshot'"
            )
            digests: dict[str, None] = {}
            for row in rows:
                digests.update(dict.fromkeys(log.payloads.named_by(*row)))
        missing = []
        for done, digest in enumerate(digests, 1):
            try:
                log.payloads.copy(digest, payloads)
            except (PayloadMissing, PayloadDamaged):
                missing.append(digest)
            if progress:
                progress(done, len(digests))
        size = sum(file.stat().st_size for file in stage.rglob("*") if file.is_file())
        _publish(stage, target)
    except StoreFull as error:
        raise StoreFull(
            f"no room for the backup to {target}. The store is unharmed. Free some space there."
        ) from error
    except OSError as error:
        raise StoreError(
            f"the backup to {target} failed: {error.strerror or error}. The store is unharmed."
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return BackupReport(events, len(digests) - len(missing), size, tuple(missing))


def export(log: EventLog, out: IO[bytes], progress: Progress | None = None) -> ExportReport:
    """Write the complete log, exactly, as JSONL.

    Raises StoreDamaged for a damaged event that no salvage has declared.
    """
    log.backend.wait_for_own(10.0)
    total = log.applied_seq()
    declared: set[int] = set()
    for event in log.iterate(kind=Kind.SALVAGE):
        declared.update(event.metadata.get("altered", ()))
    seq = 0
    count = 0
    chain = GENESIS
    written: set[str] = set()
    missing: list[str] = []
    _line(out, {"scroll_export": EXPORT_VERSION, "last_seq": total})
    while page := log.rows(seq, total):
        for row in page:
            is_altered = row.seq == seq + 1 and expected(chain, row) != row.chain
            if is_altered and row.seq not in declared:
                raise StoreDamaged(
                    f"seq {row.seq} does not match its hash, so an export could not be read back. "
                    f"Nothing was changed. {schema.command('repair', log.path)} recovers every "
                    "readable event; then export again."
                )
            for digest in log.payloads.named_by(row.kind, row.content, row.payload):
                if digest in written:
                    continue
                written.add(digest)
                if not _export_payload(log.payloads, digest, out):
                    missing.append(digest)
            _line(out, {"event": _as_document(row)})
            seq, chain = row.seq, row.chain
        count += len(page)
        if progress:
            progress(seq, total)
    _line(out, {"end": count, "head": chain.hex()})
    return ExportReport(count, tuple(missing))


def _export_payload(payloads: PayloadStore, digest: str, out: IO[bytes]) -> bool:
    """Write a payload in parts. If it is missing or damaged, say so instead and return False."""
    try:
        payloads.check(digest)
    except (PayloadMissing, PayloadDamaged):
        _line(out, {"payload": digest, "missing": True})
        return False
    for part in _parts(payloads, digest):
        _line(out, {"payload": digest, "base64": base64.b64encode(part).decode()})
    return True


def _as_document(row: TableRow) -> dict[str, Any]:
    """A row by column, with its hashes in hex; a nonce or leaf that it lacks is left out."""
    document = row._asdict()
    for name in _HASHES:
        value = document.pop(name)
        if value is not None:
            document[name] = value.hex()
    return document


def _line(out: IO[bytes], document: dict[str, Any]) -> None:
    out.write(msgspec.json.encode(document) + b"\n")


def _parts(payloads: PayloadStore, digest: str) -> Iterator[bytes]:
    is_empty = True
    for chunk in payloads.chunks(digest):
        for at in range(0, len(chunk), _PART):
            is_empty = False
            yield chunk[at : at + _PART]
    if is_empty:
        yield b""


def copy_database(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Copy a log file at one moment, whatever writers do meanwhile."""
    target.touch(mode=0o600, exist_ok=False)
    target.chmod(0o600)
    with (
        contextlib.closing(schema.connect(source, writable=False)) as reader,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as writer,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT max(seq) FROM event").fetchone()
        reader.backup(
            writer,
            pages=2_000,
            progress=(lambda _, left, total: progress(total - left, total)) if progress else None,
            sleep=0,
        )
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _stage(target: Path) -> Path:
    target = target.absolute()
    stage = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        stage.parent.mkdir(parents=True, exist_ok=True)
        stage.mkdir()
        stage.chmod(0o700)
    except OSError as error:
        raise StoreError(
            f"cannot write beside {target}: {error.strerror}. Nothing was changed."
        ) from error
    return stage


def _publish(stage: Path, target: Path) -> None:
    """Give a finished folder its name; an empty folder of that name makes way."""
    sync_folder(stage)
    if target.exists():
        target.rmdir()
    os.rename(stage, target)
    sync_folder(target.absolute().parent)


# reading an export --------------------------------------------------------------------------------

# Bytes of a line. A row has at most 8 MiB of metadata, and a part of a payload is 1 MiB.
LONGEST_LINE = 64 << 20

_Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
# SQLite assigns no address after 2^63-1.
_Address = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
_Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_TYPES: dict[str, Any] = {
    "seq": _Address,
    "payload": _Digest | None,
    "payload_size": _Number | None,
    "payload_type": str | None,
    "reply_to": _Number | None,
    "step_index": _Number | None,
    "msg_index": _Number | None,
    "source_key": str | None,
    "chain": _Digest,
}
_Record = msgspec.defstruct(
    "_Record",
    [
        *((column, _TYPES.get(column, str)) for column in COLUMNS),
        ("nonce", _Nonce | None, None),
        # Erased rows have a leaf.
        ("leaf", _Digest | None, None),
    ],
)
"""An event of an export, checked column by column: the file may come from anywhere."""


def check_export(lines: IO[bytes], progress: Progress | None = None) -> None:
    """Read an export to its end and write nothing.

    Raises BadInput if it is cut short, altered or not an export.
    """
    links = ChainLinks()
    for row in ExportReader(lines, None, progress):
        links.check(row)
    links.finish()


class ChainLinks:
    """Checks the rows of an export against their hashes, except those that a salvage declares."""

    def __init__(self) -> None:
        self._seq, self._chain = 0, GENESIS
        self._altered: set[int] = set()

    def check(self, row: TableRow) -> None:
        if row.seq == self._seq + 1 and expected(self._chain, row) != row.chain:
            self._altered.add(row.seq)
        if row.leaf is not None and not is_blank(row):
            self._altered.add(row.seq)
        if row.kind == Kind.SALVAGE:
            self._altered.difference_update(event_from_row(row).metadata.get("altered", ()))
        self._seq, self._chain = row.seq, row.chain

    def finish(self) -> None:
        if self._altered:
            raise BadInput(
                f"seq {min(self._altered)} of the export does not match its hash; nothing was "
                "imported"
            )


class ExportReader:
    """The event rows of an export.

    With a payload store, each payload is stored before the event that names it is returned.
    """

    def __init__(
        self, lines: IO[bytes], payloads: PayloadStore | None, progress: Progress | None
    ) -> None:
        # Digests of payloads that the exported store had lost, in order.
        self.missing: dict[str, None] = {}
        # Digests of payloads that the export contains.
        self.stored: set[str] = set()
        self._payloads = payloads
        self._progress = progress
        self._numbered = _documents(lines)
        _, self._header = next(self._numbered, (0, {}))
        version = self._header.get("scroll_export")
        if version != EXPORT_VERSION:
            raise BadInput(
                f"this version of Scroll reads exports of version {EXPORT_VERSION}, and this file "
                f"is of version {version!r:.20}. Nothing was imported; import it with the version "
                "that wrote it."
            )

    def __iter__(self) -> Iterator[TableRow]:
        numbered = self._numbered
        total = self._header.get("last_seq", 0)
        count, seq, head = 0, 0, GENESIS.hex()
        digests: set[str] = set()
        for digest, group in itertools.groupby(numbered, lambda item: item[1].get("payload")):
            if digest is not None:
                self._store_payload(digest, (document for _, document in group))
                digests.add(digest)
                continue
            for number, document in group:
                if "end" in document:
                    if document["end"] != count or document.get("head") != head:
                        raise BadInput(
                            f"line {number}: the end line does not match the events before it"
                        )
                    return
                row = _row(number, document)
                if row.payload is not None and row.payload not in digests:
                    raise BadInput(
                        f"line {number} of the export names payload {row.payload[:12]}…, which "
                        "does not come before it"
                    )
                if row.seq <= seq:
                    raise BadInput(f"line {number} of the export has seq {row.seq} after seq {seq}")
                count, seq, head = count + 1, row.seq, row.chain.hex()
                if self._progress and count % 1000 == 0:
                    self._progress(seq, total)
                yield row
        raise BadInput(
            "the export is cut short: it has no end line. Nothing more can be read from it."
        )

    def _store_payload(self, digest: str, parts: Iterator[dict[str, Any]]) -> None:
        first = next(parts)
        if first.get("missing") is True:
            self.missing[digest] = None
            return
        try:
            hasher = hashlib.sha256()
            parts = itertools.chain([first], parts)
            decoded = (base64.b64decode(part["base64"], validate=True) for part in parts)
            pieces = hashed(decoded, hasher)
            if self._payloads is not None:
                self._payloads.put(pieces, "application/octet-stream")
            else:
                deque(pieces, maxlen=0)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"payload {str(digest)[:12]}… of the export is damaged: {error}"
            ) from error
        if hasher.hexdigest() != digest:
            raise BadInput(f"payload {str(digest)[:12]}… of the export does not match its digest")
        self.stored.add(digest)


def _documents(lines: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number in itertools.count(1):
        line = lines.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            raise BadInput(
                f"line {number} of the export is longer than {LONGEST_LINE >> 20} MiB; Scroll "
                "writes no such lines"
            )
        try:
            check_line(line)
            yield number, decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, TooManyValues) as error:
            raise BadInput(f"line {number} of the export is damaged: {error}") from error


def _row(number: int, document: dict[str, Any]) -> TableRow:
    try:
        record = msgspec.convert(document.get("event"), _Record)
    except msgspec.ValidationError as error:
        raise BadInput(f"line {number} of the export is not a complete event ({error})") from error
    *columns, chain, nonce, leaf = msgspec.structs.astuple(record)
    hashes = (value if value is None else bytes.fromhex(value) for value in (chain, nonce, leaf))
    return TableRow._make((*columns, *hashes))
