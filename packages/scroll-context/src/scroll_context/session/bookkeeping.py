"""The metadata that this program itself writes, in the shape in which it writes it.

Metadata of any shape can stand in a log: a program that appends events chooses it, an older or
newer version may have written it, and a bit may have flipped. Whoever looks at a session afterwards
reads events through `well_formed`, so that a value of another shape counts as missing.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from scroll_context.events import Event

_Count = Annotated[int, Meta(ge=0, le=1 << 53)]


class _Tool(msgspec.Struct):
    name: str


_SHAPES: dict[str, Any] = {
    "usage": dict[str, _Count],
    "cost": Annotated[float, Meta(ge=0, le=1e12)] | None,
    "tokens": _Count,
    "window": _Count,
    "bytes": _Count,
    "tools": list[_Tool],
    "tool_calls": list[dict[str, Any]],
    "thinking": list[dict[str, Any]],
    "bound": list[str],
    "lost": list[str],
    "inside_cell": Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None,
    "at_seq": Annotated[int, Meta(ge=0, le=(1 << 63) - 1)],
    "session_id": str,
    "settings": dict[str, Any],
    "context": str,
    "digest": str,
    "hash": str,
    "plan": dict[str, Any],
    "model": str,
}


def well_formed(event: Event) -> Event:
    """The event without the metadata that has not the shape in which this program writes it."""
    misshapen = [
        name for name in event.metadata if name in _SHAPES and not _fits(name, event.metadata[name])
    ]
    if not misshapen:
        return event
    return replace(
        event,
        metadata={name: value for name, value in event.metadata.items() if name not in misshapen},
    )


def _fits(name: str, value: Any) -> bool:
    try:
        msgspec.convert(value, _SHAPES[name])
    except msgspec.ValidationError:
        return False
    return True
