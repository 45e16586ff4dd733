"""What the model saw: a request message by message, and its difference from the request before.

Everything here is made of two replayed views (session/explain.py), so it is what was sent and not a
guess. A message is cut into pieces (pieces.py), and a piece is known by its event, so it can be
found again in the request before. A piece that only one of the two requests has was added or has
left, and the eviction plans between them say why.
"""

import bisect
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EvictionPlan
from scroll_context.errors import BadInput
from scroll_context.events import BOOKKEEPING, Event, Kind
from scroll_context.messages import Message, ToolCall, canonical
from scroll_context.session.context import WindowedContext
from scroll_context.session.explain import INDEX, Past, Seen, whereabouts
from scroll_context.text.words import clip
from scroll_context.view.entries import Entry
from scroll_context.view.eviction import ViewBudget
from scroll_context.view.steps import Step
from scroll_context.view.tokens import MESSAGE_TOKENS, Gauge, estimate
from scroll_context.view.working import WorkingView
from scroll_inspector.pieces import SentPiece, pieces_of, request_tokens

PREVIEW = 200
"""Characters of a message in one line; the page shows as many as there is room for."""
PARTS = {
    "system": "system prompt",
    "tools": "tools",
    "index": "index",
    "user": "user",
    "reply": "replies",
    "result": "results",
    "notice": "notices",
    "variables": "variable list",
}
"""The parts of a request and how the page calls them, in the order in which they are sent."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a request."""

    position: int
    message: Message
    pieces: tuple[SentPiece, ...]
    # The same, like all before it, in the request before.
    in_prefix: bool
    # The seqs of the cells that its calls ran, 0 where that is not known.
    addresses: tuple[int, ...] = ()
    # The lines of the variable list, and whether each is new.
    tail: tuple[tuple[str, bool], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def change(self) -> str:
        changes = (piece.change for piece in self.pieces if piece.change != "kept")
        return next(changes, "kept")

    @property
    def preview(self) -> str:
        """The message in one line."""
        if self.pieces[0].kind == "index":
            return "the index of earlier work"
        words = [self.message.text[: 4 * PREVIEW], *map(_call_line, self.message.tool_calls)]
        words += [item.label for piece in self.pieces for item in piece.media]
        return clip(" ".join(filter(None, words)), PREVIEW)


def _call_line(call: ToolCall) -> str:
    if isinstance(call.arguments, str):
        return f"{call.name}({call.arguments[:PREVIEW]})"
    values = [str(value)[:PREVIEW] for value in call.arguments.values()]
    return f"{call.name}({', '.join(values)})"


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, or a text, that the request before showed in full and this one does not."""

    seq: int
    last: int
    # evicted, folded, clipped
    how: str
    # The entry in one line.
    line: str
    # Of the entry; 0 for a text, of which a part remains.
    tokens: int = 0
    plan: int
    # Where it stands now.
    now: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What is not as it was at the request before."""

    # Seq of that request.
    before: int | None
    plans: tuple[tuple[int, EvictionPlan], ...] = ()
    entered: tuple[SentPiece, ...] = ()
    left: tuple[Left, ...] = ()
    # Lines that were joined with others.
    index_gone: tuple[str, ...] = ()
    index_new: int = 0
    variables_gone: tuple[str, ...] = ()


class TokenShare(msgspec.Struct, frozen=True):
    """One colour of the token bar."""

    name: str
    label: str
    tokens: int


class Mark(msgspec.Struct, frozen=True):
    """A mark of the window, as the provider counts and in the estimated tokens of one request."""

    name: str
    share: float
    tokens: int
    estimated: int


class SeenPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one request. Tokens are estimates, except those of the window."""

    seen: Seen
    messages: tuple[Sent, ...]
    difference: Difference
    tokens: int
    parts: tuple[TokenShare, ...]
    # Tokens at the beginning that the request before had as well, tools included.
    prefix_tokens: int
    previous: int | None
    following: int | None
    # Which request of the session it is.
    number: int
    count: int
    window: int
    # The low mark, the high mark and the window.
    marks: tuple[Mark, ...]

    def sum_of(self, part: str) -> int:
        return sum(share.tokens for share in self.parts if share.name == part)


def page(past: Past, request: Event) -> SeenPage:
    """A request beside the one before it."""
    at = bisect.bisect_left(past.requests, request.seq, key=lambda event: event.seq)
    earlier = past.requests[at - 1] if at else None
    before = past.seen(earlier) if earlier is not None else None
    seen = past.seen(request)
    messages, difference = _compared(past, before, seen)
    parts = _parts(seen, messages)
    prefix_tokens = sum(message.tokens for message in messages if message.in_prefix)
    if prefix_tokens:
        # Tools are sent before messages.
        prefix_tokens += sum(part.tokens for part in parts if part.name == "tools")
    window = int(seen.setup.metadata.get("window", 0))
    gauge = seen.context.view.gauge if seen.context else Gauge()
    return SeenPage(
        seen=seen,
        messages=messages,
        difference=difference,
        tokens=request_tokens(request),
        parts=parts,
        prefix_tokens=prefix_tokens,
        previous=earlier.seq if earlier else None,
        following=past.requests[at + 1].seq if at + 1 < len(past.requests) else None,
        number=at + 1,
        count=len(past.requests),
        window=window,
        marks=marks(budget_at(past, request.seq), window, gauge),
    )


def budget_at(past: Past, seq: int) -> ViewBudget:
    """The budget of a session's view, as it was set at a seq."""
    for event in reversed(past.setups):
        settings = event.metadata.get("settings")
        if event.seq < seq and isinstance(settings, dict) and "budget" in settings:
            try:
                return msgspec.convert(settings["budget"], ViewBudget)
            except (msgspec.ValidationError, ValueError, TypeError):
                # An import may have any shape there.
                return ViewBudget()
    return ViewBudget()


def marks(budget: ViewBudget, window: int, gauge: Gauge) -> tuple[Mark, ...]:
    """The marks of a window. `gauge` says how estimates become the provider's tokens."""
    shares = {"low mark": budget.low, "high mark": budget.high, "window": 1.0}
    return tuple(
        Mark(name, share, int(window * share), gauge.raw_for(int(window * share)))
        for name, share in shares.items()
    )


def plan_of(event: Event) -> EvictionPlan:
    """The plan of an eviction, cached because many pages ask for the same few."""
    return _plan(event.seq, msgspec.json.encode(event.metadata.get("plan")))


def plan_summary(event: Event) -> str:
    """The reason for an eviction and how much it removed, without token counts: those are shown
    with the requests before and after it.
    """
    try:
        plan = plan_of(event)
    except BadInput:
        # It is of a context that plans in another way.
        return event.content
    numbers = {
        "folded": len(plan.folded),
        "clipped": len(plan.clipped),
        "moved to the index": len(plan.evicted),
    }
    actions = ", ".join(f"{number} {words}" for words, number in numbers.items() if number)
    return f"{plan.reason}: {actions or 'nothing could leave'}"


def forget() -> None:
    """Clear the cache after an erasure: it may hold erased text."""
    _plan.cache_clear()


@lru_cache(maxsize=4096)
def _plan(_: int, plan: bytes) -> EvictionPlan:
    return EvictionPlan.from_metadata({"plan": msgspec.json.decode(plan)})


# the difference between two requests --------------------------------------------------------------


class _Before(msgspec.Struct, frozen=True):
    """The request before, as far as the next one is compared with it."""

    messages: tuple[Message, ...] = ()
    # The pieces by their keys, each with the bytes that must be the same.
    pieces: dict[tuple[str, int], tuple[SentPiece, bytes]] = {}
    index: frozenset[str] = frozenset()
    variables: tuple[str, ...] = ()


def _before(seen: Seen | None) -> _Before:
    if seen is None or seen.context is None or seen.rendered is None:
        return _Before()
    messages = seen.rendered.messages
    pieces: dict[tuple[str, int], tuple[SentPiece, bytes]] = {}
    for message, cut in zip(messages, pieces_of(seen), strict=True):
        for piece in cut.pieces:
            pieces[piece.key] = (piece, _part_of(message, piece))
    index: frozenset[str] = frozenset()
    if ("index", 0) in pieces:
        index = frozenset(pieces["index", 0][0].text.split("\n"))
    tail = messages[-1].tail if messages else ""
    return _Before(messages, pieces, index, tuple(tail.split("\n")) if tail else ())


def _compared(past: Past, before: Seen | None, seen: Seen) -> tuple[tuple[Sent, ...], Difference]:
    """The messages of a request with their changes, and everything else that is different."""
    before_seq = before.request.seq if before else None
    if seen.context is None or seen.rendered is None:
        return (), Difference(before=before_seq)
    old = _before(before)
    sent = _sent(seen, old, is_first=before is None)
    plans = _plans_between(past, before_seq or 0, seen.request.seq)
    left: tuple[Left, ...] = ()
    if before is not None and before.context is not None:
        left = tuple(_left(before.context.view, seen.context.view, plans))
    pieces = [piece for message in sent for piece in message.pieces]
    index = next((piece for piece in pieces if piece.kind == "index"), None)
    index_gone: list[str] = []
    index_new = 0
    if index is not None:
        index_gone = sorted(old.index - set(index.text.split("\n")), key=_address)
        index_new = sum(is_new for _, is_new in index.lines)
    variables = {line for line, _ in sent[-1].tail} if sent else set()
    difference = Difference(
        before=before_seq,
        plans=plans,
        entered=tuple(piece for piece in pieces if piece.change == "entered"),
        left=left,
        index_gone=tuple(index_gone),
        index_new=index_new,
        variables_gone=tuple(line for line in old.variables if line not in variables),
    )
    return sent, difference


def _sent(seen: Seen, old: _Before, *, is_first: bool) -> tuple[Sent, ...]:
    assert seen.rendered is not None
    messages = seen.rendered.messages
    repeated = _same_beginning(old.messages, messages)
    sent = []
    for place, (message, cut) in enumerate(zip(messages, pieces_of(seen), strict=True)):
        lines = message.tail.split("\n") if message.tail else []
        pieces = [_with_change(piece, message, old, is_first) for piece in cut.pieces]
        sent.append(
            Sent(
                position=place,
                message=message,
                pieces=tuple(pieces),
                in_prefix=place < repeated,
                addresses=cut.addresses,
                tail=tuple((line, line not in old.variables) for line in lines),
            )
        )
    return tuple(sent)


def _bare(message: Message) -> bytes:
    """A message as the next request repeats it."""
    return canonical(replace(message, cache_mark=False, tail=""))


def _same_beginning(old: tuple[Message, ...], new: tuple[Message, ...]) -> int:
    """How many messages of a request are, from its beginning on, those of the request before."""
    for place, (old_message, new_message) in enumerate(zip(old, new, strict=False)):
        if _bare(old_message) != _bare(new_message):
            return place
    return min(len(old), len(new))


def _address(line: str) -> tuple[int, str]:
    """The first seq of an index line, by which lines are sorted."""
    number = re.match(r"[0-9]+", line.removeprefix("- seq "))
    return int(number[0]) if number else 0, line


def _part_of(message: Message, piece: SentPiece) -> bytes:
    """The bytes that must be the same for a piece to be the same: of a reply also its calls and
    thinking.
    """
    return _bare(message) if piece.kind == "reply" else piece.text.encode("utf-8", "surrogatepass")


def _with_change(piece: SentPiece, message: Message, old: _Before, is_first: bool) -> SentPiece:
    """A piece with its change since the request before."""
    lines: tuple[tuple[str, bool], ...] = ()
    if piece.kind == "index":
        lines = tuple(
            (line, not is_first and bool(line) and line not in old.index)
            for line in piece.text.split("\n")
        )
    known = old.pieces.get(piece.key)
    if known is None:
        change = "kept" if is_first and piece.kind == "system" else "entered"
    elif known[1] == _part_of(message, piece):
        change = "kept"
    elif piece.form and piece.form != known[0].form:
        change = piece.form
    else:
        change = "changed"
    return replace(piece, change=change, lines=lines)


def _plans_between(past: Past, after: int, before: int) -> tuple[tuple[int, EvictionPlan], ...]:
    at = bisect.bisect_right(past.evictions, after, key=lambda event: event.seq)
    plans = []
    for event in past.evictions[at:]:
        if event.seq > before:
            break
        plans.append((event.seq, plan_of(event)))
    return tuple(plans)


def _left(
    old: WorkingView, new: WorkingView, plans: Iterable[tuple[int, EvictionPlan]]
) -> Iterator[Left]:
    """What left the view between two requests, oldest first."""
    for plan_seq, plan in plans:
        shortened = [(seq, "folded") for seq in plan.folded]
        shortened += [(seq, "clipped") for seq, _ in plan.clipped]
        for seq, how in shortened:
            entry = old.get(seq)
            if entry is not None and new.get(seq) is not None:
                now = whereabouts(new, seq)
                line = line_of(entry)
                yield Left(seq=seq, last=seq, how=how, line=line, plan=plan_seq, now=now)
        for first, last in plan.evicted:
            entry = old.get(first)
            if entry is not None:
                yield Left(
                    seq=first,
                    last=last,
                    how="evicted",
                    line=line_of(entry),
                    tokens=entry.tokens,
                    plan=plan_seq,
                    now=whereabouts(new, first),
                )


def line_of(entry: Entry) -> str:
    """An entry in one line."""
    if isinstance(entry, Step):
        return entry.ended_headline().full()
    return clip(entry.body.shown[: 4 * PREVIEW], PREVIEW)


def _parts(seen: Seen, messages: tuple[Sent, ...]) -> tuple[TokenShare, ...]:
    """The tokens of a request by what they are for. Together they are the recorded estimate, since
    the rest of it counts as tools.
    """
    if seen.rendered is None:
        return ()
    sums = dict.fromkeys(PARTS, 0)
    for message in messages:
        for piece in message.pieces:
            sums["notice" if piece.kind == "harness" else piece.kind] += piece.tokens
        if message.tail:
            sums["variables"] += estimate(message.message.tail)
            if not seen.request.metadata.get("layout"):
                sums["variables"] += MESSAGE_TOKENS
    sums["tools"] = max(0, request_tokens(seen.request) - sum(sums.values()))
    return tuple(TokenShare(name, PARTS[name], tokens) for name, tokens in sums.items() if tokens)


# one event in many requests -----------------------------------------------------------------------


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
    # The requests at which the event may appear in another form, with the plan and its reason.
    changes: dict[int, tuple[int | None, str]] = {begin: (None, "")}
    for seq, plan in plans_about(past, event.seq):
        at = bisect.bisect_right(numbers, seq)
        if at < len(numbers):
            changes[at] = (seq, plan.reason)
    runs: list[Stretch] = []
    places = sorted(changes)
    for at, end in zip(places, [*places[1:], len(numbers)], strict=True):
        _, context = past.context(requests[at])
        if context is None:
            return []
        how = place_in(context, event.seq)
        if runs and runs[-1].how == how:
            runs[-1] = replace(runs[-1], last=numbers[end - 1], count=runs[-1].count + end - at)
        else:
            runs.append(Stretch(numbers[at], numbers[end - 1], end - at, how, *changes[at]))
    return runs


def place_in(context: WindowedContext, seq: int) -> str:
    """How a context showed the event at a seq, in a few words."""
    where = whereabouts(context.view, seq)
    quoted = quoted_in(context, seq)
    if where.startswith(INDEX):
        where = "as a line of the index"
    if not quoted:
        return where
    return quoted if where.startswith("not") else f"{where}, {quoted}"


def quoted_in(context: WindowedContext, seq: int) -> str:
    """Where the index quotes an event besides the line that stands for it."""
    if context.preface() is not None:
        # This context sends other words instead of the index.
        return ""
    index = context.view.index
    for standing in index.standing:
        if standing.seq == seq:
            return f"quoted as a {standing.stance or 'standing instruction'}"
    if any(seq in fact.seqs for fact in index.state):
        return "quoted in the state of the work"
    return ""


def plans_about(past: Past, seq: int) -> list[tuple[int, EvictionPlan]]:
    """The eviction plans that name an event, oldest first."""
    plans = []
    first = bisect.bisect_right(past.evictions, seq, key=lambda event: event.seq)
    for event in past.evictions[first:]:
        plan = plan_of(event)
        is_clipped = any(clipped_seq == seq for clipped_seq, _ in plan.clipped)
        is_evicted = any(lo <= seq <= hi for lo, hi in plan.evicted)
        if seq in plan.folded or is_clipped or is_evicted:
            plans.append((event.seq, plan))
    return plans


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request showed an event and, if not, why not."""

    event: int
    sentence: str
    # The plans that had a part in it.
    plans: tuple[tuple[int, EvictionPlan], ...] = ()
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
    return Why(
        event=event.seq,
        sentence=_sentence(context, request, event, where),
        plans=tuple((seq, plan) for seq, plan in plans_about(past, event.seq) if seq < request.seq),
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
    quoted = quoted_in(context, event.seq)
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
