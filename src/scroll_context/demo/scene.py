"""What happens on the stage while an agent works: one way of showing every event, and one for many events in a row.

Either way each event is also witnessed: the hash of its text is taken at the moment it is recorded, so that the end of
the demonstration can compare what the log gives back with what went in.
"""

import datetime as dt
import hashlib
from collections.abc import Callable
from pathlib import Path

from scroll_context.demo import script, world
from scroll_context.demo.cast import WINDOW
from scroll_context.demo.stage import Stage
from scroll_context.demo.tools import Office
from scroll_context.events import Event, Kind
from scroll_context.session.session import Session
from scroll_context.store.store import Store
from scroll_context.surface.toolbox import ToolUse
from scroll_context.view.eviction import Budget
from scroll_context.view.headline import parse_field
from scroll_context.view.working import EvictionPlan


class Scene:
    """The stage, the places on disk, and the witness."""

    def __init__(self, stage: Stage, folder: Path, book: Path) -> None:
        self.stage = stage
        self.folder = folder
        self.book = book
        self.office = Office(book)
        self.flights = world.flights("ZRH", "OPO", dt.date.fromisoformat(script.DAY))
        self.witness: dict[int, str] = {}  # seq -> hash of the text, taken when it was recorded

    @property
    def last_seq(self) -> int:
        """Of what was witnessed."""
        return max(self.witness)

    def watch(self, session: Session, show: Callable[[Event], None]) -> None:
        """Show what a session records from now on, and witness it."""

        def on_event(event: Event) -> None:
            text = session.store.log.text(event)
            self.witness[event.seq] = hashlib.sha256(text.encode()).hexdigest()
            show(event)

        session.on_event = on_event

    def confirm(self, use: ToolUse) -> bool:
        """Tools with effects ask first. The demonstration says yes, visibly."""
        self.stage.fact(f"? {use.name}({', '.join(map(str, use.arguments.values()))})  the user says: yes", "magenta")
        return True


class Whole:
    """Shows each cell, what its calls brought, and what it printed."""

    def __init__(self, scene: Scene, store: Store) -> None:
        self._stage = scene.stage
        self._log = store.log

    def __call__(self, event: Event) -> None:
        if event.kind == Kind.CELL:
            self._stage.cell(event.seq, event.content)
        elif event.kind == Kind.OBSERVATION:
            for call in self._log.span(event.reply_to or event.seq, event.seq):
                if call.kind == Kind.TOOL_RESULT and call.name.startswith(("search", "find")):
                    size = len(self._log.text(call).encode())
                    self._stage.fact(f"→ {call.name}: {size:,} bytes, kept whole at seq {call.seq}")
            self._stage.printed(event.content)
        elif event.kind == Kind.EVICTION:
            self._stage.fact(f"↓ {event.content}")


class Compact:
    """Shows each step as one line: what it did, and how full the window was when the model was asked."""

    def __init__(self, scene: Scene) -> None:
        self._stage = scene.stage
        self.requests = self.largest = self.folded = self.evicted = 0

    def __call__(self, event: Event) -> None:
        if event.kind == Kind.EVICTION:
            plan = EvictionPlan.from_metadata(event.metadata)
            self.folded += len(plan.folded)
            self.evicted += len(plan.evicted)
            lists = ((plan.folded, "folded"), (plan.evicted, "evicted"))
            parts = [f"{len(seqs)} {how}" for seqs, how in lists if seqs]
            self._stage.fact(f"↓ {', '.join(parts):<28} {plan.before:,} → {plan.after:,} tokens, by estimate")
        elif event.kind == Kind.CONVERSATION and event.role == "assistant":
            tokens = int(event.metadata["usage"]["input_tokens"])
            self.requests += 1
            self.largest = max(self.largest, tokens)
            headline = parse_field(event.headline)
            if headline is not None:
                self._stage.bar(headline.task, tokens, WINDOW, Budget(WINDOW).high)
