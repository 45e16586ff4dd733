"""Where the demonstration is shown: a terminal of 80 columns."""

import textwrap
import time

from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from scroll_context.demo.script import WINDOW
from scroll_context.events import Event
from scroll_context.view.eviction import Budget

WIDTH = 80
BAR = 30
# Lines of printed output that are shown.
LINES = 9


class Stage:
    """Shows a story line by line, with pauses if `paced`, and counts claims that are false."""

    def __init__(self, console: Console, *, paced: bool) -> None:
        self.failures = 0
        self._console = console
        self._paced = paced
        self._python = Syntax("", "python", theme="ansi_dark", background_color="default")

    def act(self, title: str, *lines: str) -> None:
        """A new section, and a few lines that introduce it."""
        self._console.print()
        self._console.print(Rule(Text(title, style="bold"), align="left", style="cyan"))
        for line in lines:
            self.line(line, "cyan", 0.3)

    def says(self, who: str, text: str) -> None:
        """A message of the user or of the agent."""
        first, *others = textwrap.wrap(text, WIDTH - 6)
        style = "bold green" if who == "user" else "bold magenta"
        self._console.print(Text.assemble((f"{who:<6}", style), first))
        for line in others:
            self.line(f"      {line}", "", 0.2)

    def cell(self, event: Event) -> None:
        """The source of a cell, with its address."""
        for number, line in enumerate(self._python.highlight(event.content).split()):
            mark = Text(f"{'' if number else event.seq:>4} › ", style="cyan")
            self._console.print(mark + line, no_wrap=True, overflow="ellipsis")

    def printed(self, text: str) -> None:
        lines = text.splitlines()
        more = [f"… {len(lines) - LINES} more lines"] if len(lines) > LINES else []
        for line in [*lines[:LINES], *more]:
            self.fact(f"│ {line}", "dim")

    def bar(self, label: str, tokens: int) -> None:
        """How full the window was, with the high mark."""
        full = round(BAR * min(tokens / WINDOW, 1))
        high = round(BAR * Budget(WINDOW).high)
        empty = "".join("┊" if at == high else "░" for at in range(full, BAR))
        bar = ("█" * full + empty, "red" if full >= high else "green")
        line = Text.assemble(f"     {label[:30]:<31}", bar, f" {tokens:>6,}")
        self._console.print(line, no_wrap=True)

    def check(self, claim: str, holds: bool) -> None:
        """A claim and whether it is true."""
        if holds:
            self.line(f"  ✓  {claim}", "green", 0.12)
        else:
            self.failures += 1
            self.line(f"  ✗  {claim}", "bold red", 0.12)

    def fact(self, text: str, style: str = "yellow") -> None:
        self.line(f"     {text}", style)

    def line(self, text: str, style: str = "", pause: float = 0.05) -> None:
        self._console.print(Text(text, style=style), no_wrap=True, overflow="ellipsis")
        if self._paced:
            time.sleep(pause)
