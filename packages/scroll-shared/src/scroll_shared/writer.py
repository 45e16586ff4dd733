"""Writes batches of rows to the server: one procedure call, one round trip, durable when it
returns.

A process has a writer's name of its own and one batch under way. Each batch has a number, under
which the server keeps its answer: a call that is repeated because the answer was lost gets the same
answer, and nothing is recorded twice. A batch that had no answer before its deadline is settled
before the next one: it is recorded by then, or never will be.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from scroll_context.errors import ScrollError, SessionFenced, StoreError, StoreUnreachable
from scroll_context.log.chain import body_of, link
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import Row
from scroll_context.log.writer import Written
from scroll_shared.objects import SharedPayloads
from scroll_shared.received import TableRow
from scroll_shared.replica import Replica, columns
from scroll_shared.server import Bytes, Numbers, Server, Texts

_RECORD = "CALL scroll.record(%s, %s, %s, %s, %b, %s, %s, %s, %s, %s, %s, %s, %s, %s, NULL, NULL, NULL, NULL)"
_COLUMNS = (
    Bytes,
    Bytes,
    Bytes,
    Bytes,
    Texts,
    Numbers,
    Numbers,
    Bytes,
    Bytes,
)  # of a batch, from sessions to bodies
_SETTLE = "SELECT o_seqs, o_states, o_previous FROM scroll.settle(%s, %s, %s)"
_RECORDED, _KNOWN, _FENCED, _DELETED = range(4)  # what the server says of a row

Batch = Sequence[tuple[Row, int | None]]


class ServerWriter:
    """The writer of a shared log."""

    linger = 0.0003  # a batch costs far more than this, however few rows it has

    def __init__(
        self,
        server: Server,
        store_id: int,
        replica: Replica,
        payloads: PayloadStore,
        fetch: Callable[[int], None],
    ) -> None:
        self._server = server
        self._store_id = store_id
        self._replica = replica
        self._payloads = payloads
        self._fetch = fetch  # asks for everything up to a seq of which this host lacks something
        self._name = uuid.uuid4()
        self._number = 0
        self._lost: tuple[int, Batch] | None = None  # a batch without an answer
        self.newest = 0  # the newest seq that this process has recorded

    def write(self, rows: Batch) -> list[Written | ScrollError]:
        deadline = time.monotonic() + self._server.address.timeout
        self._replica.check()
        self.settle(deadline)
        while True:
            answer, digests = self._send(rows, deadline)
            seqs, states, previous, chain = answer
            if _DELETED not in states:
                return self._take_in(rows, seqs, states, previous, chain)
            for named, generation in zip(digests, seqs, strict=True):
                if generation and isinstance(self._payloads, SharedPayloads):
                    self._payloads.put_again(named, generation)
            if time.monotonic() > deadline:
                raise self._server.unreachable("payloads of this append are being deleted")

    def _send(self, rows: Batch, deadline: float) -> tuple[tuple[Any, ...], list[list[str]]]:
        digests = [self._digests(row) for row, _ in rows]
        shared = self._payloads if isinstance(self._payloads, SharedPayloads) else None
        values = columns(
            (
                _bytes(row.before[0]),
                _bytes(row.before[1]),
                _bytes(row.before[2]),
                row.source_key.encode() or None,
                ",".join(named) or None,
                shared.generation(named) if shared and named else 0,
                epoch,
                row.nonce,
                body_of(row.before),
            )
            for (row, epoch), named in zip(rows, digests, strict=True)
        )
        known, chain = self._replica.head()
        self._number += 1
        self._lost = (self._number, rows)  # until there is an answer
        try:
            packed = (kind(column) for kind, column in zip(_COLUMNS, values, strict=True))
            parameters = [self._store_id, self._name, self._number, known, chain, *packed]
            answer = self._server.call(_RECORD, parameters, timeout=deadline - time.monotonic())[0]
        except StoreUnreachable as error:
            raise StoreUnreachable(
                f"{error} This append had no answer: it may or may not be recorded. The next append finds out."
            ) from None
        self._lost = None
        return answer, digests

    def settle(self, deadline: float) -> None:
        """Find out what became of a batch without an answer; if it did not arrive, it never will."""
        if self._lost is None:
            return
        number, rows = self._lost
        values = [self._store_id, self._name, number]
        seqs, states, previous = self._server.call(
            _SETTLE, values, timeout=deadline - time.monotonic()
        )[0]
        if (
            seqs is not None
        ):  # recorded, perhaps not on the disk: the call that was to flush it may have ended early
            self._server.call("CALL scroll.barrier()", timeout=deadline - time.monotonic())
        self._number = number + 1
        self._lost = None
        if seqs is not None and _DELETED not in states:
            self._take_in(rows, seqs, states, previous, None)

    def _take_in(
        self, rows: Batch, seqs: list[int], states: list[int], chain: bytes, newest: bytes | None
    ) -> list[Written | ScrollError]:
        """What became of each row; those that are new go to the copy of this host."""
        answers: list[Written | ScrollError] = []
        new: list[TableRow] = []
        for (row, epoch), seq, state in zip(rows, seqs, states, strict=True):
            if state == _RECORDED:
                chain = link(chain, seq, row.leaf)
                new.append((seq, *row.before, chain, row.nonce, None))
                answers.append(Written(seq, chain, True))
            elif state == _KNOWN:
                answers.append(Written(seq, b"", False))
            else:
                answers.append(fenced(str(row.before[0]), epoch, seq))
        if new and newest is not None and newest != chain:
            raise StoreError(
                f"the server of {self._server.address} chained seq {new[-1][0]} differently from this host"
            )
        if new:
            self.newest = max(self.newest, new[-1][0])
        is_applied = self._replica.add_own(new)
        known = max(
            (seq for seq, state in zip(seqs, states, strict=True) if state == _KNOWN), default=0
        )
        if known and known > self._replica.head()[0]:
            self._fetch(known)
        elif not is_applied:
            self._fetch(0)
        return answers

    def _digests(self, row: Row) -> list[str]:
        """The payloads that a row needs."""
        return list(dict.fromkeys(self._payloads.named_by(row.kind, row.content, row.digest)))

    def close(self) -> None:
        self._server.close()


def fenced(session_id: str, epoch: int | None, now: int) -> SessionFenced:
    """The error for a holder whose session another one has taken."""
    return SessionFenced(
        f"session {session_id!r} was taken over elsewhere (its epoch is {now}, this process had {epoch}). Nothing of "
        "this append was recorded, and this process may not go on with the session; resume it to take it back."
    )


def _bytes(value: object) -> bytes:
    return str(value).encode()
