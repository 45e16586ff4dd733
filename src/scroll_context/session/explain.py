"""What the model saw at a request, rebuilt from the log alone, and why everything else was not in it.

The log keeps no prompts. It keeps what prompts are made of: events, eviction plans, the system prompt of each run and
the digest of each request. Replaying them gives the request again, and the hash that was recorded when it was sent
tells whether it is the same to the byte. A context that cannot be replayed is reported with what the log does know.
"""

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.messages import Message
from scroll_context.session.context import WindowedContext, context_class
from scroll_context.session.history import lineage
from scroll_context.store.merge import as_recorded
from scroll_context.store.store import Store
from scroll_context.view.working import RENDERER_VERSION, Departure, departures

INDEX = "index: "
"""How a departure begins to say that it stands in the index."""


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
    tools: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    departures: tuple[Departure, ...] = ()  # what had left the view by then, in the order in which it left


def explain(store: Store, seq: int, inherited: Callable[[str], Iterable[Event]] | None = None) -> Explanation:
    """The request at `seq`, or the newest one before it in its session.

    A session may have begun with a view that something else had filled. `inherited` gives the events that it was
    filled with, for the name of a context; what a fork inherits is found without it.
    """
    asked_about = store.log.get(seq)
    past = list(lineage(store, asked_about.session_id, seq))
    request = next((event for event in reversed(past) if event.kind == Kind.REQUEST), None)
    if request is None:
        raise BadInput(
            f"no model had been asked in session {asked_about.session_id!r} up to seq {seq}, so there is no request to "
            "explain; `scroll sql \"SELECT seq FROM hist.events WHERE kind = 'request'\"` lists those there are"
        )
    before = [event for event in past if event.seq < request.seq]
    setup = next(
        (event for event in reversed(before) if event.kind == Kind.SESSION and "tools" in event.metadata), None
    )
    if setup is None:
        raise BadInput(f"the request at seq {request.seq} was recorded without the settings of its run")
    name = str(setup.metadata.get("context", ""))
    if inherited is not None:
        before = [*inherited(name), *before]
    context = _replayed(store, name, before, int(request.metadata.get("renderer", 1)))
    sent = context
    if "moved_from" in request.metadata:  # it was sent in another store, and showed the addresses of that one
        sent = _replayed(store, name, as_recorded(before, store.log.text), int(request.metadata.get("renderer", 1)))
    messages, doubt = _rebuilt(sent, store.log.text(setup), request)
    if doubt and (erased := [event.seq for event in (*before, request) if event.is_erased]):
        shown = ", ".join(map(str, erased[:10])) + (f" and {len(erased) - 10} more" if len(erased) > 10 else "")
        doubt = f"seq {shown} of what it was made from were erased, so it cannot be compared with what was sent"
    reply = _reply_to(store, request)
    usage = reply.metadata.get("usage", {}) if reply else {}
    return Explanation(
        seq=request.seq,
        session_id=request.session_id,
        asked_at=request.recorded_at,
        model=request.name,
        context=name,
        window=int(setup.metadata.get("window", 0)),
        verified=not doubt,
        doubt=doubt,
        tokens=int(request.metadata.get("tokens", 0)),
        reported=int(usage.get("input_tokens", 0)),
        cached=int(usage.get("cache_read_tokens", 0)),
        reply=reply.seq if reply else None,
        tools=tuple(str(one["name"]) for one in setup.metadata["tools"]),
        messages=messages,
        departures=_departures(context, before),
    )


def _replayed(store: Store, name: str, before: list[Event], version: int) -> WindowedContext | None:
    """The context as it was after these events, by the rules of that time; None for one that is not known here."""
    found = context_class(name)
    if found is None or version > RENDERER_VERSION:
        return None
    context = found(store.log.text, version)
    for event in before:
        context.add(event)
    return context


def _rebuilt(context: WindowedContext | None, system: str, request: Event) -> tuple[tuple[Message, ...], str]:
    """The messages of the request, and why they may not be what was sent ("" when they are)."""
    if context is None:
        return (
            (),
            "it was made by a newer version of Scroll, or by a context that is not installed here (see scroll-evals)",
        )
    rendered = context.render(system, str(request.metadata.get("digest", "")))
    if rendered.hash == request.metadata.get("hash"):
        return rendered.messages, ""
    return rendered.messages, "the log now gives other messages than were sent; another version of Scroll made those"


def _departures(context: WindowedContext | None, before: list[Event]) -> tuple[Departure, ...]:
    """What left the view. Where a context shows no index, an index line is not where the model can find it."""
    if context is None:
        return ()
    left = departures(before, context.view)
    if context.preface() is None:
        return left
    return tuple(replace(one, now="not shown") if one.now.startswith(INDEX) else one for one in left)


def _reply_to(store: Store, request: Event) -> Event | None:
    """The reply that the request got: the first one after it, unless another request came first."""
    after = store.log.iterate(after=request.seq, session_id=request.session_id, kind=[Kind.REQUEST, Kind.CONVERSATION])
    following = next((event for event in after if event.role != "user"), None)  # who may speak while it is on its way
    return following if following is not None and following.role == "assistant" else None
