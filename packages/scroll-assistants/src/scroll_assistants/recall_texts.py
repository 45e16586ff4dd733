"""The texts that the tools of `scroll mcp` read and answer with: seqs, headings and quoted bodies.

An entry begins with its heading at the left margin, and each line of its body has a mark before it,
so no recorded text can look like an entry of its own.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scroll_context.errors import BadInput
from scroll_context.events import Event
from scroll_context.origin import NOT_SPOKEN, Origin, origin_of
from scroll_context.text.printable import printable
from scroll_context.text.words import clip

MAX_SEQS = 200
"""Seqs in one call of `expand`."""
NOTE = "note"
"""The kind of a note."""

_SPAN = re.compile(r"\s*(?:seq\s*)?(\d{1,18})(?:\s*(?:-|\u2013|to)\s*(\d{1,18}))?\s*")


def seqs_of(value: Any) -> list[int]:
    """The seqs in "12", "12,15", "12-20"; models also send numbers and lists."""
    parts = value if isinstance(value, list | tuple) else str(value).strip("[]() ").split(",")
    seqs: dict[int, None] = {}
    for part in parts:
        span = _SPAN.fullmatch(str(part))
        if span is None:
            raise BadInput(f'seqs are written "12", "12,15" or "12-20", not {str(part)[:80]!r}')
        first = int(span[1])
        last = int(span[2] or span[1])
        if len(seqs) + last - first >= MAX_SEQS:
            raise BadInput(
                f"expand takes at most {MAX_SEQS} seqs at once; "
                "take a part, or use `exec` with ms.expand"
            )
        seqs.update(dict.fromkeys(range(first, last + 1)))
    return list(seqs)


def span_of(events: Sequence[Event]) -> str:
    seqs = [event.seq for event in events]
    first, last = seqs[0], seqs[-1]
    if len(seqs) > 2 and seqs == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ",".join(map(str, seqs))


_HEADING_FIELDS = (
    "seq",
    "created_at",
    "role",
    "kind",
    "name",
    "session_id",
    "task_id",
    "source_key",
    "metadata",
)


def event_heading(event: Event, task: str) -> str:
    """The heading of an event."""
    return heading({name: getattr(event, name) for name in _HEADING_FIELDS}, task)


def heading(row: Mapping[str, Any], task: str = "") -> str:
    """One line with the seq, time, speaker, origin and session of an event, and with its project
    if that is not the task of the server.
    """
    at = row["created_at"][:16].replace("T", " ")
    project = f", project {row['task_id']}" if row["task_id"] not in ("", task) else ""
    place = f"(session {row['session_id']}{project})"
    parts = f"[{row['seq']}] {at} {_speaker(row)}{_origin(row)} {place}"
    return " ".join(printable(parts).split())


def _speaker(row: Mapping[str, Any]) -> str:
    """The role of a message. Anything else is named by its kind, so that no note or tool result
    looks like a message; a tool call has its tool.
    """
    kind = row["kind"]
    role = row["role"]
    is_message = role and kind != NOTE and kind not in NOT_SPOKEN
    words = (role if is_message else kind, row.get("name", ""))
    return " ".join(filter(None, words))


def _origin(row: Mapping[str, Any]) -> str:
    """The file or assistant that a foreign event was read from."""
    origin = origin_of(row.get("source_key", ""), row["metadata"])
    if origin not in (Origin.IMPORTED, Origin.CAPTURED):
        return ""
    source = on_one_line(str(row["metadata"].get(origin, "an unknown source")), 80)
    return f", {origin} from {source}"


def quoted(text: str) -> str:
    """A body with a mark before each line.

    An entry begins with its heading at the left margin, so no body can look like another entry.
    """
    return "\n".join(f"| {line}" for line in text.split("\n"))


def on_one_line(text: str, chars: int) -> str:
    return clip(printable(text), chars)
