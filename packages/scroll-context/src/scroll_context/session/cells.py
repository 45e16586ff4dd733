"""Cells: the Python that a model runs, and the record of what it showed.

The source is an event before it runs, and the printed output another one before the model reads
it. Cells that recall history, and their output, are marked as echoes, which search never returns
in place of the original.
"""

import ast
import contextlib
import re
import threading
import time
import unicodedata
from collections.abc import Iterator
from typing import Any

from scroll_context.background import in_thread
from scroll_context.errors import QuotaReached
from scroll_context.events import Event, Kind, packed_seqs
from scroll_context.kernel.cell_source import PARSED_CHARS
from scroll_context.kernel.results import UNKNOWN_SEQ, CellResult
from scroll_context.log.journal import Journal
from scroll_context.log.rows import INLINE_LIMIT
from scroll_context.messages import ToolCall
from scroll_context.session.environment import Environment

MAX_LISTED = 1_000
"""Names that a cell bound, and entries for the events it was given, in its observation."""

_MS = re.compile(r"\bms\b")


class Cells:
    """Runs the cells of a session, one after the other, and records them."""

    def __init__(self, journal: Journal, environment: Environment) -> None:
        self._journal = journal
        self._environment = environment
        # A token for each cell that runs, or is about to.
        self._under_way: set[object] = set()
        # Threads run their cells one after the other.
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """A context in which a cell runs or is about to run; `interrupt_soon` waits for it."""
        token = object()
        self._under_way.add(token)
        try:
            yield
        finally:
            self._under_way.discard(token)

    def run(self, source: str, call_id: str, name: str, timeout: float, *, echo: bool) -> Event:
        """Run a cell and return its observation, or a refusal if the quota is reached."""
        with self.under_way(), self._turn:
            try:
                self._journal.require_room()
            except QuotaReached as error:
                return answer_call(
                    self._journal, ToolCall(call_id, name), f"not run: {error}", "refused"
                )
            metadata: dict[str, Any] = {"echo": True} if echo or recalls(source) else {}
            if self._environment.actions.exec:
                metadata |= self._environment.variables.cells_behind(source)
            draft = self._journal.draft(
                Kind.CELL,
                role="assistant",
                name=name,
                tool_call_id=call_id,
                content=source,
                metadata=metadata,
            )
            cell = self._journal.append(draft)
            result, text = self._environment.run(source, cell, timeout)
            return self._record_observation(cell, result, text, echo)

    def _record_observation(self, cell: Event, result: CellResult, text: str, echo: bool) -> Event:
        body: bytes | str | None = None
        if result.is_cut:
            body = result.printed
        elif len(text) > INLINE_LIMIT // 4 and len(text.encode()) > INLINE_LIMIT:
            # The text is shown completely, and is too long for a row alone.
            body = text
        bound = list(result.bound[:MAX_LISTED])
        seqs = [seq for seq in result.seqs if seq != UNKNOWN_SEQ]
        metadata: dict[str, Any] = {"bound": bound, "seqs": packed_seqs(seqs, MAX_LISTED)}
        if UNKNOWN_SEQ in result.seqs:
            # It was given events that cannot be named, too.
            metadata["unknown"] = True
        if self._environment.memory.calls or echo or cell.metadata.get("echo"):
            metadata["echo"] = True
        draft = self._journal.draft(
            Kind.OBSERVATION,
            role="tool",
            name=cell.name,
            tool_call_id=cell.tool_call_id,
            reply_to=cell.seq,
            content=text,
            tool_state=result.ended,
            metadata=metadata,
        )
        return self._journal.append(draft, body=body)

    def interrupt_soon(self) -> None:
        """Stop the current cell, or one that is about to begin. Does not wait."""

        def interrupt() -> None:
            while self._under_way and not self._environment.kernel.interrupt():
                time.sleep(0.01)

        in_thread(interrupt, "interrupt")


def answer_call(journal: Journal, call: ToolCall, text: str, state: str) -> Event:
    """Record a result for a call that neither the kernel nor the toolbox carries out."""
    draft = journal.draft(
        Kind.TOOL_RESULT,
        role="tool",
        name=call.name,
        tool_call_id=call.id,
        content=text,
        tool_state=state,
    )
    return journal.append(draft)


def recalls(source: str) -> bool:
    """Whether a cell uses `ms`.

    Its output may then repeat history, and must never be found instead of that. A source that is
    too long to be parsed here uses `ms` if the word occurs in it.
    """
    if len(source) > PARSED_CHARS:
        return _MS.search(unicodedata.normalize("NFKC", source)) is not None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "ms" and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Import) and any(alias.name == "ms" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "ms":
            return True
    return False
