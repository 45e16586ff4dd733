"""The environment of a session: a kernel, and everything that code in it may reach.

It runs one cell at a time and answers the cell's calls: `ms.*` from recall, tools from the toolbox,
`ask` from a model. Every call is checked on this side of the wire; the kernel is never trusted.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from scroll_context.events import Event, source_facts
from scroll_context.jail.spec import JailSpec
from scroll_context.kernel.broker import MOST_SEQS
from scroll_context.kernel.kernel import Kernel, KernelOptions
from scroll_context.kernel.protocol import Prelude
from scroll_context.kernel.results import (
    CapabilityCall,
    CapabilityResult,
    CellResult,
    observation,
)
from scroll_context.log.journal import Journal
from scroll_context.recall.memory import Memory, memory_prelude
from scroll_context.session.context import Actions
from scroll_context.session.variables import Blobs, SessionVariables
from scroll_context.tools.ask import Ask
from scroll_context.tools.handles import handles_prelude
from scroll_context.tools.toolbox import Toolbox

MOST_GIVEN = 100
"""Entries in what a call records of the events that its cell was given before it."""


class _EventsGiven:
    """The events that the running cell was given so far: its next call may be made from them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seqs: set[int] = set()
        self._unknown = False

    def add(self, result: CapabilityResult) -> None:
        with self._lock:
            self._unknown |= result.unknown
            if len(self._seqs) < MOST_SEQS:
                self._seqs.update(result.seqs)
            else:
                self._unknown |= bool(result.seqs)

    def so_far(self) -> dict[str, Any]:
        """The metadata of a call's event about them."""
        with self._lock:
            return source_facts("seqs", self._seqs, MOST_GIVEN, unknown=self._unknown)


class Environment:
    """Owns the kernel of a session and its variables.

    `close` ends both; saved variables can be restored into another kernel.
    """

    def __init__(
        self,
        journal: Journal,
        toolbox: Toolbox,
        memory: Memory,
        ask: Ask | None,
        *,
        actions: Actions,
        jail: JailSpec | None = None,
        options: KernelOptions | None = None,
        packages: tuple[str, ...] = (),
    ) -> None:
        self.journal = journal
        self.toolbox = toolbox
        self.memory = memory
        self.ask = ask
        self.actions = actions
        self._cell_seq = 0
        self._given = _EventsGiven()
        options = options or KernelOptions()
        self._call_seconds = options.call_seconds
        blobs = Blobs(journal.log.payloads)
        self.kernel = Kernel(
            self._dispatch,
            preludes=self._preludes(),
            blobs=blobs,
            spec=jail,
            options=replace(
                options, packages=(*options.packages, *packages), call_seconds=self._longest_call()
            ),
        )
        self.variables = SessionVariables(self.kernel, journal, blobs)

    def start(self) -> None:
        """Start the kernel, if the model writes cells at all."""
        if self.actions.exec:
            self.kernel.start()

    def variable_list(self) -> str:
        """The variables and the shapes of tool results, for the end of the newest message.

        It is "" if there are no cells.
        """
        if not self.actions.exec:
            return ""
        shapes, _ = self.toolbox.shapes.listing()
        return "\n".join(filter(None, (self.variables.list_text(), shapes)))

    def origin_of_variable_list(self) -> dict[str, Any]:
        """The metadata of a request about the events that its variable list was made from."""
        _, results = self.toolbox.shapes.listing()
        return self.variables.cells_behind_list(results)

    def run(self, source: str, cell: Event, timeout: float) -> tuple[CellResult, str]:
        """Run a cell whose event is already recorded.

        Returns its result, and the text that the model is shown of it. The calls that the cell
        makes are recorded as made inside it.
        """
        self.variables.wait_for_save()
        self._cell_seq = cell.seq
        self._given = _EventsGiven()
        self.memory.begin_cell()
        self.variables.list_again()
        calls_before = self.toolbox.started
        result = self.kernel.execute(source, timeout, event=cell.seq)
        self.variables.save_after(cell.seq)
        text = observation(result, self.toolbox.started - calls_before)
        text += "".join(f"\n[note] {note}" for note in self.memory.notes)
        return result, text

    def tools_changed(self) -> None:
        """Let the cells have the tools that the toolbox has now."""
        self.kernel.replace_preludes(self._preludes(), self._longest_call())
        self.variables.list_again()

    def close(self) -> None:
        """Save what may have changed without a cell, then end the kernel."""
        # Each part is closed, whatever happens to the others.
        with contextlib.ExitStack() as parts:
            parts.callback(self.memory.close)
            parts.callback(self.kernel.close)
            parts.callback(self.variables.close)

    def _longest_call(self) -> float:
        """Seconds that a call of a cell may take: a little more than the slowest tool may take."""
        limits = [tool.limits.timeout for tool in self.toolbox.tools.values()]
        return max([self._call_seconds, *(limit + 5 for limit in limits if limit)])

    def _preludes(self) -> tuple[Prelude, ...]:
        preludes = [handles_prelude(), self.toolbox.prelude()]
        if self.actions.ms:
            preludes.append(memory_prelude())
        if self.ask is not None:
            preludes.append(self.ask.prelude())
        return tuple(preludes)

    def _dispatch(self, call: CapabilityCall) -> CapabilityResult:
        """Answer a call of a cell.

        The name and the arguments are whatever the kernel process sent.
        """
        events = self._given
        kind, _, name = call.capability.partition(".")
        if not call.cell and kind in ("tools", "ask"):
            # These answer the running cell only. Reading history and payloads is harmless.
            call.work.stop()
        if kind == "tools":
            # Its result need not be noted as given: it is an event of this cell, and so is every
            # call after it.
            outcome = self.toolbox.call(
                name,
                call.args,
                call.kwargs,
                cell_seq=self._cell_seq,
                deadline=call.deadline,
                given=events.so_far(),
                work=call.work,
            )
            return CapabilityResult(outcome.for_cell(), (outcome.result_seq,))
        result = self._read(call, kind, events)
        events.add(result)
        return result

    def _read(self, call: CapabilityCall, kind: str, events: _EventsGiven) -> CapabilityResult:
        if kind == "payload" or (kind == "ms" and self.actions.ms):
            return self.memory.answer(call)
        methods: Mapping[str, Callable[..., CapabilityResult]] = {}
        if kind == "ask" and self.ask is not None:
            methods = self.ask.methods(self._cell_seq, call.work, events.so_far())
        if call.capability not in methods:
            raise NameError(f"the host offers no capability {call.capability!r}")
        return methods[call.capability](*call.args, **call.kwargs)
