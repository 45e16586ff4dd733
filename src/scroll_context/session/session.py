"""A session: one agent's work on one history, from its first event to its last, across processes.

The session owns the lifetimes of kernel and context and is the one place where events are recorded: an event is
appended first and shown afterwards, exactly as the log gives it back, so that a resumed session sees the same bytes.
Resuming is replaying; a fork replays another session up to a seq. It knows nothing of loops or providers.
"""

import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from scroll_context.errors import BadInput, UnknownSeq
from scroll_context.events import Event, Kind, Scope
from scroll_context.kernel.jail import JailSpec
from scroll_context.kernel.kernel import KernelOptions
from scroll_context.kernel.observation import observation, restored
from scroll_context.kernel.results import RestoreReport
from scroll_context.messages import ToolCall
from scroll_context.session.context import Context, make_context
from scroll_context.session.environment import Environment
from scroll_context.session.recovery import close_open_work
from scroll_context.store.payloads import TEXT
from scroll_context.store.rows import INLINE_LIMIT
from scroll_context.store.store import Store
from scroll_context.surface.ask import Ask, AskModel, AskReply
from scroll_context.surface.memory import MemorySurface
from scroll_context.surface.memory_tools import memory_tools
from scroll_context.surface.toolbox import Toolbox, ToolUse
from scroll_context.surface.tools import Tool

MAX_SEQS = 1_000  # of the events a cell was given that its observation lists

_RECALLS = re.compile(r"\bms\b")


AnyTool = Tool[..., Any] | Callable[..., Any]


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is set up; the same for opening, resuming and forking."""

    reach: str = "agent"  # what `ms` may read: session, task, agent or all
    context: str = "scroll"
    cell_timeout: float = 120.0
    jail: JailSpec | None = None
    kernel: KernelOptions | None = None


class Session:
    """One session, open in this process. Make one with open(), resume() or fork()."""

    def __init__(
        self,
        store: Store,
        scope: Scope,
        options: SessionOptions,
        tools: Iterable[AnyTool] = (),
        *,
        confirm: Callable[[ToolUse], bool] | None = None,
        ask: AskModel | Callable[[str, str], AskReply] | None = None,
    ) -> None:
        self.store = store
        self.scope = scope
        self.options = options
        self.context: Context = make_context(options.context, store.log.text)
        self.on_event: Callable[[Event], None] | None = None  # told of each event; of a cell's calls in their threads
        self._telling = threading.RLock()  # one event at a time
        memory = MemorySurface(store, scope, options.reach, self)
        native = memory_tools(memory, self.context.actions.memory_tools)
        self.environment = Environment(
            store,
            Toolbox([*tools, *native], log=store.log, scope=scope, confirm=confirm),
            memory,
            Ask(ask, store, scope, on_event=self._tell) if ask is not None else None,
            actions=self.context.actions,
            on_event=self._tell,
            jail=options.jail,
            options=options.kernel,
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
        options: SessionOptions | None = None,
        tools: Iterable[AnyTool] = (),
        **callbacks: Any,
    ) -> "Session":
        """Begin a new session."""
        scope = Scope(session_id or f"s-{uuid.uuid4().hex[:12]}", agent_id, task_id)
        if store.log.tail(1, session_id=scope.session_id):
            raise BadInput(f"session {scope.session_id!r} exists already; resume it, or choose another name")
        session = cls(store, scope, options or SessionOptions(), tools, **callbacks)
        session._start()
        return session

    @classmethod
    def resume(
        cls,
        store: Store,
        session_id: str,
        *,
        options: SessionOptions | None = None,
        tools: Iterable[AnyTool] = (),
        **callbacks: Any,
    ) -> "Session":
        """Go on with a session where it stopped, whatever stopped it; under its own context, unless told otherwise."""
        first = next(store.log.iterate(session_id=session_id), None)
        if first is None:
            raise UnknownSeq(f"there is no session {session_id!r} in this store; `scroll sessions` lists them")
        scope = Scope(session_id, first.agent_id, first.task_id)
        options = options or SessionOptions(context=recorded_context(store, session_id))
        session = cls(store, scope, options, tools, **callbacks)
        told = close_open_work(store, scope)
        events = list(session.events())
        for event in events:
            session.context.add(event)
        session._start()
        try:
            session._restore(events, told)
        except BaseException:
            session.close()
            raise
        return session

    def fork(self, at_seq: int, *, session_id: str = "", **setup: Any) -> "Session":
        """A new session with this one's options and its past up to a seq. `setup` is as for resume()."""
        setup = {"options": self.options} | setup
        self.environment.settle()
        return fork(self.store, self.scope.session_id, at_seq, session_id=session_id, **setup)

    def close(self) -> None:
        self.environment.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # recording ------------------------------------------------------------------------------------------

    def record(self, kind: str, **fields: Any) -> Event:
        """Append an event, then show it: what the log could not keep, the model never sees."""
        return self._show(self.store.append(self.scope.draft(kind, **fields)))

    def say(self, text: str) -> Event:
        """Record a message of the user."""
        if not text.strip():
            raise BadInput("the message is empty; say what is to be done")
        return self.record(Kind.CONVERSATION, role="user", content=text)

    def notice(self, text: str) -> Event:
        """Tell the model something that the user did not say."""
        return self.record(Kind.NOTICE, role="user", content=text)

    def run_cell(self, call: ToolCall, source: str) -> Event:
        """Run a cell of the model and record what it showed."""
        recalls = {"echo": True} if _RECALLS.search(source) else {}
        cell = self.record(
            Kind.CELL, role="assistant", name=call.name, tool_call_id=call.id, content=source, metadata=recalls
        )
        result = self.environment.run(source, cell, self.options.cell_timeout)
        memory = self.environment.memory
        text = observation(result) + "".join(f"\n[note] {note}" for note in memory.notes)
        if not result.printed_chars:
            text += searched_in_vain(memory.empty_searches)
        whole = None
        if result.is_cut or len(result.printed) > INLINE_LIMIT:
            whole = self.store.payloads.put(result.printed, TEXT)
        metadata: dict[str, Any] = {"bound": [*result.bound, *result.changed], "seqs": list(result.seqs[:MAX_SEQS])}
        if memory.calls:
            metadata["echo"] = True
        return self.record(
            Kind.OBSERVATION,
            role="tool",
            name=call.name,
            tool_call_id=call.id,
            reply_to=cell.seq,
            content=text,
            payload=whole,
            tool_state=result.ended,
            metadata=metadata,
        )

    def run_tool(self, call: ToolCall) -> Event:
        """Run a tool that the model called natively; the toolbox records it, and the view is shown what it recorded."""
        assert isinstance(call.arguments, dict)
        shown: list[Event] = []
        self.environment.toolbox.call_native(
            call.name, call.arguments, tool_call_id=call.id, on_event=lambda seq: shown.append(self._show(seq))
        )
        return shown[-1]

    def answer(self, call: ToolCall, text: str, state: str = "error") -> Event:
        """Answer a call that nothing is run for, most often because that is not possible."""
        return self.record(
            Kind.TOOL_RESULT, role="tool", name=call.name, tool_call_id=call.id, content=text, tool_state=state
        )

    def _show(self, seq: int) -> Event:
        """Show an event as the log has it."""
        event = self.store.log.get(seq)
        self.context.add(event)
        if self.on_event is not None:
            with self._telling:
                self.on_event(event)
        return event

    def _tell(self, seq: int) -> None:
        """A call from inside a cell, or its result: not shown, but told as it happens."""
        if self.on_event is not None:
            with self._telling:
                self.on_event(self.store.log.get(seq))

    # what the memory surface asks -----------------------------------------------------------------------

    def visible_seqs(self) -> Collection[int]:
        return self.context.visible

    def index_lines(self) -> list[dict[str, Any]]:
        return self.context.index_lines()

    def provenance(self, name: str) -> dict[str, Any]:
        for variable in self.environment.kernel.known_variables():
            if variable.name == name:
                return {
                    "name": name, "type": variable.type, "detail": variable.detail, "cell": variable.cell,
                    "seqs": list(variable.seqs),
                }  # fmt: skip
        raise BadInput(f"no variable {name!r} was bound by an earlier cell")

    # replaying ------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """The events of this session in order, those of its forefathers first."""
        return lineage(self.store, self.scope.session_id)

    def _start(self) -> None:
        try:
            self.store.index.start()
            self.environment.start()
        except BaseException:
            self.close()
            raise

    def _restore(self, events: Sequence[Event], told: list[str]) -> None:
        """Bring back the namespace that the events lead to, and tell the model what is not as it was."""
        report = RestoreReport()
        snapshots = [event for event in events if event.kind == Kind.SNAPSHOT]
        if self.context.actions.exec:
            if snapshots:
                report = self.environment.restore(snapshots)
                told = [restored(report), *told]
            if unsaved := bound_since(events, snapshots):
                told.append(f"Not saved before the process ended, so lost or out of date: {', '.join(unsaved)}.")
        self.record(Kind.SESSION, content="resumed", metadata={"restored": len(report.restored)})
        self.notice("\n".join(["The session was resumed in a new process.", *told]))


def bound_since(events: Iterable[Event], snapshots: Sequence[Event]) -> list[str]:
    """The variables bound by cells that the newest snapshot does not include."""
    saved = (snapshots[-1].reply_to or 0) if snapshots else 0
    names: dict[str, None] = {}
    for event in events:
        if event.kind == Kind.OBSERVATION and (event.reply_to or 0) > saved:
            names.update(dict.fromkeys(event.metadata.get("bound", ())))
    return list(names)


def recorded_context(store: Store, session_id: str, upto: int | None = None) -> str:
    """The context that a session was last worked on under, by itself or before it was forked."""
    kinds = [Kind.SESSION, Kind.FORK]
    for event in reversed(list(store.log.iterate(session_id=session_id, until=upto, kind=kinds))):
        if origin := _forked_from(event):
            return recorded_context(store, *origin)
        if "context" in event.metadata:
            return str(event.metadata["context"])
    return SessionOptions().context


def searched_in_vain(searches: int) -> str:
    """What to add when a cell printed nothing because its searches found nothing."""
    if not searches:
        return ""
    ran = "One search" if searches == 1 else f"{searches} searches"
    return f"\n[{ran} in this cell ran and matched nothing. Other words may, or fewer filters.]"


def lineage(store: Store, session_id: str, upto: int | None = None) -> Iterator[Event]:
    """The events of a session, after those that it inherited by being forked."""
    own = store.log.iterate(session_id=session_id, until=upto)
    first = next(own, None)
    if first is None:
        return
    if origin := _forked_from(first):
        yield from lineage(store, *origin)
        yield from _late_snapshot(store, *origin, first.seq)
    yield first
    yield from own


def _forked_from(event: Event) -> tuple[str, int] | None:
    """The session that a fork continues, and its last seq there; None for what only looks like a fork: imports may."""
    parent, at = event.metadata.get("session_id"), event.metadata.get("at_seq")
    if event.kind == Kind.FORK and isinstance(parent, str) and isinstance(at, int) and at < event.seq:
        return parent, at
    return None


def _late_snapshot(store: Store, session_id: str, at: int, before: int) -> Iterator[Event]:
    """The snapshot of the last cell up to a seq, if it came after it: variables are saved while the log goes on."""
    late = next(store.log.iterate(after=at, until=before, session_id=session_id, kind=Kind.SNAPSHOT), None)
    if late is not None and late.reply_to is not None:
        ended = store.log.iterate(after=late.reply_to, until=at, session_id=session_id, kind=Kind.OBSERVATION)
        if any(event.reply_to == late.reply_to for event in ended):
            yield late


def fork(store: Store, parent: str, at_seq: int, *, session_id: str = "", **setup: Any) -> Session:
    """A new session that continues `parent` from a seq, with its view and variables as they were there."""
    source = store.log.get(at_seq)
    if source.session_id != parent:
        raise BadInput(f"seq {at_seq} does not belong to session {parent!r}; `scroll show {at_seq}` tells whose it is")
    scope = Scope(session_id or f"{parent}-fork-{uuid.uuid4().hex[:6]}", source.agent_id, source.task_id)
    if store.log.tail(1, session_id=scope.session_id):
        raise BadInput(f"session {scope.session_id!r} exists already; choose another name")
    store.append(
        scope.draft(
            Kind.FORK, content=f"fork of {parent} at seq {at_seq}", metadata={"session_id": parent, "at_seq": at_seq}
        )
    )
    return Session.resume(store, scope.session_id, **setup)
