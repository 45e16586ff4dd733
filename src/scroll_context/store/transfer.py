"""Copies of a store: backup (a second store) and export (one JSONL file), and the way back.

A backup goes through SQLite's backup API inside one read transaction, so writers go on and the copy is one moment of
the log. An export carries every column, every hash and every payload; read into a new store it gives the same seqs
and the same chain, and read into one with a history of its own it adds what is not there yet. Both are built beside
their target and renamed into place: a copy is whole or absent.

Export lines: a header; then for each event its payload, if it was not written yet, in base64 parts, and the event;
then an end line with the head of the chain, so that a cut file is noticed.
"""

import base64
import itertools
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from scroll_context.errors import BadInput, NotAStore, StoreDamaged, StoreError, StoreFull
from scroll_context.events import Draft, Event, Kind
from scroll_context.store import schema
from scroll_context.store.chain import GENESIS, link
from scroll_context.store.log import INSERT, PAGE, EventLog
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.rows import event_from_row

EXPORT_VERSION = 1
_PART = 3 << 18  # bytes of a payload per line; a multiple of 3, so that base64 has no padding inside
_COLUMNS = ", ".join(schema.COLUMNS)

Progress = Callable[[int, int], None]

_Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_TYPES: dict[str, Any] = {
    "seq": _Number,
    "payload": _Digest | None,
    "payload_size": _Number | None,
    "payload_type": str | None,
    "reply_to": _Number | None,
    "step_index": _Number | None,
    "msg_index": _Number | None,
    "source_key": str | None,
    "chain": _Digest,
}
_Record = msgspec.defstruct("_Record", [(column, _TYPES.get(column, str)) for column in schema.COLUMNS])
"""An event of an export, checked column by column: the file may come from anywhere."""


class BackupReport(msgspec.Struct, frozen=True):
    events: int
    payloads: int
    bytes: int


def backup(log: EventLog, target: Path, progress: Progress | None = None) -> BackupReport:
    """Copy the log as it is at one moment, with the payloads it names, to a new folder that is itself a store."""
    _require_vacant(target)
    stage = _stage(target)
    try:
        copy = stage / schema.LOG_NAME
        with schema.Translated(log.path):
            _copy_database(log.path, copy, progress)
        payloads = PayloadStore(stage / "payloads")
        check = sqlite3.connect(copy)
        try:
            events = check.execute("SELECT count(*) FROM event").fetchone()[0]
            named = check.execute("SELECT DISTINCT payload, payload_type FROM event WHERE payload IS NOT NULL")
            rows = named.fetchall()
        finally:
            check.close()
        for done, (digest, media_type) in enumerate(rows, 1):
            payloads.put(log.payloads.chunks(digest), media_type)
            if progress:
                progress(done, len(rows))
        size = sum(file.stat().st_size for file in stage.rglob("*") if file.is_file())
        _publish(stage, target)
    except StoreFull as error:
        raise StoreFull(f"no room for the backup to {target}. The store is unharmed. Free some space there.") from error
    except OSError as error:
        raise StoreError(f"the backup to {target} failed: {error.strerror or error}. The store is unharmed.") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return BackupReport(events, len(rows), size)


def export(log: EventLog, out: IO[bytes], progress: Progress | None = None) -> int:
    """Write the whole log, exactly, as JSONL; returns the number of events. Undeclared damage stops it."""
    total, seq, count, chain = log.last_seq(), 0, 0, GENESIS
    declared = {bad for event in log.iterate(kind=Kind.SALVAGE) for bad in event.metadata.get("altered", ())}
    written: set[str] = set()
    _line(out, {"scroll_export": EXPORT_VERSION, "last_seq": total})
    while page := log.query(
        f"SELECT {_COLUMNS} FROM event WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {PAGE}", [seq, total]
    ):
        for row in page:
            if row[0] == seq + 1 and link(chain, row[:-1]) != row[-1] and row[0] not in declared:
                raise StoreDamaged(
                    f"seq {row[0]} does not match its hash, so an export could not be read back. Run `scroll verify`, "
                    "then `scroll salvage`, and export again."
                )
            digest = row[8]
            if digest is not None and digest not in written:
                written.add(digest)
                for part in _parts(log.payloads, digest):
                    _line(out, {"payload": digest, "base64": base64.b64encode(part).decode()})
            record = dict(zip(schema.COLUMNS, row, strict=True))
            _line(out, {"event": {**record, "chain": row[-1].hex()}})
            seq, chain = row[0], row[-1]
        count += len(page)
        if progress:
            progress(seq, total)
    _line(out, {"end": count, "head": chain.hex()})
    return count


def restore_export(lines: Iterable[bytes], folder: Path, progress: Progress | None = None) -> int:
    """Make a new store from an export: the same seqs, the same chain, checked on the way."""
    _require_vacant(folder)
    stage = _stage(folder)
    payloads = PayloadStore(stage / "payloads")
    seqs: list[int] = []

    def fill(database: sqlite3.Connection) -> None:
        database.execute("BEGIN IMMEDIATE")
        seqs.extend(_copy_rows(_rows(lines, payloads, progress), database))
        database.execute("COMMIT")

    try:
        schema.create(stage, fill)
        _publish(stage, folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return len(seqs)


def merge_export(lines: Iterable[bytes], log: EventLog, progress: Progress | None = None) -> list[int]:
    """Add the events of an export to a log; the seqs that they have there. A second time adds nothing.

    Into a log in which nothing was ever recorded they go exactly, as into a new one. In one that has a history of its
    own addresses change, so a declaration of what a salvage lost (in addresses of the other log) is left out.
    """
    if log.last_seq() == 0 and (seqs := _fill_vacant(lines, log, progress)) is not None:
        return seqs
    moved: dict[int, int] = {}
    pending: dict[int, Event] = {}

    def flush() -> None:
        known = {event.seq for event in log.get_many(list(pending)) if event.chain == pending[event.seq].chain}
        moved.update((seq, seq) for seq in known)  # the two logs begin with the same history
        new = [event for event in pending.values() if event.seq not in known]
        added = log.append_many(_draft(event, moved) for event in new)
        moved.update(zip((event.seq for event in new), added, strict=True))
        pending.clear()

    for row in _rows(lines, log.payloads, progress):
        event = event_from_row(row)
        if event.kind == Kind.SALVAGE:
            continue
        if event.reply_to in pending or len(pending) == PAGE:  # a reply needs the new address of what it answers
            flush()
        pending[event.seq] = event
    flush()
    return [moved[seq] for seq in sorted(moved)]


def _fill_vacant(lines: Iterable[bytes], log: EventLog, progress: Progress | None) -> list[int] | None:
    """Record an export in a log that never held anything, all of it or nothing; None when it held something."""
    with schema.Translated(log.path):
        database = schema.connect(log.path, writable=True)
        try:
            database.execute("BEGIN IMMEDIATE")
            if database.execute("SELECT 1 FROM sqlite_sequence").fetchone() is not None:
                return None
            seqs = _copy_rows(_rows(lines, log.payloads, progress), database)
            database.execute("COMMIT")
        finally:
            database.close()
    if log.on_append is not None:
        log.on_append()
    return seqs


def _copy_rows(rows: Iterable[tuple[Any, ...]], database: sqlite3.Connection) -> list[int]:
    """Insert rows as they are, checked against their hashes on the way; the seqs."""
    seqs: list[int] = []
    previous, chain = 0, GENESIS
    altered: set[int] = set()
    for row in rows:
        if row[0] == previous + 1 and link(chain, row[:-1]) != row[-1]:
            altered.add(row[0])
        if row[4] == Kind.SALVAGE:
            altered.difference_update(event_from_row(row).metadata.get("altered", ()))
        database.execute(INSERT, row)
        previous, chain = row[0], row[-1]
        seqs.append(previous)
    if altered:
        raise BadInput(f"seq {min(altered)} of the export does not match its hash; nothing was imported")
    return seqs


def _draft(event: Event, moved: dict[int, int]) -> Draft:
    values = {field: getattr(event, field) for field in Draft.__struct_fields__}
    values["reply_to"] = moved.get(event.reply_to) if event.reply_to is not None else None
    values["source_key"] = event.source_key or f"scroll:{event.chain.hex()}"
    return Draft(**values)


def _rows(lines: Iterable[bytes], payloads: PayloadStore, progress: Progress | None) -> Iterator[tuple[Any, ...]]:
    """The event rows of an export, its payloads stored before the event that names them."""
    numbered = _documents(lines)
    _, header = next(numbered, (0, {}))
    if header.get("scroll_export") != EXPORT_VERSION:
        raise BadInput(f"not a Scroll export of version {EXPORT_VERSION}")
    total, count, head = header.get("last_seq", 0), 0, GENESIS.hex()
    stored: set[str] = set()
    for digest, group in itertools.groupby(numbered, lambda item: item[1].get("payload")):
        if digest is not None:
            _store_payload(digest, (document["base64"] for _, document in group), payloads)
            stored.add(digest)
            continue
        for number, document in group:
            if "end" in document:
                if document["end"] != count or document.get("head") != head:
                    raise BadInput(f"line {number}: the end line does not match the events before it")
                return
            row = _row(number, document)
            if row[8] is not None and row[8] not in stored:
                raise BadInput(
                    f"line {number} of the export names payload {row[8][:12]}…, which does not come before it"
                )
            count, head = count + 1, row[-1].hex()
            if progress and count % 1000 == 0:
                progress(row[0], total)
            yield row
    raise BadInput("the export is cut short: it has no end line. Nothing more can be read from it.")


def _documents(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(lines, 1):
        try:
            yield number, decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadInput(f"line {number} of the export is damaged: {error}") from error


def _row(number: int, document: dict[str, Any]) -> tuple[Any, ...]:
    try:
        *columns, chain = msgspec.structs.astuple(msgspec.convert(document.get("event"), _Record))
    except msgspec.ValidationError as error:
        raise BadInput(f"line {number} of the export is not a whole event ({error})") from error
    return (*columns, bytes.fromhex(chain))


def _store_payload(digest: str, parts: Iterator[str], payloads: PayloadStore) -> None:
    try:
        stored = payloads.put((base64.b64decode(part, validate=True) for part in parts), "application/octet-stream")
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"payload {str(digest)[:12]}… of the export is damaged: {error}") from error
    if stored.digest != digest:
        raise BadInput(f"payload {str(digest)[:12]}… of the export does not match its digest")


def _line(out: IO[bytes], document: dict[str, Any]) -> None:
    out.write(msgspec.json.encode(document) + b"\n")


def _parts(payloads: PayloadStore, digest: str) -> Iterator[bytes]:
    empty = True
    for chunk in payloads.chunks(digest):
        for at in range(0, len(chunk), _PART):
            empty = False
            yield chunk[at : at + _PART]
    if empty:
        yield b""


def _copy_database(source: Path, target: Path, progress: Progress | None) -> None:
    reader = schema.connect(source, writable=False)
    writer = sqlite3.connect(target, isolation_level=None)
    try:
        reader.execute("BEGIN")  # one moment for the whole copy, whatever writers do meanwhile
        reader.execute("SELECT max(seq) FROM event").fetchone()
        reader.backup(
            writer,
            pages=2_000,
            progress=(lambda _, left, total: progress(total - left, total)) if progress else None,
            sleep=0,
        )
    finally:
        writer.close()
        reader.close()
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _require_vacant(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise NotAStore(f"{target} is not empty; nothing was written. Name a new folder.")


def _stage(target: Path) -> Path:
    stage = target.absolute().with_name(f".{target.absolute().name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        stage.mkdir(parents=True)
    except OSError as error:
        raise StoreError(f"cannot write beside {target}: {error.strerror}. Nothing was changed.") from error
    return stage


def _publish(stage: Path, target: Path) -> None:
    """Give a finished folder its name; an empty folder of that name makes way."""
    schema.sync_folder(stage)
    if target.exists():
        target.rmdir()
    os.rename(stage, target)
    schema.sync_folder(target.absolute().parent)
