"""Handles of payloads: size, type and address of a body, which is loaded when asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scroll_context.errors import BadInput
from scroll_context.events import Event, Payload
from scroll_context.log.payloads import PayloadStore


class PayloadRef:
    """The base of every handle: where the body belongs, how large it is, and how it begins."""

    def __init__(self, event: Event, payload: Payload, payloads: PayloadStore) -> None:
        self.seq = event.seq
        self.preview = event.content
        self.size = payload.size
        self.media_type = payload.media_type
        self.digest = payload.digest
        self._payloads = payloads

    def __repr__(self) -> str:
        return f"<{type(self).__name__} seq={self.seq} {self.media_type} {self.size:,} bytes>"


class ToolResultRef(PayloadRef):
    """Text: a tool's result, a long message, a cell's complete output."""

    def text(self) -> str:
        return self._payloads.text(self.digest)

    def json(self) -> Any:
        try:
            return json.loads(self.text())
        except ValueError as error:
            raise BadInput(
                f"the payload of seq {self.seq} is not JSON ({error}); read it with .text()"
            ) from error

    def lines(self) -> Iterator[str]:
        """The lines, one at a time, without holding the complete text."""
        rest = ""
        for piece in self._payloads.text_pieces(self.digest):
            *lines, rest = (rest + piece).split("\n")
            yield from lines
        if rest:
            yield rest


class ArtifactRef(PayloadRef):
    """Bytes: an image, an archive, a generated file."""

    def bytes(self) -> bytes:
        return self._payloads.read(self.digest)

    def save_as(self, target: str | Path) -> Path:
        """Write the body to a new file."""
        self._payloads.save_as(self.digest, Path(target))
        return Path(target)


def ref(event: Event, payloads: PayloadStore) -> ToolResultRef | ArtifactRef | None:
    """The handle of an event's payload, or None when the body is inline."""
    if event.payload is None:
        return None
    kind = ToolResultRef if event.payload.is_text else ArtifactRef
    return kind(event, event.payload, payloads)
