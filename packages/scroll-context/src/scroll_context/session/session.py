"""A session: one agent's work on one history, from its first event to its last, across processes.

It owns the lifetimes of journal, kernel and context, and the turn that every driver shares: record
what the user says (`say`) or what a host's list holds (`follow`), get the request to send (`view`),
record the model's reply (`replied`), carry out its cells (`run`) and its calls (`call_tool`).
Scroll's own agent drives it in a loop; another framework may drive the same methods from its hooks.
Every event goes through the journal, which gives it to the view first, so a resumed session shows
the same bytes: resuming is replaying, and a fork replays another session up to a seq. The session
knows nothing of loops or providers.

`options.py` says how a session is set up, `requests.py` makes its requests, `cells.py` runs its
cells, and `recovery.py` knows what a resumed session starts from.
"""

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import msgspec
from msgspec.structs import asdict, replace

from scroll_context.background import in_background
from scroll_context.brief.brief import TOKENS as BRIEF_TOKENS
from scroll_context.brief.brief import Brief, brief_of_prompt
from scroll_context.brief.relevance import reach_of, source_of
from scroll_context.errors import BadInput, QuotaReached, SessionBusy, UnknownSession
from scroll_context.events import STORE_SESSION, Event, Grant, Kind, Scope
from scroll_context.kernel.results import UNKNOWN_SEQ, RestoreReport
from scroll_context.log.journal import Journal, Observer, Quota
from scroll_context.messages import Media, ToolCall, ToolSpec
from scroll_context.models import DEFAULT_WINDOW, Model, Reply, Request
from scroll_context.origin import Origin
from scroll_context.recall.memory import Memory
from scroll_context.recall.memory_tools import recall_tools
from scroll_context.session.cells import Cells, answer_call
from scroll_context.session.context import WindowedContext, make_context
from scroll_context.session.environment import Environment
from scroll_context.session.host import HostMessage, Layout
from scroll_context.session.media import record_media
from scroll_context.session.options import (
    AnyTool,
    OpenArguments,
    Reach,
    SessionOptions,
    SessionParts,
)
from scroll_context.session.past import lineage
from scroll_context.session.recovery import (
    Recovery,
    close_open_work,
    lost_before,
    recorded_settings,
    restore_variables,
)
from scroll_context.session.requests import FollowOptions, Requests, Setup
from scroll_context.store import Store
from scroll_context.tools.ask import Ask
from scroll_context.tools.toolbox import Toolbox
from scroll_context.view.eviction import ViewBudget
from scroll_context.view.headline import Headline, parse_field, parse_reply

_logger = logging.getLogger("scroll_context.session")


class _Offers(NamedTuple):
    """The events that briefs have offered since the view last changed."""

    changed_at: int = 0
    seqs: frozenset[int] = frozenset()
    subjects: frozenset[str] = frozenset()


class Session:
    """One session, open in this process.

    Make one with open(), resume(), open_or_resume() or fork().

    >>> from scroll_context import Agent, ScriptedModel, Session, Store, exec_cell
    >>> with Store("trip.scroll", create=True) as store:
    ...     with Session.open(store, session_id="trip") as session:
    ...         model = ScriptedModel([exec_cell("city = 'Lisbon'"), "Noted."])
    ...         run = Agent(session, model).run("We go to Lisbon.")
    ...     with Session.resume(store, "trip") as session:
    ...         model = ScriptedModel([exec_cell("print(city)"), "Lisbon."])
    ...         Agent(session, model).run("Where do we go?").answer
    'Lisbon.'
    """

    def __init__(self, store: Store, journal: Journal, **parts: Unpack[SessionParts]) -> None:
        unknown = parts.keys() - SessionParts.__annotations__.keys()
        if unknown:
            names = ", ".join(SessionParts.__annotations__)
            raise TypeError(f"a session takes {names}, not {', '.join(unknown)}")
        options = parts.get("options") or SessionOptions()
        self.store = store
        self.journal = journal
        self.scope = replace(journal.scope, earlier_tasks=parts.get("earlier_tasks", ()))
        # Recorded settings that a resume did not give again.
        self.withheld = SessionOptions()
        self.reach: Reach = options.reach or ("agent" if self.scope.agent_id else "session")
        self.options = replace(options, reach=self.reach, context=options.context or "scroll")
        self.cell_timeout = 120.0 if options.cell_timeout is None else options.cell_timeout
        if not self.cell_timeout > 0:
            raise BadInput(f"cell_timeout must be more than 0 seconds, not {self.cell_timeout}")
        journal.quota = options.quota or Quota()
        self._run_lock = threading.Lock()
        context = make_context(str(self.options.context), store.log.excerpt)
        self.environment = self._make_environment(context, options, parts)
        budget = options.budget or ViewBudget()
        self._requests = Requests(store, journal, context, self.environment, budget)
        self._cells = Cells(journal, self.environment)
        self._offers = _Offers()

    def _make_environment(
        self, context: WindowedContext, options: SessionOptions, parts: SessionParts
    ) -> Environment:
        memory = Memory(self.store, self.scope, self.reach, self)
        # Stubs and index name the recall tools, so they are offered under the same names.
        prefix = context.view.words.expand.removesuffix("expand")
        native = recall_tools(memory, context.actions.memory_tools, prefix)
        tools: list[AnyTool] = [*parts.get("tools", ()), *native]
        ask = parts.get("ask")
        return Environment(
            self.journal,
            Toolbox(tools, journal=self.journal, confirm=parts.get("confirm")),
            memory,
            Ask(ask, self.journal) if ask is not None else None,
            actions=context.actions,
            jail=options.jail,
            options=options.kernel,
            packages=options.packages or (),
        )

    @property
    def context(self) -> WindowedContext:
        """The context of this session: the model's view, and how the model may act."""
        return self._requests.context

    @context.setter
    def context(self, context: WindowedContext) -> None:
        self._requests.context = context

    @property
    def budget(self) -> ViewBudget:
        """How full the view may get."""
        return self._requests.budget

    # lifetimes ----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        session_id: str = "",
        agent_id: str = "",
        task_id: str = "",
        **parts: Unpack[SessionParts],
    ) -> "Session":
        """Begin a new session."""
        _check_store(store)
        scope = Scope(session_id or f"s-{uuid.uuid4().hex[:12]}", agent_id, task_id)
        # A session that cannot begin leaves no kernel and no lease behind.
        with contextlib.ExitStack() as on_failure:
            journal = on_failure.enter_context(contextlib.closing(_new_journal(store, scope)))
            session = on_failure.enter_context(cls(store, journal, **parts))
            session._start([])
            session.record(
                Kind.SESSION, content="opened", metadata={"settings": session.options.settings()}
            )
            on_failure.pop_all()
        return session

    @classmethod
    def resume(
        cls,
        store: Store,
        session_id: str,
        *,
        agent_id: str = "",
        task_id: str = "",
        wait: float = 0.0,
        **parts: Unpack[SessionParts],
    ) -> "Session":
        """Resume a session where it stopped, with its last settings.

        Options that are given win over the recorded ones, and hold from now on. Packages and a
        reach wider than the session take effect only if they are given again; `withheld` has those
        that were not, and a warning names them. Naming the agent or task of the session again gives
        a recorded reach of `agent` or `task` again. A session that is open elsewhere raises
        SessionBusy, after waiting `wait` seconds for it.
        """
        _check_store(store)
        if not _exists(store, session_id):
            raise UnknownSession(
                f"there is no session {session_id!r} in this store; Store.log.sessions() lists them"
            )
        first = next(store.log.iterate(session_id=session_id))
        scope = Scope(session_id, first.agent_id, first.task_id)
        with contextlib.ExitStack() as on_failure:
            journal = on_failure.enter_context(
                contextlib.closing(Journal(store.log, scope, wait=wait))
            )
            confirmed = Scope(
                session_id,
                agent_id if agent_id == scope.agent_id else "",
                task_id if task_id == scope.task_id else "",
            )
            recorded = recorded_settings(store, session_id)
            own_options = parts.get("options") or SessionOptions()
            options, withheld = own_options.over(recorded, confirmed)
            parts["options"] = replace(options, reach=options.reach or "session")
            session = on_failure.enter_context(cls(store, journal, **parts))
            session.withheld = withheld
            incidents = close_open_work(journal) + _narrowed_reach(session_id, options, withheld)
            events = list(session.events())
            session._start(events)
            session._restore(events, incidents)
            on_failure.pop_all()
        return session

    @classmethod
    def open_or_resume(
        cls,
        store: Store,
        session_id: str,
        *,
        wait: float = 0.0,
        **arguments: Unpack[OpenArguments],
    ) -> "Session":
        """Resume the session of this name, or begin it if there is none.

        A session that exists keeps its agent and task.
        """
        _check_store(store)
        while not _exists(store, session_id):
            try:
                return cls.open(store, session_id=session_id, **arguments)
            except SessionBusy:
                # Another process is just beginning it.
                Journal(store.log, Scope(session_id), wait=wait).close()
            except BadInput:
                if not _exists(store, session_id):
                    raise
        return cls.resume(store, session_id, wait=wait, **arguments)

    def fork(
        self, at_seq: int, *, session_id: str = "", **parts: Unpack[SessionParts]
    ) -> "Session":
        """A new session with this one's options and past up to a seq.

        Tools, `confirm` and `ask` are given again.
        """
        self.environment.variables.wait_for_save()
        parts["options"] = parts.get("options") or self.options
        return fork(self.store, self.scope.session_id, at_seq, session_id=session_id, **parts)

    def close(self) -> None:
        """Save the variables, end the kernel and release the session's lease."""
        try:
            self.environment.close()
        finally:
            self.journal.close()

    @classmethod
    async def aopen(
        cls,
        store: Store,
        session_id: str,
        *,
        wait: float = 0.0,
        **arguments: Unpack[OpenArguments],
    ) -> "Session":
        """Like `open_or_resume`, for asyncio: the event loop does not wait for the kernel."""
        return await asyncio.to_thread(
            cls.open_or_resume, store, session_id, wait=wait, **arguments
        )

    async def aclose(self) -> None:
        """Like `close`, for asyncio."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the turn -----------------------------------------------------------------------------------

    def say(self, text: str, media: Sequence[Media] = ()) -> Event:
        """Record a user message, with images and files if there are any."""
        if not isinstance(text, str):
            raise BadInput(
                f"a message is text, not {type(text).__name__}: nothing was recorded. Images and "
                "files go beside it, as say(text, media=[Media(...)])."
            )
        # Frameworks bring subclasses of str.
        text = str(text)
        if not text.strip() and not media:
            raise BadInput("the message is empty; write a task or a question")
        self.journal.require_room()
        facts = {"media": record_media(self.journal, media, "user")} if media else {}
        return self.record(Kind.CONVERSATION, role="user", content=text, metadata=facts)

    def follow(
        self,
        messages: Sequence[HostMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        window: int = DEFAULT_WINDOW,
        model_name: str = "",
        overhead: int = 0,
        overflowed: bool = False,
        is_cold: bool = False,
    ) -> Layout:
        """Record the new messages of a host's list, and return the layout that fits its window.

        `messages` is the complete list of the host. What it dropped, edited or rewound since the
        last time leaves the view, as an event of its own; everything stays in the log. `system` and
        `tools` are what the host sends besides; `overhead` are the estimated tokens of what else
        goes with the request. `overflowed` says that the provider refused the last request as too
        long; if nothing more can leave, ContextOverflow is raised. `is_cold` says that the
        provider's cache has expired: an eviction costs nothing now, so one begins halfway to the
        high mark.

        The layout says for each message whether it is sent as it is. Between evictions a request is
        the previous one and what is new, so that a provider's cache stays valid.
        """
        setup = Setup(system=system, tools=tuple(tools), window=window, model_name=model_name)
        return self._requests.next_layout(
            self,
            messages,
            setup,
            extra_tokens=overhead,
            overflowed=overflowed,
            is_cold=is_cold,
        )

    def view(
        self,
        system: str = "",
        *,
        tools: Sequence[ToolSpec] = (),
        window: int = DEFAULT_WINDOW,
        model_name: str = "",
        schema_tokens: int = 0,
        overflowed: bool = False,
        model: Model | None = None,
    ) -> Request:
        """The next request: the view brought within its budget, rendered and recorded.

        `tools` are the schemas that go with it; a host that sends its own gives their size as
        `schema_tokens`. `overflowed` says that the provider refused the last request as too long;
        if nothing more can leave the view, ContextOverflow is raised. `model` is for contexts that
        have their summaries written by one.
        """
        setup = Setup(system=system, tools=tuple(tools), window=window, model_name=model_name)
        return self._requests.next_request(
            self, setup, extra_tokens=schema_tokens, overflowed=overflowed, model=model
        )

    async def afollow(
        self, messages: Sequence[HostMessage], **options: Unpack[FollowOptions]
    ) -> Layout:
        """Like `follow`, for asyncio: the event loop does not wait for the disk."""
        return await asyncio.to_thread(self.follow, messages, **options)

    async def areplied(self, reply: Reply, *, id: str = "", sent: str = "") -> Event:
        """Like `replied`, for asyncio."""
        return await asyncio.to_thread(self.replied, reply, id=id, sent=sent)

    def replied(self, reply: Reply, *, id: str = "", sent: str = "") -> Event:
        """Record the model's reply, before its calls are carried out.

        The headline in it is bound to its seq. A host's list must hold the reply in the same shape,
        as one message; otherwise it counts as another one. `id` is the host's own id of the
        message, if it has one already; `sent` is the SHA-256 of the body that a host sent for it.
        """
        headline = _headline_of(reply)
        metadata: dict[str, Any] = {
            "tool_calls": [msgspec.to_builtins(call) for call in reply.tool_calls],
            "thinking": [msgspec.to_builtins(block) for block in reply.thinking],
            "usage": msgspec.to_builtins(reply.usage),
            "model": reply.model,
            "finish_reason": reply.finish_reason,
            "cost": reply.cost,
            "cut": reply.finish_reason == "stopped",
            Origin.HOST.value: id,
            "sent": sent,
        }
        return self.record(
            Kind.CONVERSATION,
            role="assistant",
            content=str(reply.text),
            headline=headline.full() if headline else "",
            metadata={name: value for name, value in metadata.items() if value},
        )

    def run(
        self, source: str, call_id: str = "", *, name: str = "exec", echo: bool = False
    ) -> Event:
        """Run a cell of the model and record its output. Returns the observation.

        Cells that use `ms`, and their output, are marked as echoes, which search never returns.
        `echo=True` marks any cell so, for sessions that do nothing but recall.
        """
        return self._cells.run(str(source), call_id, name, self.cell_timeout, echo=echo)

    async def arun(self, source: str, call_id: str = "", *, name: str = "exec") -> Event:
        """Like `run`. Cancelling the task interrupts the cell; variables bound before that stay."""
        # The cell is under way from here on, so that a task that is cancelled at once stops it.
        with self.cell_under_way():
            return await in_background(
                lambda: self.run(source, call_id, name=name), self.interrupt_soon, "cell"
            )

    def call_tool(self, call: ToolCall) -> Event:
        """Run a tool that the model called natively. Returns the event of its result."""
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        try:
            return self.environment.toolbox.call_native(call.name, arguments, tool_call_id=call.id)
        except QuotaReached as error:
            return self.answer(call, f"not run: {error}", "refused")

    def answer(self, call: ToolCall, text: str, state: str = "error") -> Event:
        """Record a result for a call that neither the kernel nor the toolbox carries out."""
        return answer_call(self.journal, call, text, state)

    def notice(self, text: str) -> Event:
        """Tell the model something that the user did not say."""
        return self.record(Kind.NOTICE, role="user", content=text)

    def interrupt(self) -> bool:
        """Stop the running cell, as a timeout would. Returns False if none is running."""
        return self.environment.kernel.interrupt()

    def interrupt_soon(self) -> None:
        """Stop the current cell, or one that is about to begin. Does not wait."""
        self._cells.interrupt_soon()

    def cell_under_way(self) -> contextlib.AbstractContextManager[None]:
        """A context in which a cell runs or is about to run; `interrupt_soon` waits for it."""
        return self._cells.under_way()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A run of an agent.

        A second one at the same time would mix two conversations, so it is refused.
        """
        if not self._run_lock.acquire(blocking=False):
            raise SessionBusy(
                f"another run is under way in session {self.scope.session_id!r}; nothing was "
                "recorded. Wait for it, stop it, or fork the session."
            )
        try:
            yield
        finally:
            self._run_lock.release()

    # recording ----------------------------------------------------------------------------------

    def record(self, kind: str, **fields: Any) -> Event:
        """Append an event of this session."""
        return self.journal.append(self.journal.draft(kind, **fields))

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each event, including calls inside cells.

        Returns a function that unsubscribes it.
        """
        return self.journal.subscribe(observer)

    def add_tools(self, tools: Iterable[AnyTool]) -> None:
        """Give an open session more tools. Cells can use them from the next cell on."""
        self.environment.toolbox.add(tools)
        self.environment.tools_changed()

    # what recall asks --------------------------------------------------------------------------

    @property
    def grant(self) -> Grant:
        """The events that this session may read."""
        return self.environment.memory.grant

    def visible_seqs(self) -> Collection[int]:
        return self.context.visible

    def brief(self, query: str, tokens: int = BRIEF_TOKENS) -> Brief:
        """The few earlier events that are relevant to a prompt and not in the view; mostly none.

        An event is offered once, and again only after an eviction has changed the view.
        """
        changed = self.context.view.rewritten_at
        if changed != self._offers.changed_at:
            self._offers = _Offers(changed)
        offers = self._offers
        source = source_of(self.store)
        if source is None:
            return Brief()
        # Within this session, only evicted events can be new to the model.
        reach = reach_of(self.grant)._replace(
            asking=self.scope.session_id,
            until=changed,
            exclude=offers.seqs | frozenset(self.visible_seqs()),
            subjects=offers.subjects,
        )
        offer = brief_of_prompt(source, query, reach, tokens)
        self._offers = _Offers(changed, offers.seqs | offer.seqs, offers.subjects | offer.subjects)
        return offer

    def index_lines(self) -> list[dict[str, Any]]:
        return self.context.index_lines()

    def provenance(self, name: str) -> dict[str, Any]:
        for variable in self.environment.kernel.names.variables():
            if variable.name == name:
                return {
                    "name": name,
                    "type": variable.type,
                    "detail": variable.detail,
                    "cell": variable.cell,
                    "seqs": [seq for seq in variable.seqs if seq != UNKNOWN_SEQ],
                    "unknown": UNKNOWN_SEQ in variable.seqs,
                }
        raise BadInput(f"no variable {name!r} was bound by an earlier cell")

    # replaying ----------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """The events of this session in order, inherited ones first."""
        return lineage(self.store, self.scope.session_id)

    def _start(self, events: Sequence[Event]) -> None:
        """Rebuild the view from past events, and start the parts that have threads or processes."""
        self.journal.follow(self._requests.add, events)
        self.store.index.start()
        self.environment.start()

    def _restore(self, events: Sequence[Event], incidents: Sequence[str]) -> None:
        """Bring back the variables that the events lead to, and report what is not as it was.

        A clean close and a clean open are not an incident: then the model is told nothing, and its
        prompt stays as it was.
        """
        recovery = Recovery(RestoreReport(), [], had_snapshots=False)
        if self.context.actions.exec:
            recovery = restore_variables(self.environment.variables, events)
        facts = {
            "restored": len(recovery.report.restored),
            "lost": recovery.lost,
            "settings": self.options.settings(),
        }
        self.record(Kind.SESSION, content="resumed", metadata=facts)
        if incidents or not lost_before(events).issuperset(recovery.lost):
            self.notice(recovery.notice(incidents))


def _headline_of(reply: Reply) -> Headline | None:
    """The headline that the model gave: in a call, else at the end of its text."""
    for call in reply.tool_calls:
        if isinstance(call.arguments, dict):
            headline = parse_field(call.arguments.get("headline"))
            if headline:
                return headline
    return parse_reply(reply.text)


def fork(
    store: Store, parent: str, at_seq: int, *, session_id: str = "", **given: Unpack[SessionParts]
) -> Session:
    """A new session that continues `parent` from a seq, with its view and variables as they were
    there.
    """
    source = store.log.get(at_seq)
    if source.session_id != parent:
        raise BadInput(
            f"seq {at_seq} does not belong to session {parent!r}; "
            f"`scroll show {at_seq}` shows its session"
        )
    scope = Scope(
        session_id or f"{parent}-fork-{uuid.uuid4().hex[:6]}", source.agent_id, source.task_id
    )
    with contextlib.closing(_new_journal(store, scope)) as journal:
        facts = {"session_id": parent, "at_seq": at_seq}
        journal.append(
            journal.draft(Kind.FORK, content=f"fork of {parent} at seq {at_seq}", metadata=facts)
        )
    return Session.resume(store, scope.session_id, **given)


def _narrowed_reach(
    session_id: str, options: SessionOptions, withheld: SessionOptions
) -> list[str]:
    """Warn about recorded settings that are not in effect; returns what the model should know."""
    incidents = []
    if withheld != SessionOptions():
        _logger.warning("%s", _how_to_allow(session_id, withheld))
    if withheld.reach is not None:
        incidents.append(
            f"`ms` reaches this session only; its reach was {withheld.reach!r} before."
        )
    if options.reach is None:
        incidents.append(
            "No reach was recorded for this session, so `ms` reaches this session only."
        )
        _logger.warning(
            "session %r has no recorded reach; it is resumed with reach 'session'", session_id
        )
    return incidents


def _how_to_allow(session_id: str, withheld: SessionOptions) -> str:
    """The warning that settings are withheld, with the arguments that put them into effect."""
    arguments = ", ".join(
        f"{name}={value!r}" for name, value in asdict(withheld).items() if value is not None
    )
    return (
        f"session {session_id!r} was recorded with {arguments}, which may have come with its store "
        "and is not in effect. To allow it: "
        f"Session.resume(store, {session_id!r}, options=SessionOptions({arguments}))"
    )


def _check_store(store: object) -> None:
    if not isinstance(store, Store):
        raise BadInput(
            f"a session is opened in a Store, not in {store!r}: "
            "with Store('work.scroll', create=True) as store: Session.open(store)"
        )


def _exists(store: Store, session_id: str) -> bool:
    """Whether a session was begun; another host may have done it a moment ago."""
    if not store.log.tail(1, session_id=session_id):
        store.log.backend.refresh()
    return bool(store.log.tail(1, session_id=session_id))


def _new_journal(store: Store, scope: Scope) -> Journal:
    """The journal of a session that is not there yet."""
    _check_new(store, scope.session_id)
    journal = Journal(store.log, scope)
    try:
        _check_new(store, scope.session_id)  # again: another process may have begun it meanwhile
    except BadInput:
        journal.close()
        raise
    return journal


def _check_new(store: Store, session_id: str) -> None:
    if session_id == STORE_SESSION:
        raise BadInput(f"the name {session_id!r} is reserved for the store; choose another")
    if store.log.tail(1, session_id=session_id):
        raise BadInput(f"session {session_id!r} exists already; resume it, or choose another name")
