"""How a session is set up: its options, and everything else that the ways to open one take.

Options are recorded when a session begins and hold for every resume that does not name others. A
store may come from somebody else, so recorded options never open the jail or the store wider than
whoever resumes the session has said.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

import msgspec
from msgspec.structs import asdict, replace

from scroll_context.errors import BadInput
from scroll_context.events import Scope
from scroll_context.jail.spec import JailSpec
from scroll_context.kernel.kernel import KernelOptions
from scroll_context.log.journal import Quota
from scroll_context.tools.ask import AskModel, AskReply
from scroll_context.tools.toolbox import Confirm
from scroll_context.tools.tools import Tool
from scroll_context.view.eviction import ViewBudget

AnyTool = Tool[..., Any] | Callable[..., Any]
Reach = Literal["session", "task", "agent", "all"]

_OF_THE_MACHINE = ("jail", "kernel")
"""The options that are not recorded, because another machine may need others."""


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is set up.

    An option that is None keeps its recorded value, or has its default in a new session.

    >>> from scroll_context import Session, SessionOptions, Store, ViewBudget
    >>> options = SessionOptions(cell_timeout=30, budget=ViewBudget(high=0.7))
    >>> with Store("trip.scroll", create=True) as store:
    ...     with Session.open(store, session_id="trip", options=options):
    ...         pass
    ...     with Session.resume(store, "trip") as session:
    ...         session.options.cell_timeout
    30.0
    """

    # The part of the store that `ms` may read; by default `agent` if an agent id was given, else
    # `session`.
    reach: Reach | None = None
    # "scroll", "plain", or a context that an installed package offers for comparison.
    context: str | None = None
    budget: ViewBudget | None = None
    # Seconds that one cell may run; 120 by default.
    cell_timeout: float | None = None
    # Importable names or folders that cells may import besides the default.
    packages: tuple[str, ...] | None = None
    quota: Quota | None = None
    jail: JailSpec | None = None
    kernel: KernelOptions | None = None

    def over(
        self, recorded: dict[str, Any], scope: Scope
    ) -> "tuple[SessionOptions, SessionOptions]":
        """These options, completed by the recorded ones; and the recorded ones that are withheld.

        Packages and a reach wider than the session are withheld unless they are given again.
        `scope` is the scope that the caller named: a recorded reach holds if its agent or task is
        named again.
        """
        try:
            past = msgspec.convert(recorded, SessionOptions)
        except msgspec.ValidationError as error:
            raise BadInput(
                f"the recorded settings of this session cannot be read ({error}); name them all"
            ) from error
        confirmed = {"agent": bool(scope.agent_id), "task": bool(scope.task_id), "session": True}
        withheld = SessionOptions()
        if self.reach is None and past.reach is not None and not confirmed.get(past.reach):
            withheld = replace(withheld, reach=past.reach)
            past = replace(past, reach="session")
        if self.packages is None and past.packages:
            withheld = replace(withheld, packages=past.packages)
            past = replace(past, packages=None)
        missing = {
            name: value for name, value in asdict(past).items() if getattr(self, name) is None
        }
        return replace(self, **missing), withheld

    def settings(self) -> dict[str, Any]:
        """The options as they are recorded."""
        return {
            name: msgspec.to_builtins(value)
            for name, value in asdict(self).items()
            if value is not None and name not in _OF_THE_MACHINE
        }


class SessionParts(TypedDict, total=False):
    """Arguments of every way to begin a session: its options, and the functions of its cells."""

    options: SessionOptions | None
    tools: Iterable[AnyTool]
    # Asked before each call of a tool that has effects, and only True allows it; without it such
    # tools run unasked.
    confirm: Confirm | None
    # The model behind `ask` and `ask_many`.
    ask: AskModel | Callable[[str, str], AskReply] | None
    # Other tasks of the same project, which a reach of `task` reads too. They are not recorded.
    earlier_tasks: tuple[str, ...]


class OpenArguments(SessionParts, total=False):
    """Arguments of every way to begin or resume a session by its name."""

    agent_id: str
    task_id: str
