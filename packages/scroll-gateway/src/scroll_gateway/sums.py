"""The tokens that a gateway has sent, and those that its clients would have sent without it.

Tokens are estimates, two for seven bytes, the same for both sides. A provider's cache charges the
beginning that a request shares with the one before at a tenth, and writes the rest at five quarters
of the price: `cost` adds both up, in units of one uncached token.
"""

import re
from collections.abc import Iterator

import msgspec

from scroll_gateway.wire.layouts import MOST_MARKS
from scroll_gateway.wire.requests import WireRequest
from scroll_gateway.wire.slices import common_prefix

READ, WRITE = 0.1, 1.25
"""The price of a cached token, and of one that is written to the cache."""

_MARK = re.compile(rb'"cache_control":\{[^{}]*\}')
_MARK_START = b'"cache_control":{'
_ONE_TEXT = re.compile(rb'\[\{"type":"text","text":("(?:[^"\\]|\\.)*+")\}\]')
_ONE_TEXT_START = b'[{"type":"text","text":'
_CONSTANT = ("tools", "system", "instructions")


class Traffic(msgspec.Struct):
    """Requests of one side: all of their tokens, and those that the request before had too."""

    tokens: int = 0
    repeated: int = 0
    largest: int = 0

    @property
    def cost(self) -> int:
        return round(READ * self.repeated + WRITE * (self.tokens - self.repeated))

    def add(self, tokens: int, repeated: int) -> None:
        self.tokens += tokens
        self.repeated += repeated
        self.largest = max(self.largest, tokens)

    def merge(self, other: "Traffic") -> None:
        self.tokens += other.tokens
        self.repeated += other.repeated
        self.largest = max(self.largest, other.largest)


class Sums(msgspec.Struct):
    """Counts of a conversation, or of all conversations of a gateway."""

    requests: int = 0
    evictions: int = 0
    # Requests that went on as they came because of a fault of ours.
    faults: int = 0
    sent: Traffic = msgspec.field(default_factory=Traffic)
    direct: Traffic = msgspec.field(default_factory=Traffic)

    def add(self, other: "Sums") -> None:
        self.requests += other.requests
        self.evictions += other.evictions
        self.faults += other.faults
        self.sent.merge(other.sent)
        self.direct.merge(other.direct)

    def row(self) -> dict[str, int]:
        """The counts by the names that `scroll gateway status --json` has for them."""
        return {
            "requests": self.requests,
            "evictions": self.evictions,
            "faults": self.faults,
            "tokens_sent": self.sent.tokens,
            "tokens_direct": self.direct.tokens,
            "largest_sent": self.sent.largest,
            "largest_direct": self.direct.largest,
            "cost_sent": self.sent.cost,
            "cost_direct": self.direct.cost,
        }


class Meter:
    """Measures the requests of one conversation."""

    def __init__(self) -> None:
        self.sums = Sums()
        self._sent = b""
        self._direct = 0
        self._messages = 0

    def add(self, request: WireRequest, body: bytes, *, evicted: bool) -> None:
        """Count a request, and the body that is sent in its place."""
        sums = self.sums
        sums.requests += 1
        sums.evictions += evicted
        constant = b"".join(request.fields.get(name, b"") for name in _CONSTANT)
        head = request.wire[0].span.start
        foot = len(request.body) - request.wire[-1].span.end
        sent = constant + without_marks(body[head : len(body) - foot])
        sums.sent.add(_tokens(len(sent)), _tokens(common_prefix(self._sent, sent)))
        self._sent = sent
        direct = len(constant) + len(request.body) - head - foot
        sums.direct.add(_tokens(direct), _tokens(self._repeated(request, len(constant))))
        self._direct, self._messages = direct, len(request.wire)

    def _repeated(self, request: WireRequest, constant: int) -> int:
        """Bytes that the client would have repeated.

        The last messages of a list are always read again, since cache marks move there.
        """
        if request.reused + MOST_MARKS >= self._messages:
            return self._direct
        if not request.reused:
            return constant if self._direct else 0
        end = request.wire[request.reused - 1].span.end
        return constant + end - request.wire[0].span.start


def without_marks(messages: bytes) -> bytes:
    """Messages as a provider's cache sees them: without marks, a single text as a string."""
    pieces = []
    position = 0
    for mark in _matches(_MARK, _MARK_START, messages):
        has_comma = messages[mark.start() - 1 : mark.start()] == b","
        pieces.append(messages[position : mark.start() - has_comma])
        position = mark.end()
    messages = b"".join([*pieces, messages[position:]])
    pieces = []
    position = 0
    for content in _matches(_ONE_TEXT, _ONE_TEXT_START, messages):
        pieces += [messages[position : content.start()], content[1]]
        position = content.end()
    return b"".join([*pieces, messages[position:]])


def _matches(
    pattern: "re.Pattern[bytes]", start: bytes, messages: bytes
) -> "Iterator[re.Match[bytes]]":
    """The matches of a pattern. Its first bytes are searched for, which is faster by far."""
    position = messages.find(start)
    while position >= 0:
        match = pattern.match(messages, position)
        if match is not None:
            yield match
        position = messages.find(start, match.end() if match else position + 1)


def _tokens(size: int) -> int:
    return size * 2 // 7
