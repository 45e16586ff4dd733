"""Commands that run an agent: chat, run, resume and fork, with the options that they share.

The answer of a run is data and goes to stdout, what happens on the way goes to stderr. However a
run ends, its session is in the store, and the last line on stderr says how to go on. Tools come
from a Python file of the user and from MCP servers. The file is code that runs with the user's own
rights, like any script of theirs; the cells that a model writes never do.
"""

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import msgspec

from scroll_context.cli.options import (
    FILE,
    Place,
    complete_session,
    json_option,
    open_store,
    session_argument,
    store_option,
)
from scroll_context.cli.output import Command, echo, note, print_document, utf8
from scroll_context.cli.statuses import INTERRUPTED, STOPPED_BY_LIMIT
from scroll_context.errors import BadInput, ModelError, UnknownSession

if TYPE_CHECKING:
    from scroll_context.agent.agent import Agent, Limits, Run
    from scroll_context.cli.watch import Consent
    from scroll_context.events import Scope
    from scroll_context.models import Model
    from scroll_context.session.session import AnyTool, Reach, Session
    from scroll_context.store import Store
    from scroll_context.tools.ask import AskModel
    from scroll_context.tools.tools import Tool

KEY = "SCROLL_API_KEY"
"""The variable with the key for a server at --base-url; other providers use the variable that is
usual for them.
"""

# seconds that a cell may take where a person can stop it, and is asked about tools in between
PATIENCE = 600.0
REACHES = ("session", "task", "agent", "all")

WHY_NO_ANSWER = {
    "stopped": "it was interrupted",
    "steps": "it took as many steps as --steps allows",
    "tokens": "it used as many tokens as --tokens allows",
    "time": "it took as long as --seconds allows",
    "money": "it cost as much as --dollars allows",
    "silent": "the model gave only empty replies",
    "cut": "its replies were cut off at the limit of output tokens; the partial text is above",
}


# options ----------------------------------------------------------------------------------------------------


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for on the command line, of the options in OPTIONS."""

    model: str = ""
    base_url: str | None = None
    window: int | None = None
    tools: tuple[Path, ...] = ()
    mcp: tuple[str, ...] = ()
    ask: str | None = None
    reach: "Reach | None" = None
    context: str | None = None
    agent: str = ""
    task: str = ""
    system: str = ""
    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    yes: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def limits(self) -> "Limits":
        from scroll_context.agent.agent import Limits

        return Limits(
            steps=self.steps, tokens=self.tokens, seconds=self.seconds, dollars=self.dollars
        )

    @property
    def instructions(self) -> str:
        """What --system says, or the file that it names."""
        if not self.system.startswith("@"):
            return self.system
        try:
            return Path(self.system[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"the system prompt in {self.system[1:]} cannot be read: {error}"
            ) from error

    def connect(self, again: Callable[[], None] = lambda: None) -> "tuple[Model, Model | None]":
        """The models of --model and --ask, each asked again when its provider failed for now.

        `again` is called before --model is asked again.
        """
        if not self.model:
            raise BadInput(
                "no model is named; give --model, for example anthropic:NAME, openai:NAME (with --base-url for your "
                "own server) or scripted:FILE.json, or set SCROLL_MODEL"
            )
        model = _patient(connected(self.model, self.base_url, self.window), again)
        if self.ask is None:
            return model, None
        same_provider = self.ask.partition(":")[0] == self.model.partition(":")[0]
        return model, _patient(connected(self.ask, self.base_url if same_provider else None))


_POSITIVE = click.IntRange(min=1)
OPTIONS = {  # each is a field of AgentOptions
    "model": click.option(
        "--model",
        envvar="SCROLL_MODEL",
        metavar="SPEC",
        default="",
        help="anthropic:NAME, openai:NAME, scripted:FILE.json, …",
    ),
    "base_url": click.option(
        "--base-url",
        envvar="SCROLL_BASE_URL",
        metavar="URL",
        help="A server that speaks the protocol of the model.",
    ),
    "window": click.option(
        "--window",
        type=click.IntRange(min=1_000),
        metavar="TOKENS",
        show_default="as known",
        help="The model's context window.",
    ),
    "tools": click.option(
        "--tools", type=FILE, multiple=True, metavar="FILE.py", help="A file of tools; repeatable."
    ),
    "mcp": click.option(
        "--mcp", multiple=True, metavar="COMMAND|URL", help="An MCP server; may be repeated."
    ),
    "ask": click.option(
        "--ask",
        metavar="SPEC",
        show_default="none",
        help="A second model that cells may ask to read for them.",
    ),
    "reach": click.option(
        "--reach",
        type=click.Choice(REACHES),
        show_default="agent with --agent, else session",
        help="How much of the store the model may read.",
    ),
    "context": click.option(
        "--context",
        metavar="NAME",
        show_default="scroll, or as before",
        help="How its view is made: scroll, or to compare: summarize, retrieval, codeact, react, …",
    ),
    "agent": click.option(
        "--agent", metavar="ID", default="", help="The agent that a new session belongs to."
    ),
    "task": click.option(
        "--task", metavar="ID", default="", help="The task that a new session belongs to."
    ),
    "system": click.option(
        "--system",
        metavar="TEXT|@FILE",
        default="",
        help="What the model is told besides, at the end of its system prompt.",
    ),
    "steps": click.option(
        "--steps", type=_POSITIVE, metavar="N", help="Stop after so many replies."
    ),
    "tokens": click.option(
        "--tokens", type=_POSITIVE, metavar="N", help="Stop after so many tokens, input and output."
    ),
    "seconds": click.option(
        "--seconds", type=click.FloatRange(min=0), metavar="N", help="Stop after so much time."
    ),
    "dollars": click.option(
        "--dollars",
        type=click.FloatRange(min=0),
        metavar="N",
        help="Stop after so much money, where prices are known.",
    ),
    "yes": click.option("--yes", is_flag=True, help="Run tools with effects without asking."),
    "quiet": click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
    "as_json": json_option,
}
_OF_A_RUN = ("steps", "tokens", "seconds", "dollars", "quiet", "as_json")
_OF_A_NEW_SESSION = ("agent", "task")


def agent_options(
    *, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of an agent, as one argument `options`."""
    names = [name for name in OPTIONS if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            command(options=AgentOptions(**{name: given.pop(name) for name in names}), **given)

        decorated: Callable[..., None] = called
        for name in reversed(names):
            decorated = OPTIONS[name](decorated)
        return decorated

    return decorate


# commands ---------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.option(
    "--session",
    metavar="ID",
    default="",
    show_default="a new one",
    shell_complete=complete_session,
    help="Its name; an existing one goes on.",
)
@agent_options(without=_OF_A_RUN)
@store_option
def chat(session: str, options: AgentOptions, store: Place) -> None:
    """Talk to an agent whose memory is the store.

    Ctrl-C stops the reply or the cell, Ctrl-D leaves. Everything is kept: the same --session goes on later, variables
    included. Creates the store if there is none.

    \b
    Examples:
      scroll chat --model anthropic:claude-sonnet-4-5
      scroll chat --model openai:qwen3 --base-url http://localhost:8000/v1 --window 32768 --tools my_tools.py
      scroll chat --session s-1f2e3d4c --mcp 'npx some-mcp-server'
    """
    if sys.stdout.isatty():
        echo("starting …", end="\r")  # what follows is printed over it
    from scroll_context.cli.chat import talk

    talk(store, session, options)


@click.command(cls=Command)
@click.argument("prompt")
@click.option(
    "--session",
    metavar="ID",
    default="",
    show_default="made up",
    help="A name for the new session.",
)
@agent_options()
@store_option
def run(prompt: str, session: str, options: AgentOptions, store: Place) -> None:
    """Give an agent one task, in a new session.

    The prompt - reads it from stdin. The answer goes to stdout, progress to stderr. Status 3: a limit stopped it, and
    `scroll resume` goes on. Creates the store if there is none.

    \b
    Examples:
      scroll run 'Which routes did we rule out, and why?' --model anthropic:claude-sonnet-4-5
      git diff | scroll run - --model openai:gpt-5 --steps 20 --json
    """
    from scroll_context.store import Store

    message = _read(prompt)
    models = (
        options.connect()
    )  # before the store is created: a misspelt model leaves nothing behind
    with Store(store, create=isinstance(store, Path)) as opened:
        if session and opened.log.tail(1, session_id=session):
            raise BadInput(
                f"there is a session {session!r} already; `scroll resume {quote(session)}` goes on with it"
            )
        _work(opened, session, message, models, options)


@click.command(cls=Command)
@session_argument
@click.argument("prompt", required=False)
@agent_options(without=_OF_A_NEW_SESSION)
@store_option
def resume(session: str, prompt: str | None, options: AgentOptions, store: Place) -> None:
    """Go on with a session, whatever ended it.

    View and variables are as they were. Without a prompt, the work that a limit, Ctrl-C or a crash ended is continued.

    \b
    Examples:
      scroll resume s-1f2e3d4c --model anthropic:claude-sonnet-4-5
      scroll resume s-1f2e3d4c 'And by train?' --model anthropic:claude-sonnet-4-5
    """
    from scroll_context.events import Kind
    from scroll_context.session.history import lineage

    message = None if prompt is None else _read(prompt)
    models = options.connect()
    with open_store(store) as opened:
        said = [event for event in lineage(opened, session) if event.kind == Kind.CONVERSATION]
        if not said:
            raise UnknownSession(
                f"there is no session {session!r} to go on with; `scroll sessions` lists those there are"
            )
        last = said[-1]
        finished = (
            last.role == "assistant"
            and not last.metadata.get("tool_calls")
            and not last.metadata.get("cut")
        )
        if message is None and finished:
            raise BadInput(
                f"session {session!r} has given its answer (seq {last.seq}); say what it is to do next"
            )
        _work(opened, session, message, models, options)


@click.command(cls=Command)
@session_argument
@click.argument("seq", type=_POSITIVE)
@click.option(
    "--as",
    "name",
    metavar="ID",
    default="",
    show_default="made up",
    help="A name for the new session.",
)
@store_option
@json_option
def fork(session: str, seq: int, name: str, store: Place, as_json: bool) -> None:
    """Make a new session that shares another's past up to a seq.

    Its view and its variables are as they were there. The other session is not changed.

    \b
    Examples:
      scroll fork s-1f2e3d4c 120
      scroll fork s-1f2e3d4c 120 --as other-way
    """
    from scroll_context.session.session import fork as fork_session

    with open_store(store) as opened, fork_session(opened, session, seq, session_id=name) as made:
        called = made.scope.session_id
    if as_json:
        print_document({"session_id": called, "parent": session, "at_seq": seq})
    else:
        echo(called)
        note(f"go on with it: `scroll resume {quote(called)} PROMPT --model SPEC`")


# work -------------------------------------------------------------------------------------------------------


def _read(prompt: str) -> str:
    message = utf8(sys.stdin.read() if prompt == "-" else prompt)
    if not message.strip():
        raise BadInput("the prompt is empty; say what is to be done")
    return message


def _work(
    store: "Store",
    name: str,
    message: str | None,
    models: "tuple[Model, Model | None]",
    options: AgentOptions,
) -> None:
    """Run an agent until it ends, show it at work, and print what came of it."""
    from scroll_context.agent.agent import Agent
    from scroll_context.cli.watch import Consent, Screen, Watch

    model, asked = models
    screen = Screen(err=True)
    consent = Consent(screen, "always" if options.yes else "ask" if sys.stdin.isatty() else "never")
    with open_session(store, name, options, consent, asked) as session:
        if not options.quiet:
            note(reach_text(session.reach, session.scope))
            session.subscribe(Watch(screen, stream=False).event)
        agent = Agent(session, model, limits=options.limits, instructions=options.instructions)
        called = session.scope.session_id
        go_on = f"`scroll resume {quote(called)}` goes on where it stopped"
        try:
            with stoppable(agent, consent):
                done = agent.run(message)
        except ModelError:
            note(f"nothing is lost: {go_on}")
            raise
    _report(done, called, go_on, options.as_json)


def _report(done: "Run", session_id: str, go_on: str, as_json: bool) -> None:
    if as_json:
        found = {
            "state": done.state,
            "answer": done.answer,
            "session_id": session_id,
            "totals": done.totals,
        }
        print_document(found)
    elif done.state == "answered":
        echo(done.answer)
    if done.state == "answered":
        note(f"session {session_id}")
        return
    note(f"no answer yet: {WHY_NO_ANSWER[done.state]}. Nothing is lost: {go_on}")
    raise click.exceptions.Exit(INTERRUPTED if done.state == "stopped" else STOPPED_BY_LIMIT)


def reach_text(reach: str, scope: "Scope") -> str:
    """What the model of a session may read, in words."""
    match reach:
        case "session":
            extent = "this session and nothing else"
        case "task":
            extent = f"everything recorded for task {scope.task_id!r}"
        case "agent":
            extent = f"everything recorded by agent {scope.agent_id!r}"
        case _:
            extent = "the whole store"
    return f"the model may read {extent} (--reach {reach})"


@contextlib.contextmanager
def stoppable(agent: "Agent", consent: "Consent") -> Iterator[None]:
    """Ctrl-C stops what the agent is doing, and neither the process nor the session, nor what it is
    to do next.
    """
    stopping: list[threading.Thread] = []

    def stop(*_: object) -> None:
        consent.stopped.set()
        # In a thread, since a handler runs between any two instructions and must not wait for a
        # lock held below it.
        stopping.append(threading.Thread(target=agent.stop, daemon=True))
        stopping[-1].start()

    consent.stopped.clear()
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for thread in stopping:
            thread.join()


# a session, a model and tools -------------------------------------------------------------------------------


@contextlib.contextmanager
def open_session(
    store: "Store",
    name: str,
    options: AgentOptions,
    consent: "Consent",
    asked: "Model | None",
    *,
    patient: bool = False,
) -> "Iterator[Session]":
    """The session of this name: a new one, or, when the store has it, that one where it stopped.

    `asked` is the model behind `ask` in its cells, if there is one. Everything is closed at the
    end.
    """
    import uuid

    from scroll_context.kernel.kernel import KernelOptions
    from scroll_context.session.session import Session, SessionOptions

    with contextlib.ExitStack() as stack:
        tools: list[AnyTool] = [tool for file in options.tools for tool in tools_of(file)]
        tools += [tool for where in options.mcp for tool in _mounted(where, stack)]
        ask = reading_of(asked) if asked else None
        known = bool(name and store.log.tail(1, session_id=name))
        settings = SessionOptions(
            reach=options.reach,
            context=options.context or None,
            cell_timeout=PATIENCE if patient else 120.0,
            kernel=KernelOptions(call_seconds=PATIENCE) if patient else None,
        )
        if known:
            session = Session.resume(
                store,
                name,
                agent_id=options.agent,
                task_id=options.task,
                options=settings,
                tools=tools,
                confirm=consent,
                ask=ask,
            )
            report_withheld(session)
        else:
            session = Session.open(
                store,
                session_id=name or f"s-{uuid.uuid4().hex[:8]}",  # short enough to type
                agent_id=options.agent,
                task_id=options.task,
                options=settings,
                tools=tools,
                confirm=consent,
                ask=ask,
            )
        stack.callback(session.close)
        yield session


def report_withheld(session: "Session") -> None:
    """Print how to give a session again what was recorded for it and is not in effect."""
    name, withheld = session.scope.session_id, session.withheld
    if withheld.reach is not None:
        note(
            f"the session had --reach {withheld.reach} before, which is not in effect unless you give it again: "
            f"`scroll resume {quote(name)} --reach {withheld.reach}`"
        )
    if withheld.packages:
        note(
            f"the session could import {', '.join(withheld.packages)} before, which is not in effect. To allow it, "
            f"resume it in Python: Session.resume(store, {name!r}, "
            f"options=SessionOptions(packages={withheld.packages!r}))"
        )


def connected(
    spec: str, base_url: str | None, window: int | None = None, key: str = KEY
) -> "Model":
    """The model of this name; `key` is the variable with the key for a server at `base_url`."""
    from scroll_context.models import connect

    return connect(spec, base_url=base_url, api_key=os.environ.get(key), window=window)


def _patient(model: "Model", again: Callable[[], None] = lambda: None) -> "Model":
    from scroll_context.models import with_retries

    def tell(_: int, wait: float, error: Exception) -> None:
        again()
        note(f"{error} (trying again in {wait:.0f} s)")

    return with_retries(model, on_retry=tell)


def reading_of(model: "Model") -> "AskModel":
    """What `ask` does in the cells of a session: one request a question, and nothing remembered."""
    from scroll_context.messages import Message
    from scroll_context.models import Request
    from scroll_context.tools.ask import AskModel, AskReply

    def read(prompt: str, context: str) -> AskReply:
        question = f"{prompt}\n\n{context}" if context else prompt
        reply = model.reply(Request((Message(role="user", text=question),)))
        cut = (
            "\n[cut off here: the answer reached the model's limit]"
            if reply.finish_reason == "length"
            else ""
        )
        return AskReply(reply.text + cut, reply.usage.input_tokens + reply.usage.output_tokens)

    return AskModel(model.name, read)


def tools_of(file: Path) -> "list[AnyTool]":
    """The tools in a Python file: what `__all__` lists, else everything that @tool decorates."""
    import inspect

    from scroll_context.tools.tools import Tool

    module = _imported(file)
    listed = getattr(module, "__all__", None)
    if listed is None:
        found: list[AnyTool] = [one for one in vars(module).values() if isinstance(one, Tool)]
    else:
        found = [getattr(module, str(name), None) for name in listed]  # type: ignore[misc]
        for name, one in zip(listed, found, strict=True):
            if not (isinstance(one, Tool) or inspect.isroutine(one)):
                raise BadInput(f"__all__ of {file} lists {name!r}, which is not a function")
    if not found:
        raise BadInput(
            f"there are no tools in {file}: decorate functions with @tool (from scroll_context.tools.tools import "
            "tool), or list typed functions in __all__"
        )
    return found


def _imported(file: Path) -> Any:
    import importlib.util

    if not file.is_file():
        raise BadInput(f"there is no file {file} to take tools from")
    spec = importlib.util.spec_from_file_location(f"scroll_tools_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise BadInput(f"{file} is not a Python file; tools are taken from NAME.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that the file can import its neighbours, as a script can
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _mounted(where: str, stack: contextlib.ExitStack) -> "tuple[Tool[..., Any], ...]":
    """The tools of an MCP server, by its URL or by the command that starts it."""
    import shlex

    from scroll_context.tools.mcp import mount_http, mount_stdio

    if where.startswith(("http://", "https://")):
        return stack.enter_context(mount_http(where)).tools
    try:
        words = shlex.split(where)
    except ValueError as error:
        raise BadInput(f"the command {where!r} cannot be read: {error}") from error
    if not words:
        raise BadInput("--mcp is empty; give the URL of a server, or the command that starts one")
    return stack.enter_context(mount_stdio(words[0], words[1:])).tools
