"""The session that a command runs an agent in: its tools, its reach, and how Ctrl-C stops it.

Tools come from a Python file of the user and from MCP servers. The file is code that runs with the
user's own permissions, like any script of theirs; the cells that a model writes never do.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from scroll_context.cli.agent_options import AgentOptions
from scroll_context.cli.output import note
from scroll_context.errors import BadInput

if TYPE_CHECKING:
    from scroll_context.agent.agent import Agent
    from scroll_context.cli.watch import Consent
    from scroll_context.events import Scope
    from scroll_context.models import Model
    from scroll_context.session.options import AnyTool
    from scroll_context.session.session import Session
    from scroll_context.store import Store
    from scroll_context.tools.ask import AskModel
    from scroll_context.tools.tools import Tool

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
