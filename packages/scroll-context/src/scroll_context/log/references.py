"""The payloads that the events of a log name, and the removal of those that none names."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from scroll_context.log import schema
from scroll_context.log.backend import LogBackend


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
