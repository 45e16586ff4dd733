"""Handles for bodies that are too large to send into a cell: the host half, and the prelude.

An event whose body is a payload reaches a cell as a `ResultRef`: its address, size and type. The
prelude `handles` turns that into an object that loads the body when the cell asks for it.
"""

from importlib import resources

import msgspec

from scroll_context.events import Event
from scroll_context.kernel.protocol import Prelude


class ResultRef(msgspec.Struct, frozen=True):
    """Where a body is in the store, and what is known of it without loading it."""

    seq: int
    size: int
    media_type: str
    text: bool
    """Whether it reads as text (JSON included) or only as bytes."""
    preview: str


def ref_of(event: Event) -> ResultRef | None:
    """Where the body of an event is; None if its content is complete."""
    body = event.payload
    if body is None:
        return None
    return ResultRef(event.seq, body.size, body.media_type, body.is_text, event.content)


def handles_prelude() -> Prelude:
    """Lazy handles inside the kernel, for `ms` and for tools."""
    return Prelude("handles", prelude_source("handles_prelude", "scroll_context.tools"))


def prelude_source(name: str, package: str) -> str:
    """The source of a file that runs inside the kernel before the first cell."""
    return resources.files(package).joinpath(f"{name}.py").read_text("utf-8")
