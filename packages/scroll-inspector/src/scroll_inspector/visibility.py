"""Whether the model saw one event: in which requests, in which form, and if not, why not."""

import bisect
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.events import BOOKKEEPING, Event, Kind
from scroll_context.session.context import WindowedContext
from scroll_context.session.explain import INDEX, whereabouts
from scroll_context.session.past import Past
from scroll_inspector.plans import NumberedPlan, plans_about, plans_after


class _Cause(NamedTuple):
    """The plan that may have brought an event into another form, and its reason."""

    plan: int | None = None
    reason: str = ""


class Stretch(msgspec.Struct, frozen=True):
    """A run of requests in which an event stood in one form."""

    first: int
    last: int
    count: int
    how: str
    # The plan that brought it into this form, and its reason.
    plan: int | None
    reason: str


def stretches(past: Past, event: Event) -> list[Stretch]:
    """In which requests of its own a session could see an event, and how, from the first request
    after it on.
    """
    if event.kind in BOOKKEEPING or "inside_cell" in event.metadata:
        return []
    requests = [request for request in past.requests if request.session_id == past.session_id]
    numbers = [request.seq for request in requests]
    begin = bisect.bisect_right(numbers, event.seq)
    if begin == len(numbers):
        return []
    # The requests at which the event may appear in another form.
    changes = {begin: _Cause()}
    for seq, plan in _plans_that_may_change(past, event):
        at = bisect.bisect_right(numbers, seq)
        if at < len(numbers):
            changes[at] = _Cause(seq, plan.reason)
    runs: list[Stretch] = []
    places = [*sorted(changes), len(numbers)]
    for start, end in itertools.pairwise(places):
        _, context = past.context(requests[start])
        if context is None:
            return []
        how = place_in(context, event.seq)
        last = numbers[end - 1]
        count = end - start
        if runs and runs[-1].how == how:
            runs[-1] = replace(runs[-1], last=last, count=runs[-1].count + count)
        else:
            cause = changes[start]
            runs.append(
                Stretch(
                    first=numbers[start],
                    last=last,
                    count=count,
                    how=how,
                    plan=cause.plan,
                    reason=cause.reason,
                )
            )
    return runs


def _plans_that_may_change(past: Past, event: Event) -> Iterator[NumberedPlan]:
    """The plans that name an event; for a user message also those that set the standing
    instructions, which may quote it.
    """
    for numbered in plans_after(past, event.seq):
        sets_standing = numbered.plan.standing is not None and event.role == "user"
        if sets_standing or numbered.is_about(event.seq):
            yield numbered


def place_in(context: WindowedContext, seq: int) -> str:
    """How a context showed the event at a seq, in a few words."""
    where = whereabouts(context.view, seq)
    quoted = _standing_quote(context, seq)
    if where.startswith(INDEX):
        where = "as a line of the index"
    if not quoted:
        return where
    return quoted if where.startswith("not") else f"{where}, {quoted}"


def _standing_quote(context: WindowedContext, seq: int) -> str:
    """Whether the index quotes an event among the standing instructions; "" if it does not."""
    if context.preface() is not None:
        # This context sends other words instead of the index.
        return ""
    for standing in context.view.index.standing:
        if standing.seq == seq:
            return f"quoted as a {standing.stance or 'standing instruction'}"
    return ""


def _quote(context: WindowedContext, seq: int) -> str:
    """Where the index quotes an event besides the line that stands for it."""
    standing = _standing_quote(context, seq)
    if standing or context.preface() is not None:
        return standing
    is_fact = any(seq in fact.seqs for fact in context.view.index.state)
    return "quoted in the state of the work" if is_fact else ""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request showed an event and, if not, why not."""

    event: int
    sentence: str
    # The plans that had a part in it.
    plans: tuple[NumberedPlan, ...] = ()
    # The cell that it was called in.
    cell: int | None = None
    # The line of the index that stood for it.
    line: str = ""


def why(past: Past, request: Event, event: Event) -> Why:
    """Whether a request showed an event and, if not, why not."""
    _, context = past.context(request)
    if context is None:
        return Why(event=event.seq, sentence="The context of this request is not known here.")
    if event.seq > request.seq:
        return Why(event=event.seq, sentence="It was recorded after this request.")
    if event.kind in BOOKKEEPING:
        sentence = "It is bookkeeping, which is never shown as a message."
        return Why(event=event.seq, sentence=sentence)
    where = whereabouts(context.view, event.seq)
    plans = [plan for plan in plans_about(past, event.seq) if plan.seq < request.seq]
    return Why(
        event=event.seq,
        sentence=_sentence(context, request, event, where),
        plans=tuple(plans),
        cell=event.metadata.get("inside_cell"),
        line=where.removeprefix(INDEX) if where.startswith(INDEX) else "",
    )


def _sentence(context: WindowedContext, request: Event, event: Event, where: str) -> str:
    """What a request showed of an event."""
    if event.metadata.get("inside_cell"):
        return (
            "It was called inside a cell. The model sees what the cell prints, not what its calls "
            "return."
        )
    if where.startswith("shown"):
        return f"It was {where}."
    quoted = _quote(context, event.seq)
    if where.startswith(INDEX):
        also = f" The index also had it {quoted}." if quoted else ""
        return f"It was not shown itself. A line of the index stood for it.{also}"
    if quoted:
        return f"It was not shown as a message. The index had it {quoted}."
    if event.session_id != request.session_id:
        return "It belongs to another session, and no line of the index named it."
    if event.kind == Kind.ARTIFACT:
        return "Bytes are never shown; the result that they belong to names their seq."
    return "It was not part of the view."
