"""One request, explained: what was sent, what it cost, and what had left the view by then.

`past.py` rebuilds the request from the events of its session. This page adds the reply, the plans
that removed something before, and where the removed events stand now.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EvictionPlan, Usage, usage_of
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.messages import Message
from scroll_context.session.context import WindowedContext
from scroll_context.session.past import Inherited, Past
from scroll_context.store import Store
from scroll_context.view.entries import passages
from scroll_context.view.passage import Form
from scroll_context.view.steps import Step
from scroll_context.view.working import WorkingView

INDEX = "index: "
"""How the place of a departure begins if that is the index."""


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
            f"session {asked_about.session_id!r} has no model request up to seq {seq}; "
            "`scroll sql \"SELECT seq FROM hist.events WHERE kind = 'request'\"` lists the requests"
        )
    seen = past.seen(request)
    name = str(seen.setup.metadata.get("context", ""))
    reply = past.reply(request)
    usage = usage_of(reply) if reply else Usage()
    plans = [*past.inherited(name), *past.evictions]
    plans_before = [event for event in plans if event.seq < request.seq]
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
        departures=_departures(seen.context, plans_before),
    )


def _later(past: Past, seq: int) -> tuple[str, ...]:
    """How an event left the view: each plan that folded, clipped or evicted it, the rule, and how
    full the view was.
    """
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
                plan = EvictionPlan.from_metadata(event.metadata)
                tokens = f"{plan.before:,} of {plan.limit:,} tokens before, {plan.after:,} after"
                lines.append(f"{how}{rule}, in plan {event.seq}: {removal.reason} ({tokens})")
    return tuple(lines)


def _removals(eviction: Event) -> list[Departure]:
    """The texts and entries that the plan of an eviction removed."""
    plan = EvictionPlan.from_metadata(eviction.metadata)
    rules: dict[int, str] = {}
    for rule, seqs in plan.rules.items():
        rules |= dict.fromkeys(seqs, rule)

    def departure(how: str, first: int, last: int) -> Departure:
        return Departure(
            seq=first,
            last=last,
            how=how,
            plan=eviction.seq,
            reason=plan.reason,
            rule=rules.get(first, ""),
        )

    removals = [departure("folded", seq, seq) for seq in plan.folded]
    removals += [departure("clipped", seq, seq) for seq, _ in plan.clipped]
    removals += [departure("evicted", first, last) for first, last in plan.evicted]
    return removals


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
    without_index = []
    for removal in removals:
        if removal.now.startswith(INDEX):
            removal = replace(removal, now="not shown")
        without_index.append(removal)
    return tuple(without_index)
