"""A plan: everything that one eviction does to a view, as a value that is logged before it is applied.

It names seqs and sizes only, so applying it to the same view gives the same view, now and in any replay.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from scroll_context.errors import BadInput


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What leaves the view, and the numbers that explain why. Tokens are raw estimates, overhead included."""

    reason: str
    before: int
    after: int
    limit: int  # what the view had to be within
    over_budget: bool = False  # nothing more may leave, and it is still above the limit
    folded: tuple[int, ...] = ()  # results that become stubs
    clipped: tuple[tuple[int, int], ...] = ()  # seq and characters kept
    evicted: tuple[tuple[int, int], ...] = ()  # entries that move to the index, as the spans of their seqs
    index_tokens: int
    ratio: float

    @property
    def shrinks(self) -> bool:
        """Whether applying it makes the view smaller; a request refused as too long is only worth repeating then."""
        return self.after < self.before

    def metadata(self) -> dict[str, Any]:
        """For the metadata of the `eviction` event."""
        return {"plan": msgspec.to_builtins(self)}

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> "Plan":
        try:
            return msgspec.convert(metadata.get("plan"), Plan)
        except msgspec.ValidationError as error:
            raise BadInput(
                f"an eviction event does not hold a readable plan ({error}). The log is intact: every event can "
                "still be expanded by its seq, but this view cannot be rebuilt beyond it."
            ) from error

    def summary(self) -> str:
        """One line for a person."""
        parts = [
            f"{len(what)} {word}"
            for what, word in ((self.folded, "folded"), (self.clipped, "clipped"), (self.evicted, "evicted"))
            if what
        ]
        over = f"; still above the limit of {self.limit:,}" if self.over_budget else ""
        return (
            f"{self.reason}: {', '.join(parts) or 'nothing to remove'}; {self.before:,} → {self.after:,} tokens{over}"
        )
