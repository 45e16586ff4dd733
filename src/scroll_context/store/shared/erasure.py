"""Erasing in a shared store: on the server first, then in the copy of every host.

The server replaces the rows and appends the event that records it, in one transaction; that needs a role which may
erase. Every host meets this event when it follows the log. The transaction that writes it to the copy also notes that
the rows are still to be replaced there, so a host that is killed in between goes on with it. Then the copy is cleaned
as a local store is: search index, free pages, write-ahead log, cached payloads. A host reports what it has carried out,
and the one that erases is told which hosts have not yet.

Out of reach: backups of the server, its write-ahead log, its dead rows until it vacuums; hosts that never come back.
"""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from scroll_context.events import STORE_SESSION
from scroll_context.store.chain import body_of
from scroll_context.store.erase import PURGE, REPLACE, add_chores, blanked, erasure_draft, rewriting
from scroll_context.store.log import PAGE, EventLog
from scroll_context.store.rows import prepare
from scroll_context.store.schema import utc_now
from scroll_context.store.shared.collect import collect
from scroll_context.store.shared.objects import SharedPayloads
from scroll_context.store.shared.server import Server
from scroll_context.store.shared.snapshots import prune

if TYPE_CHECKING:
    from scroll_context.store.shared.log import SharedLog

_decode = msgspec.msgpack.Decoder(list[str | int | None]).decode


def erase_on_server(
    log: "SharedLog", seqs: list[int], payloads: list[str], facts: Mapping[str, Any]
) -> tuple[int, str]:
    """Erase events and payloads for all hosts; the seq that records it, and what is not done yet, in words."""
    rows: list[tuple[Any, ...]] = []
    for at in range(0, len(seqs), PAGE):
        part = seqs[at : at + PAGE]
        rows += log.query(f"SELECT * FROM event WHERE seq IN ({', '.join('?' * len(part))})", part)
    record = prepare(erasure_draft(seqs, facts), utc_now(), log.payloads)
    store_id = log.facts.store_id
    ((seq,),) = log.server.call(
        "SELECT scroll.erase(%s, %b, %s::bigint[], %b::bytea[], %b, %b, %b)",
        [
            store_id, f"erasure:{uuid.uuid4()}".encode(), [row[0] for row in rows],
            [body_of(blanked(row, None)) for row in rows], STORE_SESSION.encode(), record.nonce,
            body_of(record.before),
        ],
    )  # fmt: skip
    log.refresh()  # which carries it out in the copy of this host
    if isinstance(log.payloads, SharedPayloads):
        collect(log.server, store_id, log.payloads.place, grace=0.0, only=set(payloads))
        prune(log.server, store_id, log.payloads.place.bucket, before=seq)
    else:
        for digest in payloads:
            log.payloads.remove(digest)
    left = [f"the copy on {host} has not confirmed it yet" for host in unconfirmed(log.server, store_id, seq)]
    return seq, "; ".join([*left, *_vacuum(log.server)])


def unconfirmed(server: Server, store_id: int, seq: int) -> list[str]:
    """The hosts that were seen in the last 30 days and have not carried out the erasure at this seq."""
    rows = server.call(
        """SELECT host, replica::text FROM scroll.replica WHERE store_id = %s AND purged < %s
        AND seen > now() - interval '30 days' ORDER BY host""",
        [store_id, seq],
    )
    return [f"{host} ({replica[:8]})" for host, replica in rows]


def _vacuum(server: Server) -> list[str]:
    """Let the server give up the rows as they were. It warns, and does nothing, when this login does not own them."""
    before = "SELECT coalesce(sum(vacuum_count), 0) FROM pg_stat_all_tables WHERE schemaname = 'scroll'"
    ((count,),) = server.call(before)
    server.call("VACUUM scroll.event", timeout=60 * server.address.timeout)
    if server.call(before)[0][0] > count:
        return []
    return ["the server keeps the old rows until it vacuums by itself; its owner can VACUUM scroll.event"]


def purge(log: "SharedLog", server: Server) -> bool:
    """Replace the rows in the copy of this host that the server has erased; whether there were any to replace."""
    pending = [name for (name,) in EventLog.query(log, f"SELECT name FROM chore WHERE name LIKE '{PURGE}%'")]
    if not pending:
        return False
    seqs: list[int] = []
    for name in pending:
        spans = log.get(int(name.removeprefix(PURGE))).metadata.get("spans", [])
        seqs += (seq for lo, hi in spans for seq in range(int(lo), int(hi) + 1))
    gone: set[str] = set()
    with rewriting(log) as database:
        for at in range(0, len(seqs), PAGE):
            part = seqs[at : at + PAGE]
            sent = server.call(
                """SELECT seq, body, leaf FROM scroll.event
                WHERE store_id = %s AND seq = ANY(%s::bigint[]) AND leaf IS NOT NULL""",
                [log.facts.store_id, part],
            )
            marks = ", ".join("?" * len(sent))
            for row in database.execute(f"SELECT * FROM event WHERE seq IN ({marks})", [one[0] for one in sent]):
                gone.update(log.payloads.named_by(row[4], row[7], row[8]))
            database.executemany(REPLACE, [(*_decode(body), leaf, seq) for seq, body, leaf in sent])
        add_chores(database, gone if isinstance(log.payloads, SharedPayloads) else ())
        database.executemany("DELETE FROM chore WHERE name = ?", [(name,) for name in pending])
    if log.on_erased is not None:
        log.on_erased()
    return True


def purged_until(log: "SharedLog") -> int:
    """The newest erasure that is carried out in every file of this copy."""
    if log.query("SELECT 1 FROM chore LIMIT 1"):
        return 0
    return log.newest_erasure()
