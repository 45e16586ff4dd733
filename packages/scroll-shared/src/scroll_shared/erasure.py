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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scroll_context.errors import StoreError
from scroll_context.log.chain import body_of, leaf_of
from scroll_context.log.columns import TableRow
from scroll_context.log.log import PAGE, EventLog
from scroll_context.log.rows import prepare
from scroll_context.log.schema import utc_now
from scroll_context.text.printable import printable
from scroll_context.upkeep.erase import (
    PURGE,
    REPLACE,
    add_chores,
    blanked,
    erasure_draft,
    rewriting,
)
from scroll_context.upkeep.integrity import Spans, spans_in
from scroll_shared.collect import collect, still_named
from scroll_shared.objects import SharedPayloads
from scroll_shared.server import Bytes, Numbers, Server
from scroll_shared.snapshots import prune

if TYPE_CHECKING:
    from scroll_shared.log import SharedLog

_NOTIFY = "SELECT CASE WHEN scroll.may_notify() THEN pg_notify('scroll', %s) END"
_SEQS = 10_000  # that one question to the server is about
_ERASED = """SELECT e.seq FROM unnest(%s, %s) AS s(low, high)
    JOIN scroll.event e ON e.store_id = %s AND e.seq BETWEEN s.low AND s.high AND e.leaf IS NOT NULL"""


def erase_on_server(
    log: "SharedLog", seqs: list[int], payloads: list[str], facts: Mapping[str, Any]
) -> tuple[int, str]:
    """Erase events and payloads for all hosts; the seq that records it, and what is not done yet,
    in words.
    """
    rows: list[TableRow] = []
    for at in range(0, len(seqs), PAGE):
        part = seqs[at : at + PAGE]
        marks = ", ".join("?" * len(part))
        page = log.query(f"SELECT * FROM event WHERE seq IN ({marks})", part)
        rows += map(TableRow._make, page)
    record = prepare(erasure_draft(seqs, facts), utc_now(), log.payloads)
    store_id = log.facts.store_id
    ((seq,),) = log.server.call(
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
    with contextlib.suppress(StoreError):  # a full queue: hosts look by themselves every second
        log.server.call(_NOTIFY, [str(store_id)])
    log.refresh()  # which carries it out in the copy of this host
    left: list[str] = []
    if isinstance(log.payloads, SharedPayloads):
        left += [
            f"the payload {digest[:12]} is still named by seq {named_by}, so it was not deleted: "
            "erase that event as well"
            for digest, named_by in still_named(log.server, store_id, payloads)
        ]
        collect(log.server, store_id, log.payloads.place, grace=0.0, only=set(payloads))
        prune(log.server, store_id, log.payloads.place.bucket, before=seq)
    else:
        for digest in payloads:
            log.payloads.remove(digest)
    left += [
        f"the copy on {host} has not confirmed it yet"
        for host in unconfirmed(log.server, store_id, seq)
    ]
    return seq, "; ".join([*left, *_vacuum(log.server)])


def unconfirmed(server: Server, store_id: int, seq: int) -> list[str]:
    """The hosts that were seen in the last 30 days and have not carried out the erasure at this
    seq.
    """
    rows = server.call(
        """SELECT host, replica::text FROM scroll.replica WHERE store_id = %s AND purged < %s
        AND seen > now() - interval '30 days' ORDER BY host""",
        [store_id, seq],
    )
    return [f"{printable(host)[:100]} ({replica[:8]})" for host, replica in rows]


def _vacuum(server: Server) -> list[str]:
    """Let the server give up the rows as they were.

    It warns, and does nothing, when this login does not own them.
    """
    before = (
        "SELECT coalesce(sum(vacuum_count), 0) FROM pg_stat_all_tables WHERE schemaname = 'scroll'"
    )
    ((count,),) = server.call(before)
    server.call("VACUUM scroll.event", timeout=60 * server.address.timeout)
    if server.call(before)[0][0] > count:
        return []
    return [
        "the server keeps the old rows until it vacuums by itself; its owner can VACUUM scroll.event"
    ]


def purge(log: "SharedLog", server: Server) -> bool:
    """Replace the rows in the copy of this host that the server has erased; whether there were any
    to replace.
    """
    pending = [
        name
        for (name,) in EventLog.query(log, f"SELECT name FROM chore WHERE name LIKE '{PURGE}%'")
    ]
    if not pending:
        return False
    gone: set[str] = set()
    with rewriting(log) as database:
        for name in pending:
            record = log.get(int(name.removeprefix(PURGE)))
            for spans in _pieces(record.metadata.get("spans"), record.seq):
                erased = server.call(_ERASED, [*spans, log.facts.store_id])
                gone |= _blank(log, database, [seq for (seq,) in erased])
        add_chores(database, gone if isinstance(log.payloads, SharedPayloads) else ())
        database.executemany("DELETE FROM chore WHERE name = ?", [(name,) for name in pending])
    if log.on_erased is not None:
        log.on_erased()
    return True


def _pieces(spans: object, until: int) -> Iterator[tuple[Numbers, Numbers]]:
    """The spans of an erasure as lower and upper ends, cut so that one question is about a bounded
    number of seqs.

    Only events before the erasure can be meant, whatever the spans say.
    """
    lows, highs, count = Numbers(), Numbers(), 0
    for low, high in Spans((max(1, low), min(high, until)) for low, high in spans_in(spans)).merged:
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


def _blank(log: EventLog, database: sqlite3.Connection, seqs: Sequence[int]) -> set[str]:
    """Blank rows of the copy, each with the hash that it has; the payloads that they named."""
    gone: set[str] = set()
    for at in range(0, len(seqs), PAGE):
        part = seqs[at : at + PAGE]
        marks = ", ".join("?" * len(part))
        rows = database.execute(
            f"SELECT * FROM event WHERE seq IN ({marks}) AND nonce IS NOT NULL", part
        ).fetchall()
        for row in map(TableRow._make, rows):
            gone.update(log.payloads.named_by(row.kind, row.content, row.payload))
            leaf = row.leaf or leaf_of(row.nonce or b"", row.columns)
            database.execute(REPLACE, (*blanked(row, None), leaf, row.seq))
    return gone


def purged_until(log: "SharedLog") -> int:
    """The newest erasure that is carried out in every file of this copy."""
    if log.query("SELECT 1 FROM chore LIMIT 1"):
        return 0
    return log.newest_erasure()
