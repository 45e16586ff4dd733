"""Erasing in a shared store: on the server first, then in the copy of every host.

The server replaces the rows and appends the event that records it, in one transaction; that needs a
role which may erase. Every host meets this event when it follows the log. The transaction that
writes it to the copy also notes that the rows are still to be replaced there, so a host that is
killed in between goes on with it. Then the copy is cleaned as a local store is: search index, free
pages, write-ahead log, cached payloads. What the blank row holds is decided here, from the row of
the copy: the server only says which events are erased. A host reports what it has carried out, and
the one that erases is told which hosts have not yet.

Out of reach: backups of the server, its write-ahead log, its dead rows until it vacuums; hosts that
never come back.
"""

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scroll_context.errors import StoreError
from scroll_context.log.chain import body_of, leaf_of
from scroll_context.log.erasing import PURGE, REPLACE, add_chores, blanked, rewriting
from scroll_context.log.file_backend import Readers
from scroll_context.log.log import NEWEST_ERASURE
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import PreparedRow, TableRow, event_from_row
from scroll_context.log.schema import PAGE
from scroll_context.text.printable import printable
from scroll_context.upkeep.integrity import spans_before
from scroll_shared.collect import collect, still_named
from scroll_shared.objects import SharedPayloads
from scroll_shared.server import Bytes, Numbers, Server
from scroll_shared.snapshots import prune

_NOTIFY = "SELECT CASE WHEN scroll.may_notify() THEN pg_notify('scroll', %s) END"
# The seconds to wait for another process that writes the copy.
LOCK_TIMEOUT = 30.0
# The most seqs in one query to the server.
_SEQS = 10_000
_ERASED = """SELECT e.seq FROM unnest(%s, %s) AS s(low, high) JOIN scroll.event e
    ON e.store_id = %s AND e.seq BETWEEN s.low AND s.high AND e.leaf IS NOT NULL"""


def erase_on_server(
    server: Server, store_id: int, rows: Sequence[TableRow], record: PreparedRow
) -> int:
    """Erase rows for all hosts and record it, all or nothing; the seq of the record."""
    ((seq,),) = server.call(
        "SELECT scroll.erase(%s, %b, %s, %s, %b, %b)",
        [
            store_id,
            f"erasure:{uuid.uuid4()}".encode(),
            Numbers(row.seq for row in rows),
            Bytes(body_of(blanked(row, None)) for row in rows),
            record.nonce,
            body_of(record.columns),
        ],
    )
    # A full queue of notifications does no harm: hosts look by themselves every second.
    with contextlib.suppress(StoreError):
        server.call(_NOTIFY, [str(store_id)])
    return int(seq)


def remove_payloads(
    server: Server, store_id: int, payloads: PayloadStore, digests: list[str], seq: int
) -> list[str]:
    """Delete the bodies of the events that the erasure at `seq` has erased, and the snapshots that
    hold them. Returns, in words, what could not be deleted.
    """
    if not isinstance(payloads, SharedPayloads):
        for digest in digests:
            payloads.remove(digest)
        return []
    remaining = [
        f"the payload {digest[:12]} is still named by seq {named_by}, so it was not deleted: "
        "erase that event as well"
        for digest, named_by in still_named(server, store_id, digests)
    ]
    collect(server, store_id, payloads.place, grace=0.0, only=set(digests))
    prune(server, store_id, payloads.place.bucket, before=seq)
    return remaining


def unconfirmed(server: Server, store_id: int, seq: int) -> list[str]:
    """In words, the hosts that were seen in the last 30 days and have not carried out the erasure
    at this seq.
    """
    rows = server.call(
        """SELECT host, replica::text FROM scroll.replica WHERE store_id = %s AND purged < %s
        AND seen > now() - interval '30 days' ORDER BY host""",
        [store_id, seq],
    )
    hosts = [f"{printable(host)[:100]} ({replica[:8]})" for host, replica in rows]
    return [f"the copy on {host} has not confirmed it yet" for host in hosts]


def vacuum(server: Server) -> list[str]:
    """Have the server discard the old versions of the rows.

    The server warns, and does nothing, if this login does not own them.
    """
    before = (
        "SELECT coalesce(sum(vacuum_count), 0) FROM pg_stat_all_tables WHERE schemaname = 'scroll'"
    )
    ((count,),) = server.call(before)
    server.call("VACUUM scroll.event", timeout=60 * server.address.timeout)
    if server.call(before)[0][0] > count:
        return []
    unfinished = (
        "the server keeps the old rows until it vacuums by itself; "
        "its owner can VACUUM scroll.event"
    )
    return [unfinished]


class Purge:
    """Carries out in the copy of this host what the server has erased."""

    def __init__(
        self, server: Server, store_id: int, readers: Readers, path: Path, payloads: PayloadStore
    ) -> None:
        self.on_purged: Callable[[], object] = lambda: None
        """Cleans the other files of the store."""
        self._server = server
        self._store_id = store_id
        self._readers = readers
        self._path = path
        self._payloads = payloads

    def run(self) -> bool:
        """Replace the rows that the server has erased; whether there were any to replace."""
        query = f"SELECT name FROM chore WHERE name LIKE '{PURGE}%'"
        pending = [name for (name,) in self._readers.query(query, ())]
        if not pending:
            return False
        digests: set[str] = set()
        with rewriting(self._path, LOCK_TIMEOUT) as database:
            for name in pending:
                seq = int(name.removeprefix(PURGE))
                for spans in _pieces(self._erased_spans(seq), seq):
                    erased = self._server.call(_ERASED, [*spans, self._store_id])
                    digests |= self._blank(database, [seq for (seq,) in erased])
            is_cached = isinstance(self._payloads, SharedPayloads)
            add_chores(database, digests if is_cached else ())
            database.executemany("DELETE FROM chore WHERE name = ?", [(name,) for name in pending])
        self.on_purged()
        return True

    def done_until(self) -> int:
        """The newest erasure that is carried out in every file of this copy."""
        if self._readers.query("SELECT 1 FROM chore LIMIT 1", ()):
            return 0
        return int(self._readers.query(NEWEST_ERASURE, ())[0][0])

    def _erased_spans(self, seq: int) -> object:
        (row,) = self._readers.query("SELECT * FROM event WHERE seq = ?", [seq])
        return event_from_row(row).metadata.get("spans")

    def _blank(self, database: sqlite3.Connection, seqs: Sequence[int]) -> set[str]:
        """Blank rows of the copy, each with the hash that it has; the payloads that they named."""
        digests: set[str] = set()
        for at in range(0, len(seqs), PAGE):
            part = seqs[at : at + PAGE]
            marks = ", ".join("?" * len(part))
            rows = database.execute(
                f"SELECT * FROM event WHERE seq IN ({marks}) AND nonce IS NOT NULL", part
            ).fetchall()
            for row in map(TableRow._make, rows):
                digests.update(self._payloads.named_by(row.kind, row.content, row.payload))
                leaf = row.leaf or leaf_of(row.nonce or b"", row.columns)
                database.execute(REPLACE, (*blanked(row, None), leaf, row.seq))
        return digests


def _pieces(spans: object, erasure: int) -> Iterator[tuple[Numbers, Numbers]]:
    """The spans of an erasure as lower and upper ends, in groups with a bounded number of seqs."""
    lows, highs, count = Numbers(), Numbers(), 0
    for low, high in spans_before(erasure, spans):
        for at in range(low, high + 1, _SEQS):
            end = min(high, at + _SEQS - 1)
            lows.append(at)
            highs.append(end)
            count += end - at + 1
            if count >= _SEQS:
                yield lows, highs
                lows, highs, count = Numbers(), Numbers(), 0
    if lows:
        yield lows, highs
