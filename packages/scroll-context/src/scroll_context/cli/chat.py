"""`scroll chat`: a conversation at the terminal, until /quit or Ctrl-D.

Ctrl-C acts on whatever is running: while the agent works, it stops the reply or the cell; at the
prompt, it clears the line, and pressed twice in a row, it exits. An error ends the turn, never the
chat: everything up to it is in the store.
"""

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shlex import quote

import click
import msgspec

from scroll_context.agent.agent import Agent
from scroll_context.cli.agent_session import AgentOptions, open_session, reach_text, stoppable
from scroll_context.cli.options import Place
from scroll_context.cli.output import note, one_line, print_table, with_options
from scroll_context.cli.watch import Consent, Screen, Watch
from scroll_context.errors import ScrollError
from scroll_context.events import Event, Kind
from scroll_context.models import Model
from scroll_context.session.accounts import accounts
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.headline import without_headline

PROMPT = "› "
MORE = "… "
FENCE = '"""'
# Characters of an event that /show prints.
SHOWN = 4_000
# Characters of the last message that is shown when a session is resumed.
RECALLED = 200
COMMANDS = {
    "/vars": "list the variables: name, type, the cell that bound it, value",
    "/search": "WORDS: find events by their words",
    "/show": "SEQ: print an event",
    "/stats": "show the tokens, cost and events of the session",
    "/model": "SPEC: continue with another model; alone, show the current one",
    "/help": "show this list",
    "/quit": "exit; everything is kept",
}
WHY_NO_ANSWER = {
    "stopped": "stopped; type a message to continue",
    "silent": "the model sent only empty replies",
    "cut": "the reply was truncated",
}
"""By the states of a run that has no limits."""
KEYS = '''\
\\        at the end of a line: the message continues on the next one
"""      alone on a line: the message is everything up to the next such line
Ctrl-C   stops the reply or cell; pressed twice at the prompt, exits
Ctrl-D   exits'''


def talk(folder: Place, name: str, options: AgentOptions) -> None:
    """Open or resume a session and talk until the user leaves."""
    screen = Screen()
    watch = Watch(screen, stream=True)
    model, asked = options.connect(watch.again)
    consent = Consent(screen, "always" if options.yes else "ask")
    with Store(folder, create=isinstance(folder, Path)) as store:
        name = meant(store, name, screen)
        resumed = bool(name and store.log.tail(1, session_id=name))
        with open_session(store, name, options, consent, asked, patient=True) as session:
            chat = Chat(session, model, options, consent, watch)
            chat.greet(resumed)
            chat.loop()


def meant(store: Store, name: str, screen: Screen) -> str:
    """The session that the user meant by a name that is close to one in the store."""
    if not name or not sys.stdin.isatty() or store.log.tail(1, session_id=name):
        return name
    close = difflib.get_close_matches(name, [info.session_id for info in store.log.sessions()], n=3)
    if not close:
        return name
    screen.print(f"There is no session {name!r}. Did you mean one of these?")
    for number, session_name in enumerate(close, 1):
        screen.print(f"  {number}  {one_line(session_name)}")
    screen.print(f"  n  none of them: begin a new session {name!r}")
    answer = input("[1] ").strip() or "1"
    if answer.isdigit() and 1 <= int(answer) <= len(close):
        return close[int(answer) - 1]
    if answer.lower() in ("n", "new"):
        return name
    raise click.exceptions.Exit(1)


class Status:
    """The few numbers that matter during a chat, counted from the events as they come."""

    def __init__(self, past: Iterable[Event]) -> None:
        self._sums = accounts(past)
        self._tokens = self._sums.largest

    def add(self, event: Event) -> None:
        if event.kind in (Kind.EVICTION, Kind.CONVERSATION):
            new = accounts([event])
            self._tokens = new.input_tokens or self._tokens
            self._sums.dollars += new.dollars
            self._sums.evictions += new.evictions

    def line(self, window: int, variables: int) -> str:
        """The status line of a chat."""
        share = f" ({self._tokens / window:.0%})" if window else ""
        parts = [
            f"{self._tokens:,} of {window:,} tokens{share}",
            f"{self._sums.evictions:,} evictions",
        ]
        parts.append(f"{variables:,} variables")
        if self._sums.dollars:
            parts.append(f"{self._sums.dollars:.4f} dollars")
        return " · ".join(parts)


class Chat:
    """One conversation."""

    def __init__(
        self, session: Session, model: Model, options: AgentOptions, consent: Consent, watch: Watch
    ) -> None:
        self.session = session
        self.options = options
        self.consent = consent
        self.screen = watch.screen
        self.watch = watch
        self.status = Status(session.events())
        session.subscribe(self._on_event)
        self.agent = self._agent(model)

    def _agent(self, model: Model) -> Agent:
        return Agent(
            self.session, model, on_text=self.watch.text, instructions=self.options.instructions
        )

    def _on_event(self, event: Event) -> None:
        self.status.add(event)
        self.watch.event(event)

    def greet(self, resumed: bool) -> None:
        """Show the session and its model; for a resumed session, its last message."""
        called = one_line(self.session.scope.session_id)
        self._tell(f"{self.agent.model.name}, session {called}. /help lists the commands.")
        self._tell(reach_text(self.session.reach, self.session.scope))
        messages = [event for event in self.session.events() if event.kind == Kind.CONVERSATION]
        if resumed and messages:
            self._tell(
                f"{len(messages):,} messages so far, the last at "
                f"{messages[-1].created_at[:16].replace('T', ' ')}"
            )
            for role, who in (("user", "you"), ("assistant", "agent")):
                last = next(
                    (event.content for event in reversed(messages) if event.role == role), ""
                )
                if last.strip():
                    self._tell(f"  {who}: {one_line(without_headline(last), RECALLED)}")
            if messages[-1].role == "user" or messages[-1].metadata.get("cut"):
                self._tell("  its last turn was not finished; type a message to continue")

    def loop(self) -> None:
        """Read, answer, until the user leaves."""
        prompt = line_reader()
        refused = False
        while True:
            try:
                message = read_message(prompt)
                refused = False
                if message == "/quit":
                    break
                if message:
                    self._take(message)
            except EOFError:
                break
            except KeyboardInterrupt:
                # At the prompt, or just after the agent has ended its work.
                self.screen.print()
                if refused:
                    break
                self._tell("Ctrl-C again leaves; so does Ctrl-D.")
                refused = True
        called = quote(self.session.scope.session_id)
        self.screen.print(
            with_options(f"nothing is lost; `scroll chat --session {called}` resumes it"),
            "dim",
            copy=True,
        )

    def _take(self, message: str) -> None:
        command, _, rest = message.partition(" ")
        match command:
            case "/help":
                self._tell(
                    "\n".join(f"{name:<8} {what}" for name, what in COMMANDS.items()) + "\n" + KEYS
                )
            case "/vars":
                self._show_variables()
            case "/stats":
                self._show_numbers()
            case "/search" if rest.strip():
                self._search(rest.strip())
            case "/show" if rest.strip().isdigit():
                self._show(int(rest))
            case "/model":
                self._change_model(rest.strip())
            case "/search" | "/show":
                self._tell(f"{command} {COMMANDS[command]}")
            case _ if command.startswith("/") and command[1:].isalpha() and not rest:
                close = difflib.get_close_matches(command, COMMANDS, n=1)
                guess = f"did you mean {close[0]}? " if close else ""
                self._tell(f"there is no {command}; {guess}/help lists the commands")
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
            self._tell(WHY_NO_ANSWER[run.state])
        self._tell(self._status())

    # what is asked with a slash ------------------------------------------------------------------

    def _show_variables(self) -> None:
        variables = self.session.environment.kernel.variables()
        if not variables:
            self._tell("no variables yet")
            return
        rows = [
            (variable.name, variable.type, f"{variable.cell}", variable.detail)
            for variable in variables
        ]
        print_table(("name", "type", "cell", "value or shape"), rows, numeric=("cell",), fit=True)

    def _show_numbers(self) -> None:
        numbers = accounts(self.session.events())
        self._tell(
            f"{numbers.events:,} events, {numbers.requests:,} requests\n"
            f"{numbers.input_tokens:,} tokens in, {numbers.reuse:.0%} of them repeated, "
            f"{numbers.output_tokens:,} out, "
            f"the largest request {numbers.largest:,} of {self.agent.model.window:,}\n"
            f"{numbers.evictions:,} evictions: {numbers.folded:,} results folded, "
            f"{numbers.evicted:,} moved to the index"
            + (f"\n{numbers.dollars:.4f} dollars" if numbers.dollars else "")
        )

    def _search(self, words: str) -> None:
        with _faults_noted():
            hits = self.session.store.index.search(words, k=5)
            for hit in hits:
                heading = f"{hit.seq}  {hit.event.role}  {one_line(hit.event.session_id)}"
                self.screen.print(heading, "bold")
                self.screen.print(f"    {one_line(hit.snippet, 2 * RECALLED)}")
            if not hits:
                self._tell(f"nothing found for {words!r}")

    def _show(self, seq: int) -> None:
        with _faults_noted():
            log = self.session.store.log
            event = log.get(seq)
            text = log.text(event)
            facts = (
                f"{seq}",
                event.role,
                event.kind,
                event.name,
                event.session_id,
                event.tool_state,
            )
            self.screen.print("  ".join(one_line(fact) for fact in facts if fact), "bold")
            self.screen.print(text[:SHOWN])
            if len(text) > SHOWN:
                more = with_options(
                    f"… {len(text) - SHOWN:,} more characters: `scroll show {seq} --full`"
                )
                self.screen.print(more, "dim", copy=True)

    def _change_model(self, spec: str) -> None:
        with _faults_noted():
            if spec:
                model, _ = msgspec.structs.replace(self.options, model=spec, ask=None).connect(
                    self.watch.again
                )
                self.agent = self._agent(model)
            self._tell(f"{self.agent.model.name}, window {self.agent.model.window:,}")

    def _status(self) -> str:
        return self.status.line(
            self.agent.model.window, len(self.session.environment.kernel.variables())
        )

    def _tell(self, text: str) -> None:
        self.screen.print(text, "dim")


@contextlib.contextmanager
def _faults_noted() -> Iterator[None]:
    """An error in a slash command does not end the chat."""
    try:
        yield
    except ScrollError as error:
        note(str(error))


def line_reader() -> Callable[[str], str]:
    """The function that reads a line of the user, with line editing and a history at a terminal."""
    if not sys.stdin.isatty():
        return lambda _: input()
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - importing it gives input() line editing and a history
    return input


def read_message(prompt: Callable[[str], str]) -> str:
    """Read the next message: one line, or several lines in either form described in KEYS.

    Raises EOFError.
    """
    text = prompt(PROMPT)
    if text.strip() == FENCE:
        lines = iter(lambda: prompt(MORE), FENCE)
        return "\n".join(lines).strip()
    while text.endswith("\\"):
        text = text[:-1] + "\n" + prompt(MORE)
    return text.strip()
