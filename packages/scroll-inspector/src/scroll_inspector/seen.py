"""What the model saw: a request message by message, with its tokens by use and the window's marks.

Everything here is made of replayed views (session/past.py), so it is what was sent and not a guess.
`differences.py` compares a request with the one before it.
"""

import bisect

import msgspec

from scroll_context.events import Event
from scroll_context.session.past import Past, Seen
from scroll_context.view.eviction import ViewBudget, raw_marks
from scroll_context.view.tokens import MESSAGE_TOKENS, Gauge, estimate
from scroll_inspector.differences import Difference, Sent, compared
from scroll_inspector.pieces import request_tokens

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


class TokenShare(msgspec.Struct, frozen=True):
    """One colour of the token bar."""

    name: str
    label: str
    tokens: int


class Mark(msgspec.Struct, frozen=True):
    """A mark of the window, as the provider counts and in the estimated tokens of one request."""

    name: str
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
    later = past.requests[at + 1 : at + 2]
    before = past.seen(earlier) if earlier is not None else None
    seen = past.seen(request)
    messages, difference = compared(past, before, seen)
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
        following=later[0].seq if later else None,
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
    high, low = raw_marks(budget, window, gauge)
    return (
        Mark("low mark", int(window * budget.low), low),
        Mark("high mark", int(window * budget.high), high),
        Mark("window", window, max(gauge.raw_for(window), high)),
    )


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
