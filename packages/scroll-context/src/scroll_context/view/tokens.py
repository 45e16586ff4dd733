"""How many tokens a text or a whole view will cost, without a tokenizer.

Two steps. `estimate` counts a text from its characters and bytes alone; that raw count is what
every value in the view carries. A `Gauge` turns raw counts into the provider's tokens: it holds the
last count a provider reported, as an anchor, and the ratio between reported and raw counts learned
so far, so that only what is new since the last answered request is estimated at all. The provider's
own count always wins; a reported 0 means unknown.
"""

import math

import msgspec

MESSAGE_TOKENS = 4
"""The tokens of a message beyond its text: role, separators, the id of a call."""

_RATIO_MIN, _RATIO_MAX = 0.25, 4.0


def estimate(text: str) -> int:
    """Raw tokens of a text: 3.5 characters of ASCII each, about one for a CJK character, more for
    an emoji.

    >>> from scroll_context.hosts import estimate
    >>> estimate("a text of thirty-five characters...")
    10
    """
    if text.isascii():
        return (len(text) * 2 + 6) // 7
    beyond = len(text.encode("utf-8", "surrogatepass")) - len(
        text
    )  # 2 for a CJK character, 3 for an emoji
    return math.ceil(len(text) * 2 / 7 + beyond * 5 / 14)


class Gauge(msgspec.Struct, frozen=True):
    """Raw counts to a provider's tokens.

    `raw` and `reported` are the anchor; 0 means that there is none.
    """

    ratio: float = 1.0
    raw: int = 0
    reported: int = 0
    learned: bool = False

    def observed(self, raw: int, reported: int) -> "Gauge":
        """The gauge after a provider counted `reported` input tokens for a request of `raw`."""
        if raw <= 0 or reported <= 0:
            return self
        fresh = reported / raw
        return Gauge(
            _clamp((self.ratio + fresh) / 2 if self.learned else fresh), raw, reported, True
        )

    def overflowed(self, raw: int, window: int) -> "Gauge":
        """The gauge after a provider refused a request of `raw` as longer than its `window`."""
        return Gauge(_clamp(max(self.ratio, window / max(raw, 1))), learned=True)

    def unanchored(self) -> "Gauge":
        """The gauge for a view whose beginning changed: the ratio stays, the anchor goes."""
        return Gauge(self.ratio, learned=self.learned)

    def raw_for(self, tokens: int) -> int:
        """The largest raw count that stays within `tokens`."""
        return max(0, math.floor(self.raw + (tokens - self.reported) / self.ratio))


def _clamp(ratio: float) -> float:
    return min(_RATIO_MAX, max(_RATIO_MIN, ratio))
