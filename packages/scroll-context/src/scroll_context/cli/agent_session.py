"""The session that a command runs an agent in: its options, its tools, and how Ctrl-C stops it.

The options are those of all commands that run an agent, with the models that they name. Tools come
from a Python file of the user and from MCP servers. The file is code that runs with the user's own
permissions, like any script of theirs; the cells that a model writes never do.
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

from scroll_context.cli.options import FILE, json_option
from scroll_context.cli.output import note
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.agent.agent import Agent, Limits
    from scroll_context.cli.watch import Consent
    from scroll_context.events import Scope
    from scroll_context.models import Model
    from scroll_context.session.options import AnyTool, Reach
    from scroll_context.session.session import Session
    from scroll_context.store import Store
    from scroll_context.tools.ask import AskModel
    from scroll_context.tools.tools import Tool


# options ------------------------------------------------------------------------------------------

KEY = "SCROLL_API_KEY"
"""The variable with the key for a server at --base-url; other providers use the variable that is
usual for them.
"""

REACHES = ("session", "task", "agent", "all")


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options in OPTIONS that the user gave on the command line."""

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
        """The text of --system, or of the file that it names."""
        if not self.system.startswith("@"):
            return self.system
        try:
            return Path(self.system[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"the system prompt in {self.system[1:]} cannot be read: {error}"
            ) from error

    def connect(self, again: Callable[[], None] = lambda: None) -> "tuple[Model, Model | None]":
        """The models of --model and --ask, each retried after temporary provider failures.

        `again` is called before a request to --model is repeated.
        """
        if not self.model:
            raise BadInput(
                "no model is named; give --model, for example anthropic:NAME, openai:NAME (with "
                "--base-url for your own server) or scripted:FILE.json, or set SCROLL_MODEL"
            )
        model = _patient(connected(self.model, self.base_url, self.window), again)
        if self.ask is None:
            return model, None
        same_provider = self.ask.partition(":")[0] == self.model.partition(":")[0]
        return model, _patient(connected(self.ask, self.base_url if same_provider else None))


Option = Callable[[Callable[..., None]], Callable[..., None]]


def reach_option(default: str) -> Option:
    """--reach; the help shows this default."""
    return click.option(
        "--reach",
        type=click.Choice(REACHES),
        show_default=default,
        help="How much of the store the model may read.",
    )


def context_option(default: str) -> Option:
    """--context; the help shows this default."""
    return click.option(
        "--context",
        metavar="NAME",
        show_default=default,
        help="How the context is managed: scroll, or a baseline for comparison (summarize, …).",
    )


_POSITIVE = click.IntRange(min=1)
# Each is a field of AgentOptions.
OPTIONS: dict[str, Option] = {
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
        help="A server that speaks the model's protocol.",
    ),
    "window": click.option(
        "--window",
        type=click.IntRange(min=1_000),
        metavar="TOKENS",
        show_default="the model's own, if known",
        help="The model's context window.",
    ),
    "tools": click.option(
        "--tools",
        type=FILE,
        multiple=True,
        metavar="FILE.py",
        help="A file with tools; may be repeated.",
    ),
    "mcp": click.option(
        "--mcp", multiple=True, metavar="COMMAND|URL", help="An MCP server; may be repeated."
    ),
    "ask": click.option(
        "--ask",
        metavar="SPEC",
        show_default="none",
        help="A second model that the agent's code can call to read long text.",
    ),
    "reach": reach_option("agent with --agent, else session"),
    "context": context_option("scroll"),
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
        help="Text appended to the system prompt.",
    ),
    "steps": click.option(
        "--steps", type=_POSITIVE, metavar="N", help="Stop after this many replies."
    ),
    "tokens": click.option(
        "--tokens",
        type=_POSITIVE,
        metavar="N",
        help="Stop after this many input and output tokens.",
    ),
    "seconds": click.option(
        "--seconds", type=click.FloatRange(min=0), metavar="N", help="Stop after this much time."
    ),
    "dollars": click.option(
        "--dollars",
        type=click.FloatRange(min=0),
        metavar="N",
        help="Stop after this cost in US dollars. If the price of the model is not known, the run "
        "fails after the first reply.",
    ),
    "yes": click.option("--yes", is_flag=True, help="Run tools with side effects without asking."),
    "quiet": click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
    "as_json": json_option,
}


def agent_options(*, without: tuple[str, ...] = (), **replaced: Option) -> Option:
    """Give a command the options of an agent, as one argument `options`.

    `replaced` has options for this command that take the place of those in OPTIONS.
    """
    options = OPTIONS | replaced
    names = [name for name in options if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            command(
                options=AgentOptions(**{name: arguments.pop(name) for name in names}), **arguments
            )

        decorated: Callable[..., None] = called
        for name in reversed(names):
            decorated = options[name](decorated)
        return decorated

    return decorate


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


# the session --------------------------------------------------------------------------------------

# seconds that a cell may take where a person can stop it, and is asked about tools in between
PATIENCE = 600.0


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
    """Open a session with this name, or resume it if the store already has it.

    `asked` is the model behind `ask` in its cells, if there is one. Everything is closed at the
    end.
    """
    import uuid

    from scroll_context.kernel.kernel import KernelOptions
    from scroll_context.session.options import SessionOptions
    from scroll_context.session.session import Session

    with contextlib.ExitStack() as stack:
        tools: list[AnyTool] = [tool for file in options.tools for tool in tools_of(file)]
        tools += [tool for where in options.mcp for tool in _mounted(where, stack)]
        settings = SessionOptions(
            reach=options.reach,
            context=options.context or None,
            cell_timeout=PATIENCE if patient else 120.0,
            kernel=KernelOptions(call_seconds=PATIENCE) if patient else None,
        )
        session = Session.open_or_resume(
            store,
            # A new name is short enough to type.
            name or f"s-{uuid.uuid4().hex[:8]}",
            agent_id=options.agent,
            task_id=options.task,
            options=settings,
            tools=tools,
            confirm=consent,
            ask=reading_of(asked) if asked else None,
        )
        stack.callback(session.close)
        report_withheld(session)
        yield session


def report_withheld(session: "Session") -> None:
    """Print how to restore recorded settings that are not in effect."""
    name, withheld = session.scope.session_id, session.withheld
    if withheld.reach is not None:
        note(
            f"the session had --reach {withheld.reach} before, which is not in effect unless you "
            f"give it again: `scroll resume {quote(name)} --reach {withheld.reach}`"
        )
    if withheld.packages:
        note(
            f"the session could import {', '.join(withheld.packages)} before, which is not in "
            f"effect. To allow it, resume it in Python: Session.resume(store, {name!r}, "
            f"options=SessionOptions(packages={withheld.packages!r}))"
        )


def reach_text(reach: str, scope: "Scope") -> str:
    """The reach of a session's model, in words."""
    match reach:
        case "session":
            extent = "this session and nothing else"
        case "task":
            extent = f"everything recorded for task {scope.task_id!r}"
        case "agent":
            extent = f"everything recorded by agent {scope.agent_id!r}"
        case _:
            extent = "the entire store"
    return f"the model may read {extent} (--reach {reach})"


@contextlib.contextmanager
def stoppable(agent: "Agent", consent: "Consent") -> Iterator[None]:
    """Ctrl-C stops the agent's current action, but not the process or the session."""
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


def reading_of(model: "Model") -> "AskModel":
    """The function behind `ask` in cells: one request per question, and nothing is remembered."""
    from scroll_context.messages import Message
    from scroll_context.models import Request
    from scroll_context.tools.ask import AskModel, AskReply

    def read(prompt: str, context: str) -> AskReply:
        question = f"{prompt}\n\n{context}" if context else prompt
        reply = model.reply(Request((Message(role="user", text=question),)))
        text = reply.text
        if reply.finish_reason == "length":
            text += "\n[cut off here: the answer reached the model's limit]"
        return AskReply(text, reply.usage.input_tokens + reply.usage.output_tokens)

    return AskModel(model.name, read)


def tools_of(file: Path) -> "list[AnyTool]":
    """The tools in a Python file: what `__all__` lists, else everything that @tool decorates."""
    import inspect

    from scroll_context.tools.tools import Tool

    module = _imported(file)
    listed = getattr(module, "__all__", None)
    if listed is None:
        functions: list[AnyTool] = [
            function for function in vars(module).values() if isinstance(function, Tool)
        ]
    else:
        functions = [getattr(module, str(name), None) for name in listed]  # type: ignore[misc]
        for name, function in zip(listed, functions, strict=True):
            if not (isinstance(function, Tool) or inspect.isroutine(function)):
                raise BadInput(f"__all__ of {file} lists {name!r}, which is not a function")
    if not functions:
        raise BadInput(
            f"there are no tools in {file}: decorate functions with @tool (from "
            "scroll_context import tool), or list typed functions in __all__"
        )
    return functions


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
        # The file can then import its neighbours, as a script can.
        sys.path.insert(0, folder)
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
