"""Which payloads the events of a log name, and removing those that none names any more."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from scroll_context.log import schema
from scroll_context.log.backend import LogBackend


def unshared_payloads(backend: LogBackend, chosen: set[int]) -> list[str]:
    """The payload files that these events need and no other event does."""
    by_event = list(_payloads_by_event(backend))
    kept = {digest for seq, named in by_event if seq not in chosen for digest in named}
    gone = dict.fromkeys(digest for seq, named in by_event if seq in chosen for digest in named)
    return [digest for digest in gone if digest not in kept]


def named_payloads(backend: LogBackend, after: int = 0) -> set[str]:
    """Every payload that an event behind a seq names, in its row or in the text of a snapshot."""
    return {
        digest for _, named in _payloads_by_event(backend, "seq > ?", [after]) for digest in named
    }


def remove_unnamed(backend: LogBackend, digests: Sequence[str]) -> None:
    """Delete those of these bodies that no event names.

    Nothing is appended meanwhile; later appends look again.
    """
    if not digests:
        return
    last = backend.last_seq()
    named = named_payloads(backend)
    with (
        schema.Translated(backend.path),
        contextlib.closing(schema.connect(backend.path, writable=True)) as database,
    ):
        schema.begin(database, backend.path, backend.lock_timeout)
        named |= named_payloads(backend, last)
        for digest in digests:
            if digest not in named:
                backend.payloads.remove(digest)
        database.execute("ROLLBACK")


def _payloads_by_event(
    backend: LogBackend, where: str = "1", values: Sequence[Any] = ()
) -> Iterator[tuple[int, list[str]]]:
    rows = backend.query(
        f"SELECT seq, kind, content, payload FROM event WHERE (payload IS NOT NULL OR kind = 'snapshot') AND {where}",
        values,
    )
    for seq, kind, content, digest in rows:
        yield seq, backend.payloads.named_by(kind, content, digest)
