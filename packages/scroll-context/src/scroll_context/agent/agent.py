"""The agent: take the view, ask the model, record the reply, carry out its calls, until it answers.

`Agent.run` is the complete loop; `arun`, `stream` and `astream` are other ways to wait for it.
Everything that happened is in the log before the run continues, so a run can stop at any point (a
limit, Ctrl-C, a crash) and `run()` without a message continues from there.
"""

import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec
from msgspec.structs import replace

from scroll_context.background import in_background, in_thread
from scroll_context.contents import usage_of
from scroll_context.errors import (
    BadInput,
    ContextOverflow,
    ModelCancelled,
    ModelError,
    ModelUnavailable,
)
from scroll_context.events import Event, Kind
from scroll_context.messages import Media, ToolCall, ToolSpec
from scroll_context.models import Model, Reply, Settings, connect
from scroll_context.models.protocol import Spent, Stoppable
from scroll_context.models.retries import with_observer
from scroll_context.session.prompt import answer_tool, exec_spec, system_prompt
from scroll_context.session.session import Session
from scroll_context.view.headline import without_headline

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # An agent without a type of answer needs no annotation.
    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

# The model gets a notice when this many replies are left.
FEW_STEPS = 3
# This many empty replies are answered with a notice; the next one ends the run.
EMPTY_REPLIES = 2
# This many replies that were cut at the limit of output tokens are answered with a notice; the next
# one ends the run.
CUT_REPLIES = 2
STOPPED = "not run: the user stopped the work before this call"
FINISHED = "taken as the answer; the task is over"
TOO_LATE = "not run: the answer had been given before this call"

State = Literal["answered", "stopped", "steps", "tokens", "time", "money", "silent", "cut"]
"""How a run ended. "silent": the model said nothing, or never gave the answer through the tool it
was asked to use.
"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that stop a run; None means no limit.

    >>> from scroll_context import Agent, Limits, ScriptedModel, Session, Store, exec_cell
    >>> with Store("trip.scroll", create=True) as store, Session.open(store) as session:
    ...     model = ScriptedModel([exec_cell("print(1)"), "Booked."])
    ...     agent = Agent(session, model, limits=Limits(steps=1))
    ...     first = agent.run("Book the flight.")
    ...     then = agent.run()
    >>> first.state, then.state
    ('steps', 'answered')
    """

    steps: int | None = None
    # Input and output, as the provider counts them.
    tokens: int | None = None
    seconds: float | None = None
    dollars: float | None = None


class Totals(Spent, kw_only=True):
    """The steps, tokens, time and money that a run has used so far."""

    steps: int = 0
    seconds: float = 0.0


class Run(msgspec.Struct, Generic[T], frozen=True):
    """How a run ended. Any state but "answered" can be continued with `run()`.

    >>> from scroll_context import Agent, ScriptedModel, Session, Store
    >>> with Store("trip.scroll", create=True) as store, Session.open(store) as session:
    ...     run = Agent(session, ScriptedModel(["Lisbon."])).run("Where do we go?")
    >>> run.state, run.answer, run.totals.steps
    ('answered', 'Lisbon.', 1)
    """

    state: State
    answer: str
    totals: Totals
    # The answer as the type that the agent was asked for.
    value: T | None = None


class RunEvent(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The next event of a streamed run."""

    kind: Literal["text", "cell", "call", "result", "observation", "eviction", "notice", "answer"]
    # A piece of the reply, a cell's source, arguments, a result, or the answer.
    text: str = ""
    # The recorded event; None for pieces of text.
    event: Event | None = None
    # With "answer": how the run ended.
    run: Run[T] | None = None


class Agent(Generic[T]):
    r"""A model at work in a session.

    With `answer=SomeType`, runs end with a checked value of that type.

    >>> from scroll_context import Agent, ScriptedModel, Session, Store, exec_cell
    >>> model = ScriptedModel([exec_cell("total = 17 + 4\nprint(total)"), "It is 21."])
    >>> with Store("sums.scroll", create=True) as store, Session.open(store) as session:
    ...     Agent(session, model).run("How much is 17 + 4?").answer
    'It is 21.'
    """

    def __init__(
        self,
        session: Session,
        model: Model | str,
        *,
        limits: Limits | None = None,
        settings: Settings | None = None,
        on_text: Callable[[str], None] | None = None,
        instructions: str = "",
        answer: type[T] | None = None,
    ) -> None:
        self.session = session
        self.model = connect(model) if isinstance(model, str) else model
        self.limits = limits or Limits()
        self.settings = settings or Settings()
        self.on_text = on_text
        # The names of tools that run a cell.
        self._cell_tools: tuple[str, ...] = ("exec",)
        self.instructions = instructions
        self._answer_tool = answer_tool(answer) if answer is not None else None
        # A call of this tool ends a run.
        self._finish_tool = self._answer_tool.spec if self._answer_tool is not None else None
        self.totals = Totals()
        # The tools and the system prompt are the constant part of every request of a run.
        self._specs: tuple[ToolSpec, ...] = ()
        self._system = ""
        self._stop = threading.Event()

    # running -------------------------------------------------------------------------------------

    def run(self, message: str | None = None, *, media: Sequence[Media] = ()) -> Run[T]:
        """Work on a user message or, without one, continue where the session stopped."""
        self._stop.clear()
        return self._run(message, media)

    def _run(self, message: str | None, media: Sequence[Media]) -> Run[T]:
        """Like `run`. The caller's thread has cleared the stop flag before, so that no stop is
        missed.
        """
        self._specs = self._offered_tools()
        self._system = system_prompt(
            self.session, self._cell_tools, self.instructions, self.limits.steps
        )
        self.totals = Totals()
        started = time.monotonic()
        with self.session.running():
            if message is not None:
                self._check_media(media)
                self.session.say(message, media)
            stop_counting = self.session.subscribe(self._count_plan)
            try:
                state, answer, value = self._loop(started)
            finally:
                stop_counting()
                self.totals.seconds = time.monotonic() - started
        return Run(state, without_headline(answer), self.totals, value)

    def _offered_tools(self) -> tuple[ToolSpec, ...]:
        if self.session.context.actions.exec:
            specs = tuple(exec_spec(name) for name in self._cell_tools)
        else:
            specs = self.session.environment.toolbox.specs()
        return specs if self._finish_tool is None else (*specs, self._finish_tool)

    def _check_media(self, media: Sequence[Media]) -> None:
        if media and not getattr(self.model, "takes_media", True):
            raise BadInput(
                f"{self.model.name} does not take images or files; nothing was recorded or sent. "
                "Use a model that takes them, or leave out media=."
            )

    def _loop(self, started: float) -> tuple[State, str, T | None]:
        silent = cut = 0
        while True:
            self.totals.seconds = time.monotonic() - started
            limit = self._reached_limit()
            if limit is not None:
                return limit, "", None
            if self.limits.steps == self.totals.steps + FEW_STEPS and self.totals.steps:
                self.session.notice(
                    f"{FEW_STEPS} more replies, then this run stops. Finish, or say what is open."
                )
            reply = self._step()
            if reply.finish_reason == "stopped":
                return "stopped", reply.text, None
            finished = self._carry_out_all(reply.tool_calls)
            if finished is not None:
                return "answered", *finished
            if reply.tool_calls:
                silent = cut = 0
            elif reply.finish_reason == "length":
                cut += 1
                if cut > CUT_REPLIES:
                    return "cut", reply.text, None
                self.session.notice(
                    "Your last reply was cut off at its limit of tokens. Say it again, shorter."
                )
            elif not reply.text.strip():
                silent += 1
                if silent > EMPTY_REPLIES:
                    return "silent", "", None
                self.session.notice(
                    "Your last reply was empty. Go on with the task, or give your answer."
                )
            elif self._answer_tool is not None:
                silent += 1
                if silent > EMPTY_REPLIES:
                    return "silent", reply.text, None
                self.session.notice(f"To give your answer, call {self._answer_tool.name} with it.")
            else:
                return "answered", reply.text, None

    def _step(self) -> Reply:
        """One exchange: view, ask, record."""
        try:
            try:
                reply = self._ask()
            except ContextOverflow:
                reply = self._ask(overflowed=True)
        except ModelCancelled as cancelled:
            reply = Reply(text=cancelled.partial, finish_reason="stopped")
        except ModelError as error:
            self._record_failure(str(error), {"error": type(error).__name__})
            raise
        self.session.replied(reply)
        self.totals.steps += 1
        self.totals.add(reply.usage, reply.cost)
        if self.limits.dollars is not None and reply.cost is None and reply.usage.is_known:
            raise BadInput(
                f"Limits(dollars=...) cannot be enforced: no price is known for {self.model.name}. "
                "Its reply is recorded. Limit the run with tokens= or steps= instead, and "
                "continue it with run()."
            )
        return reply

    def _ask(self, overflowed: bool = False) -> Reply:
        request = self.session.view(
            self._system,
            tools=self._specs,
            window=self.model.window,
            model_name=self.model.name,
            overflowed=overflowed,
            model=Stoppable(self.model, self._stop),
        )
        request = replace(request, settings=self.settings)
        model = with_observer(self.model, self._record_retry)
        return model.reply(request, on_text=self.on_text, cancel=self._stop)

    def _record_retry(self, failed: int, wait: float, error: ModelUnavailable) -> None:
        facts = {"error": type(error).__name__, "attempt": failed, "wait": round(wait, 3)}
        self._record_failure(str(error), facts)

    def _record_failure(self, reason: str, facts: dict[str, Any]) -> None:
        self.session.record(Kind.FAILURE, name=self.model.name, content=reason, metadata=facts)

    def _carry_out_all(self, calls: Sequence[ToolCall]) -> tuple[str, T | None] | None:
        """Carry out the calls of a reply; each gets a result.

        Returns the answer, if a call gave it.
        """
        finished: tuple[str, T | None] | None = None
        for call in calls:
            if finished is not None:
                self.session.answer(call, TOO_LATE)
            elif self._finish_tool is not None and call.name == self._finish_tool.name:
                finished = self._finish(call)
            else:
                self._carry_out(call)
        return finished

    def _finish(self, call: ToolCall) -> tuple[str, T | None] | None:
        """Take a call as the answer; None when it is not of the type that was asked for."""
        arguments = call.arguments
        if not isinstance(arguments, dict):
            arguments = {"answer": arguments}
        value: T | None = None
        tool = self._answer_tool
        if tool is not None:
            try:
                value = tool.convert(tool.names((), arguments)).arguments["answer"]
            except Exception as error:  # noqa: BLE001 - a type's own validators are foreign code
                self.session.answer(
                    call, f"not taken: {error}. Correct it and call {call.name} again."
                )
                return None
        self.session.answer(call, FINISHED, "ok")
        content = arguments.get("answer", "")
        if not isinstance(content, str):
            content = msgspec.json.encode(content).decode()
        return content, value

    def _carry_out(self, call: ToolCall) -> None:
        """Run one call of the model, or tell it why that is not possible."""
        if self._stop.is_set():
            self.session.answer(call, STOPPED)
        elif not isinstance(call.arguments, dict):
            text = f"the arguments of {call.name} are not a JSON object; nothing was run: "
            self.session.answer(call, text + f"{call.arguments!s:.500}")
        elif call.name in self._cell_tools and self.session.context.actions.exec:
            self._run_cell(call, call.arguments)
        elif call.name in {spec.name for spec in self._specs}:
            self.session.call_tool(call)
        else:
            names = ", ".join(spec.name for spec in self._specs)
            self.session.answer(
                call, f"there is no tool {call.name!r}; nothing was run. Your tools: {names}"
            )

    def _run_cell(self, call: ToolCall, arguments: dict[str, Any]) -> None:
        source = arguments.get("source") or arguments.get("code")
        if not isinstance(source, str) or not source.strip():
            text = f"{call.name} needs `source`, the Python cell to run; nothing was run"
            self.session.answer(call, text)
            return
        # This begins before the flag is read again, so that no stop is missed in between.
        with self.session.cell_under_way():
            if self._stop.is_set():
                self.session.answer(call, STOPPED)
            else:
                self.session.run(source, call.id, name=call.name)

    # stopping ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the current reply or cell, from any thread; the session stays as it is."""
        self._stop.set()
        self.session.interrupt_soon()

    def _reached_limit(self) -> State | None:
        limits, used = self.limits, self.totals
        if self._stop.is_set():
            return "stopped"
        if limits.steps is not None and used.steps >= limits.steps:
            return "steps"
        if limits.tokens is not None and used.input_tokens + used.output_tokens >= limits.tokens:
            return "tokens"
        if limits.seconds is not None and used.seconds >= limits.seconds:
            return "time"
        if limits.dollars is not None and used.dollars >= limits.dollars:
            return "money"
        return None

    def _count_plan(self, event: Event) -> None:
        """Count the usage of a context that asked the model for a summary of evicted turns."""
        if event.kind == Kind.EVICTION and "usage" in event.metadata:
            self.totals.add(usage_of(event), event.metadata.get("cost"))

    # other ways to wait --------------------------------------------------------------------------

    async def arun(self, message: str | None = None, *, media: Sequence[Media] = ()) -> Run[T]:
        """Like `run`, for asyncio.

        Cancelling the task stops the reply or the cell; variables and session stay.
        """
        # The flag is cleared here, so that a task that is cancelled at once stops the run.
        self._stop.clear()
        return await in_background(lambda: self._run(message, media), self.stop, "agent")

    def stream(
        self, message: str | None = None, *, media: Sequence[Media] = ()
    ) -> Iterator[RunEvent[T]]:
        """Like `run`, but yields events; the last one is the answer.

        Closing the iterator stops the run.
        """
        events: queue.SimpleQueue[RunEvent[T] | None] = queue.SimpleQueue()
        self._stop.clear()
        future = in_thread(lambda: self._feed(message, media, events), "agent")
        try:
            # None ends the events.
            yield from iter(events.get, None)
            run = future.result()
            yield RunEvent(kind="answer", text=run.answer, run=run)
        finally:
            if not future.done():
                self.stop()
                # This waits for the end of the thread.
                future.exception()

    async def astream(
        self, message: str | None = None, *, media: Sequence[Media] = ()
    ) -> AsyncIterator[RunEvent[T]]:
        """Like `stream`, for asyncio. Cancelling the task stops the run."""
        events = self.stream(message, media=media)
        try:
            while True:
                event = await in_background(lambda: next(events, None), self.stop, "stream")
                if event is None:
                    break
                yield event
        finally:
            await in_background(events.close, self.stop, "stream")  # type: ignore[attr-defined]

    def _feed(
        self,
        message: str | None,
        media: Sequence[Media],
        events: "queue.SimpleQueue[RunEvent[T] | None]",
    ) -> Run[T]:
        """Run, and put what happens into a queue; None at the end."""
        on_text = self.on_text
        pieces = _Pieces()

        def put_text(text: str) -> None:
            if text:
                events.put(RunEvent(kind="text", text=text))

        def on_piece(piece: str) -> None:
            if on_text is not None:
                on_text(piece)
            put_text(pieces.add(piece))

        def on_event(event: Event) -> None:
            if event.kind == Kind.CONVERSATION and event.role == "assistant":
                put_text(pieces.rest())
            elif event.kind in _KINDS:
                kind = _KINDS[event.kind]
                events.put(RunEvent(kind=kind, text=event.content, event=event))

        self.on_text = on_piece
        unsubscribe = self.session.subscribe(on_event)
        try:
            return self._run(message, media)
        finally:
            self.on_text = on_text
            self.session.journal.tell_all()
            unsubscribe()
            events.put(None)


_KINDS: dict[str, Any] = {
    Kind.CELL: "cell",
    Kind.TOOL_CALL: "call",
    Kind.TOOL_RESULT: "result",
    Kind.OBSERVATION: "observation",
    Kind.EVICTION: "eviction",
    Kind.NOTICE: "notice",
}


class _Pieces:
    """The text of one reply as it arrives, held back from where its headline may begin."""

    def __init__(self) -> None:
        self._text = ""
        # Characters that were passed on already.
        self._passed = 0

    def add(self, piece: str) -> str:
        self._text += piece
        fence = self._text.rfind("⟦")
        may_be_headline = fence >= 0 and "\n" not in self._text[fence:].rstrip()
        upto = fence if may_be_headline else len(self._text)
        visible = self._text[self._passed : upto]
        self._passed = max(upto, self._passed)
        return visible

    def rest(self) -> str:
        """Text that was held back and was not a headline after all; the next reply begins."""
        visible = without_headline(self._text)
        rest = visible[self._passed :]
        self._text, self._passed = "", 0
        return rest
