"""Erased rows and the payloads that only they named.

An erased event keeps its seq, whose it was, its kind, its times and the hash of what it was
(`leaf`); content, headline, name, metadata and payload are gone. `rewriting` is the transaction in
which rows may be changed: the guards of the log are lifted inside it, and it notes in the table
`chore` what is left to do. A payload is deleted only if no event names it, in its row or in the
text of a snapshot. upkeep/erase.py chooses the events, does the chores and says what erasing cannot
reach.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scroll_context.events import STORE_SESSION, Draft, Kind, merged_spans
from scroll_context.log import schema
from scroll_context.log.backend import LogBackend
from scroll_context.log.chain import leaf_of
from scroll_context.log.keys import erased_key
from scroll_context.log.rows import ERASED, ERASED_METADATA, EventColumns, TableRow, event_from_row
from scroll_context.log.schema import marked_pages

_SET = ", ".join(f"{name} = ?" for name in EventColumns._fields)
REPLACE = f"UPDATE event SET {_SET}, nonce = NULL, leaf = ? WHERE seq = ?"
"""Replaces an event by an erased one."""
PURGE = "erase "
"""The prefix of chores in a local copy whose server has erased events."""
_PLAIN_ROLES = ("user", "assistant", "tool", "system", "developer", "function", "")
_PLAIN_STATES = frozenset(
    (
        "",
        "ok",
        "error",
        "timeout",
        "refused",
        "unknown",
        "killed",
        "interrupted",
        "output-limit",
        "memory",
    )
)
_MACHINE_ID = re.compile(
    r"(?:[a-z]{1,10}_)?[0-9A-Za-z]{16,64}"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?:c|call_)\d{1,6}"
)
"""Ids of calls that an erased event keeps. A host or an import may write words into an id."""


def erasure_draft(seqs: list[int], facts: Mapping[str, Any]) -> Draft:
    """The event that records an erasure: which events were erased, never what they said."""
    spans = merged_spans((seq, seq) for seq in seqs)
    return Draft(
        kind=Kind.ERASURE,
        session_id=STORE_SESSION,
        content=f"{len(seqs)} events were erased",
        metadata={"spans": spans, **facts},
    )


@contextlib.contextmanager
def rewriting(path: Path, lock_timeout: float) -> Iterator[sqlite3.Connection]:
    """A transaction in which rows may be changed.

    The guards of the log are removed inside it and restored at its end.
    """
    with (
        schema.Translated(path),
        contextlib.closing(schema.connect(path, writable=True)) as database,
    ):
        database.execute("PRAGMA secure_delete = ON")
        schema.begin(database, path, lock_timeout)
        try:
            guards = database.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall()
            for name, _ in guards:
                database.execute(f"DROP TRIGGER {name}")
            yield database
            for _, statement in guards:
                database.execute(statement)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


def add_chores(database: sqlite3.Connection, payloads: Iterable[str] = ()) -> None:
    """Note the work that remains after the commit: clean every file, and remove these payloads."""
    database.executemany(
        "INSERT OR REPLACE INTO chore VALUES (?, '')",
        [("clean",), *((f"payload {digest}",) for digest in payloads)],
    )


def blank_rows(database: sqlite3.Connection, seqs: list[int]) -> None:
    """Remove everything from the rows except what an erased event keeps."""
    for part, marks in marked_pages(seqs):
        rows = database.execute(f"SELECT * FROM event WHERE seq IN ({marks})", part).fetchall()
        for row in sorted(map(TableRow._make, rows)):
            if row.leaf is None:
                leaf = leaf_of(row.nonce or b"", row.columns)
                columns = blanked(row, erased_key(row.source_key))
                database.execute(REPLACE, (*columns, leaf, row.seq))


def _is_machine_made(call_id: object) -> bool:
    """Whether a call id was counted or drawn by a program, so it cannot hold words."""
    return isinstance(call_id, str) and _MACHINE_ID.fullmatch(call_id) is not None


def blanked(row: TableRow, source_key: str | None) -> EventColumns:
    """The columns of an event after its erasure."""
    is_foreign = event_from_row(row).is_foreign
    is_harmless_id = _is_machine_made(row.tool_call_id) and not is_foreign
    is_harmless_state = row.tool_state in _PLAIN_STATES and not is_foreign
    return row.columns._replace(
        role=row.role if row.role in _PLAIN_ROLES else "",
        name="",
        content=ERASED,
        payload=None,
        payload_size=None,
        payload_type=None,
        tool_call_id=row.tool_call_id if is_harmless_id else "",
        tool_state=row.tool_state if is_harmless_state else "",
        headline="",
        metadata=ERASED_METADATA,
        source_key=source_key,
    )


# payloads that events name ------------------------------------------------------------------------


def unshared_payloads(backend: LogBackend, chosen: set[int]) -> list[str]:
    """The payload files that these events need and no other event does."""
    needed: dict[str, None] = {}
    needed_by_others: set[str] = set()
    for seq, digests in _payloads_by_event(backend):
        if seq in chosen:
            needed.update(dict.fromkeys(digests))
        else:
            needed_by_others.update(digests)
    return [digest for digest in needed if digest not in needed_by_others]


def named_payloads(backend: LogBackend, after: int = 0) -> set[str]:
    """Every payload that an event after a seq names, in its row or in the text of a snapshot."""
    payloads: set[str] = set()
    for _, digests in _payloads_by_event(backend, "seq > ?", [after]):
        payloads.update(digests)
    return payloads


def remove_unnamed(backend: LogBackend, digests: Sequence[str]) -> None:
    """Delete those of these payloads that no event names.

    The write lock is held meanwhile, so nothing is appended; later appends look again.
    """
    if not digests:
        return
    last = backend.last_seq()
    in_use = named_payloads(backend)
    with (
        schema.Translated(backend.path),
        contextlib.closing(schema.connect(backend.path, writable=True)) as database,
    ):
        schema.begin(database, backend.path, backend.lock_timeout)
        in_use |= named_payloads(backend, last)
        for digest in digests:
            if digest not in in_use:
                backend.payloads.remove(digest)
        database.execute("ROLLBACK")


def _payloads_by_event(
    backend: LogBackend, where: str = "1", values: Sequence[Any] = ()
) -> Iterator[tuple[int, list[str]]]:
    rows = backend.query(
        "SELECT seq, kind, content, payload FROM event "
        f"WHERE (payload IS NOT NULL OR kind = 'snapshot') AND {where}",
        values,
    )
    for seq, kind, content, digest in rows:
        yield seq, backend.payloads.named_by(kind, content, digest)
