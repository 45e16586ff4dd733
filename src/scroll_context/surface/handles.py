"""The host half of lazy handles: a body is read in pieces, by cells that hold its seq and may reach it."""

from typing import Any

from scroll_context.errors import BadInput
from scroll_context.events import Grant
from scroll_context.kernel.results import CapabilityResult
from scroll_context.store.store import Store
from scroll_context.surface.checks import whole_number

PIECE = 4 << 20  # bytes sent to the kernel at once


def read_payload(store: Store, grant: Grant, seq: Any, start: Any = 0) -> CapabilityResult:
    """A piece of the body of an event within reach, and whether more follows."""
    event = store.log.get(whole_number(seq, "seq", 1), grant)
    if event.payload is None:
        raise BadInput(f"seq {event.seq} has no payload; its whole text is its content")
    at = whole_number(start, "start", 0)
    piece = store.payloads.piece(event.payload.digest, at, PIECE)
    return CapabilityResult({"piece": piece, "more": at + len(piece) < event.payload.size}, (event.seq,))
