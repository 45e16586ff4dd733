"""Where the demonstration is shown: sections, cells, bars and checked claims, in 80 columns, with or without pauses.

It also keeps the score: a claim that turns out false is shown as such and counted, so that the demonstration cannot
end well when one of its sentences was not true. `ShowCells` and `ShowSteps` are two ways of showing the events of an
agent at work: each cell with what it printed, or each step as one line.
"""

import textwrap
import time

from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from scroll_context.events import Event, Kind
from scroll_context.store.store import Store
from scroll_context.view.eviction import Budget
from scroll_context.view.headline import parse_field
from scroll_context.view.working import EvictionPlan

WIDTH = 80
BAR = 30
LINES = 9  # of what a cell printed
_MARGIN = " " * 6  # under the name of who speaks


class Stage:
    """One console. `paced` makes it readable for a person; tests do without."""

    def __init__(self, console: Console, *, paced: bool) -> None:
        self.paced = paced
        self.failures = 0
        self._console = console
        self._column = 0  # of the line that the model is speaking on; 0 when it is not
        self._word = ""  # the beginning of a word that is still arriving
        self._python = Syntax("", "python", theme="ansi_dark", background_color="default")

    def pause(self, seconds: float) -> None:
        if self.paced:
            time.sleep(seconds)

    def act(self, title: str, *lines: str) -> None:
        """A new section, and a few lines that say what is to be seen in it."""
        self.end_line()
        self._console.print()
        self._console.print(Rule(Text(title, style="bold"), align="left", style="cyan"))
        self.tell(*lines)
        self.pause(0.4)

    def tell(self, *lines: str) -> None:
        for line in lines:
            self._print(line, "cyan")
        self.pause(0.1 * len(lines))

    def user(self, text: str) -> None:
        """What the user asks."""
        self.end_line()
        first, *others = textwrap.wrap(text, WIDTH - len(_MARGIN))
        self._console.print(Text.assemble((f"{'user':<{len(_MARGIN)}}", "bold green"), first))
        for line in others:
            self._console.print(Text(_MARGIN + line))
        self.pause(0.3)

    def speak(self, piece: str) -> None:
        """A piece of what the model answers, as it arrives; broken into lines between words."""
        if not self._column:
            self._console.print(Text(f"{'agent':<{len(_MARGIN)}}", style="bold magenta"), end="")
            self._column = len(_MARGIN)
        *words, self._word = (self._word + piece).split(" ")
        for word in words:
            self._write(word)

    def cell(self, seq: int, source: str) -> None:
        """The source of a cell, with its address."""
        self.end_line()
        for number, line in enumerate(self._python.highlight(source).split()):
            mark = Text(f"{seq:>4} › " if number == 0 else "     › ", style="cyan")
            self._console.print(mark + line, no_wrap=True, overflow="ellipsis")
        self.pause(0.15)

    def printed(self, text: str) -> None:
        lines = text.splitlines()
        for line in lines[:LINES]:
            self._print("     │ " + line, "dim")
        if len(lines) > LINES:
            self._print(f"     │ … {len(lines) - LINES} more lines", "dim")
        self.pause(0.2)

    def fact(self, text: str, style: str = "yellow") -> None:
        self._print(f"     {text}", style)
        self.pause(0.05)

    def bar(self, label: str, tokens: int, window: int, mark: float) -> None:
        """How full the window was, with the mark above which something leaves."""
        full = round(BAR * min(tokens / window, 1))
        high = round(BAR * mark)
        cells = ["█" if at < full else "┊" if at == high else "░" for at in range(BAR)]
        style = "red" if full >= high else "green"
        self._console.print(
            Text.assemble(f"     {label[:30]:<31}", ("".join(cells), style), f" {tokens:>6,}"), no_wrap=True
        )
        self.pause(0.06)

    def check(self, claim: str, holds: bool) -> None:
        """A claim and whether it is true."""
        self.failures += not holds
        self._print(f"  {'✓' if holds else '✗'}  {claim}", "green" if holds else "bold red")
        self.pause(0.12)

    def row(self, name: str, value: str, remark: str = "") -> None:
        self._print(f"     {name:<36}{value:>11}  {remark}", "")
        self.pause(0.08)

    def end_line(self) -> None:
        """Finish what the model was saying."""
        if self._column:
            self._write(self._word)
            self._console.print()
            self._column, self._word = 0, ""

    def _write(self, word: str) -> None:
        """One word of the model, after a space or on a new line."""
        if self._column + 1 + len(word) > WIDTH:
            self._console.print("\n" + _MARGIN, end="")
            self._column = len(_MARGIN)
        elif self._column > len(_MARGIN):
            word = " " + word
        self._console.print(Text(word), end="")
        self._column += len(word)

    def _print(self, line: str, style: str) -> None:
        self.end_line()
        self._console.print(Text(line, style=style), no_wrap=True, overflow="ellipsis")


class ShowCells:
    """Shows each cell, what its calls brought, and what it printed."""

    def __init__(self, stage: Stage, store: Store) -> None:
        self._stage = stage
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


class ShowSteps:
    """Shows each step as one line: what it did, and how full the window was when the model was asked."""

    def __init__(self, stage: Stage, window: int) -> None:
        self._stage = stage
        self._window = window
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
                self._stage.bar(headline.task, tokens, self._window, Budget(self._window).high)
