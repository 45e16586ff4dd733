"""An agent at work, as a person watches it: what it says, its cells, what they printed, what was
evicted.

`Screen` is the only way to the console, and makes everything that it prints safe. `Watch` is told
of every event when it is recorded and of every piece of text as it arrives. It shows bounded parts;
the log has everything, and each cell is shown with its seq. It only looks on: nothing here changes
a session. `Consent` asks before a tool with effects runs.
"""

import re
import select
import sys
import threading
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from scroll_context.cli.output import forget_typed_keys, one_line, visible
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.tools.toolbox import ToolUse
from scroll_context.view.headline import without_headline

# Lines of a cell, and of its printed output.
LINES = 8
# Characters of a text shown on one line.
LINE = 160
# Characters of an argument that the user is asked about.
ASKED = 1_000
# The end of a partial reply that may turn out to be its headline.
_HELD = re.compile(r"\n*(?:⟦[^\n]*\s*)?\Z")


class Screen:
    """A console for foreign text: everything that it prints is made safe."""

    def __init__(self, console: Console | None = None, *, err: bool = False) -> None:
        self.console = console or Console(stderr=err, highlight=False, markup=False, emoji=False)

    def print(
        self,
        text: str = "",
        style: str = "",
        *,
        end: str = "\n",
        fit: bool = False,
        copy: bool = False,
    ) -> None:
        """Show a text.

        With `fit`, of each line only what the console has room for; with `copy`, unbroken lines.
        """
        overflow: Literal["ellipsis"] | None = "ellipsis" if fit else None
        styled = Text(visible(text), style=style)
        self.console.print(styled, end=end, no_wrap=fit, overflow=overflow, soft_wrap=copy)

    def markdown(self, text: str) -> None:
        """Render Markdown; links are printed as text, not as hyperlinks."""
        self.console.print(Markdown(visible(text), hyperlinks=False, code_theme="ansi_dark"))


class Watch:
    """Shows a session on a screen, as plain lines.

    With `stream`, replies appear as they are written.
    """

    def __init__(self, screen: Screen, *, stream: bool) -> None:
        self.screen = screen
        self._stream = stream
        # The visible text of the reply that is being written.
        self._arrived = ""
        # What arrived of it before the provider failed; an attempt after that begins again.
        self._repeated = ""
        # Text that may become the headline of a reply that is still being written.
        self._held = ""
        self._open_line = False
        # A call that outlived its cell may end while the next reply is written.
        self._lock = threading.RLock()

    def text(self, piece: str) -> None:
        """A piece of a reply.

        What may turn out to be its headline is held back, and so are line ends.
        """
        with self._lock:
            self._arrived += piece
            if self._repeated:
                if self._repeated.startswith(self._arrived):
                    return
                piece = self._behind_repeated()
            arrived = self._held + piece
            complete = _HELD.split(arrived, maxsplit=1)[0]
            self._held = arrived[len(complete) :]
            if complete:
                self._say(complete)

    def again(self) -> None:
        """The model is asked again: what it has said already is not shown twice."""
        with self._lock:
            self._repeated, self._arrived = self._repeated or self._arrived, ""

    def _behind_repeated(self) -> str:
        """The part of a repeated reply to show: only the continuation, or everything on a new line
        if the text differs.
        """
        repeated, self._repeated = self._repeated, ""
        if self._arrived.startswith(repeated):
            return self._arrived[len(repeated) :]
        self.end_line()
        self.screen.print("  · the reply starts again", "dim")
        return self._arrived

    def event(self, event: Event) -> None:
        """Show what was just recorded."""
        with self._lock:
            match event.kind:
                case Kind.CONVERSATION if event.role == "assistant":
                    self._reply(event)
                case Kind.CELL:
                    self._cell(event)
                case Kind.OBSERVATION:
                    failed = event.tool_state != "ok"
                    self._printed(
                        event, event.tool_state if failed else "", "red" if failed else "dim"
                    )
                case Kind.TOOL_RESULT if "inside_cell" in event.metadata:
                    size = event.payload.size if event.payload else len(event.content.encode())
                    called = f"{one_line(event.name, LINE)} {event.tool_state}"
                    self._line(f"  → {called} · {size:,} bytes · seq {event.seq}", "dim")
                case Kind.TOOL_RESULT:
                    called = f"{one_line(event.name, LINE)} {event.tool_state}"
                    self._line(f"  → {called}: {one_line(event.content, LINE)}", "dim")
                case Kind.NOTICE:
                    self._line(f"  · {one_line(event.content, 2 * LINE)}", "dim")
                case Kind.EVICTION:
                    self._line(f"  ↓ {one_line(event.content, LINE)}", "yellow")

    def end_line(self) -> None:
        """Finish what a reply left open, so that something else can be printed."""
        with self._lock:
            held, self._held = without_headline(self._held).rstrip(), ""
            if held:
                self._say(held)
            if self._open_line:
                self.screen.print()
                self._open_line = False

    def _say(self, text: str) -> None:
        self._open_line = True
        self.screen.print(text, end="")

    def _reply(self, event: Event) -> None:
        self._arrived = self._repeated = ""
        self.end_line()
        if not self._stream and event.metadata.get("tool_calls") and event.content.strip():
            self.screen.print(without_headline(event.content))

    def _cell(self, event: Event) -> None:
        source = event.content.rstrip("\n").split("\n")
        self._line(f"  cell {event.seq}", "cyan")
        for line in source[:LINES]:
            self._line(f"  › {line}", "dim")
        self._fold(len(source), "›", event.seq)

    def _printed(self, event: Event, title: str, style: str) -> None:
        lines = event.content.rstrip("\n").split("\n")
        if title:
            self._line(f"  {title}", style)
        for line in lines[:LINES]:
            self._line(f"  │ {line}", style)
        self._fold(len(lines), "│", event.seq)

    def _fold(self, lines: int, gutter: str, seq: int) -> None:
        if lines > LINES:
            self._line(f"  {gutter} … {lines - LINES:,} more lines at seq {seq}", "dim")

    def _line(self, line: str, style: str) -> None:
        self.end_line()
        self.screen.print(line, style, fit=True)


class Consent:
    """Asks the user before a tool with effects runs.

    If the user cannot be asked, the tool does not run.
    """

    def __init__(self, screen: Screen, mode: Literal["ask", "always", "never"]) -> None:
        # This flag ends the question.
        self.stopped = threading.Event()
        self._screen = screen
        self._mode = mode

    def __call__(self, use: ToolUse) -> bool:
        """Whether the call may run.

        Called in the thread of the call, while the main thread waits for the cell.
        """
        if self._mode == "never":
            raise BadInput(
                "there is no terminal for confirmation; --yes allows tools with side effects"
            )
        arguments = [f"{one_line(name)}={_spelt(value)}" for name, value in use.arguments.items()]
        call = f"{one_line(use.name)}({', '.join(arguments)})"
        if self._mode == "always":
            self._screen.print(f"  ! {call}", "magenta", copy=True)
            return True
        forget_typed_keys()
        self._screen.print(
            f"  ? {call} has side effects. Run it? [y/N] ", "magenta", end="", copy=True
        )
        answer = self._answer()
        if not answer.endswith("\n") or not sys.stdin.isatty():
            self._screen.print()
        return answer.strip().lower() in ("y", "yes")

    def _answer(self) -> str:
        """A line from the user; "" when the user stopped the work instead."""
        ready = not sys.stdin.isatty()
        while not ready:
            ready = bool(select.select([sys.stdin], [], [], 0.1)[0])
            # Keys typed from now on do not answer it.
            if self.stopped.is_set():
                return ""
        return sys.stdin.readline()


def _spelt(value: Any) -> str:
    """An argument as the user must see it before agreeing: complete, or with a count."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return (
        text if len(text) <= ASKED else f"{text[:ASKED]}… and {len(text) - ASKED:,} more characters"
    )
