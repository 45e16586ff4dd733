"""Histories as the agent layer writes them: a scribe that numbers events, feeds a live view and
keeps the log.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EvictionPlan
from scroll_context.events import Event, Kind
from scroll_context.messages import Message, canonical
from scroll_context.view.eviction import Budget, plan_eviction
from scroll_context.view.index import EvictionIndex
from scroll_context.view.steps import Step
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.working import Rendered, WorkingView, render

SYSTEM = "You work in a session whose history is never lost. " * 40
DIGEST = "flights: list[212]\nroutes: DataFrame (88, 6)\nbudget = 1200\n" * 8


class Scribe:
    """Writes a session event by event; `log` is all of it, `view` the live view."""

    def __init__(self, window: int, gap: int = 1, **marks: Any) -> None:
        self.budget = Budget(window=window, **marks)
        self.view = WorkingView()
        self.log: list[Event] = []
        self.plans: list[EvictionPlan] = []
        self.sent: list[Rendered] = []
        self._gap = gap
        self._seq = 0

    def write(self, kind: str, content: str = "", **fields: Any) -> Event:
        self._seq += self._gap
        event = Event(seq=self._seq, recorded_at="", kind=kind, content=content, **fields)
        self.log.append(event)
        self.view.add(event)
        return event

    def user(self, text: str, **metadata: Any) -> Event:
        return self.write(Kind.CONVERSATION, text, role="user", metadata=metadata)

    def reply(
        self,
        text: str,
        calls: Sequence[tuple[str, str, Any]] = (),
        headline: str = "",
        **metadata: Any,
    ) -> Event:
        made = [{"id": id, "name": name, "arguments": arguments} for id, name, arguments in calls]
        return self.write(
            Kind.CONVERSATION,
            text,
            role="assistant",
            headline=headline,
            metadata={"tool_calls": made, **metadata},
        )

    def cell(self, reply: Event, id: str, printed: str, inner: int = 0, state: str = "ok") -> Event:
        """Carry out an exec call: the cell, the calls it makes by itself, and what it printed."""
        cell = self.write(Kind.CELL, "code", tool_call_id=id, reply_to=reply.seq)
        for i in range(inner):
            inside = {"inside_cell": cell.seq}
            call = self.write(
                Kind.TOOL_CALL, "{}", name="fetch", tool_call_id=f"in{i}", metadata=inside
            )
            self.write(
                Kind.TOOL_RESULT,
                "x" * 1000,
                reply_to=call.seq,
                tool_call_id=f"in{i}",
                metadata=inside,
            )
        return self.write(
            Kind.OBSERVATION, printed, reply_to=cell.seq, tool_call_id=id, tool_state=state
        )

    def native(self, reply: Event, id: str, name: str, result: str, state: str = "ok") -> Event:
        call = self.write(Kind.TOOL_CALL, "{}", name=name, tool_call_id=id, reply_to=reply.seq)
        return self.write(
            Kind.TOOL_RESULT,
            result,
            name=name,
            reply_to=call.seq,
            tool_call_id=id,
            tool_state=state,
        )

    def fit(self, overflowed: bool = False) -> EvictionPlan | None:
        """Plan, log the plan, apply it: as the agent does before a call."""
        plan = plan_eviction(self.view, self.budget, overflowed=overflowed)
        if plan:
            self.plans.append(plan)
            self.write(Kind.EVICTION, plan.summary(), metadata=plan.metadata())
        return plan

    def ask(self, digest: str = DIGEST) -> Rendered:
        """Fit the view and send it."""
        self.fit()
        rendered = render(self.view, SYSTEM, digest)
        self.sent.append(rendered)
        self.write(Kind.REQUEST, metadata={**rendered.metadata(), "digest": digest})
        return rendered


class Run(msgspec.Struct):
    """What one long session cost."""

    scribe: Scribe
    # The raw tokens of the largest request.
    largest: int
    # The share of all input tokens that repeated a prefix of the request before.
    reuse: float
    # The largest number of entries in a view.
    entries: int


def long_run(
    window: int, steps: int, *, printed: int, parallel: int = 1, reported: float = 1.0, **marks: Any
) -> Run:
    """One request worked on for `steps` steps, each of 0.5 kB of code that prints `printed`
    characters.
    """
    overhead = estimate(SYSTEM) + estimate(DIGEST) + 2 * MESSAGE_TOKENS
    scribe = Scribe(window, overhead=overhead, **marks)
    scribe.user("Read every report and total the invoices by supplier, without those of May. " * 3)
    sent = reused = largest = entries = 0
    for n in range(steps):
        rendered = scribe.ask()
        sent += rendered.tokens
        if n:
            reused += rendered.tokens * shared_prefix(scribe.sent.pop(0), rendered)
        largest, entries = max(largest, rendered.tokens), max(entries, len(scribe.view))
        code = {"code": f"rows_{n} = fetch({n})\n" * 22}
        calls = [(f"call{n}-{i}", "exec", code) for i in range(parallel)]
        reply = scribe.reply(
            f"Part {n}.", calls, usage={"input_tokens": int(rendered.tokens * reported)}
        )
        for id, _, _ in calls:
            scribe.cell(
                reply, id, (f"supplier {n} owes 12.50\n" * (printed // 20))[:printed], inner=2
            )
    return Run(scribe, largest, reused / sent, entries)


def shared_prefix(before: Rendered, after: Rendered) -> float:
    """The share of `after` that a provider can take from its cache of `before`, by characters."""
    a, b = ("".join(_wire(rendered.messages)) for rendered in (before, after))
    lo, hi = 0, min(len(a), len(b))
    while lo < hi:
        middle = (lo + hi + 1) // 2
        lo, hi = (middle, hi) if a[lo:middle] == b[lo:middle] else (lo, middle - 1)
    return lo / len(b) if b else 1.0


def _wire(messages: tuple[Message, ...]) -> Iterator[str]:
    """The messages as one text in the order in which a provider reads them; marks are no part of
    it, a tail is last.
    """
    for message in messages:
        yield canonical(replace(message, cache_mark=False, tail="")).decode()
        yield message.tail


def blocks(index: EvictionIndex) -> int:
    """How many blocks of lines an index has."""
    return sum(map(len, index.levels))


def check_reachable(seqs: Iterable[int], view: WorkingView, rendered: Rendered) -> None:
    """Each seq that was ever shown is still in full, under a mark, or in a span of the index, by
    the text alone.
    """
    texts = [message.text for message in rendered.messages]
    calls = [call for message in rendered.messages for call in message.tool_calls]
    everything = "\n".join([*texts, *(str(call.arguments) for call in calls)])
    marked = {int(seq) for seq in re.findall(r"(?:folded|clipped) seq (\d+) ", everything)}
    spans = []
    for line in re.findall(r"^- seq ([\d, -]+)", everything, re.M):
        for run in line.split(","):
            lo, _, hi = run.strip().partition("-")
            spans.append((int(lo), int(hi or lo)))
    addresses = {
        address: entry.seq
        for entry in view.entries
        if isinstance(entry, Step)
        for address in entry.addresses
    }
    for seq in seqs:
        whole = seq in rendered.visible
        mark = seq in marked or addresses.get(seq) in marked
        assert whole or mark or any(lo <= seq <= hi for lo, hi in spans), (
            f"seq {seq} cannot be reached"
        )
