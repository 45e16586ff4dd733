"""From a folder to a shared store and back: all seqs, hashes and payloads remain the same.

`push` fills a store on the server to which no host has appended yet. The folder must verify. An
interrupted push resumes where it stopped. Later appends to the folder reach the server only with
another push.

`pull` copies a shared store as it is now to a folder: an independent store that verifies and can be
written to.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec

from scroll_context.errors import BadInput, StoreDamaged
from scroll_context.events import Progress
from scroll_context.log.chain import body_of
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.keys import ERASED_KEY
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import TableRow
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.transfer import BackupReport, backup
from scroll_shared.address import Address
from scroll_shared.backend import open_shared
from scroll_shared.objects import SharedPayloads
from scroll_shared.replica import transposed
from scroll_shared.server import Bytes, Server, Texts

# The most events, and about the most bytes, of one call.
_ROWS = 1_000
_BYTES = 8 << 20

_ADOPT = (
    "SELECT o_last, o_generation FROM scroll.adopt(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
# The types of the columns of a page, from sessions to chain values.
_COLUMNS = (Bytes, Bytes, Bytes, Bytes, Texts, Bytes, Bytes, Bytes, Bytes)


class PushReport(msgspec.Struct, frozen=True):
    """The result of a push: `events` are in the store now, of which this run pushed `pushed`."""

    events: int
    pushed: int
    payloads: int
    head: str


def push(folder: Path, address: Address, progress: Progress | None = None) -> PushReport:
    """Bring a store in a folder to a server. Creates the shared store if there is none."""
    log = EventLog(FileBackend(folder))
    try:
        verdict = verify(log, progress)
        if verdict.bad or verdict.known:
            seq, what = (*verdict.bad, *verdict.known)[0]
            raise StoreDamaged(
                f"{folder} is not intact (seq {seq}: {what}), and a push keeps every seq and the "
                "chain. Nothing was pushed. `scroll export` and `scroll import` transfer the "
                "readable events, with new seqs."
            )
        shared = open_shared(address, create=True)
        try:
            pushed, payloads = _push(
                log, shared.server, shared.facts.store_id, shared.payloads, progress
            )
            ((last, head),) = shared.server.call(
                "SELECT last_seq, chain FROM scroll.head WHERE store_id = %s",
                [shared.facts.store_id],
            )
        finally:
            shared.close()
    finally:
        log.close()
    return PushReport(last, pushed, payloads, head.hex())


def pull(address: Address, folder: Path, progress: Progress | None = None) -> BackupReport:
    """Copy a shared store as it is now to a new folder."""
    backend = open_shared(address)
    log = EventLog(backend)
    try:
        # Each attempt has its own deadline.
        while not backend.follower.catch_up(address.timeout):
            pass
        return backup(log, folder, progress)
    finally:
        log.close()


def _push(
    log: EventLog, server: Server, store_id: int, payloads: PayloadStore, progress: Progress | None
) -> tuple[int, int]:
    """Send the events that the server lacks. Returns how many, and how many payloads they name."""
    start = _common(log, server, store_id)
    seq = start
    total = log.last_seq()
    copied: set[str] = set()
    while page := _page(log, seq, total):
        digests = [log.payloads.named_by(row.kind, row.content, row.payload) for row in page]
        for digest in chain.from_iterable(digests):
            if digest not in copied:
                log.payloads.copy(digest, payloads)
                copied.add(digest)
        _adopt(server, store_id, payloads, page, digests)
        seq = page[-1].seq
        if progress:
            progress(seq, total)
    return seq - start, len(copied)


def _common(log: EventLog, server: Server, store_id: int) -> int:
    """The last seq that both have: 0, or where an earlier push stopped."""
    ((seq, head),) = server.call(
        "SELECT last_seq, chain FROM scroll.head WHERE store_id = %s", [store_id]
    )
    here = log.query("SELECT chain FROM event WHERE seq = ?", [seq])
    if seq and (not here or here[0][0] != head):
        raise BadInput(
            f"the store at {server.address} has {seq:,} events of another history, so "
            f"{log.path.parent} cannot be pushed there. Nothing was pushed; name another store."
        )
    return int(seq)


def _page(log: EventLog, after: int, until: int) -> list[TableRow]:
    size = 0
    page = []
    for row in log.rows(after, until, _ROWS):
        page.append(row)
        size += len(row.content) + len(row.metadata)
        if size > _BYTES:
            break
    return page


def _adopt(
    server: Server,
    store_id: int,
    payloads: PayloadStore,
    page: Sequence[TableRow],
    digests: list[list[str]],
) -> None:
    values = transposed(
        (
            str(row.session_id).encode(),
            str(row.agent_id).encode(),
            str(row.task_id).encode(),
            _source(row),
            ",".join(row_digests) or None,
            row.nonce,
            body_of(row.columns),
            row.leaf,
            row.chain,
        )
        for row, row_digests in zip(page, digests, strict=True)
    )
    packed = [kind(column) for kind, column in zip(_COLUMNS, values, strict=True)]
    shared = payloads if isinstance(payloads, SharedPayloads) else None
    all_digests = list(dict.fromkeys(chain.from_iterable(digests)))
    while True:
        generation = shared.generation(all_digests) if shared and all_digests else 0
        ((last, deleted),) = server.call(_ADOPT, [store_id, page[0].seq, generation, *packed])
        if last is not None:
            return
        assert shared is not None, "only object stores have tombstones"
        shared.put_again(all_digests, deleted)


def _source(row: TableRow) -> bytes | None:
    """The source key of a row, unless the row is erased.

    An erased row has a hash that only this machine can compare.
    """
    key = row.source_key
    if key is None or (row.leaf is not None and key.startswith(ERASED_KEY)):
        return None
    return key.encode()
