"""A session looked at afterwards, from its events alone: the requests, their cost, the steps.

The log keeps no prompts. It keeps the parts that prompts are made from: events, eviction plans, the
system prompt of each run and the variable list of each request. Replaying them gives the request
again, and the hash that was recorded when it was sent shows whether it is the same to the byte. A
context that cannot be replayed is reported with the facts that the log has.
"""

import bisect
import copy
import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EvictionPlan, Usage, usage_of, well_formed
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.messages import Message
from scroll_context.models.protocol import Spent
from scroll_context.session.context import WindowedContext, context_class
from scroll_context.session.history import Segment, segments
from scroll_context.store import Store
from scroll_context.upkeep.merge import as_recorded
from scroll_context.view.entries import passages
from scroll_context.view.layout import as_rendered, lay_out
from scroll_context.view.passage import Form
from scroll_context.view.steps import Step, decoded, step
from scroll_context.view.working import RENDERER_VERSION, Rendered, WorkingView

INDEX = "index: "
"""How the place of a departure begins if that is the index."""
EVERY = 400
"""Events between two copies of a view."""
NOT_KNOWN = (
    "it was made by another version of Scroll, or by a context that is not installed here "
    "(see scroll-evals)"
)
OTHER_MESSAGES = (
    "the log now gives other messages than were sent; another version of Scroll made those"
)

Inherited = Callable[[str], Iterable[Event]]

_seq = attrgetter("seq")


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """One text or entry that left the view in part or completely."""

    seq: int
    # The end of its span; `seq` itself for a single text.
    last: int
    # Folded, clipped or evicted.
    how: str
    # Seq of the eviction event.
    plan: int
    # Why there was an eviction.
    reason: str
    # The rule of `view/eviction.py` that chose it; "" for plans that did not record it.
    rule: str = ""
    # Where it stands at the moment asked about.
    now: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as far as the log can tell."""

    # Of the request.
    seq: int
    session_id: str
    asked_at: str
    model: str
    context: str
    window: int
    # Whether the messages below have the hash that was recorded when they were sent.
    verified: bool
    # Why they do not.
    doubt: str = ""
    # As estimated before it was sent, tool schemas included.
    tokens: int = 0
    # Input tokens as the provider counted them, and those read from its cache; 0 if it did not.
    reported: int = 0
    cached: int = 0
    # Seq of the reply; None if there was none.
    reply: int | None = None
    # What happened later to the event that was asked about, if that is not the request itself.
    later: tuple[str, ...] = ()
    # Whether a host sent its own messages; verified is then which of them, and with which texts.
    is_layout: bool = False
    # The SHA-256 of the body that a host sent, if it reported that.
    sent: str = ""
    tools: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    # What had left the view by then, in the order in which it left.
    departures: tuple[Departure, ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """One request as it was made: the context it was rendered from, and the messages."""

    request: Event
    # The settings of the run: system prompt, window, tools.
    setup: Event
    # As it was just before the request; None for a context that is not installed here.
    context: WindowedContext | None
    rendered: Rendered | None
    # Why the messages may not be those that were sent; "" if they are.
    doubt: str


class Past:
    """The past of one session, from which any of its requests can be rebuilt.

    The first look reads the session from its beginning and keeps a copy of the view every few
    hundred events. Later looks start from the nearest copy. Events that were recorded since are
    read by `catch_up`. Not for two threads.

    A session may have begun with a view that something else had filled. `inherited` gives the
    events that it was filled with, for the name of a context. A fork does not need it.
    """

    def __init__(self, store: Store, session_id: str, inherited: Inherited | None = None) -> None:
        self.store = store
        self.session_id = session_id
        self.inherited: Inherited = inherited or (lambda _: ())
        self.requests: list[Event] = []
        self.evictions: list[Event] = []
        self.setups: list[Event] = []
        # Without their text.
        self.snapshots: list[Event] = []
        self.upto = 0
        self._segments: list[Segment] = []
        self._views: dict[str, _Checkpoints] = {}

    def catch_up(self) -> None:
        """Read the bookkeeping that was recorded since."""
        if not self._segments:
            self._segments = segments(self.store, self.session_id)
        kinds = {
            Kind.REQUEST: self.requests,
            Kind.EVICTION: self.evictions,
            Kind.SESSION: self.setups,
            Kind.SNAPSHOT: self.snapshots,
        }
        until = self.store.log.last_seq()
        for event in self.events(self.upto, until, kind=list(kinds)):
            if event.kind == Kind.EVICTION and (event.is_foreign or event.is_erased):
                # The view ignores it as well.
                continue
            if event.kind == Kind.SNAPSHOT:
                event = replace(event, content="", metadata={})
            kinds[Kind(event.kind)].append(event)
        self.upto = until

    def events(self, after: int = 0, until: int | None = None, **filters: Any) -> Iterator[Event]:
        """The events of the session and of those that it continues, in order.

        Filters are those of EventLog.iterate.
        """
        for segment in self._segments or segments(self.store, self.session_id):
            ends = [end for end in (segment.until, until) if end is not None]
            last = min(ends, default=None)
            if last is None or after < last:
                events = self.store.log.iterate(
                    after=after, until=last, session_id=segment.session_id, **filters
                )
                yield from map(well_formed, events)

    def request_at(self, seq: int) -> Event | None:
        """The request at `seq`, or the newest one before it."""
        at = bisect.bisect_right(self.requests, seq, key=_seq)
        return self.requests[at - 1] if at else None

    def reply(self, request: Event) -> Event | None:
        """The reply to a request: the first one after it, unless another request came first."""
        at = bisect.bisect_right(self.requests, request.seq, key=_seq)
        until = self.requests[at].seq if at < len(self.requests) else None
        kinds = [Kind.REQUEST, Kind.CONVERSATION]
        events = self.store.log.iterate(
            request.seq, until, session_id=request.session_id, kind=kinds
        )
        for event in events:
            if event.role == "assistant":
                return well_formed(event)
            # The user may speak meanwhile.
            if event.role != "user":
                return None
        return None

    def context(self, request: Event) -> tuple[Event, WindowedContext | None]:
        """The settings of the run that a request belongs to, and the context before it.

        The context is None if it is not installed here.
        """
        setup = self._setup_before(request)
        name = str(setup.metadata.get("context", ""))
        version = RENDERER_VERSION if request.is_erased else request.metadata.get("renderer")
        if context_class(name) is None or version != RENDERER_VERSION:
            return setup, None
        return setup, self._checkpoints(name).before(self, request.seq)

    def _setup_before(self, request: Event) -> Event:
        for setup in reversed(self.setups):
            if setup.seq < request.seq and "tools" in setup.metadata:
                return setup
        raise BadInput(
            f"the request at seq {request.seq} was recorded without the settings of its run"
        )

    def seen(self, request: Event) -> Seen:
        """The content that was sent with a request."""
        setup, context = self.context(request)
        if context is None:
            return Seen(request, setup, None, None, NOT_KNOWN)
        source = context
        if "moved_from" in request.metadata:
            # It was sent in another store, and showed the addresses of that one.
            past = list(self.events(until=request.seq - 1))
            source = _replayed(self.store, context.name, as_recorded(past, self.store.log.text))
        system = self.store.log.text(setup)
        variable_list = str(request.metadata.get("digest", ""))
        if request.metadata.get("layout"):
            rendered = as_rendered(source.view, lay_out(source.view), system, variable_list)
        else:
            rendered = source.render(system, variable_list)
        doubt = ""
        if rendered.hash != request.metadata.get("hash"):
            doubt = self._why_different(request, source)
        return Seen(request, setup, context, rendered, doubt)

    def _why_different(self, request: Event, context: WindowedContext) -> str:
        """Why a request that was rebuilt is not the one that was sent."""
        if context.unreadable:
            seqs = ", ".join(map(str, context.unreadable[:10]))
            return (
                f"the payload of seq {seqs} is missing or damaged, so the request cannot be rebuilt"
            )
        erased = [event.seq for event in self.events(until=request.seq) if event.is_erased]
        if not erased:
            return OTHER_MESSAGES
        seqs = ", ".join(map(str, erased[:10]))
        if len(erased) > 10:
            seqs += f" and {len(erased) - 10} more"
        return (
            f"seq {seqs} of what it was made from were erased, so it cannot be compared with what "
            "was sent"
        )

    def index_sizes(self, request: Event) -> list[tuple[int, int]]:
        """The tokens of the index after each event that changed it, at least up to a request."""
        _, context = self.context(request)
        return self._checkpoints(context.name).index_sizes if context else []

    def _checkpoints(self, name: str) -> "_Checkpoints":
        return self._views.setdefault(name, _Checkpoints(name))


class _Checkpoint(NamedTuple):
    """A copy of a context after the event at `seq`, and after how many events."""

    seq: int
    events: int
    context: WindowedContext


class _Checkpoints:
    """Copies of the view of a session at some of its events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._checkpoints: list[_Checkpoint] = []
        # Where the last look ended: the next is often near.
        self._last: _Checkpoint | None = None
        # The seq of an event, and the tokens of the index after it.
        self.index_sizes: list[tuple[int, int]] = [(0, 0)]

    def before(self, past: Past, seq: int) -> WindowedContext:
        """The context as it was before the event at `seq`; the caller may change it."""
        at = bisect.bisect_left(self._checkpoints, seq, key=_seq)
        if at:
            nearest = self._checkpoints[at - 1]
        else:
            beginning = _replayed(past.store, self._name, past.inherited(self._name))
            nearest = _Checkpoint(0, 0, beginning)
        if self._last is not None and nearest.seq < self._last.seq < seq:
            nearest = self._last
        count = nearest.events
        context = _copied(nearest.context)
        for event in past.events(nearest.seq, seq - 1):
            context.add(event)
            count += 1
            changes_index = event.kind in (Kind.EVICTION, Kind.RETRACTION, Kind.SESSION)
            if changes_index and event.seq > self.index_sizes[-1][0]:
                self.index_sizes.append((event.seq, context.view.index.tokens))
            if count >= len(self._checkpoints) * EVERY + EVERY:
                self._checkpoints.append(_Checkpoint(event.seq, count, _copied(context)))
        self._last = _Checkpoint(seq - 1, count, _copied(context))
        return context


def explain(store: Store, seq: int, inherited: Inherited | None = None) -> Explanation:
    """Explain the request at `seq`, or the newest one before it in its session.

    `inherited` is as for `Past`.

    >>> from scroll_context import Agent, ScriptedModel, Session, Store, explain
    >>> with Store("trip.scroll", create=True) as store, Session.open(store) as session:
    ...     run = Agent(session, ScriptedModel(["Lisbon."])).run("Where do we go?")
    ...     newest = max(event.seq for event in session.events())
    ...     request = explain(store, newest)
    >>> request.verified, [message.role for message in request.messages]
    (True, ['system', 'user'])
    """
    asked_about = store.log.get(seq)
    past = Past(store, asked_about.session_id, inherited)
    past.catch_up()
    request = past.request_at(seq)
    if request is None:
        raise BadInput(
            f"no model had been asked in session {asked_about.session_id!r} up to seq {seq}, so "
            'there is no request to explain; `scroll sql "SELECT seq FROM hist.events '
            "WHERE kind = 'request'\"` lists those there are"
        )
    seen = past.seen(request)
    name = str(seen.setup.metadata.get("context", ""))
    reply = past.reply(request)
    usage = usage_of(reply) if reply else Usage()
    plans = [event for event in (*past.inherited(name), *past.evictions) if event.seq < request.seq]
    return Explanation(
        seq=request.seq,
        session_id=request.session_id,
        asked_at=request.recorded_at,
        model=request.name,
        context=name,
        window=int(seen.setup.metadata.get("window", 0)),
        verified=not seen.doubt,
        doubt=seen.doubt,
        tokens=int(request.metadata.get("tokens", 0)),
        reported=usage.input_tokens,
        cached=usage.cache_read_tokens,
        reply=reply.seq if reply else None,
        later=_later(past, seq) if seq != request.seq else (),
        is_layout=bool(request.metadata.get("layout")),
        sent=str(reply.metadata.get("sent", "")) if reply else "",
        tools=tuple(str(tool["name"]) for tool in seen.setup.metadata["tools"]),
        messages=seen.rendered.messages if seen.rendered else (),
        departures=_departures(seen.context, plans),
    )


def _later(past: Past, seq: int) -> tuple[str, ...]:
    """How an event left the view: each plan that folded, clipped or evicted it, and the rule."""
    words = {"folded": "folded", "clipped": "clipped", "evicted": "moved to the index"}
    lines = []
    for event in past.evictions:
        try:
            removals = _removals(event)
        except BadInput:
            # It is of a context that plans in another way.
            continue
        for removal in removals:
            if removal.seq <= seq <= removal.last:
                rule = f" by the rule {removal.rule}" if removal.rule else ""
                how = words[removal.how]
                lines.append(f"{how}{rule}, in plan {event.seq}: {removal.reason}")
    return tuple(lines)


def _removals(eviction: Event) -> list[Departure]:
    """The texts and entries that the plan of an eviction removed."""
    plan = EvictionPlan.from_metadata(eviction.metadata)
    spans = [("folded", seq, seq) for seq in plan.folded]
    spans += [("clipped", seq, seq) for seq, _ in plan.clipped]
    spans += [("evicted", first, last) for first, last in plan.evicted]
    rules = {seq: rule for rule, seqs in plan.rules.items() for seq in seqs}
    return [
        Departure(
            seq=first,
            last=last,
            how=how,
            plan=eviction.seq,
            reason=plan.reason,
            rule=rules.get(first, ""),
        )
        for how, first, last in spans
    ]


def _replayed(store: Store, name: str, events: Iterable[Event]) -> WindowedContext:
    """A context of a known name after these events."""
    found = context_class(name)
    assert found is not None
    context = found(store.log.excerpt)
    for event in events:
        context.add(event)
    return context


def _copied(context: WindowedContext) -> WindowedContext:
    """A context that can continue without changing this one.

    Contexts hold only values besides the view.
    """
    twin = copy.copy(context)
    twin.view = context.view.copy()
    return twin


def departures(events: Iterable[Event], view: WorkingView) -> tuple[Departure, ...]:
    """Everything that has left a view, in the order in which it left.

    `events` are those that the view was built from.
    """
    removals: list[Departure] = []
    for event in events:
        if event.kind == Kind.EVICTION:
            removals += _removals(event)
    return tuple(replace(removal, now=whereabouts(view, removal.seq)) for removal in removals)


_FORMS = {
    Form.FULL: "shown in full",
    Form.CLIPPED: "shown clipped",
    Form.FOLDED: "shown as a stub",
}


def whereabouts(view: WorkingView, seq: int) -> str:
    """Where the event at `seq` stands in a view."""
    entry = view.get(seq)
    if entry is not None:
        reply = entry.reply.form if isinstance(entry, Step) else Form.FULL
        form = next((text.form for text in passages(entry) if text.seq == seq), reply)
        return _FORMS[form]
    line = view.index.find(seq)
    return INDEX + line.text.removeprefix("- ") if line else "not part of the view"


def _departures(context: WindowedContext | None, before: list[Event]) -> tuple[Departure, ...]:
    """The events that are no longer in the view.

    A context without an index has no index lines to find them by.
    """
    if context is None:
        return ()
    removals = departures(before, context.view)
    if context.preface() is None:
        return removals
    return tuple(
        replace(removal, now="not shown") if removal.now.startswith(INDEX) else removal
        for removal in removals
    )


# the complete session ---------------------------------------------------------------------------


class Accounts(Spent, kw_only=True):
    """A session in numbers."""

    events: int = 0
    requests: int = 0
    # Input tokens of one request.
    largest: int = 0
    # Plans carried out.
    evictions: int = 0
    folded: int = 0
    clipped: int = 0
    evicted: int = 0

    @property
    def reuse(self) -> float:
        """The share of all input that repeated the beginning of the request before."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0


def accounts(events: Iterable[Event]) -> Accounts:
    """Add up the events of a session."""
    sums = Accounts()
    for event in map(well_formed, events):
        sums.events += 1
        if event.is_foreign:
            # Its plans have no effect here, and its replies were paid for elsewhere.
            continue
        if event.kind == Kind.REQUEST:
            sums.requests += 1
        is_reply = event.kind == Kind.CONVERSATION and event.role == "assistant"
        if is_reply or event.kind == Kind.EVICTION:
            # A plan has a usage if it came with a summary by the model.
            usage = usage_of(event)
            sums.add(usage, event.metadata.get("cost"))
            sums.largest = max(sums.largest, usage.input_tokens)
        if event.kind == Kind.EVICTION:
            _add_plan(sums, event)
    return sums


def _add_plan(sums: Accounts, event: Event) -> None:
    try:
        plan = EvictionPlan.from_metadata(event.metadata)
    except BadInput:
        # It is of a context that plans in another way.
        return
    sums.evictions += 1
    sums.folded += len(plan.folded)
    sums.clipped += len(plan.clipped)
    sums.evicted += len(plan.evicted)


# the steps --------------------------------------------------------------------------------------


def trajectory(
    events: Iterable[Event], text: Callable[[Event], str], task_id: str = ""
) -> dict[str, Any]:
    """The steps of a session, one for each reply. `text` gives the complete text of an event."""
    steps: list[dict[str, Any]] = []
    spent = Spent()
    first = last = ""
    outputs: dict[str, list[str]] = {}
    for event in map(well_formed, events):
        first, last = first or event.recorded_at, event.recorded_at
        if event.kind == Kind.CONVERSATION and event.role == "assistant":
            if not event.is_foreign:
                spent.add(usage_of(event), None)
            steps.append(_step(len(steps), event, text(event)))
            outputs = {}
        is_output = event.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT)
        if is_output and steps and "inside_cell" not in event.metadata:
            outputs.setdefault(event.tool_call_id, []).append(text(event))
            steps[-1]["observation"] = "\n".join(itertools.chain(*outputs.values()))
    return {
        "task_id": task_id,
        "metrics": {
            "tokens_in": spent.input_tokens,
            "tokens_out": spent.output_tokens,
            "wall_time_s": round(_seconds(first, last), 2),
            "step_count": len(steps),
        },
        "steps": steps,
    }


def _step(index: int, event: Event, text: str) -> dict[str, Any]:
    # `step` reads whatever imports bring without raising.
    reply = step(event, 0, "").reply
    thinking = " ".join(str(block.get("text", "")) for block in reply.thinking)
    actions = [{"tool": call.name, "args": decoded(call.arguments)} for call in reply.calls]
    reasoning = thinking or (text if actions else "")
    first, *more = actions or [{"tool": "answer", "args": {"answer": text}}]
    fields = {"step_index": index, "seq": event.seq, "reasoning": reasoning, "action": first}
    if more:
        fields["further_actions"] = more
    return fields


def _seconds(first: str, last: str) -> float:
    if not first:
        return 0.0
    return (dt.datetime.fromisoformat(last) - dt.datetime.fromisoformat(first)).total_seconds()
