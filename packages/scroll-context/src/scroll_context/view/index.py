"""The index: what is not in the view, as lines that name their seqs; and what the user asked for
once and for all.

Each line carries the exact spans of the seqs that it stands for. Two kinds of line:

* **Evicted entries** of this session, fine for the recent and coarse for the old. Lines live in
  blocks, and blocks in levels of fewer than `width`. When a level fills, its newest block keeps
  every line and each older block becomes one line, packed into the next level; n evictions
  therefore leave O(width · log n) blocks. When the lines outgrow the tokens they are allowed,
  levels roll before they are full, and then neighbouring lines of the coarsest level join, down to
  two lines per level.
* **Topics**: earlier sessions within reach, one line each while there is room. `outline` joins the
  older ones, the more the older they are, so that n sessions leave O(log n) lines; it is called
  when a session opens.

Detail fades gradually, addresses never do. Terms, titles and standing instructions come from
events: nothing here reads a text. Immutable: every change is a new index.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache

import msgspec
from msgspec.structs import replace

from scroll_context.contents import EntryTopic, Spans, Standing, Topic
from scroll_context.view.actions import merged_names, written_names
from scroll_context.view.entries import Entry, Notice
from scroll_context.view.headline import Headline, cut, headline, listed, merged, merged_terms
from scroll_context.view.standing import standing_text
from scroll_context.view.state import (
    STATE_TOKENS,
    Fact,
    fitted,
    state_tokens,
    without_seqs,
    written,
)
from scroll_context.view.steps import Step
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import CELLS, SEAM, Words

WIDTH = 8
LINE_CHARS = 150
RUNS = 3
"""A line names at most this many runs of seqs; nearer runs are joined first."""
NEAR = 8
"""Runs at most this far apart are one: what lies between is bookkeeping or another session's."""

TERMS = 5
"""Terms of a line, while there is room."""
MIN_CHARS = 24
"""Less room than this is not worth a name."""
FAILURES = 3
"""Failures that a line names; the newest."""


class IndexLine(msgspec.Struct, frozen=True):
    """One line of the index."""

    spans: Spans
    entries: int  # how many evicted entries it stands for
    headline: Headline
    text: str
    tokens: int
    undone: int = 0  # of the entries, steps that did not succeed
    terms: tuple[str, ...] = ()  # what entries without notes of the model are about
    noted: bool = True  # the headline holds notes, and not only the title of such an entry
    task: str = ""  # stands above the line, unless the line before has the same
    names: tuple[str, ...] = ()  # files, identifiers and numbers, by which lines are joined
    failures: tuple[str, ...] = ()

    def is_within(self, seqs: Collection[int]) -> bool:
        """Whether the line stands for entries that begin at these seqs, and for no others."""
        return all(lo in seqs for lo, _ in self.spans) and self.entries <= len(self.spans)

    @property
    def description(self) -> str:
        """The text of the line behind its seqs."""
        return self.text.partition(": ")[2]


class IndexBlock(msgspec.Struct, frozen=True):
    """A few lines that roll up together."""

    lines: tuple[IndexLine, ...]


class EvictionIndex(msgspec.Struct, frozen=True, dict=True):
    """Topics, and levels of blocks, finest first; within a level the oldest block is first."""

    levels: tuple[tuple[IndexBlock, ...], ...] = ()
    width: int = WIDTH
    topics: tuple[Topic, ...] = ()
    standing: tuple[Standing, ...] = ()
    unlisted: int = 0
    words: Words = CELLS
    # The state of the work at the last eviction.
    state: tuple[Fact, ...] = ()

    @property
    def lines(self) -> Iterator[IndexLine]:
        """Every line, oldest first: topics, then coarse levels before fine ones."""
        yield from self.topic_lines
        yield from (
            line for level in reversed(self.levels) for block in level for line in block.lines
        )

    @property
    def blocks(self) -> int:
        return sum(len(level) for level in self.levels)

    @cached_property
    def tokens(self) -> int:
        tokens = state_tokens(self.state)
        task = ""
        for line in self.lines:
            tokens += line.tokens
            if line.task and line.task != task:
                task = line.task
                tokens += heading_tokens(task)
        if self.standing:
            tokens += estimate(self._standing_text) + 1
        return tokens if self.is_empty else tokens + _frame_tokens(self.words)

    @property
    def is_empty(self) -> bool:
        return not (self.levels or self.topics or self.standing)

    def render(self) -> str:
        """Standing instructions, lines and the state of the work as the model reads them; empty if
        there are none.
        """
        return self._text

    @cached_property
    def _text(self) -> str:
        """Kept, because every request asks again."""
        parts = [self._standing_text]
        if self.levels or self.topics:
            parts.append("\n".join((self.words.header, *self._texts())))
        return "\n\n".join(filter(None, (*parts, written(self.state))))

    def _texts(self) -> Iterator[str]:
        """The lines, with each task above the steps of it."""
        task = ""
        for line in self.lines:
            if line.task and line.task != task:
                task = line.task
                yield heading(task)
            yield line.text

    @cached_property
    def topic_lines(self) -> tuple[IndexLine, ...]:
        return tuple(topic_line(topic) for topic in self.topics)

    @cached_property
    def _standing_text(self) -> str:
        return standing_text(self.standing, self.unlisted, self.words)

    def find(self, seq: int) -> IndexLine | None:
        """The line that stands for a seq, the finest if several do."""
        found = [line for line in self.lines if any(lo <= seq <= hi for lo, hi in line.spans)]
        return min(found, key=lambda line: sum(hi - lo for lo, hi in line.spans)) if found else None

    @property
    def first_evicted(self) -> int:
        """The lowest seq of this session that a line stands for; 0 if nothing was evicted."""
        spans = [
            span
            for level in self.levels
            for block in level
            for line in block.lines
            for span in line.spans
        ]
        return min(spans)[0] if spans else 0

    def without(self, seqs: Collection[int]) -> "EvictionIndex":
        """The index without the lines that stand only for these seqs."""
        levels = []
        for level in self.levels:
            blocks = []
            for block in level:
                lines = tuple(line for line in block.lines if not line.is_within(seqs))
                if lines:
                    blocks.append(IndexBlock(lines))
            levels.append(tuple(blocks))
        while levels and not levels[-1]:
            levels.pop()
        return replace(self, levels=tuple(levels), state=without_seqs(self.state, seqs))

    def extended(
        self, lines: Sequence[IndexLine], limit: int, facts: Sequence[Fact] | None = None
    ) -> "EvictionIndex":
        """The index with newly evicted lines and the facts of this eviction, rolled up until it is
        within `limit` tokens or cannot shrink.
        """
        asked = sorted(lines, key=lambda line: line.spans), limit, facts
        # Kept, because an eviction is planned first and then applied.
        kept: tuple[object, EvictionIndex] | None = vars(self).get("extension")
        if kept is None or kept[0] != asked:
            kept = asked, self._with_lines(*asked)
            vars(self)["extension"] = kept
        return kept[1]

    def _with_lines(
        self, lines: Sequence[IndexLine], limit: int, facts: Sequence[Fact] | None
    ) -> "EvictionIndex":
        """The index with these lines, which are in order."""
        index = self
        if facts is not None and lines:
            index = replace(index, state=fitted(facts, state_limit(limit)))
        for start in range(0, len(lines), self.width):
            index = index._with_block(IndexBlock(tuple(lines[start : start + self.width])))
        while index.tokens > limit:
            shorter = index._rolled(limit)
            if shorter is None:
                break
            index = shorter
        return index

    def _with_block(self, block: IndexBlock) -> "EvictionIndex":
        levels = self.levels or ((),)
        index = self._replacing(0, (*levels[0], block))
        return index._collapsed(0) if len(index.levels[0]) >= self.width else index

    def _collapsed(self, at: int) -> "EvictionIndex":
        """A level keeps its newest block; older ones become one line each in the next level."""
        *older, newest = self.levels[at]
        lines = [joined(block.lines) for block in older]
        above = list(self.levels[at + 1]) if at + 1 < len(self.levels) else []
        room = self.width - 1
        if above:  # fill the newest block first, so that blocks are only begun when lines need them
            taken = room - len(above[-1].lines)
            above[-1] = IndexBlock((*above[-1].lines, *lines[:taken]))
            lines = lines[taken:]
        above += [IndexBlock(tuple(lines[i : i + room])) for i in range(0, len(lines), room)]
        index = self._replacing(at, (newest,))._replacing(at + 1, tuple(above))
        return index._collapsed(at + 1) if len(above) >= self.width else index

    def _rolled(self, limit: int) -> "EvictionIndex | None":
        """One notch coarser, or None at the floor.

        Topics give way to evicted entries beyond half of the limit.
        """
        crowded = sum(line.tokens for line in self.topic_lines) > limit // 2
        if crowded and len(self.topics) > 2:
            return replace(self, topics=_with_two_joined(self.topics))
        top = len(self.levels) - 1
        for at in range(max(top, 1) if self.levels else 0):
            if len(self.levels[at]) > 1:
                return self._collapsed(at)
        for at in range(top, -1, -1):
            lines = [line for block in self.levels[at] for line in block.lines]
            if len(lines) > 2:
                return self._replacing(at, self._paired(lines))
        return replace(self, topics=_with_two_joined(self.topics)) if len(self.topics) > 2 else None

    def _paired(self, lines: Sequence[IndexLine]) -> tuple[IndexBlock, ...]:
        """The lines with the two neighbours joined that stand for the least, so that none grows out
        of proportion.
        """
        at = min(range(len(lines) - 1), key=lambda i: lines[i].entries + lines[i + 1].entries)
        fewer = (*lines[:at], joined(lines[at : at + 2]), *lines[at + 2 :])
        room = self.width - 1
        return tuple(IndexBlock(fewer[i : i + room]) for i in range(0, len(fewer), room))

    def _replacing(self, at: int, level: tuple[IndexBlock, ...]) -> "EvictionIndex":
        return replace(self, levels=(*self.levels[:at], level, *self.levels[at + 1 :]))


@lru_cache(maxsize=16)
def _frame_tokens(words: Words) -> int:
    return estimate(words.header) + estimate(SEAM) + 8


def state_limit(index_tokens: int) -> int:
    """The share of an index that the state of the work may take."""
    return min(STATE_TOKENS, index_tokens // 3)


def heading(task: str) -> str:
    """The line above the steps of a task."""
    return f"Task: {task}"


@lru_cache(maxsize=1024)
def heading_tokens(task: str) -> int:
    return estimate(heading(task)) + 1


def topic_line(topic: Topic) -> IndexLine:
    """The line of earlier sessions."""
    count = f"{topic.sessions} sessions" if topic.sessions > 1 else ""
    first, last = topic.numbers
    if first:
        count = f"sessions {first}-{last}" if topic.sessions > 1 else f"session {first}"
    dates = f"{topic.first} to {topic.last}" if topic.first != topic.last else topic.first
    if topic.is_misdated:
        dates += ", which may be misdated"
    facts = ", ".join(filter(None, (count, dates)))
    subject = cut(topic.title or ", ".join(topic.terms), 2 * LINE_CHARS) or f"{topic.turns} turns"
    text = f"- seq {_written(topic.spans)}{f' ({facts})' if facts else ''}: {subject}"
    return IndexLine(
        topic.spans,
        topic.turns,
        Headline(state=subject),
        text,
        estimate(text) + 1,
        terms=topic.terms,
    )


def line_for(entry: Entry, topic: EntryTopic | None = None) -> IndexLine:
    """The full line of one evicted entry; that of a step says how it ended.

    A plan may see an entry folded that was never folded in the view. So a line depends on what an
    entry is, never on its form, its shown text or its media.
    """
    spans = ((entry.seq, entry.last),)
    if topic is not None:
        title = topic.title or ", ".join(topic.terms)
        note = headline("reply" if isinstance(entry, Step) else "user", title)
        line = _line(spans, 1, note, note.line(LINE_CHARS))
        return replace(line, terms=topic.terms, noted=False)
    if not isinstance(entry, Step):
        note = entry.headline()
        text = f"notice: {note.state}" if isinstance(entry, Notice) else note.task
        return _line(spans, 1, note, text)
    if "line" not in entry.kept:
        entry.kept["line"] = _step_line(entry)
    kept: IndexLine = entry.kept["line"]
    return kept


def _step_line(step: Step) -> IndexLine:
    """The line of a step without terms of its own: its headline, and how it ended."""
    note = step.ended_headline()
    follows = f"next: {note.next}" if note.next else ""
    text = " | ".join(filter(None, (note.state, follows, step.ending)))
    line = _line(((step.seq, step.last),), 1, note, text, int(not step.succeeded))
    return replace(line, task=note.task, names=step.names, failures=step.failures)


def joined(lines: Sequence[IndexLine]) -> IndexLine:
    """One short line for several in order: the names in their notes, what failed, and the terms of
    what has none.
    """
    entries = sum(line.entries for line in lines)
    undone = sum(line.undone for line in lines)
    terms = merged_terms([line.terms for line in lines], 2 * TERMS)
    names = merged_names([line.names for line in lines])
    failures = tuple(dict.fromkeys(text for line in lines for text in line.failures))[-FAILURES:]
    notes = [line.headline for line in lines if line.noted or not terms]
    note = merged(notes) if notes else Headline()
    if undone:
        note = replace(note, status=f"{undone} of {entries} did not succeed")
    tasks = {line.task for line in lines if line.noted or not terms}
    task = tasks.pop() if len(tasks) == 1 else ""
    text = ""
    if notes:
        limit = LINE_CHARS * 3 // 5 if terms else LINE_CHARS
        text = _noted_text(replace(note, task="") if task else note, names, failures, limit)
    if terms:
        about = listed(terms, LINE_CHARS - len(text) - 2)
        text = f"{text}; {about}" if text else about
    spans = _union([span for line in lines for span in line.spans])
    line = _line(spans, entries, note, text, undone)
    return replace(line, terms=terms, noted=bool(notes), task=task, names=names, failures=failures)


def _noted_text(note: Headline, names: Sequence[str], failures: Sequence[str], limit: int) -> str:
    """Names and failures in at most `limit` characters; without names, what the notes say."""
    status = f" [{note.status}]" if note.status else ""
    lead = f"{cut(note.task, limit // 3)}: " if note.task else ""
    room = limit - len(status) - len(lead)
    if room < MIN_CHARS or not (names or failures):
        return note.line(limit)
    failed = cut("failed: " + "; ".join(failures), room * 3 // 5) if failures else ""
    room -= len(failed) + 2 if failed else 0
    named = written_names(names, room)
    left = room - len(named) - 2
    if note.state and left >= MIN_CHARS and (not named or not failed):
        named = "; ".join(filter(None, (named, cut(note.state, left))))
    return lead + "; ".join(filter(None, (named, failed))) + status


def outline(topics: Sequence[Topic], limit: int) -> tuple[Topic, ...]:
    """The topics within `limit` tokens: with fewer terms if need be, then joined, the more the
    older they are.
    """
    for width in (TERMS, TERMS - 1, TERMS - 2):
        narrow = tuple(topic.narrowed(width) for topic in topics)
        if _fit(narrow, limit):
            return narrow
    rate = 1 / 64  # how fast groups grow with their distance from the newest
    while len(narrow) > 2 and not _fit(narrow, limit):
        groups: list[tuple[int, int]] = []
        end = len(topics)
        while end > 0:
            size = 1 + int((len(topics) - end) * rate)
            start = (
                end - size if end >= 2 * size else 0
            )  # the oldest group takes what would be less than a group
            groups.append((start, end))
            end = start
        narrow = tuple(
            _together(topics[start:end]).narrowed(TERMS) for start, end in reversed(groups)
        )
        rate *= 1.5
    return narrow


def _fit(topics: Sequence[Topic], limit: int) -> bool:
    """Whether the lines of topics are within `limit` tokens."""
    room = limit - _frame_tokens(CELLS)
    for topic in topics:
        if room < 0:
            # Hundreds of sessions may follow.
            return False
        room -= topic_line(topic).tokens
    return room >= 0


def _together(topics: Sequence[Topic]) -> Topic:
    """One topic for several in order."""
    if len(topics) == 1:
        return topics[0]
    # A doubtful date must not stretch the time of all the others.
    dated = [topic for topic in topics if not topic.is_misdated] or topics
    dates = sorted(date for topic in dated for date in (topic.first, topic.last) if date) or [""]
    numbers = [number for topic in topics for number in topic.numbers if number] or [0]
    terms = merged_terms([topic.terms for topic in topics], TERMS)
    return Topic(
        spans=_union([span for topic in topics for span in topic.spans]),
        turns=sum(topic.turns for topic in topics),
        sessions=sum(topic.sessions for topic in topics),
        first=dates[0],
        last=dates[-1],
        title="" if terms else next((topic.title for topic in topics if topic.title), ""),
        terms=terms,
        numbers=(min(numbers), max(numbers)),
        is_misdated=all(topic.is_misdated for topic in topics),
    )


def _with_two_joined(topics: Sequence[Topic]) -> tuple[Topic, ...]:
    """The topics with the two neighbours joined that stand for the least."""
    at = min(range(len(topics) - 1), key=lambda i: topics[i].turns + topics[i + 1].turns)
    return (*topics[:at], _together(topics[at : at + 2]), *topics[at + 2 :])


def _line(spans: Spans, entries: int, note: Headline, words: str, undone: int = 0) -> IndexLine:
    text = f"- seq {_written(spans)}{f' ({entries})' if entries > 1 else ''}: {words}"
    return IndexLine(spans, entries, note, text, estimate(text) + 1, undone)


def _written(spans: Spans) -> str:
    return ", ".join([str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in spans])


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
