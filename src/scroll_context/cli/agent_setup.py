"""From the options of a command to what an agent needs: a store, a model, tools and a session, all closed at the end.

Tools come from a Python file of the user and from MCP servers. The file is foreign code that runs with the user's own
rights, like any script of theirs; the cells that a model writes never do.
"""

import contextlib
import importlib.util
import inspect
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scroll_context.cli.agent_options import Wishes
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.kernel.kernel import KernelOptions
from scroll_context.messages import Message
from scroll_context.models import Model, Request
from scroll_context.session.session import AnyTool, Session, SessionOptions, lineage, recorded_context
from scroll_context.store.store import Store
from scroll_context.surface.ask import AskReply
from scroll_context.surface.toolbox import ToolUse
from scroll_context.surface.tools import Tool

PATIENCE = 600.0  # seconds that a cell may take where a person can stop it, and is asked about tools in between


@contextlib.contextmanager
def opened(
    store: Store, name: str, wishes: Wishes, confirm: Callable[[ToolUse], bool], asked: Model | None,
    *, patient: bool = False,
) -> Iterator[Session]:  # fmt: skip
    """The session of this name: a new one, or, when the store has it, that one where it stopped.

    `asked` is the model behind `ask` in its cells, if there is one.
    """
    with contextlib.ExitStack() as stack:
        tools: list[AnyTool] = [tool for file in wishes.tools or () for tool in tools_of(file)]
        tools += [tool for where in wishes.mcp or () for tool in _mounted(where, stack)]
        ask = reading_of(asked) if asked else None
        known = bool(name and store.log.tail(1, session_id=name))
        options = SessionOptions(
            reach=wishes.reach,
            context=wishes.context or (recorded_context(store, name) if known else "scroll"),
            cell_timeout=PATIENCE if patient else 120.0,
            kernel=KernelOptions(call_seconds=PATIENCE) if patient else None,
        )
        if known:
            session = Session.resume(store, name, options=options, tools=tools, confirm=confirm, ask=ask)
        else:
            session = Session.open(
                store,
                session_id=name or new_name(),
                agent_id=wishes.agent,
                task_id=wishes.task,
                options=options,
                tools=tools,
                confirm=confirm,
                ask=ask,
            )
        stack.callback(session.close)
        yield session


def new_name() -> str:
    """A name for a session that is short enough to type."""
    return f"s-{uuid.uuid4().hex[:8]}"


def newest_message(store: Store, session_id: str) -> Event | None:
    """The last thing that was said in a session."""
    said = [event for event in lineage(store, session_id) if event.kind == Kind.CONVERSATION]
    return said[-1] if said else None


def reading_of(model: Model) -> Callable[[str, str], AskReply]:
    """What `ask` does in the cells of a session: one request a question, and nothing remembered."""

    def read(prompt: str, context: str) -> AskReply:
        question = f"{prompt}\n\n{context}" if context else prompt
        reply = model.reply(Request((Message(role="user", text=question),)))
        return AskReply(reply.text, reply.usage.input_tokens + reply.usage.output_tokens)

    return read


def tools_of(file: Path) -> list[AnyTool]:
    """The tools in a Python file: what `__all__` lists, else everything that @tool decorates."""
    module = _imported(file)
    listed = getattr(module, "__all__", None)
    if listed is None:
        found: list[AnyTool] = [one for one in vars(module).values() if isinstance(one, Tool)]
    else:
        found = [_listed(module, str(name), file) for name in listed]
    if not found:
        raise BadInput(
            f"there are no tools in {file}: decorate functions with @tool (from scroll_context.surface.tools import "
            "tool), or list typed functions in __all__"
        )
    return found


def _listed(module: Any, name: str, file: Path) -> AnyTool:
    value = getattr(module, name, None)
    if isinstance(value, Tool) or inspect.isroutine(value):
        return value
    raise BadInput(f"__all__ of {file} lists {name!r}, which is not a function")


def _imported(file: Path) -> Any:
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


def _mounted(where: str, stack: contextlib.ExitStack) -> tuple[Tool[..., Any], ...]:
    """The tools of an MCP server, by its URL or by the command that starts it."""
    from scroll_context.surface.mcp import mount_http, mount_stdio

    if where.startswith(("http://", "https://")):
        return stack.enter_context(mount_http(where)).tools
    try:
        words = shlex.split(where)
    except ValueError as error:
        raise BadInput(f"the command {where!r} cannot be read: {error}") from error
    if not words:
        raise BadInput("--mcp is empty; give the URL of a server, or the command that starts one")
    return stack.enter_context(mount_stdio(words[0], words[1:])).tools
