"""The eviction index: what left the view, as lines that name their seqs, fine for the recent and coarse for the old.

Each line stands for one or more evicted entries and carries the exact spans of their seqs. Lines live in blocks, and
blocks in tiers of fewer than `width`. When a tier fills, its newest block keeps every line and each older block
becomes one line, packed into the next tier; n evictions therefore leave O(width · log n) blocks. When the lines
outgrow the tokens they are allowed, tiers roll before they are full, and then neighbouring lines of the coarsest tier
join, down to two lines a tier: detail fades gradually, addresses never do. Immutable: every change is a new index.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from scroll_context.view.entries import MARK, Entry, Step
from scroll_context.view.headline import Headline, merged
from scroll_context.view.tokens import estimate

WIDTH = 8
LINE_CHARS = 150
RUNS = 3
"""A line names at most this many runs of seqs; nearer runs are joined first."""
NEAR = 8
"""Runs at most this far apart are one: what lies between is bookkeeping or another session's."""

HEADER = (
    MARK + "index of earlier work that is no longer shown. Nothing is lost: each line names the seqs it stands for, "
    "ms.expand(lo, hi) returns them word for word, and ms.search(query) finds them by content. Oldest first; "
    "lines are notes about what happened, not requests.]"
)
SEAM = MARK + "end of the index. The live conversation follows; work on the newest user request below.]"

Spans = tuple[tuple[int, int], ...]


class IndexLine(msgspec.Struct, frozen=True):
    """One line of the index."""

    spans: Spans
    entries: int  # how many evicted entries it stands for
    headline: Headline
    text: str
    tokens: int
    undone: int = 0  # of the entries, steps that did not succeed


class IndexBlock(msgspec.Struct, frozen=True):
    """A few lines that roll up together."""

    lines: tuple[IndexLine, ...]


class EvictionIndex(msgspec.Struct, frozen=True, dict=True):
    """Tiers of blocks, finest first; within a tier the oldest block is first."""

    tiers: tuple[tuple[IndexBlock, ...], ...] = ()
    width: int = WIDTH

    @property
    def lines(self) -> Iterator[IndexLine]:
        """Every line, oldest first: coarse tiers before fine ones."""
        return (line for tier in reversed(self.tiers) for block in tier for line in block.lines)

    @property
    def blocks(self) -> int:
        return sum(len(tier) for tier in self.tiers)

    @cached_property
    def tokens(self) -> int:
        return sum(line.tokens for line in self.lines) + _FRAME_TOKENS if self.tiers else 0

    def render(self) -> str:
        """The index as the model reads it; empty if nothing was evicted."""
        return "\n".join((HEADER, *(line.text for line in self.lines))) if self.tiers else ""

    def find(self, seq: int) -> IndexLine | None:
        """The line that stands for a seq, the finest if several do."""
        found = [line for line in self.lines if any(lo <= seq <= hi for lo, hi in line.spans)]
        return min(found, key=lambda line: sum(hi - lo for lo, hi in line.spans)) if found else None

    def extended(self, lines: Sequence[IndexLine], limit: int) -> "EvictionIndex":
        """The index with newly evicted lines, rolled up until it is within `limit` tokens or cannot shrink."""
        index = self
        ordered = sorted(lines, key=lambda line: line.spans)
        for start in range(0, len(ordered), self.width):
            index = index._with_block(IndexBlock(tuple(ordered[start : start + self.width])))
        while index.tokens > limit:
            shorter = index._rolled()
            if shorter is None:
                break
            index = shorter
        return index

    def _with_block(self, block: IndexBlock) -> "EvictionIndex":
        tiers = self.tiers or ((),)
        index = self._replacing(0, (*tiers[0], block))
        return index._collapsed(0) if len(index.tiers[0]) >= self.width else index

    def _collapsed(self, at: int) -> "EvictionIndex":
        """The tier keeps its newest block; the older ones become one line each in the next tier."""
        *older, newest = self.tiers[at]
        lines = [joined(block.lines) for block in older]
        above = list(self.tiers[at + 1]) if at + 1 < len(self.tiers) else []
        room = self.width - 1
        if above:  # fill the newest block first, so that blocks are only begun when lines need them
            taken = room - len(above[-1].lines)
            above[-1] = IndexBlock((*above[-1].lines, *lines[:taken]))
            lines = lines[taken:]
        above += [IndexBlock(tuple(lines[i : i + room])) for i in range(0, len(lines), room)]
        index = self._replacing(at, (newest,))._replacing(at + 1, tuple(above))
        return index._collapsed(at + 1) if len(above) >= self.width else index

    def _rolled(self) -> "EvictionIndex | None":
        """One notch coarser, or None at the floor."""
        top = len(self.tiers) - 1
        for at in range(max(top, 1)):
            if len(self.tiers[at]) > 1:
                return self._collapsed(at)
        for at in range(top, -1, -1):
            lines = [line for block in self.tiers[at] for line in block.lines]
            if len(lines) > 2:
                return self._replacing(at, self._paired(lines))
        return None

    def _paired(self, lines: Sequence[IndexLine]) -> tuple[IndexBlock, ...]:
        """The lines with the two neighbours joined that stand for the least, so that none grows out of proportion."""
        at = min(range(len(lines) - 1), key=lambda i: lines[i].entries + lines[i + 1].entries)
        fewer = (*lines[:at], joined(lines[at : at + 2]), *lines[at + 2 :])
        room = self.width - 1
        return tuple(IndexBlock(fewer[i : i + room]) for i in range(0, len(fewer), room))

    def _replacing(self, at: int, tier: tuple[IndexBlock, ...]) -> "EvictionIndex":
        return EvictionIndex((*self.tiers[:at], tier, *self.tiers[at + 1 :]), self.width)


_FRAME_TOKENS = estimate(HEADER) + estimate(SEAM) + 8


def line_for(entry: Entry, outcomes: bool = True) -> IndexLine:
    """The full line of one evicted entry; with `outcomes`, that of a step says how it ended."""
    if outcomes and isinstance(entry, Step):
        headline, undone = entry.ended_headline(), int(not entry.succeeded)
    else:
        headline, undone = entry.headline(), 0
    return _line(((entry.seq, entry.last),), 1, headline, headline.full(), undone)


def joined(lines: Sequence[IndexLine]) -> IndexLine:
    """One short line for several in order."""
    entries, undone = (sum(counts) for counts in zip(*((line.entries, line.undone) for line in lines), strict=True))
    headline = merged([line.headline for line in lines])
    if undone:
        headline = replace(headline, status=f"{undone} of {entries} did not succeed")
    spans = _union([span for line in lines for span in line.spans])
    return _line(spans, entries, headline, headline.line(LINE_CHARS), undone)


def _line(spans: Spans, entries: int, headline: Headline, said: str, undone: int) -> IndexLine:
    where = ", ".join([str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in spans])
    text = f"- seq {where}{f' ({entries})' if entries > 1 else ''}: {said}"
    return IndexLine(spans, entries, headline, text, estimate(text) + 1, undone)


def _union(spans: Sequence[tuple[int, int]]) -> Spans:
    runs: list[tuple[int, int]] = []
    for lo, hi in sorted(spans):
        if runs and lo - runs[-1][1] <= max(NEAR, runs[-1][1] - runs[-1][0]):
            runs[-1] = (runs[-1][0], max(hi, runs[-1][1]))
        else:
            runs.append((lo, hi))
    while len(runs) > RUNS:
        gap = min(range(len(runs) - 1), key=lambda i: runs[i + 1][0] - runs[i][1])
        runs[gap : gap + 2] = [(runs[gap][0], runs[gap + 1][1])]
    return tuple(runs)
