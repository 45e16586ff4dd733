"""An agent at work, as a person watches it: what it says, its cells, what they printed, what left the view.

`Watch` is told of every event when it is recorded and of every piece of text as it arrives. It shows bounded parts;
the log has everything, and each cell is shown with its seq. All of it is foreign text, printed so that it cannot steer
the terminal. It only looks on: nothing here changes a session.
"""

import select
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from scroll_context.cli.output import one_line, visible
from scroll_context.events import Event, Kind
from scroll_context.store.store import Store
from scroll_context.surface.toolbox import ToolUse
from scroll_context.view.headline import parse_reply

LINES = 14  # of a cell, and of what it printed
ARGUMENTS = 160  # characters of a call
_FENCE = "⟦"


def without_headline(text: str) -> str:
    """A reply as it is meant for the user: the headline on its last line is for the index."""
    return text.rstrip().rpartition(_FENCE)[0].rstrip() if parse_reply(text) else text


class Watch:
    """Shows a session on a console. With `stream`, replies appear as they are written."""

    def __init__(self, console: Console, store: Store, *, stream: bool) -> None:
        self._console = console
        self._store = store
        self._stream = stream
        self._held = ""  # what may be the headline of a reply that is still being written
        self._open_line = False

    def text(self, piece: str) -> None:
        """A piece of a reply. From a fence on it is held back: it may be the headline."""
        said, fence, rest = piece.partition(_FENCE) if not self._held else ("", "", piece)
        self._held += fence + rest
        if said:
            self._open_line = True
            self._console.print(Text(visible(said)), end="")

    def event(self, event: Event) -> None:
        """Show what was just recorded."""
        match event.kind:
            case Kind.CONVERSATION if event.role == "assistant":
                self._reply(event)
            case Kind.CELL:
                self._block(f"cell {event.seq}", event.content, "›", "cyan")
            case Kind.OBSERVATION:
                self._printed(event)
            case Kind.TOOL_RESULT:
                self._say(f"  → {event.name} {event.tool_state}: {one_line(event.content, ARGUMENTS)}", "dim")
            case Kind.NOTICE:
                self._say(f"  · {one_line(event.content, 2 * ARGUMENTS)}", "dim")
            case Kind.EVICTION:
                self._say(f"  ↓ {event.content}", "yellow")

    def end_line(self) -> None:
        """Finish the line that a reply left open, so that something else can be printed."""
        if self._held:
            if not parse_reply(self._held):
                self._console.print(Text(visible(self._held)), end="")
                self._open_line = True
            self._held = ""
        if self._open_line:
            self._console.print()
            self._open_line = False

    def _reply(self, event: Event) -> None:
        self.end_line()
        if not self._stream and event.metadata.get("tool_calls") and event.content.strip():
            self._say(visible(without_headline(event.content)), "")

    def _printed(self, event: Event) -> None:
        for call in self._store.log.span(event.reply_to or event.seq, event.seq):
            if call.kind == Kind.TOOL_RESULT and call.metadata.get("inside_cell") == event.reply_to:
                size = call.payload.size if call.payload else len(call.content.encode())
                self._say(f"  → {call.name} {call.tool_state} · {size:,} bytes · seq {call.seq}", "dim")
        failed = event.tool_state != "ok"
        self._block("" if not failed else event.tool_state, event.content, "│", "red" if failed else "dim")

    def _block(self, title: str, text: str, gutter: str, style: str) -> None:
        """A few lines behind a gutter, each cut to the width of the console."""
        lines = visible(text).rstrip("\n").split("\n")
        if title:
            self._say(f"  {title}", style)
        for line in lines[:LINES]:
            self._say(f"  {gutter} {line}", "dim" if style == "cyan" else style)
        if len(lines) > LINES:
            self._say(f"  {gutter} … {len(lines) - LINES:,} more lines", "dim")

    def _say(self, line: str, style: str) -> None:
        self.end_line()
        self._console.print(Text(line, style=style), no_wrap=True, overflow="ellipsis")


class Consent:
    """Asks the user before a tool with effects runs. `stopped` ends the asking; without an answer nothing runs."""

    def __init__(self, console: Console, *, always: bool) -> None:
        self.stopped = threading.Event()
        self._console = console
        self._always = always

    def __call__(self, use: ToolUse) -> bool:
        """Whether the call may run. Called in the thread of the call, while the main thread waits for the cell."""
        call = f"{use.name}({', '.join(f'{name}={_short(value)}' for name, value in use.arguments.items())})"
        if self._always:
            self._console.print(Text(f"  ! {visible(call)}", style="magenta"))
            return True
        if not sys.stdin.isatty() and not sys.stdin.readable():
            return False
        self._console.print(Text(f"  ? {visible(call)} has effects. Run it? [y/N] ", style="magenta"), end="")
        allowed = self._line().strip().lower() in ("y", "yes")
        if not sys.stdin.isatty():
            self._console.print()
        return allowed

    def _line(self) -> str:
        if sys.stdin.isatty():
            while not select.select([sys.stdin], [], [], 0.1)[0]:
                if self.stopped.is_set():
                    return ""
        return sys.stdin.readline()


def _short(value: Any) -> str:
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= ARGUMENTS else text[: ARGUMENTS - 1] + "…"


Show = Callable[[Event], None]
