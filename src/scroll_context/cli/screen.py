"""An agent at work, as a person watches it: what it says, its cells, what they printed, what was evicted.

`Screen` is the only way to the console, and makes everything that it prints safe. `Watch` is told of every event when
it is recorded and of every piece of text as it arrives. It shows bounded parts; the log has everything, and each cell
is shown with its seq. It only looks on: nothing here changes a session. `Consent` asks before a tool with effects runs.
"""

import contextlib
import itertools
import re
import select
import sys
import termios
import threading
import time
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax
from rich.text import Text

from scroll_context.cli.output import erasers, one_line, visible
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.surface.toolbox import ToolUse
from scroll_context.view.headline import without_headline

LINES = 8  # of a cell, and of what it printed
LINE = 160  # characters of a text shown on one line
ASKED = 1_000  # characters of an argument that the user is asked about
TICK = 0.1  # seconds between two pictures of what is going on
PICTURES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ERASE = "\r\x1b[2K"
_HELD = re.compile(r"\n*(?:⟦[^\n]*\s*)?\Z")  # of a reply so far, what may turn out to be its headline
_FENCE = re.compile(r" {0,3}(```|~~~)")


class Screen:
    """A console for foreign text, with a line that says what is going on while nothing else is printed.

    `lively` is whether that line, Markdown and highlighted code make sense here: not where output is no terminal, and
    not on one that is dumb.
    """

    def __init__(self, console: Console | None = None, *, err: bool = False) -> None:
        self.console = console or Console(stderr=err, highlight=False, markup=False, emoji=False)
        self.lively = self.console.is_terminal and not self.console.is_dumb_terminal
        self._lock = threading.RLock()
        self._open_line = False  # something was printed without the end of its line
        self._doing, self._since = "", 0.0
        self._drawn = False
        self._idle = threading.Event()  # set to end the thread that draws

    def print(self, text: str = "", style: str = "", *, end: str = "\n", fit: bool = False, copy: bool = False) -> None:
        """Show a text. With `fit`, of each line only what the console has room for; with `copy`, unbroken lines."""
        self.show(Text(visible(text), style=style), end=end, fit=fit, copy=copy)

    def markdown(self, text: str) -> None:
        """Show Markdown as it is meant to look; links are shown and not made."""
        self.show(Markdown(visible(text), hyperlinks=False, code_theme="ansi_dark"))

    def code(self, gutter: str, source: str) -> None:
        """Lines of Python behind a gutter."""
        python = Syntax("", "python", theme="ansi_dark", background_color="default")
        for line in python.highlight(visible(source)).split():
            self.show(Text.assemble((gutter, "cyan"), line), fit=True)

    def show(self, made: Text | Markdown, *, end: str = "\n", fit: bool = False, copy: bool = False) -> None:
        """Print what rich has made of a text that is safe."""
        with self._lock:
            self._erase()
            self.console.print(made, end=end, no_wrap=fit, overflow="ellipsis" if fit else None, soft_wrap=copy)
            self._open_line = not end.endswith("\n")

    def busy(self, doing: str) -> None:
        """Say what is going on, and for how long, until something else is; "" is nothing."""
        with self._lock:
            if doing == self._doing or not self.lively:
                return
            started, self._doing, self._since = bool(self._doing), doing, time.monotonic()
            if not doing:
                self._idle.set()
                self._erase()
                erasers.remove(self._erase)
            elif not started:
                erasers.append(self._erase)
                self._idle = threading.Event()
                threading.Thread(target=self._draw, args=(self._idle,), daemon=True).start()

    def _draw(self, idle: threading.Event) -> None:
        for picture in itertools.cycle(PICTURES):
            with self._lock:
                if idle.is_set():
                    return
                if not self._open_line:
                    seconds = int(time.monotonic() - self._since)
                    room = self.console.width - 14
                    text = f"{picture} {one_line(self._doing)[:room]}" + (f" {seconds:,} s" if seconds else "")
                    self.console.file.write(f"{ERASE}{text}")
                    self.console.file.flush()
                    self._drawn = True
            idle.wait(TICK)

    def _erase(self) -> None:
        with self._lock:
            if self._drawn:
                self.console.file.write(ERASE)
                self.console.file.flush()
                self._drawn = False


class Watch:
    """Shows a session on a screen. With `stream`, replies appear as they are written.

    Where the screen is lively, a reply is Markdown, shown paragraph by paragraph as each is complete.
    """

    def __init__(self, screen: Screen, *, stream: bool) -> None:
        self.screen = screen
        self._stream = stream
        self._arrived = ""  # of the reply that is being written
        self._repeated = ""  # what arrived of it before the provider failed; an attempt after that begins anew
        self._held = ""  # what may be the headline of a reply that is still being written
        self._paragraph = ""  # of Markdown, what is not complete yet
        self._open_line = False
        self._lock = threading.RLock()  # a call that outlived its cell may end while the next reply is written

    def text(self, piece: str) -> None:
        """A piece of a reply. What may turn out to be its headline is held back, and so are line ends."""
        with self._lock:
            self._arrived += piece
            if self._repeated:
                if self._repeated.startswith(self._arrived):
                    return
                piece = self._behind_repeated()
            arrived = self._held + piece
            said = _HELD.split(arrived, maxsplit=1)[0]
            self._held = arrived[len(said) :]
            if said:
                self._say(said)

    def again(self) -> None:
        """The model is asked again: what it has said already is not shown twice."""
        with self._lock:
            self._repeated, self._arrived = self._repeated or self._arrived, ""

    def _behind_repeated(self) -> str:
        """What is new in a reply that was begun twice: all of it, on a new line, where it says something else."""
        repeated, self._repeated = self._repeated, ""
        if self._arrived.startswith(repeated):
            return self._arrived[len(repeated) :]
        self.end_line()
        self.screen.print("  · the reply begins anew", "dim")
        return self._arrived

    def event(self, event: Event) -> None:
        """Show what was just recorded."""
        with self._lock:
            match event.kind:
                case Kind.REQUEST:
                    self.screen.busy("thinking")
                case Kind.CONVERSATION if event.role == "assistant":
                    self._reply(event)
                case Kind.CELL:
                    self._cell(event)
                case Kind.OBSERVATION:
                    self.screen.busy("")
                    failed = event.tool_state != "ok"
                    self._printed(event, event.tool_state if failed else "", "red" if failed else "dim")
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
            if self._paragraph.strip():
                self.screen.markdown(self._paragraph)
            self._paragraph = ""
            if self._open_line:
                self.screen.print()
                self._open_line = False

    def _say(self, said: str) -> None:
        if not self.screen.lively:
            self._open_line = True
            self.screen.print(said, end="")
            return
        complete, self._paragraph = paragraphs(self._paragraph + said)
        if complete.strip():
            self.screen.markdown(complete)
        self.screen.busy("writing")

    def _reply(self, event: Event) -> None:
        self._arrived = self._repeated = ""
        self.end_line()
        self.screen.busy("")
        if not self._stream and event.metadata.get("tool_calls") and event.content.strip():
            self.screen.print(without_headline(event.content))

    def _cell(self, event: Event) -> None:
        source = event.content.rstrip("\n").split("\n")
        self._line(f"  cell {event.seq}", "cyan")
        if self.screen.lively:
            self.screen.code("  › ", "\n".join(source[:LINES]))
        else:
            for line in source[:LINES]:
                self._line(f"  › {line}", "dim")
        self._fold(len(source), "›", event.seq)
        self.screen.busy(f"running cell {event.seq}")

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


def paragraphs(text: str) -> tuple[str, str]:
    """Markdown so far, as what is complete and what may still grow: the paragraph or block of code at its end."""
    complete, at, fenced = 0, 0, False
    for line in text.splitlines(keepends=True):
        at += len(line)
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not line.strip() and line.endswith("\n"):
            complete = at
    return text[:complete], text[complete:]


class Consent:
    """Asks the user before a tool with effects runs. Whatever keeps the user from answering, nothing runs then."""

    def __init__(self, screen: Screen, mode: Literal["ask", "always", "never"]) -> None:
        self.stopped = threading.Event()  # set to end the asking
        self._screen = screen
        self._mode = mode

    def __call__(self, use: ToolUse) -> bool:
        """Whether the call may run. Called in the thread of the call, while the main thread waits for the cell."""
        if self._mode == "never":
            raise BadInput("nobody is there to be asked; tools with effects run unasked only with --yes")
        call = f"{one_line(use.name)}({', '.join(f'{one_line(n)}={_spelt(v)}' for n, v in use.arguments.items())})"
        self._screen.busy("")
        if self._mode == "always":
            self._screen.print(f"  ! {call}", "magenta", copy=True)
            return True
        with contextlib.suppress(termios.error, ValueError, OSError):  # where no terminal is, nothing was typed ahead
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
        self._screen.print(f"  ? {call} has effects. Run it? [y/N] ", "magenta", end="", copy=True)
        answer = self._answer()
        if not answer.endswith("\n") or not sys.stdin.isatty():
            self._screen.print()
        return answer.strip().lower() in ("y", "yes")

    def _answer(self) -> str:
        """A line from the user; "" when the user stopped the work instead."""
        ready = not sys.stdin.isatty()
        while not ready:
            ready = bool(select.select([sys.stdin], [], [], 0.1)[0])
            if self.stopped.is_set():  # what is typed from now on is no answer
                return ""
        return sys.stdin.readline()


def _spelt(value: Any) -> str:
    """An argument as the user must see it before agreeing: whole, or with what is missing counted."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= ASKED else f"{text[:ASKED]}… and {len(text) - ASKED:,} more characters"
