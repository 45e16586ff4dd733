"""A session looked at afterwards, from its events alone: what the model saw at a request, what it
cost, its steps.

The log keeps no prompts. It keeps what prompts are made of: events, eviction plans, the system
prompt of each run and the digest of each request. Replaying them gives the request again, and the
hash that was recorded when it was sent tells whether it is the same to the byte. A context that
cannot be replayed is reported with what the log does know.
"""

import bisect
import copy
import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

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
"""How a departure begins to say that it stands in the index."""
EVERY = 400
"""Events between two copies of a view."""
NOT_KNOWN = "it was made by another version of Scroll, or by a context that is not installed here (see scroll-evals)"
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

    seq: int  # of the request
    session_id: str
    asked_at: str
    model: str
    context: str
    window: int
    verified: bool  # the messages below have the hash that was recorded when they were sent
    doubt: str = ""  # why not, when they do not
    tokens: int = 0  # as estimated before it was sent, tool schemas included
    reported: int = 0  # input tokens as the provider counted them; 0 when it did not
    cached: int = 0  # of them, read from its cache
    reply: int | None = None  # seq of what the model answered; None when there was no answer
    # What happened later to the event that was asked about, if that is not the request itself.
    later: tuple[str, ...] = ()
    # Whether a host sent its own messages; verified is then which of them, and with which texts.
    is_layout: bool = False
    # The SHA-256 of the body that a host sent, where it told.
    sent: str = ""
    tools: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    departures: tuple[
        Departure, ...
    ] = ()  # what had left the view by then, in the order in which it left


class Seen(msgspec.Struct, frozen=True):
    """One request as it was made: the context it was rendered from, and the messages."""

    request: Event
    setup: Event  # the settings of the run: system prompt, window, tools
    context: (
        WindowedContext | None
    )  # as it was just before the request; None for one that is not known here
    rendered: Rendered | None
    doubt: str  # why the messages may not be those that were sent; "" when they are


class Past:
    """The past of one session, kept so that any of its requests can be rebuilt at once, one after
    another.

    The first look reads the session from its beginning and keeps a copy of the view every few
    hundred events. Later looks start from the nearest copy. Events that were recorded since are
    read by `catch_up`. Not for two threads.

    A session may have begun with a view that something else had filled. `inherited` gives the
    events that it was filled with, for the name of a context; what a fork inherits is found without
    it.
    """

    def __init__(self, store: Store, session_id: str, inherited: Inherited | None = None) -> None:
        self.store = store
        self.session_id = session_id
        self.inherited: Inherited = inherited or (lambda _: ())
        self.requests: list[Event] = []
        self.evictions: list[Event] = []
        self.setups: list[Event] = []
        self.snapshots: list[Event] = []  # without their text
        self.upto = 0
        self._segments: list[Segment] = []
        self._views: dict[str, _Checkpoints] = {}

    def catch_up(self) -> None:
        """Take in the bookkeeping that was recorded since."""
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
                continue  # the view passes over it as well
            kinds[Kind(event.kind)].append(
                event if event.kind != Kind.SNAPSHOT else replace(event, content="", metadata={})
            )
        self.upto = until

    def events(self, after: int = 0, until: int | None = None, **filters: Any) -> Iterator[Event]:
        """The events of the session and of those that it continues, in order; filters as for
        EventLog.iterate.
        """
        for session_id, end, _ in self._segments or segments(self.store, self.session_id):
            last = end if until is None else until if end is None else min(end, until)
            if last is None or after < last:
                events = self.store.log.iterate(
                    after=after, until=last, session_id=session_id, **filters
                )
                yield from map(well_formed, events)

    def request_at(self, seq: int) -> Event | None:
        """The request at `seq`, or the newest one before it."""
        at = bisect.bisect_right(self.requests, seq, key=_seq)
        return self.requests[at - 1] if at else None

    def reply(self, request: Event) -> Event | None:
        """The reply that a request got: the first one after it, unless another request came first."""
        at = bisect.bisect_right(self.requests, request.seq, key=_seq)
        until = self.requests[at].seq if at < len(self.requests) else None
        kinds = [Kind.REQUEST, Kind.CONVERSATION]
        after = self.store.log.iterate(
            request.seq, until, session_id=request.session_id, kind=kinds
        )
        following = next(
            (event for event in after if event.role != "user"), None
        )  # who may speak meanwhile
        return (
            well_formed(following)
            if following is not None and following.role == "assistant"
            else None
        )

    def context(self, request: Event) -> tuple[Event, WindowedContext | None]:
        """The settings of the run that a request belongs to, and the context before it; None for
        one not known here.
        """
        setup = next(
            (
                one
                for one in reversed(self.setups)
                if one.seq < request.seq and "tools" in one.metadata
            ),
            None,
        )
        if setup is None:
            raise BadInput(
                f"the request at seq {request.seq} was recorded without the settings of its run"
            )
        name = str(setup.metadata.get("context", ""))
        version = RENDERER_VERSION if request.is_erased else request.metadata.get("renderer")
        if context_class(name) is None or version != RENDERER_VERSION:
            return setup, None
        return setup, self._checkpoints(name).before(self, request.seq)

    def seen(self, request: Event) -> Seen:
        """What was sent with a request."""
        setup, context = self.context(request)
        if context is None:
            return Seen(request, setup, None, None, NOT_KNOWN)
        sent = context
        if (
            "moved_from" in request.metadata
        ):  # it was sent in another store, and showed the addresses of that one
            past = list(self.events(until=request.seq - 1))
            sent = _replayed(self.store, context.name, as_recorded(past, self.store.log.text))
        system, digest = self.store.log.text(setup), str(request.metadata.get("digest", ""))
        if request.metadata.get("layout"):
            rendered = as_rendered(sent.view, lay_out(sent.view), system, digest)
        else:
            rendered = sent.render(system, digest)
        doubt = "" if rendered.hash == request.metadata.get("hash") else OTHER_MESSAGES
        if doubt and (
            erased := [one.seq for one in self.events(until=request.seq) if one.is_erased]
        ):
            shown = ", ".join(map(str, erased[:10])) + (
                f" and {len(erased) - 10} more" if len(erased) > 10 else ""
            )
            doubt = f"seq {shown} of what it was made from were erased, so it cannot be compared with what was sent"
        if doubt and sent.unreadable:
            seqs = ", ".join(map(str, sent.unreadable[:10]))
            doubt = (
                f"the payload of seq {seqs} is missing or damaged, so the request cannot be rebuilt"
            )
        return Seen(request, setup, context, rendered, doubt)

    def index_sizes(self, request: Event) -> list[tuple[int, int]]:
        """How many tokens the index had after each event that changed it, at least up to a request."""
        _, context = self.context(request)
        return self._checkpoints(context.name).index_sizes if context else []

    def _checkpoints(self, name: str) -> "_Checkpoints":
        return self._views.setdefault(name, _Checkpoints(name))


class _Checkpoints:
    """Copies of the view of a session at some of its events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: list[
            tuple[int, int, WindowedContext]
        ] = []  # after the event of this seq, and so many events
        self._last: tuple[int, int, WindowedContext] | None = (
            None  # where the last look ended: the next is often near
        )
        self.index_sizes: list[tuple[int, int]] = [
            (0, 0)
        ]  # seq of an event, and the tokens of the index after it

    def before(self, past: Past, seq: int) -> WindowedContext:
        """The context as it was before the event at `seq`; the caller may change it."""
        at = bisect.bisect_left(self._kept, seq, key=lambda one: one[0])
        begun = past.inherited(self._name)
        nearest = self._kept[at - 1] if at else (0, 0, _replayed(past.store, self._name, begun))
        if self._last is not None and nearest[0] < self._last[0] < seq:
            nearest = self._last
        after, count, context = nearest
        context = _copied(context)
        for event in past.events(after, seq - 1):
            context.add(event)
            count += 1
            if event.kind in (Kind.EVICTION, Kind.SESSION) and event.seq > self.index_sizes[-1][0]:
                self.index_sizes.append((event.seq, context.view.index.tokens))
            if count >= len(self._kept) * EVERY + EVERY:
                self._kept.append((event.seq, count, _copied(context)))
        self._last = (seq - 1, count, _copied(context))
        return context


def explain(store: Store, seq: int, inherited: Inherited | None = None) -> Explanation:
    """The request at `seq`, or the newest one before it in its session; `inherited` as for `Past`.

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
            f"no model had been asked in session {asked_about.session_id!r} up to seq {seq}, so there is no request to "
            "explain; `scroll sql \"SELECT seq FROM hist.events WHERE kind = 'request'\"` lists those there are"
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
        tools=tuple(str(one["name"]) for one in seen.setup.metadata["tools"]),
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
    """What the plan of an eviction removed."""
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
    """A context that can go on without changing this one.

    What contexts hold besides the view are values.
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


def whereabouts(view: WorkingView, seq: int) -> str:
    """Where the event at `seq` stands in a view."""
    entry = view.get(seq)
    if entry is not None:
        reply = entry.reply.form if isinstance(entry, Step) else Form.FULL
        form = next((text.form for text in passages(entry) if text.seq == seq), reply)
        return {
            Form.FULL: "shown in full",
            Form.CLIPPED: "shown clipped",
            Form.FOLDED: "shown as a stub",
        }[form]
    line = view.index.find(seq)
    return INDEX + line.text.removeprefix("- ") if line else "not part of the view"


def _departures(context: WindowedContext | None, before: list[Event]) -> tuple[Departure, ...]:
    """The events that are no longer in the view.

    A context without an index has no index lines to find them by.
    """
    if context is None:
        return ()
    left = departures(before, context.view)
    if context.preface() is None:
        return left
    return tuple(
        replace(one, now="not shown") if one.now.startswith(INDEX) else one for one in left
    )


# the session as a whole ---------------------------------------------------------------------------------


class Accounts(Spent, kw_only=True):
    """A session in numbers."""

    events: int = 0
    requests: int = 0
    largest: int = 0  # input tokens of one request
    evictions: int = 0  # plans carried out
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
            continue  # its plans have no effect here, and its replies were paid for elsewhere
        if event.kind == Kind.REQUEST:
            sums.requests += 1
        if event.kind == Kind.EVICTION or (
            event.kind == Kind.CONVERSATION and event.role == "assistant"
        ):
            # a plan has a usage when it came with a summary by the model
            usage = usage_of(event)
            sums.add(usage, event.metadata.get("cost"))
            sums.largest = max(sums.largest, usage.input_tokens)
        if event.kind == Kind.EVICTION:
            _add_plan(sums, event)
    return sums


def _add_plan(sums: Accounts, event: Event) -> None:
    try:
        plan = EvictionPlan.from_metadata(event.metadata)
    except BadInput:  # of a context that plans in another way
        return
    sums.evictions += 1
    sums.folded += len(plan.folded)
    sums.clipped += len(plan.clipped)
    sums.evicted += len(plan.evicted)


# the steps --------------------------------------------------------------------------------------------


def trajectory(
    events: Iterable[Event], text: Callable[[Event], str], task_id: str = ""
) -> dict[str, Any]:
    """The steps of a session, one for each reply. `text` gives the whole text of an event."""
    steps: list[dict[str, Any]] = []
    spent = Spent()
    first = last = ""
    observed: dict[str, list[str]] = {}
    for event in map(well_formed, events):
        first, last = first or event.recorded_at, event.recorded_at
        if event.kind == Kind.CONVERSATION and event.role == "assistant":
            if not event.is_foreign:
                spent.add(usage_of(event), None)
            steps.append(_step(len(steps), event, text(event)))
            observed = {}
        elif (
            event.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT)
            and steps
            and "inside_cell" not in event.metadata
        ):
            observed.setdefault(event.tool_call_id, []).append(text(event))
            steps[-1]["observation"] = "\n".join(
                piece for pieces in observed.values() for piece in pieces
            )
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


def _step(index: int, event: Event, said: str) -> dict[str, Any]:
    reply = step(event, 0, "").reply  # which reads what imports bring without raising
    thinking = " ".join(str(block.get("text", "")) for block in reply.thinking)
    actions = [{"tool": call.name, "args": decoded(call.arguments)} for call in reply.calls]
    reasoning = thinking or (said if actions else "")
    first, *more = actions or [{"tool": "answer", "args": {"answer": said}}]
    made = {"step_index": index, "seq": event.seq, "reasoning": reasoning, "action": first}
    return made | ({"further_actions": more} if more else {})


def _seconds(first: str, last: str) -> float:
    if not first:
        return 0.0
    return (dt.datetime.fromisoformat(last) - dt.datetime.fromisoformat(first)).total_seconds()
