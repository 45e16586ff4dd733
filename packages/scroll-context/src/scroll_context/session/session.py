"""A session: one agent's work on one history, from its first event to its last, across processes.

It owns the lifetimes of journal, kernel and context, and the turn that every driver shares:
`observe` what was said, take the `view` to send, record what the model `replied`, `run` its cells
and `call_tool` its calls. Scroll's own agent drives it in a loop; another framework may drive the
same methods from its hooks. Every event goes through the journal, which gives it to the view first,
so a resumed session shows the same bytes: resuming is replaying, and a fork replays another session
up to a seq. The session knows nothing of loops or providers.
"""

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec
from msgspec.structs import asdict, replace

from scroll_context.background import in_background, in_thread
from scroll_context.errors import (
    BadInput,
    ContextOverflow,
    QuotaReached,
    SessionBusy,
    UnknownSession,
)
from scroll_context.events import STORE_SESSION, Event, Grant, Kind, Scope, packed_seqs
from scroll_context.jail.spec import JailSpec
from scroll_context.kernel.kernel import KernelOptions
from scroll_context.kernel.results import UNKNOWN_SEQ, CellResult, RestoreReport, restored
from scroll_context.log.journal import Journal, Observer, Quota
from scroll_context.log.rows import INLINE_LIMIT
from scroll_context.messages import Media, ToolCall, ToolSpec
from scroll_context.models import DEFAULT_WINDOW, Model, Reply, Request
from scroll_context.origin import Origin
from scroll_context.recall.memory import Memory
from scroll_context.recall.memory_tools import recall_tools
from scroll_context.session.context import WindowedContext, make_context
from scroll_context.session.environment import Environment, recalls
from scroll_context.session.follow import HostList, items_of, record_list
from scroll_context.session.history import (
    bound_since,
    close_open_work,
    lineage,
    lost_before,
    recorded_settings,
    snapshots_of,
)
from scroll_context.session.host import HostMessage, Layout
from scroll_context.session.media import record_media, with_bytes
from scroll_context.store import Store
from scroll_context.tools.ask import Ask, AskModel, AskReply
from scroll_context.tools.toolbox import Confirm, Toolbox
from scroll_context.tools.tools import Tool
from scroll_context.view.eviction import Budget, ViewBudget
from scroll_context.view.headline import parse_field, parse_reply
from scroll_context.view.layout import lay_out
from scroll_context.view.tokens import estimate
from scroll_context.view.working import RENDERER_VERSION

# names that a cell bound, and entries for the events that it was given, in its observation
MAX_LISTED = 1_000

AnyTool = Tool[..., Any] | Callable[..., Any]
Reach = Literal["session", "task", "agent", "all"]

_logger = logging.getLogger("scroll_context.session")


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is set up.

    What is None is as the session was recorded, or the default for a new one.

    >>> from scroll_context import Session, SessionOptions, Store, ViewBudget
    >>> options = SessionOptions(cell_timeout=30, budget=ViewBudget(high=0.7))
    >>> with Store("trip.scroll", create=True) as store:
    ...     with Session.open(store, session_id="trip", options=options):
    ...         pass
    ...     with Session.resume(store, "trip") as session:
    ...         session.options.cell_timeout
    30.0
    """

    reach: Reach | None = (
        None  # what `ms` may read; by default `agent` where an agent id was given, else `session`
    )
    context: str | None = None  # "scroll", or one that an installed package offers for comparison
    budget: ViewBudget | None = None
    cell_timeout: float | None = None  # seconds that one cell may run; 120 by default
    packages: tuple[str, ...] | None = (
        None  # importable names or folders that cells may import besides the default
    )
    quota: Quota | None = None
    jail: JailSpec | None = None  # not recorded: this and the next belong to the machine
    kernel: KernelOptions | None = None

    def over(
        self, recorded: dict[str, Any], scope: Scope
    ) -> "tuple[SessionOptions, SessionOptions]":
        """These options, with the recorded settings of a session where one is None; and those
        withheld.

        A store may come from somebody else, so what opens the jail or the store to a session is not
        taken from its log: packages, and a reach wider than the session. `scope` is what the caller
        named: a reach that was recorded holds if its agent or task is named again.
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
        recorded_values = {
            name: value for name, value in asdict(past).items() if getattr(self, name) is None
        }
        return replace(self, **recorded_values), withheld

    def settings(self) -> dict[str, Any]:
        """What is recorded of the options."""
        named = {
            name: value for name, value in asdict(self).items() if name not in ("jail", "kernel")
        }
        return {
            name: msgspec.to_builtins(value) for name, value in named.items() if value is not None
        }


class SessionParts(TypedDict, total=False):
    """What every way to begin a session takes: how it is set up, and what its cells may call
    besides `ms`.
    """

    options: SessionOptions | None
    tools: Iterable[AnyTool]
    # Asked before each call of a tool that has effects, and only True allows it; without it they
    # run unasked.
    confirm: Confirm | None
    ask: AskModel | Callable[[str, str], AskReply] | None  # the model behind `ask` and `ask_many`


class FollowOptions(TypedDict, total=False):
    """What `Session.follow` takes besides the messages."""

    system: str
    tools: Sequence[ToolSpec]
    window: int
    model_name: str
    overhead: int
    overflowed: bool
    is_cold: bool


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

    def __init__(self, store: Store, journal: Journal, **given: Unpack[SessionParts]) -> None:
        if unknown := given.keys() - SessionParts.__annotations__.keys():
            raise TypeError(
                f"a session takes {', '.join(SessionParts.__annotations__)}, not {', '.join(unknown)}"
            )
        options = given.get("options") or SessionOptions()
        ask = given.get("ask")
        self.store = store
        self.journal = journal
        self.scope = journal.scope
        self.withheld = SessionOptions()  # recorded settings that a resume did not give again
        self.reach: Reach = options.reach or ("agent" if self.scope.agent_id else "session")
        self.options = replace(options, reach=self.reach, context=options.context or "scroll")
        self.budget = options.budget or ViewBudget()
        self.cell_timeout = 120.0 if options.cell_timeout is None else options.cell_timeout
        if not self.cell_timeout > 0:
            raise BadInput(
                f"cell_timeout is the seconds that a cell may run, so more than 0, not {self.cell_timeout}"
            )
        journal.quota = options.quota or Quota()
        self.context: WindowedContext = make_context(str(self.options.context), store.log.excerpt)
        self._erasure = store.log.newest_erasure()  # that the view knows of
        self._host: HostList | None = None  # made when a host first hands over its history
        self._cells: set[object] = set()  # those under way, or about to begin
        self._cell_turn = threading.Lock()  # threads run their cells one after the other
        self._run_lock = threading.Lock()
        self._setup: tuple[object, ...] = ()  # what the newest `session` event of a run says
        self._schema: tuple[tuple[ToolSpec, ...], int] = (
            (),
            0,
        )  # the tools of the last request, and their tokens
        memory = Memory(store, self.scope, self.reach, self)
        # Stubs and index name the recall tools, so they are offered under the same names.
        prefix = self.context.view.words.expand.removesuffix("expand")
        native = recall_tools(memory, self.context.actions.memory_tools, prefix)
        self.environment = Environment(
            journal,
            Toolbox(
                [*given.get("tools", ()), *native], journal=journal, confirm=given.get("confirm")
            ),
            memory,
            Ask(ask, journal) if ask is not None else None,
            actions=self.context.actions,
            jail=options.jail,
            options=options.kernel,
            packages=options.packages or (),
        )

    # lifetimes ------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        session_id: str = "",
        agent_id: str = "",
        task_id: str = "",
        **given: Unpack[SessionParts],
    ) -> "Session":
        """Begin a new session."""
        _check_store(store)
        scope = Scope(session_id or f"s-{uuid.uuid4().hex[:12]}", agent_id, task_id)
        with (
            contextlib.ExitStack() as on_failure
        ):  # a session that cannot begin leaves no kernel and no lease behind
            journal = on_failure.enter_context(contextlib.closing(_new_journal(store, scope)))
            session = on_failure.enter_context(cls(store, journal, **given))
            journal.follow(session._take_in)
            session._start()
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
        **given: Unpack[SessionParts],
    ) -> "Session":
        """Resume a session where it stopped, whatever stopped it, with the settings that it last
        worked under.

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
            named = Scope(
                session_id,
                agent_id if agent_id == scope.agent_id else "",
                task_id if task_id == scope.task_id else "",
            )
            recorded = recorded_settings(store, session_id)
            wanted, withheld = (given.get("options") or SessionOptions()).over(recorded, named)
            given["options"] = replace(wanted, reach=wanted.reach or "session")
            session = on_failure.enter_context(cls(store, journal, **given))
            session.withheld = withheld
            incidents = close_open_work(journal)
            if withheld != SessionOptions():
                _logger.warning("%s", _given_again(session_id, withheld))
            if withheld.reach is not None:
                incidents.append(
                    f"`ms` reaches this session only; its reach was {withheld.reach!r} before."
                )
            if wanted.reach is None:
                incidents.append(
                    "No reach was recorded for this session, so `ms` reaches this session only."
                )
                _logger.warning(
                    "session %r has no recorded reach; it is resumed with reach 'session'",
                    session_id,
                )
            events = list(session.events())
            journal.follow(session._take_in, events)
            session._start()
            session._restore(events, incidents)
            on_failure.pop_all()
        return session

    @classmethod
    def open_or_resume(
        cls,
        store: Store,
        session_id: str,
        *,
        agent_id: str = "",
        task_id: str = "",
        wait: float = 0.0,
        **given: Unpack[SessionParts],
    ) -> "Session":
        """The session of this name: where it stopped, or a new one.

        A known session keeps its agent and task.
        """
        _check_store(store)
        while not _exists(store, session_id):
            try:
                return cls.open(
                    store, session_id=session_id, agent_id=agent_id, task_id=task_id, **given
                )
            except SessionBusy:  # another process is just beginning it
                Journal(store.log, Scope(session_id), wait=wait).close()
            except BadInput:
                if not _exists(store, session_id):
                    raise
        return cls.resume(store, session_id, agent_id=agent_id, task_id=task_id, wait=wait, **given)

    def fork(
        self, at_seq: int, *, session_id: str = "", **given: Unpack[SessionParts]
    ) -> "Session":
        """A new session with this one's options and past up to a seq.

        Tools, `confirm` and `ask` are given again.
        """
        self.environment.settle()
        given["options"] = given.get("options") or self.options
        return fork(self.store, self.scope.session_id, at_seq, session_id=session_id, **given)

    def close(self) -> None:
        """Save the variables, end the kernel, release the lease of the session."""
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
        agent_id: str = "",
        task_id: str = "",
        wait: float = 0.0,
        **given: Unpack[SessionParts],
    ) -> "Session":
        """Like `open_or_resume`, for asyncio: the event loop does not wait for the kernel."""
        return await asyncio.to_thread(
            cls.open_or_resume,
            store,
            session_id,
            agent_id=agent_id,
            task_id=task_id,
            wait=wait,
            **given,
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

    # the turn -------------------------------------------------------------------------------------------

    def say(self, text: str, media: Sequence[Media] = ()) -> Event:
        """Record a message of the user, with images and files if there are any."""
        if not isinstance(text, str):
            raise BadInput(
                f"a message is text, not {type(text).__name__}: nothing was recorded. Images and "
                "files go beside it, as say(text, media=[Media(...)])."
            )
        # Frameworks bring subclasses of str.
        text = str(text)
        if not text.strip() and not media:
            raise BadInput("the message is empty; say what is to be done")
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
        """Bring a host's list within its window: record what is new in it, and say what to send.

        `messages` is the complete list of the host. What it dropped, edited or rewound since the
        last time leaves the view, as an event of its own; everything stays in the log. `system` and
        `tools` are what the host sends besides; `overhead` are the estimated tokens of what else
        goes with the request. `overflowed` says that the provider refused the last request as too
        long; if nothing more can leave, ContextOverflow is raised. `is_cold` says that the provider's
        cache has expired: an eviction costs nothing now, so one begins halfway to the high mark.

        The layout says for each message whether it is sent as it is. Between evictions a request is
        the previous one and what is new, so that a provider's cache stays valid.
        """
        digest = self.environment.digest() if self.context.actions.exec else ""
        with self.journal.hold():
            self._forget_erased()
            rewritten = self.context.view.rewritten_at
            if self._host is None:
                self._host = HostList(self.store.log.text_or_preview, self.events())
            seqs = record_list(self.journal, self._host, messages, self._index_tokens(window))
            budget = self.budget
            if is_cold:
                budget = replace(budget, high=(budget.high + budget.low) / 2)
            overhead += sum(_system_tokens(message, system) for message in messages)
            schema = self._fit(
                system, tools, window, model_name, digest, overhead, overflowed, budget
            )
            layout = lay_out(self.context.view)
            self.context.visible = layout.visible
            facts = {
                "hash": layout.hash,
                "layout": True,
                "upto": self.context.view.last_seq,
                "renderer": RENDERER_VERSION,
            }
            tokens = self.context.view.tokens + estimate(system) + estimate(digest) + schema
            request = self._record_request(facts, tokens, window, model_name, digest)
        return Layout(
            items=tuple(items_of(layout, seqs)),
            tail=digest,
            seqs=tuple(max(seq, 0) for seq in seqs),
            request=request.seq,
            hash=layout.hash,
            tokens=tokens,
            evicted=self.context.view.rewritten_at != rewritten,
        )

    def _index_tokens(self, window: int) -> int:
        """Raw tokens that the index may have in a window."""
        return int(window * self.budget.index_share / self.context.view.gauge.ratio)

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
        digest = self.environment.digest()  # outside the lock: it may wait for the kernel
        tools = tuple(tools)
        with self.journal.hold():
            self._forget_erased()
            schema = self._fit(
                system,
                tools,
                window,
                model_name,
                digest,
                schema_tokens,
                overflowed,
                self.budget,
                model,
            )
            rendered = self.context.render(system, digest)
            tokens = rendered.tokens + schema
            self._record_request(rendered.metadata(), tokens, window, model_name, digest)
        log = self.store.log
        messages = [
            replace(message, media=with_bytes(log, message.media)) if message.media else message
            for message in rendered.messages
        ]
        return Request(tuple(messages), tools)

    def _fit(
        self,
        system: str,
        tools: Sequence[ToolSpec],
        window: int,
        model_name: str,
        digest: str,
        schema_tokens: int,
        overflowed: bool,
        view_budget: ViewBudget,
        model: Model | None = None,
    ) -> int:
        """Bring the view within its budget; the tokens of everything that is not a message."""
        tools = tuple(tools)
        if tools != self._schema[0]:
            self._schema = (
                tools,
                sum(estimate(msgspec.json.encode(spec).decode()) for spec in tools),
            )
        schema = schema_tokens + self._schema[1]
        self._record_setup(system, tools, window, model_name)
        overhead = estimate(system) + estimate(digest) + schema
        if overhead >= window:
            raise ContextOverflow(
                f"the system prompt, the tools and the list of variables need about {overhead:,} "
                f"tokens, and the window has {window:,}. Nothing was sent. Use a model with a "
                "larger window, a shorter prompt or fewer tools.",
                tokens=overhead,
                limit=window,
            )
        budget = Budget(window=window, overhead=overhead, **asdict(view_budget))
        shrank = self.context.fit(self, budget, model, overflowed)
        if overflowed and not shrank:
            raise ContextOverflow(
                "the provider refused the request as too long, and nothing more can leave the "
                "view. Use a model with a larger window, or shorten the newest message."
            )
        return schema

    def _record_request(
        self, facts: dict[str, Any], tokens: int, window: int, model_name: str, digest: str
    ) -> Event:
        if tokens > window:
            _logger.warning(
                "session %r sends about %d tokens to a window of %d: nothing more can leave the view",
                self.scope.session_id,
                tokens,
                window,
            )
        facts |= {"tokens": tokens, "digest": digest}
        facts |= self.environment.cells_behind_digest() if digest else {}
        return self.record(Kind.REQUEST, name=model_name, metadata=facts)

    async def afollow(
        self, messages: Sequence[HostMessage], **options: Unpack[FollowOptions]
    ) -> Layout:
        """Like `follow`, for asyncio: the event loop does not wait for the disk."""
        return await asyncio.to_thread(self.follow, messages, **options)

    async def areplied(self, reply: Reply, *, id: str = "", sent: str = "") -> Event:
        """Like `replied`, for asyncio."""
        return await asyncio.to_thread(self.replied, reply, id=id, sent=sent)

    def replied(self, reply: Reply, *, id: str = "", sent: str = "") -> Event:
        """Record what the model answered, before its calls are carried out.

        The headline in it is bound to its seq. A host's list must hold the reply in the same shape,
        as one message; otherwise it counts as another one. `id` is the host's own id of the message, if it has
        one already; `sent` is the SHA-256 of the body that a host sent for it.
        """
        given = [
            call.arguments.get("headline")
            for call in reply.tool_calls
            if isinstance(call.arguments, dict)
        ]
        found = next(
            (headline for one in given if (headline := parse_field(one))), None
        ) or parse_reply(reply.text)
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
            headline=found.full() if found else "",
            metadata={name: value for name, value in metadata.items() if value},
        )

    def run(
        self, source: str, call_id: str = "", *, name: str = "exec", echo: bool = False
    ) -> Event:
        """Run a cell of the model and record what it showed; the observation is returned.

        Cells that use `ms`, and their output, are marked as echoes, which search never returns.
        `echo=True` marks any cell so, for sessions that do nothing but recall.
        """
        source = str(source)
        with self.cell_under_way(), self._cell_turn:
            try:
                self.journal.require_room()
            except QuotaReached as error:
                return self.answer(ToolCall(call_id, name), f"not run: {error}", "refused")
            marks: dict[str, Any] = {"echo": True} if echo or recalls(source) else {}
            marks |= self.environment.cells_behind(source)
            cell = self.record(
                Kind.CELL,
                role="assistant",
                name=name,
                tool_call_id=call_id,
                content=source,
                metadata=marks,
            )
            result, text = self.environment.run(source, cell, self.cell_timeout)
            return self._record_observation(cell, result, text, echo)

    def _record_observation(self, cell: Event, result: CellResult, text: str, echo: bool) -> Event:
        body: bytes | str | None = None
        if result.is_cut:
            body = result.printed
        elif len(text) > INLINE_LIMIT // 4 and len(text.encode()) > INLINE_LIMIT:
            body = text  # shown whole, and too long for a row alone
        bound = [*result.bound, *result.changed][:MAX_LISTED]
        given = [seq for seq in result.all_seqs or result.seqs if seq != UNKNOWN_SEQ]
        metadata: dict[str, Any] = {"bound": bound, "seqs": packed_seqs(given, MAX_LISTED)}
        if UNKNOWN_SEQ in result.seqs:
            metadata["unknown"] = True  # it was given events that cannot be named, too
        if self.environment.memory.calls or echo or cell.metadata.get("echo"):
            metadata["echo"] = True
        draft = self.journal.draft(
            Kind.OBSERVATION,
            role="tool",
            name=cell.name,
            tool_call_id=cell.tool_call_id,
            reply_to=cell.seq,
            content=text,
            tool_state=result.ended,
            metadata=metadata,
        )
        return self.journal.append(draft, body=body)

    async def arun(self, source: str, call_id: str = "", *, name: str = "exec") -> Event:
        """As `run`. Cancelling the task interrupts the cell; variables bound before that stay."""
        with (
            self.cell_under_way()
        ):  # from here on, so that a task that is cancelled at once stops the cell
            return await in_background(
                lambda: self.run(source, call_id, name=name), self.interrupt_soon, "cell"
            )

    def call_tool(self, call: ToolCall) -> Event:
        """Carry out a tool that the model called natively; the event of its result is returned."""
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        try:
            return self.environment.toolbox.call_native(call.name, arguments, tool_call_id=call.id)
        except QuotaReached as error:
            return self.answer(call, f"not run: {error}", "refused")

    def answer(self, call: ToolCall, text: str, state: str = "error") -> Event:
        """Record a result for a call that neither the kernel nor the toolbox carries out."""
        return self.record(
            Kind.TOOL_RESULT,
            role="tool",
            name=call.name,
            tool_call_id=call.id,
            content=text,
            tool_state=state,
        )

    def notice(self, text: str) -> Event:
        """Tell the model something that the user did not say."""
        return self.record(Kind.NOTICE, role="user", content=text)

    def interrupt(self) -> bool:
        """Stop the cell that is running, as a timeout would; False when none is."""
        return self.environment.kernel.interrupt()

    def interrupt_soon(self) -> None:
        """Stop the cell that is under way, also one that is about to begin. Does not wait."""

        def interrupt() -> None:
            while self._cells and not self.interrupt():
                time.sleep(0.01)

        in_thread(interrupt, "interrupt")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A run of an agent: a second one at the same time would mix two conversations, so it is
        refused.
        """
        if not self._run_lock.acquire(blocking=False):
            raise SessionBusy(
                f"another run is under way in session {self.scope.session_id!r}; nothing was recorded. Wait for it, "
                "stop it, or fork the session."
            )
        try:
            yield
        finally:
            self._run_lock.release()

    @contextlib.contextmanager
    def cell_under_way(self) -> Iterator[None]:
        """A cell is run within this, or is about to: `interrupt_soon` waits for it."""
        token = object()
        self._cells.add(token)
        try:
            yield
        finally:
            self._cells.discard(token)

    # recording ------------------------------------------------------------------------------------------

    def record(self, kind: str, **fields: Any) -> Event:
        """Append an event of this session."""
        return self.journal.append(self.journal.draft(kind, **fields))

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Tell `observer` of each event, calls inside cells too; returns a function that
        unsubscribes.
        """
        return self.journal.subscribe(observer)

    def add_tools(self, tools: Iterable[AnyTool]) -> None:
        """Give an open session more tools. Cells have them from the next one on."""
        self.environment.toolbox.add(tools)
        self.environment.tools_changed()

    def _take_in(self, event: Event) -> None:
        self.context.add(event)
        if self._host is not None:
            self._host.add(event)

    def _forget_erased(self) -> None:
        """Rebuild the view when something was erased since it was made: it may hold the words."""
        newest = self.store.log.newest_erasure()
        if newest == self._erasure:
            return
        self._erasure = newest
        self.context = make_context(str(self.options.context), self.store.log.excerpt)
        self._host = None
        for event in self.events():
            self.context.add(event)

    def _record_setup(
        self, system: str, tools: Sequence[ToolSpec], window: int, model_name: str
    ) -> None:
        """Record the constant part of the requests that follow, when it is not the one that was
        recorded last.
        """
        setup = (system, tuple(tools), window, model_name)
        if setup == self._setup:
            return
        self.record(
            Kind.SESSION,
            content=system,
            name=model_name,
            metadata={
                "context": self.context.name,
                "window": window,
                "tools": msgspec.to_builtins(tuple(tools)),
            },
        )
        self._setup = setup

    # what recall asks ----------------------------------------------------------------------------------

    @property
    def grant(self) -> Grant:
        """The events that this session may read."""
        return self.environment.memory.grant

    def visible_seqs(self) -> Collection[int]:
        return self.context.visible

    def index_lines(self) -> list[dict[str, Any]]:
        return self.context.index_lines()

    def provenance(self, name: str) -> dict[str, Any]:
        for variable in self.environment.kernel.known_variables():
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

    # replaying ------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """The events of this session in order, those that it inherited first."""
        return lineage(self.store, self.scope.session_id)

    def _start(self) -> None:
        self.store.index.start()
        self.environment.start()

    def _restore(self, events: Sequence[Event], incidents: list[str]) -> None:
        """Bring back the namespace that the events lead to, and tell the model what is not as it
        was.

        A clean close and a clean open are not an incident: then the model is told nothing, and its
        prompt stays as it was.
        """
        report = RestoreReport()
        unsaved: list[str] = []
        snapshots = snapshots_of(events)
        if self.context.actions.exec:
            if snapshots:
                report = self.environment.restore(snapshots)
            unsaved = bound_since(events, snapshots)
        lost = sorted({*(loss.name for loss in (*report.lost, *report.stale)), *unsaved})
        facts = {
            "restored": len(report.restored),
            "lost": lost,
            "settings": self.options.settings(),
        }
        self.record(Kind.SESSION, content="resumed", metadata=facts)
        if not incidents and lost_before(events).issuperset(lost):
            return
        lines = ["The session was resumed in a new process.", *incidents]
        if snapshots and self.context.actions.exec:
            lines.insert(1, restored(report))
        if unsaved:
            lines.append(
                f"Not saved before the process ended, so lost or out of date: {', '.join(unsaved)}."
            )
        self.notice("\n".join(lines))


def _system_tokens(message: HostMessage, system: str) -> int:
    """Tokens of a system message in a host's list that `system` does not hold."""
    if message.role != "system" or message.notice or message.text in system:
        return 0
    return estimate(message.text)


def fork(
    store: Store, parent: str, at_seq: int, *, session_id: str = "", **given: Unpack[SessionParts]
) -> Session:
    """A new session that continues `parent` from a seq, with its view and variables as they were
    there.
    """
    source = store.log.get(at_seq)
    if source.session_id != parent:
        raise BadInput(
            f"seq {at_seq} does not belong to session {parent!r}; `scroll show {at_seq}` tells whose it is"
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


def _given_again(session_id: str, withheld: SessionOptions) -> str:
    """The warning that a recorded setting is not in effect, with the arguments that put it into
    effect.
    """
    arguments = ", ".join(
        f"{name}={value!r}" for name, value in asdict(withheld).items() if value is not None
    )
    return (
        f"session {session_id!r} was recorded with {arguments}, which may have come with its store and is not in "
        f"effect. To allow it: Session.resume(store, {session_id!r}, options=SessionOptions({arguments}))"
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
        raise BadInput(f"the name {session_id!r} is the store's own; choose another")
    if store.log.tail(1, session_id=session_id):
        raise BadInput(f"session {session_id!r} exists already; resume it, or choose another name")
