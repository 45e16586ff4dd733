"""Writes batches of rows to the server: one procedure call, one round trip, durable when it
returns.

A process has a writer's name of its own and one batch under way. Each batch has a number, under
which the server keeps its answer: a call that is repeated because the answer was lost gets the same
answer, and nothing is recorded twice. A batch that had no answer before its deadline is settled
before the next one: it is recorded by then, or never will be.
"""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from scroll_context.errors import (
    BadInput,
    ScrollError,
    SessionFenced,
    StoreError,
    StoreUnreachable,
)
from scroll_context.log.backend import Written
from scroll_context.log.chain import body_of, leaf_of
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import PreparedRow, TableRow
from scroll_shared.objects import SharedPayloads
from scroll_shared.replica import Replica, transposed
from scroll_shared.server import Bytes, Numbers, Server, Texts

_RECORD = (
    "CALL scroll.record(%s, %s, %s, %s, %b, %s, %s, %s, %s, %s, %s, %s, %s, %s, "
    "NULL, NULL, NULL, NULL)"
)
# The types of the columns of a batch, from sessions to bodies.
_COLUMNS = (Bytes, Bytes, Bytes, Bytes, Texts, Numbers, Numbers, Bytes, Bytes)
_SETTLE = "SELECT o_seqs, o_states, o_previous FROM scroll.settle(%s, %s, %s)"
# The server's answers about a row.
_RECORDED, _KNOWN, _FENCED, _DELETED, _TAKEN = range(5)

# Separates a source key that another login has taken from a hash.
_RENAMED = "~"
_HASH_DIGITS = 32

_logger = logging.getLogger("scroll_context.store")

Batch = Sequence[tuple[PreparedRow, int | None]]


class ServerWriter:
    """The writer of a shared log."""

    # In seconds. A batch takes far longer than this, however few rows it has.
    linger = 0.0003

    def __init__(
        self,
        server: Server,
        store_id: int,
        replica: Replica,
        payloads: PayloadStore,
        fetch: Callable[[int], None],
        secret: str,
    ) -> None:
        self._server = server
        self._store_id = store_id
        self._replica = replica
        self._payloads = payloads
        # Asks for everything up to a seq that this host lacks.
        self._fetch = fetch
        # The secret of this copy.
        self._secret = secret
        self._name = uuid.uuid4()
        self._number = 0
        # The batch without an answer, if there is one.
        self._lost: tuple[int, Batch] | None = None
        # The newest seq that this process has recorded.
        self.newest = 0

    def write(self, rows: Batch) -> list[Written | ScrollError]:
        deadline = time.monotonic() + self._server.address.timeout
        self._replica.check()
        self.resolve_unanswered(deadline)
        while True:
            answer, digests = self._send(rows, deadline)
            seqs, states, previous, chain = answer
            if _TAKEN in states:
                rows = [
                    (self._renamed(row) if state == _TAKEN else row, epoch)
                    for (row, epoch), state in zip(rows, states, strict=True)
                ]
                continue
            if _DELETED not in states:
                return self._take_in(rows, seqs, states, previous, chain)
            for row_digests, generation in zip(digests, seqs, strict=True):
                if generation and isinstance(self._payloads, SharedPayloads):
                    self._payloads.put_again(row_digests, generation)
            if time.monotonic() > deadline:
                raise self._server.unreachable("payloads of this append are being deleted")

    def _send(self, rows: Batch, deadline: float) -> tuple[tuple[Any, ...], list[list[str]]]:
        digests = [self._digests(row) for row, _ in rows]
        shared = self._payloads if isinstance(self._payloads, SharedPayloads) else None
        values = transposed(
            (
                row.columns.session_id.encode(),
                row.columns.agent_id.encode(),
                row.columns.task_id.encode(),
                _source_key(row).encode() or None,
                ",".join(row_digests) or None,
                shared.generation(row_digests) if shared and row_digests else 0,
                epoch,
                row.nonce,
                body_of(row.columns),
            )
            for (row, epoch), row_digests in zip(rows, digests, strict=True)
        )
        seq, chain = self._replica.head()
        self._number += 1
        # Until there is an answer, the batch counts as lost.
        self._lost = (self._number, rows)
        try:
            packed = (kind(column) for kind, column in zip(_COLUMNS, values, strict=True))
            parameters = [self._store_id, self._name, self._number, seq, chain, *packed]
            answer = self._server.call(_RECORD, parameters, timeout=deadline - time.monotonic())[0]
        except StoreUnreachable as error:
            raise StoreUnreachable(
                f"{error} This append had no answer: it may or may not be recorded. "
                "The next append finds out."
            ) from None
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            # The server failed, perhaps after its first commit.
            settled = self._settled(self._number, deadline)
            if settled is None:
                raise
            answer = (*settled, None)
        self._lost = None
        return answer, digests

    def _renamed(self, row: PreparedRow) -> PreparedRow:
        """The row under another source key, since another login has recorded something else under
        its own.

        Nobody else can know this key beforehand, and each append of this copy arrives at the same.
        """
        taken_key = _source_key(row)
        if _RENAMED in taken_key[-len(_RENAMED) - _HASH_DIGITS :]:
            raise BadInput(
                "another login has recorded other events under the source key "
                f"{taken_key[:80]!r}. Nothing was written."
            )
        text = f"{self._secret} {taken_key}"
        key = taken_key + _RENAMED + sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
        _logger.warning(
            "another login has recorded other words under the source key %.80r; "
            "this event is recorded as %.120r",
            taken_key,
            key,
        )
        columns = row.columns._replace(source_key=key)
        return PreparedRow(columns, row.nonce, leaf_of(row.nonce, columns))

    def resolve_unanswered(self, deadline: float) -> None:
        """Find out what became of a batch without an answer. If it is missing, it stays so."""
        if self._lost is None:
            return
        number, rows = self._lost
        settled = self._settled(number, deadline)
        if settled is not None and _DELETED not in settled[1]:
            self._take_in(rows, *settled, None)

    def _settled(self, number: int, deadline: float) -> tuple[Any, Any, Any] | None:
        """The server's answer to a batch; None when it was not recorded, and then never will be."""
        seqs, states, previous = self._server.call(
            _SETTLE, [self._store_id, self._name, number], timeout=deadline - time.monotonic()
        )[0]
        if seqs is not None:
            # It may not be on the disk: the call that was to flush it may have ended early.
            self._server.call("CALL scroll.barrier()", timeout=deadline - time.monotonic())
        self._number = number + 1
        self._lost = None
        return None if seqs is None else (seqs, states, previous)

    def _take_in(
        self, rows: Batch, seqs: list[int], states: list[int], chain: bytes, newest: bytes | None
    ) -> list[Written | ScrollError]:
        """The result for each row; new rows go to the copy of this host."""
        answers: list[Written | ScrollError] = []
        new: list[TableRow] = []
        for (row, epoch), seq, state in zip(rows, seqs, states, strict=True):
            if state == _RECORDED:
                new.append(row.at(seq, chain))
                chain = new[-1].chain
                answers.append(Written(seq, chain, True))
            elif state == _KNOWN:
                answers.append(Written(seq, b"", False))
            else:
                answers.append(fenced(row.columns.session_id, epoch, seq))
        if new and newest is not None and newest != chain:
            raise StoreError(
                f"the server of {self._server.address} chained seq {new[-1].seq} differently from "
                "this host"
            )
        if new:
            self.newest = max(self.newest, new[-1].seq)
        is_applied = self._replica.add_own(new)
        # The newest event of this batch that another host has recorded before.
        recorded_before = max(
            (seq for seq, state in zip(seqs, states, strict=True) if state == _KNOWN), default=0
        )
        if recorded_before and recorded_before > self._replica.head()[0]:
            self._fetch(recorded_before)
        elif not is_applied:
            self._fetch(0)
        return answers

    def _digests(self, row: PreparedRow) -> list[str]:
        """The payloads that a row needs."""
        columns = row.columns
        digests = self._payloads.named_by(columns.kind, columns.content, columns.payload)
        return list(dict.fromkeys(digests))

    def close(self) -> None:
        self._server.close()


def fenced(session_id: str, epoch: int | None, now: int) -> SessionFenced:
    """The error for a holder whose session another one has taken."""
    return SessionFenced(
        f"session {session_id!r} was taken over elsewhere (its epoch is {now}, this process had "
        f"{epoch}). Nothing of this append was recorded, and this process may not continue the "
        "session; resume it to take it back."
    )


def _source_key(row: PreparedRow) -> str:
    return row.columns.source_key or ""
