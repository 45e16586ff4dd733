"""`scroll chat`: a conversation at the terminal, until Ctrl-D.

Ctrl-C belongs to what is going on: while the agent works it stops the reply or the cell; at the prompt it clears the
line, and twice in a row it leaves. An error ends the turn, never the chat: everything up to it is in the store.
"""

import contextlib
import re
import sys
from pathlib import Path
from shlex import quote

from scroll_context.agent.agent import Agent
from scroll_context.cli.agent import AgentOptions, open_session, reach_text, stoppable
from scroll_context.cli.output import note, print_table, with_options
from scroll_context.cli.watch import Consent, Screen, Watch
from scroll_context.errors import ScrollError
from scroll_context.session.accounts import accounts
from scroll_context.store.store import Store

PROMPT = "› "
MORE = "… "
FENCE = '"""'
HELP = '''\
/vars    the variables in the kernel: name, type, the cell that bound it, value
/stats   the session in numbers
/help    this
\\        at the end of a line: the message goes on in the next one
"""      alone on a line: the message is everything up to the next such line
Ctrl-C   stops the reply or the cell; twice at the prompt, leaves
Ctrl-D   leaves; everything is kept'''


def talk(folder: Path, name: str, options: AgentOptions) -> None:
    """Open or resume a session and talk until the user leaves."""
    model, asked = options.connect()
    screen = Screen()
    consent = Consent(screen, "always" if options.yes else "ask")
    with (
        Store(folder, create=True) as store,
        open_session(store, name, options, consent, asked, patient=True) as session,
    ):
        watch = Watch(screen, stream=True)
        session.subscribe(watch.event)
        chat = Chat(Agent(session, model, on_text=watch.text), watch, consent, screen)
        chat.greet()
        chat.loop()


class Chat:
    """One conversation."""

    def __init__(self, agent: Agent, watch: Watch, consent: Consent, screen: Screen) -> None:
        self.agent = agent
        self.watch = watch
        self.consent = consent
        self.screen = screen

    @property
    def _called(self) -> str:
        return self.agent.session.scope.session_id

    def greet(self) -> None:
        session = self.agent.session
        self._tell(f"{self.agent.model.name}, session {self._called}. /help says what else there is.")
        self._tell(reach_text(session.reach, session.scope))

    def loop(self) -> None:
        """Read, answer, until the user leaves."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - importing it gives input() line editing and a history
        refused = False
        while True:
            try:
                message = _read_message()
                refused = False
                if message:
                    self._take(message)
            except EOFError:
                break
            except KeyboardInterrupt:  # at the prompt, or just after the agent has ended its work
                self.screen.print()
                if refused:
                    break
                self._tell("Ctrl-C again leaves; so does Ctrl-D.")
                refused = True
        again = with_options(f"kept; `scroll chat --session {quote(self._called)}` goes on")
        self.screen.print(again, "dim", copy=True)

    def _take(self, message: str) -> None:
        match message:
            case "/help":
                self._tell(HELP)
            case "/vars":
                self._show_variables()
            case "/stats":
                self._show_numbers()
            case _ if re.fullmatch("/[a-z]*", message):
                self._tell(f"there is no {message}; /help lists what there is")
            case _:
                self._answer(message)

    def _answer(self, message: str) -> None:
        try:
            with stoppable(self.agent, self.consent):
                run = self.agent.run(message)
        except ScrollError as error:
            self.watch.end_line()
            note(str(error))
            return
        self.watch.end_line()
        if run.state != "answered":
            self._tell({"stopped": "stopped; say how to go on"}.get(run.state, f"it ended: {run.state}"))

    def _show_variables(self) -> None:
        variables = self.agent.session.environment.kernel.variables()
        if not variables:
            self._tell("no variables yet")
            return
        rows = [(one.name, one.type, f"{one.cell}", one.detail) for one in variables]
        print_table(("name", "type", "cell", "value or shape"), rows, numeric=("cell",), fit=True)

    def _show_numbers(self) -> None:
        found = accounts(self.agent.session.events())
        self._tell(
            f"{found.events:,} events, {found.requests:,} requests\n"
            f"{found.input_tokens:,} tokens in, {found.reuse:.0%} of them repeated, {found.output_tokens:,} out, "
            f"the largest request {found.largest:,} of {self.agent.model.window:,}\n"
            f"{found.evictions:,} evictions: {found.folded:,} results folded, {found.evicted:,} moved to the index"
            + (f"\n{found.dollars:.4f} dollars" if found.dollars else "")
        )

    def _tell(self, text: str) -> None:
        self.screen.print(text, "dim")


def _read_message() -> str:
    """What the user says next: a line, or several in one of the two ways that HELP tells. Raises EOFError."""
    first, more = (PROMPT, MORE) if sys.stdin.isatty() else ("", "")
    text = input(first)
    if text.strip() == FENCE:
        lines = iter(lambda: input(more), FENCE)
        return "\n".join(lines).strip()
    while text.endswith("\\"):
        text = text[:-1] + "\n" + input(more)
    return text.strip()
