"""The agent: fit the view, ask the model, record the reply, carry out its calls, until it answers.

`Agent.run` is the whole loop. Everything that happened is in the log before the next thing happens, so a run can
stop at any point (a limit, Ctrl-C, a crash) and `run()` without a message goes on from there.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from scroll_context.agent.prompt import exec_spec, system_prompt
from scroll_context.errors import ContextOverflow, ModelCancelled
from scroll_context.events import Event, Kind
from scroll_context.messages import ToolCall, ToolSpec
from scroll_context.models import Model, Reply, Request, Settings, Usage
from scroll_context.models.protocol import Stoppable
from scroll_context.session.session import Session
from scroll_context.view.eviction import Budget
from scroll_context.view.headline import parse_field, parse_reply, without_headline
from scroll_context.view.tokens import estimate

EMPTY_REPLIES = 2  # in a row, after which a run stops
STOPPED = "not run: the user stopped the work before this call"
FINISHED = "taken as the answer; the task is over"
TOO_LATE = "not run: the answer had been given before this call"

State = Literal["answered", "stopped", "steps", "tokens", "time", "money", "silent"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stops; None is no limit."""

    steps: int | None = None
    tokens: int | None = None  # input and output, as the provider counts them
    seconds: float | None = None
    dollars: float | None = None


class Totals(msgspec.Struct, kw_only=True):
    """What a run has used so far."""

    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0


class Run(msgspec.Struct, frozen=True):
    """How a run ended. Any state but "answered" can be continued with `run()`."""

    state: State
    answer: str
    totals: Totals


class Agent:
    """A model at work in a session."""

    def __init__(
        self,
        session: Session,
        model: Model,
        *,
        limits: Limits | None = None,
        settings: Settings | None = None,
        on_text: Callable[[str], None] | None = None,
        tool_names: tuple[str, ...] = ("exec",),
        instructions: str = "",
        finish_tool: ToolSpec | None = None,
    ) -> None:
        self.session = session
        self.model = model
        self.limits = limits or Limits()
        self.settings = settings or Settings()
        self.on_text = on_text
        self.tool_names = tool_names
        self.finish_tool = finish_tool
        self.specs = self._specs()
        self._schema_tokens = sum(estimate(msgspec.json.encode(spec).decode()) for spec in self.specs)
        self.system = system_prompt(session, tool_names, instructions)
        self.totals = Totals()
        self._stop = threading.Event()
        self._in_cell = threading.Event()
        session.record(
            Kind.SESSION, content=self.system, name=model.name,
            metadata={"context": session.options.context, "window": model.window,
                      "tools": msgspec.to_builtins(self.specs)},
        )  # fmt: skip

    def run(self, message: str | None = None) -> Run:
        """Work on a message of the user, or, without one, go on where the session stopped."""
        self._stop.clear()
        self.totals = Totals()
        started = time.monotonic()
        if message is not None:
            self.session.say(message)
        try:
            state, answer = self._loop(started)
        finally:
            self.totals.seconds = time.monotonic() - started
        return Run(state, without_headline(answer), self.totals)

    def _loop(self, started: float) -> tuple[State, str]:
        silent = 0
        while True:
            self.totals.seconds = time.monotonic() - started
            if ended := self._reached_limit():
                return ended, ""
            reply = self._step()
            if reply.finish_reason == "stopped":
                return "stopped", reply.text
            finished = self._carry_out_all(reply.tool_calls)
            if finished is not None:
                return "answered", _finished(finished)
            if not reply.tool_calls and reply.text.strip():
                return "answered", reply.text
            silent = 0 if reply.tool_calls else silent + 1
            if silent > EMPTY_REPLIES:
                return "silent", ""
            if silent:
                self.session.notice("Your last reply was empty. Go on with the task, or give your answer.")

    def stop(self) -> None:
        """Stop the reply or the cell that is under way, from any thread; the session stays as it is."""
        self._stop.set()
        threading.Thread(target=self._interrupt_cell, name="scroll-stop", daemon=True).start()

    def _interrupt_cell(self) -> None:
        """Interrupt the running cell; one that is about to start is waited for."""
        while self._stop.is_set() and self._in_cell.is_set():
            if self.session.environment.kernel.interrupt():
                return
            time.sleep(0.01)

    def _step(self) -> Reply:
        """One exchange: fit, ask, record."""
        try:
            try:
                reply = self._ask()
            except ContextOverflow:
                if not self._fit(overflowed=True):
                    raise
                reply = self._ask()
        except ModelCancelled as cancelled:
            reply = Reply(text=cancelled.partial, finish_reason="stopped")
        self._record(reply)
        self.totals.steps += 1
        self._count(reply.usage, reply.cost)
        return reply

    def _count(self, usage: Usage, cost: float | None) -> None:
        self.totals.input_tokens += usage.input_tokens
        self.totals.output_tokens += usage.output_tokens
        self.totals.cache_read_tokens += usage.cache_read_tokens
        self.totals.dollars += cost or 0.0

    def _ask(self) -> Reply:
        session = self.session
        self._fit()
        digest = session.environment.digest()
        rendered = session.context.render(self.system, digest)
        session.record(
            Kind.REQUEST, name=self.model.name,
            metadata={**rendered.metadata(), "tokens": rendered.tokens + self._schema_tokens, "digest": digest},
        )  # fmt: skip
        return self.model.reply(
            Request(rendered.messages, self.specs, self.settings), on_text=self.on_text, cancel=self._stop
        )

    def _fit(self, overflowed: bool = False) -> bool:
        """Bring the view within its budget; whether it shrank."""
        overhead = estimate(self.system) + estimate(self.session.environment.digest()) + self._schema_tokens
        budget = Budget(window=self.model.window, overhead=overhead)
        shrank = self.session.context.fit(self.session, budget, Stoppable(self.model, self._stop), overflowed)
        if shrank:  # a context may have asked the model for a summary, which counts
            session_id = self.session.scope.session_id
            plan = self.session.store.log.tail(1, session_id=session_id, kind=Kind.EVICTION)[0]
            self._count(msgspec.convert(plan.metadata.get("usage", {}), Usage), plan.metadata.get("cost"))
        return shrank

    def _record(self, reply: Reply) -> Event:
        given = [call.arguments.get("headline") for call in reply.tool_calls if isinstance(call.arguments, dict)]
        found = next((headline for one in given if (headline := parse_field(one))), None) or parse_reply(reply.text)
        metadata: dict[str, Any] = {
            "tool_calls": [msgspec.to_builtins(call) for call in reply.tool_calls],
            "thinking": [msgspec.to_builtins(block) for block in reply.thinking],
            "usage": msgspec.to_builtins(reply.usage),
            "model": reply.model,
            "finish_reason": reply.finish_reason,
            "cost": reply.cost,
            "cut": reply.finish_reason == "stopped",
        }
        return self.session.record(
            Kind.CONVERSATION,
            role="assistant",
            content=reply.text,
            headline=found.full() if found else "",
            metadata={name: value for name, value in metadata.items() if value},
        )

    def _carry_out_all(self, calls: Sequence[ToolCall]) -> ToolCall | None:
        """Carry out the calls of a reply; each gets a result. Returns the one that ended the task, if one did."""
        finished: ToolCall | None = None
        for call in calls:
            if finished is not None:
                self.session.answer(call, TOO_LATE)
            elif self.finish_tool is not None and call.name == self.finish_tool.name:
                self.session.answer(call, FINISHED, "ok")
                finished = call
            else:
                self._carry_out(call)
        return finished

    def _carry_out(self, call: ToolCall) -> None:
        """Run one call of the model, or tell it why that is not possible."""
        if self._stop.is_set():
            self.session.answer(call, STOPPED)
        elif call.is_malformed:
            self.session.answer(
                call, f"the arguments of {call.name} are not a JSON object; nothing was run: {call.arguments!s:.500}"
            )
        elif call.name in self.tool_names and self.session.context.actions.exec:
            source = (
                call.arguments.get("source") or call.arguments.get("code") if isinstance(call.arguments, dict) else None
            )
            if isinstance(source, str) and source.strip():
                self._run_cell(call, source)
            else:
                self.session.answer(call, f"{call.name} needs `source`, the Python cell to run; nothing was run")
        elif call.name in {spec.name for spec in self.specs}:
            self.session.run_tool(call)
        else:
            names = ", ".join(spec.name for spec in self.specs)
            self.session.answer(call, f"there is no tool {call.name!r}; nothing was run. Your tools: {names}")

    def _run_cell(self, call: ToolCall, source: str) -> None:
        self._in_cell.set()
        try:
            if self._stop.is_set():
                self.session.answer(call, STOPPED)
            else:
                self.session.run_cell(call, source)
        finally:
            self._in_cell.clear()

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

    def _specs(self) -> tuple[ToolSpec, ...]:
        actions = self.session.context.actions
        specs = (
            [exec_spec(name) for name in self.tool_names] if actions.exec else self.session.environment.native_specs()
        )
        return (*specs, self.finish_tool) if self.finish_tool is not None else tuple(specs)


def _finished(call: ToolCall) -> str:
    return str(call.arguments.get("answer", "")) if isinstance(call.arguments, dict) else str(call.arguments)
