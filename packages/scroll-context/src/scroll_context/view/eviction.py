"""Planning an eviction: what leaves a view that has grown above its high mark, and in which order.

Protected are the user's messages of the running turn, the recent steps, and everything that no
successful call has read yet. The rest goes down to the low mark, far below the high one, so that a
cached prefix changes rarely:

1. results of older steps fold to stubs, oldest first;
2. older steps and notices move whole to the index, oldest first, those of the running turn too;
3. long user messages of past turns are clipped, and those with no step left move to the index:
   users' words go last.

What is protected gives way only when it does not fit, and only as far as it must. Before 1, if it
is above the high mark by itself: recent results that were read fold. If that is not enough, recent
steps that were read are no longer protected. Only if what is unread does not fit even so is it
clipped, each text to no less than a quarter of the room: the newest message and unread results are
shown completely if they fit. After 3, if the view is still above the high mark, in this order until
it fits: recent results that were read fold; unread texts are clipped; user messages of the running
turn are clipped to no less than half of the room; recent steps that were read move to the index;
past user messages too; the index rolls up further; every text is clipped to an equal share, calls
of the newest step included.

Sizes are raw estimates (tokens.py); the window and its shares are tokens of the provider, and the
gauge converts them.

What was not read is never folded or evicted, only clipped. A user message of the running turn never
leaves. Planning works on a copy of the view and changes nothing; it needs no model, no disk and no
clock.

A plan also says what the leaving turns are about for which the model wrote no notes, and which
standing instructions leave with them. Both are made of their words here, once; every view that the
plan is applied to takes them as recorded.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import msgspec

from scroll_context.contents import EntryTerms, EvictionPlan, Standing
from scroll_context.errors import BadInput
from scroll_context.text.stance import INSTRUCTION, newest, stances
from scroll_context.text.terms import TermTable, title
from scroll_context.view.entries import Entry, Notice, Passage, Step, StepReply, UserTurn, passages
from scroll_context.view.headline import FIELD_CHARS
from scroll_context.view.index import IndexLine, heading_tokens, standing_line, state_limit
from scroll_context.view.state import Fact, fitted, state_tokens
from scroll_context.view.tokens import Gauge, estimate
from scroll_context.view.working import WorkingView

PAST_MESSAGE_CHARS = 2_000
DEEPER_PERCENT = 95
"""Of the low mark, down to which steps leave once any must leave.

The index at the front of the view changes then, and nothing behind it can be taken from a cache; so
fewer such evictions are worth more than the last stubs, whose outcomes are in the index.
"""
FOLD_TOKENS = 64
"""Results smaller than this stay: a stub takes about half of it."""
FLOOR_TOKENS = 96
"""Nothing is clipped below this: the note takes about half of it."""
FLOOR_CHARS = 40
ENTRY_TERMS = 4
ABOUT_CHARS = 1_500  # of an entry that are read for its terms
STANDING_SHARE = 0.02
"""Of the window, for standing instructions, up to STANDING_TOKENS."""
STANDING_TOKENS = 600


class ViewBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How full a view may get, in parts of the model's window.

    Above `high`, texts leave the view until it is down to `low`. The further apart they are, the
    more of the provider's cache is used, and the less is shown on average.

    >>> from scroll_context import ViewBudget
    >>> ViewBudget(high=0.7, low=0.3).keep_steps
    4
    """

    high: float = 0.8
    low: float = 0.4
    keep_steps: int = 4  # the newest steps, which leave only when they do not fit
    index_share: float = 0.1  # of the window, for the index

    def __post_init__(self) -> None:
        high = self.high if _share(self.high) else 1
        self._require(
            ("high", "a number above 0, at most 1", _share(self.high) and self.high > 0),
            ("low", "a number above 0, below high", _share(self.low) and 0 < self.low < high),
            ("keep_steps", "a whole number above 0", _whole(self.keep_steps, 1)),
            (
                "index_share",
                "a number from 0, below high",
                _share(self.index_share) and self.index_share < high,
            ),
        )

    def _require(self, *rules: tuple[str, str, bool]) -> None:
        """Raise BadInput, naming every field that is not what it must be."""
        wrong = [
            f"{name} must be {wanted}, and is {getattr(self, name)!r}"
            for name, wanted, right in rules
            if not right
        ]
        if wrong:
            raise BadInput("a budget does not fit together: " + "; ".join(wrong))


class Budget(ViewBudget, frozen=True):
    """The room that a view has for one request."""

    window: int  # in tokens of the provider
    overhead: int = 0  # raw estimate of system prompt, tool schemas and digest

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(
            ("window", "a whole number above 0", _whole(self.window, 1)),
            ("overhead", "a whole number, 0 or more", _whole(self.overhead, 0)),
        )


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def plan_eviction(
    view: WorkingView, budget: Budget, *, overflowed: bool = False
) -> EvictionPlan | None:
    """What to remove before the next call; None while the view is below its high mark.

    `overflowed` says that the provider refused the last request as too long: its word wins over any
    estimate.
    """
    total = view.tokens + budget.overhead
    gauge = view.gauge.overflowed(total, budget.window) if overflowed else view.gauge
    high, low = (gauge.raw_for(int(budget.window * mark)) for mark in (budget.high, budget.low))
    if overflowed:
        high, low = min(high, total * 3 // 4), min(low, total // 2)
    if total <= high:
        return None
    planner = _Planner(view, budget, high, low, gauge)
    planner.run()
    return planner.plan(
        "the provider refused the request as too long" if overflowed else "above the high mark"
    )


class _Planner:
    """Carries out the measures of the module's list on a copy of the view, and writes down which."""

    def __init__(
        self, view: WorkingView, budget: Budget, high: int, low: int, gauge: Gauge
    ) -> None:
        self._before = view.tokens + budget.overhead
        self._budget = budget
        self._gauge = gauge
        self._high = max(0, high - budget.overhead)
        self._low = max(0, low - budget.overhead)
        self._index_limit = int(budget.window * budget.index_share / gauge.ratio)
        self._view = view.copy()
        self._source = view
        self._view.drop_thinking()
        self._index_tokens = view.index.tokens
        self._folded: list[int] = []
        self._clipped: dict[int, int] = {}
        self._evicted: dict[int, int] = {}
        self._lines: list[IndexLine] = []
        self._about = _About(self._view)
        self._standing: tuple[Standing, ...] | None = None
        self._stated: dict[str, tuple[str, ...]] = {}  # instructions, by the text that holds them
        self._standing_limit = standing_limit(budget.window, gauge.ratio)
        self._line_tokens = 0
        self._tail = self._first_recent()
        self._after = 0  # the exact size when the run is over

    def run(self) -> None:
        middle = (self._high + self._low) // 2
        everything = self._view.last_seq + 1
        if self._protected() > self._high:
            self._fold(0, before=everything, since=self._tail)
        if self._protected() > self._high:
            recent, self._tail = self._tail, everything
            if self._protected() > self._high:
                self._tail = recent
                self._clip(self._unread(), self._protected() - middle, self._high // 4)
        protected = self._protected()
        # If much is protected, the rest must not all leave.
        low = max(self._low, protected + (self._high - protected) // 4)
        self._fold(low, before=self._tail)
        if self._size > low:
            self._evict_steps(low * DEEPER_PERCENT // 100, before=self._tail)
        self._retire_user_messages(low)
        last_resorts: tuple[Callable[[], None], ...] = (
            lambda: self._fold(middle, before=everything),
            lambda: self._clip(self._unread(), self._exact_size() - middle, self._high // 4),
            lambda: self._clip(
                self._running_messages(), self._exact_size() - middle, self._high // 2
            ),
            lambda: self._evict_steps(middle, before=everything),
            lambda: self._retire_user_messages(middle),
            lambda: self._roll_index(middle),
            lambda: self._clip(self._texts(), self._exact_size() - middle, FLOOR_TOKENS),
        )
        for resort in last_resorts:
            self._after = self._exact_size()
            if self._after <= self._high:
                return
            resort()
        self._after = self._exact_size()

    def plan(self, reason: str) -> EvictionPlan:
        overhead, after = self._budget.overhead, self._after
        return EvictionPlan(
            reason=reason,
            before=self._before,
            after=after + overhead,
            limit=self._high + overhead,
            over_budget=after > self._high,
            folded=tuple(seq for seq in self._folded if self._view.get(seq)),
            clipped=tuple(
                (seq, chars) for seq, chars in self._clipped.items() if self._view.get(seq)
            ),
            evicted=tuple(sorted(self._evicted.items())),
            about=tuple(self._about.made.values()),
            standing=self._standing,
            unlisted=self._view.index.unlisted,
            index_tokens=self._index_limit,
            ratio=self._gauge.ratio,
        )

    def _first_recent(self) -> int:
        """Where the protected tail begins: the newest steps, as many as fit in half of the low
        mark.
        """
        tail, room, count = self._view.last_seq + 1, self._low // 2, 0
        for entry in reversed(list(self._view.entries)):
            if isinstance(entry, Step):
                room, count = room - entry.tokens, count + 1
                if count > 1 and (room < 0 or count > self._budget.keep_steps):
                    break
                tail = entry.seq
        return tail

    def _protected(self) -> int:
        """Tokens of what steps 1 to 3 of the module's list leave alone, the index included."""
        view = self._view
        return self._index_tokens + sum(
            entry.tokens
            for entry in view.entries
            if entry.last > view.seen
            or (entry.turn == view.turn if isinstance(entry, UserTurn) else entry.seq >= self._tail)
        )

    @cached_property
    def _facts(self) -> tuple[Fact, ...]:
        """The state of the work, which is only read if something leaves."""
        return self._source.facts()

    @property
    def _size(self) -> int:
        """The view with the lines its index will receive; the index rolls itself up to its limit."""
        index = self._index_tokens
        return self._view.entry_tokens + min(
            index + self._line_tokens, max(index, self._index_limit)
        )

    def _exact_size(self) -> int:
        """The exact size, with the index as it will be."""
        return (
            self._view.entry_tokens
            + self._view.index.extended(
                self._lines, self._index_limit, self._facts if self._lines else None
            ).tokens
        )

    def _fold(self, target: int, before: int, since: int = 0) -> None:
        excess, seen = self._size - target, self._view.seen
        for entry in list(self._view.entries):
            if excess <= 0:
                return
            if isinstance(entry, Step) and since <= entry.seq < before:
                for result in entry.results:
                    if result and result.body.tokens >= FOLD_TOKENS and result.body.seq <= seen:
                        if self._view.fold(result.body.seq):
                            self._folded.append(result.body.seq)
                        excess = self._size - target

    def _evict_steps(self, target: int, before: int) -> None:
        for entry in list(self._view.entries):
            if self._size <= target:
                return
            is_read = entry.last <= self._view.seen
            if isinstance(entry, Step | Notice) and entry.seq < before and is_read:
                self._evict(entry)

    def _retire_user_messages(self, target: int) -> None:
        answering = {entry.turn for entry in self._view.entries if isinstance(entry, Step)}
        past = [
            entry
            for entry in self._view.entries
            if isinstance(entry, UserTurn)
            and entry.turn != self._view.turn
            and entry.seq <= self._view.seen
        ]
        for request in past:
            is_long = len(request.body.shown) > PAST_MESSAGE_CHARS or bool(request.body.media)
            if self._size > target and is_long:
                self._record_clip(request.seq, PAST_MESSAGE_CHARS)
        for request in past:
            if self._size > target and request.turn not in answering:
                self._evict(request)

    def _evict(self, entry: UserTurn | Step | Notice) -> None:
        if isinstance(entry, UserTurn):
            self._keep_instructions(entry)
        line = self._view.evict(entry.seq, self._about.terms_of(entry))
        if not self._lines:
            state = fitted(self._facts, state_limit(self._index_limit))
            self._line_tokens = state_tokens(state) - state_tokens(self._view.index.state)
        task = self._lines[-1].task if self._lines else ""
        if line.task and line.task != task:
            self._line_tokens += heading_tokens(line.task)
        self._evicted[entry.seq] = entry.last
        self._lines.append(line)
        self._line_tokens += line.tokens

    def _keep_instructions(self, request: UserTurn) -> None:
        """Move the standing instructions of a request that leaves to the list of them; the newest
        hold.
        """
        if not request.is_from_user or not self._instructions(request.body.text):
            return
        index = self._view.index
        turns = [entry for entry in self._view.entries if isinstance(entry, UserTurn)]
        shown = {turn.seq: turn.body.text for turn in turns if turn.is_from_user}
        said = [(one.seq, one.words) for one in index.standing] + list(shown.items())
        stated = [
            (seq, sentence) for seq, text in sorted(said) for sentence in self._instructions(text)
        ]
        found = [
            (seq, words) for seq, words in newest(stated) if seq not in shown or seq == request.seq
        ]
        kept = [Standing(seq, words) for seq, words in found]
        fitting, dropped = newest_standing(kept, self._standing_limit)
        self._view.set_standing(fitting, index.unlisted + dropped)
        self._standing = fitting
        self._index_tokens += self._view.index.tokens - index.tokens

    def _instructions(self, text: str) -> tuple[str, ...]:
        """The standing instructions in a text, which is read once for a plan."""
        if text not in self._stated:
            self._stated[text] = tuple(
                sentence for level, sentence in stances(text) if level == INSTRUCTION
            )
        return self._stated[text]

    def _roll_index(self, target: int) -> None:
        self._index_limit = max(0, target - self._view.entry_tokens)

    def _texts(self) -> list[Passage | StepReply]:
        """Everything still shown that could be clipped."""
        texts: list[Passage | StepReply] = []
        for entry in self._view.entries:
            texts += passages(entry)
            if isinstance(entry, Step):
                texts.append(entry.reply)
        return texts

    def _unread(self) -> list[Passage | StepReply]:
        seen = self._view.seen
        return [
            one
            for entry in self._view.entries
            if entry.last > seen
            for one in passages(entry)
            if one.seq > seen
        ]

    def _running_messages(self) -> list[Passage | StepReply]:
        running = self._view.turn
        return [
            entry.body
            for entry in self._view.entries
            if isinstance(entry, UserTurn) and entry.turn == running
        ]

    def _clip(self, texts: Sequence[Passage | StepReply], excess: int, floor: int) -> None:
        """Clip the longest of `texts` to one common size, so that together they lose `excess`; none
        below `floor`.
        """
        room = sum(text.tokens for text in texts) - excess
        share = max(floor, _common_size((text.tokens for text in texts), room))
        for text in texts:
            if text.tokens > share:
                self._clip_one(text, share)

    def _clip_one(self, text: Passage | StepReply, share: int) -> None:
        chars = text.length * max(share - FLOOR_TOKENS // 2, 1) // text.tokens
        while chars > FLOOR_CHARS and text.clipped(chars).tokens > share:
            chars = chars * 3 // 4
        self._record_clip(text.seq, max(chars, FLOOR_CHARS))

    def _record_clip(self, seq: int, chars: int) -> None:
        if self._view.clip(seq, chars):
            self._clipped[seq] = chars


class _About:
    """What leaving entries are about that have no notes of the model, told apart from all others in
    the view.
    """

    def __init__(self, view: WorkingView) -> None:
        self._view = view
        self._table = TermTable()
        self._numbers: dict[int, int] = {}
        self.made: dict[int, EntryTerms] = {}

    def terms_of(self, entry: Entry) -> EntryTerms | None:
        if not self._numbers:
            texts = ((one.seq, text) for one in self._view.entries if (text := _plain_text(one)))
            self._numbers = {seq: self._table.add([text]) for seq, text in texts}
        text = _plain_text(entry)
        if not text:
            return None
        terms = self._table.terms(self._numbers[entry.seq], ENTRY_TERMS)
        about = EntryTerms(entry.seq, title([text], terms, FIELD_CHARS - 20), terms)
        if not (about.title or about.terms):
            return None
        self.made[entry.seq] = about
        return about


def _plain_text(entry: Entry) -> str:
    """The beginning of what was said in an entry, if that is all there is to tell about it."""
    if isinstance(entry, UserTurn):
        return entry.body.text[:ABOUT_CHARS]
    return (
        entry.reply.body.text[:ABOUT_CHARS]
        if isinstance(entry, Step) and not entry.has_notes
        else ""
    )


def standing_limit(window: int, ratio: float = 1.0) -> int:
    """Raw tokens that standing instructions may take."""
    return int(min(STANDING_TOKENS, window * STANDING_SHARE) / ratio)


def newest_standing(
    instructions: Sequence[Standing], limit: int
) -> tuple[tuple[Standing, ...], int]:
    """The newest instructions within `limit` tokens, and how many there was no room for."""
    room = limit
    for count, instruction in enumerate(reversed(instructions)):
        room -= estimate(standing_line(instruction)) + 1
        if room < 0:
            unlisted = len(instructions) - count
            return tuple(instructions[unlisted:]), unlisted
    return tuple(instructions), 0


def _common_size(sizes: Iterable[int], room: int) -> int:
    """The largest size to which each can be cut so that all together take no more than `room`."""
    left = sorted(sizes)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return max(0, room // len(left)) if left else room
