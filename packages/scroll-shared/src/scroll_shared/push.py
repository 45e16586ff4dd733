"""From a folder to a shared store and back: every seq, every hash and every payload stay as they
are.

`push` fills a store on the server to which no host has appended yet. The folder must verify. A push
that was cut off resumes where it stopped. What is appended to the folder afterwards is not carried
over until it is pushed again.

`pull` makes a folder of a shared store as it is now: a store of its own, that verifies and can be
written to.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from scroll_context.errors import BadInput, StoreDamaged
from scroll_context.events import Progress
from scroll_context.log.chain import body_of
from scroll_context.log.columns import TableRow
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.writer import ERASED_KEY
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.transfer import BackupReport, backup
from scroll_shared.address import Address
from scroll_shared.backend import open_shared
from scroll_shared.objects import SharedPayloads
from scroll_shared.replica import transposed
from scroll_shared.server import Bytes, Server, Texts

_ROWS = 1_000  # events of one call,
_BYTES = 8 << 20  # or so many bytes

_ADOPT = (
    "SELECT o_last, o_generation FROM scroll.adopt(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_COLUMNS = (
    Bytes,
    Bytes,
    Bytes,
    Bytes,
    Texts,
    Bytes,
    Bytes,
    Bytes,
    Bytes,
)  # of a page, from sessions to chain values


class PushReport(msgspec.Struct, frozen=True):
    """What a push has brought to the server."""

    events: int  # in the store now
    pushed: int  # by this run
    payloads: int
    head: str


def push(folder: Path, address: Address, progress: Progress | None = None) -> PushReport:
    """Bring a store in a folder to a server; makes the shared store if there is none."""
    log = EventLog(FileBackend(folder))
    try:
        verdict = verify(log, progress)
        if verdict.bad or verdict.known:
            seq, what = (*verdict.bad, *verdict.known)[0]
            raise StoreDamaged(
                f"{folder} is not whole (seq {seq}: {what}), and a push keeps every seq and the chain. Nothing was "
                f"pushed. `scroll export` and `scroll import` carry over what is legible, with new addresses."
            )
        shared = open_shared(address, create=True)
        try:
            pushed, named = _push(
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
    return PushReport(last, pushed, named, head.hex())


def pull(address: Address, folder: Path, progress: Progress | None = None) -> BackupReport:
    """Copy a shared store as it is now to a new folder."""
    backend = open_shared(address)
    log = EventLog(backend)
    try:
        while not backend.follower.catch_up(address.timeout):  # each page has its own deadline
            pass
        return backup(log, folder, progress)
    finally:
        log.close()


def _push(
    log: EventLog, server: Server, store_id: int, payloads: PayloadStore, progress: Progress | None
) -> tuple[int, int]:
    """Send what the server lacks; how many events, and how many payloads they name."""
    start = _common(log, server, store_id)
    seq, total, put = start, log.last_seq(), set[str]()
    while page := _page(log, seq, total):
        digests = [log.payloads.named_by(row.kind, row.content, row.payload) for row in page]
        for digest in dict.fromkeys(digest for named in digests for digest in named):
            if digest not in put:
                log.payloads.copy(digest, payloads)
                put.add(digest)
        _adopt(server, store_id, payloads, page, digests)
        seq = page[-1].seq
        if progress:
            progress(seq, total)
    return seq - start, len(put)


def _common(log: EventLog, server: Server, store_id: int) -> int:
    """The seq from which on to push: 0, or where an earlier push stopped."""
    ((seq, chain),) = server.call(
        "SELECT last_seq, chain FROM scroll.head WHERE store_id = %s", [store_id]
    )
    here = log.query("SELECT chain FROM event WHERE seq = ?", [seq])
    if seq and (not here or here[0][0] != chain):
        raise BadInput(
            f"the store at {server.address} has {seq:,} events of another history, so {log.path.parent} cannot be "
            "pushed there. Nothing was pushed; name another store."
        )
    return int(seq)


def _page(log: EventLog, after: int, until: int) -> list[TableRow]:
    size, page = 0, []
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
            ",".join(named) or None,
            row.nonce,
            body_of(row.columns),
            row.leaf,
            row.chain,
        )
        for row, named in zip(page, digests, strict=True)
    )
    packed = [kind(column) for kind, column in zip(_COLUMNS, values, strict=True)]
    shared = payloads if isinstance(payloads, SharedPayloads) else None
    named = list(dict.fromkeys(_flat(digests)))
    while True:
        generation = shared.generation(named) if shared and named else 0
        ((last, deleted),) = server.call(_ADOPT, [store_id, page[0].seq, generation, *packed])
        if last is not None:
            return
        assert shared is not None, "only object stores have tombstones"
        shared.put_again(named, deleted)


def _source(row: TableRow) -> bytes | None:
    """The source key of a row.

    That of an erased row is a hash of this machine, which no other could compare.
    """
    key = row.source_key
    if key is None or (row.leaf is not None and key.startswith(ERASED_KEY)):
        return None
    return key.encode()


def _flat(lists: Iterable[Iterable[str]]) -> Iterable[str]:
    return (one for several in lists for one in several)
