"""The past of a session, from its events alone: the requests, and the views they were made from.

The events of a session are its own, after those that it inherited by being forked (`lineage`). Only
events that were recorded here count. Imported ones are text to read, so an imported fork names no
parent, and an imported setting widens nothing.

The log keeps no prompts. It keeps the parts that prompts are made from: events, eviction plans, the
system prompt of each run and the variable list of each request. Replaying them gives the request
again, and the hash that was recorded when it was sent shows whether it is the same to the byte. A
context that cannot be replayed is reported with the facts that the log has.
"""

import bisect
import copy
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.contents import well_formed
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.session.context import WindowedContext, context_class
from scroll_context.store import Store
from scroll_context.upkeep.addresses import as_recorded
from scroll_context.view.layout import as_rendered, lay_out
from scroll_context.view.working import RENDERER_VERSION, Rendered

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
            last_measured, _ = self.index_sizes[-1]
            changes_index = event.kind in (Kind.EVICTION, Kind.RETRACTION, Kind.SESSION)
            if changes_index and event.seq > last_measured:
                self.index_sizes.append((event.seq, context.view.index.tokens))
            if count >= len(self._checkpoints) * EVERY + EVERY:
                self._checkpoints.append(_Checkpoint(event.seq, count, _copied(context)))
        self._last = _Checkpoint(seq - 1, count, _copied(context))
        return context


def _replayed(store: Store, name: str, events: Iterable[Event]) -> WindowedContext:
    """A context of a known name after these events."""
    policy = context_class(name)
    assert policy is not None
    context = policy(store.log.excerpt)
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


# the events of a session --------------------------------------------------------------------------


class Segment(NamedTuple):
    """A session, or the part of one that a fork inherits."""

    session_id: str
    # The last seq that counts; None for the complete session.
    until: int | None
    # The seq of the event with which the next segment continues it.
    fork: int = 0


def segments(store: Store, session_id: str) -> list[Segment]:
    """The sessions that one continues, oldest first, and itself."""
    chain = [Segment(session_id, None)]
    while True:
        first = next(store.log.iterate(session_id=chain[0].session_id), None)
        origin = forked_from(store, first) if first is not None else None
        if first is None or origin is None:
            return chain
        chain.insert(0, Segment(*origin, first.seq))


def lineage(store: Store, session_id: str) -> Iterator[Event]:
    """The events of a session, after those that it inherited by being forked."""
    for segment in segments(store, session_id):
        yield from map(
            well_formed, store.log.iterate(session_id=segment.session_id, until=segment.until)
        )
        if segment.until is not None:
            yield from _late_snapshot(store, segment.session_id, segment.until, segment.fork)


def forked_from(store: Store, event: Event) -> tuple[str, int] | None:
    """The session that a fork continues, and its last seq there; None for anything else.

    A fork stays with its agent: an event that names the session of another one is no fork.
    """
    if event.kind != Kind.FORK or event.is_foreign:
        return None
    parent, at = event.metadata.get("session_id"), event.metadata.get("at_seq")
    if not isinstance(parent, str) or not isinstance(at, int) or not 0 < at < event.seq:
        return None
    last = next(iter(store.log.get_many([at])), None)
    if last is None or last.session_id != parent or last.agent_id != event.agent_id:
        return None
    return parent, at


def _late_snapshot(store: Store, session_id: str, at: int, before: int) -> Iterator[Event]:
    """The snapshot of the last cell up to a seq, if it came after it: variables are saved while the
    log goes on.
    """
    late = next(
        store.log.iterate(after=at, until=before, session_id=session_id, kind=Kind.SNAPSHOT), None
    )
    if late is not None and late.reply_to is not None:
        ended = store.log.iterate(
            after=late.reply_to, until=at, session_id=session_id, kind=Kind.OBSERVATION
        )
        if any(event.reply_to == late.reply_to for event in ended):
            yield late
