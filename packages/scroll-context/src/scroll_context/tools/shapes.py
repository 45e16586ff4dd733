"""The shapes of tool results: what a model must know of a value before it writes a loop over it.

The first result of each type that a tool returns is described by its keys, types and lengths. The
description is recorded with the result, so a resumed session knows it, and an erasure of the result
removes it. `help(f)` shows it in the kernel. The listing stands with the variables at the end of a
request and not in the system prompt: it grows with the work, and a change at the beginning of a
request would make everything behind it expensive again.
"""

import threading
from typing import Any, NamedTuple

from scroll_context.events import Kind
from scroll_context.kernel.values import Pickled
from scroll_context.log.journal import Journal
from scroll_context.text.printable import printable
from scroll_context.text.words import clip

SHAPE_CHARS = 600
LINE_CHARS = 160
LISTING_CHARS = 1_000
KEYS = 12
KEY_CHARS = 40
DEPTH = 3
HEADING = "(shapes of tool results so far; help(f) has the complete text)"


def shape_text(value: Any) -> str:
    """The type, length and keys of a plain value, and those of its first items."""
    return clip(_shape(value, 0), SHAPE_CHARS)


def table_shape(table: Any) -> str:
    """The shape of a data frame, a series or an array."""
    columns = [printable(str(column)[:KEY_CHARS]) for column in getattr(table, "columns", ())]
    more = f" with columns {', '.join(columns[:KEYS])}" if columns else f" of {table.dtype}"
    return f"{type(table).__name__} of shape {table.shape}{more}"


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, Pickled):
        return value.shape or value.type
    kind = type(value).__name__
    if isinstance(value, str | bytes):
        return f"{kind} of length {len(value):,}"
    if isinstance(value, dict) and value and depth < DEPTH:
        fields = [
            f"{str(key)[:KEY_CHARS]!r}: {_shape(item, depth + 1)}"
            for key, item in list(value.items())[:KEYS]
        ]
        more = ", …" if len(value) > KEYS else ""
        return f"{kind} {{{', '.join(fields)}{more}}}"
    if isinstance(value, list | tuple) and value and depth < DEPTH:
        return f"{kind} of {len(value):,}: {_shape(value[0], depth + 1)}"
    if isinstance(value, dict | list | tuple):
        return f"{kind} of {len(value):,}"
    return kind


class _Observed(NamedTuple):
    """A shape, and the event of the first result that has it."""

    seq: int
    text: str


class ObservedShapes:
    """The first shape of each type that each tool of a session returned."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._erasure = -1
        # By the tool's name and the type of the result.
        self._shapes: dict[tuple[str, str], _Observed] = {}

    def facts(self, name: str, shape: str) -> dict[str, str]:
        """The metadata of a result: its shape, if it is the first of its type."""
        with self._lock:
            self._refresh()
            return {} if _key(name, shape) in self._shapes else {"shape": shape}

    def add(self, name: str, shape: str, seq: int) -> None:
        """Remember the shape of a recorded result."""
        with self._lock:
            self._shapes.setdefault(_key(name, shape), _Observed(seq, shape))

    def of(self, name: str) -> tuple[str, ...]:
        """The shapes that the results of a tool had."""
        with self._lock:
            self._refresh()
            return tuple(shape.text for (tool, _), shape in self._shapes.items() if tool == name)

    def listing(self) -> tuple[str, tuple[int, ...]]:
        """One line for each tool and type, the newest if there are many, and the seqs behind it."""
        with self._lock:
            self._refresh()
            observed = sorted(
                (shape.seq, f"{name}: {clip(shape.text, LINE_CHARS)}")
                for (name, _), shape in self._shapes.items()
            )
        room = LISTING_CHARS - len(HEADING)
        lines: list[str] = []
        seqs: list[int] = []
        for seq, line in reversed(observed):
            room -= len(line) + 1
            if room < 0:
                break
            lines.insert(0, line)
            seqs.insert(0, seq)
        return ("\n".join((HEADING, *lines)), tuple(seqs)) if lines else ("", ())

    def _refresh(self) -> None:
        """Read the shapes from the log: when they are first needed, and after an erasure."""
        erasure = self._journal.log.newest_erasure()
        if erasure == self._erasure:
            return
        self._erasure = erasure
        rows = self._journal.log.query(
            """SELECT seq FROM event WHERE session_id = ? AND kind = ? AND source_key IS NULL
            AND metadata LIKE '%"shape"%' ORDER BY seq""",
            [self._journal.session_id, str(Kind.TOOL_RESULT)],
        )
        self._shapes = {}
        for event in self._journal.log.get_many([seq for (seq,) in rows]):
            shape = event.metadata.get("shape")
            if isinstance(shape, str) and not (event.is_erased or event.is_foreign):
                self._shapes.setdefault(_key(event.name, shape), _Observed(event.seq, shape))


def _key(name: str, shape: str) -> tuple[str, str]:
    return name, shape.partition(" ")[0]
