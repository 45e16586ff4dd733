"""Planning an eviction: what leaves a view that has grown above its high mark, and in which order.

Each rule has a name (`Rule`), and a plan records which rule removed what. An entry is protected
(`Protection`) if it is the user's message of the running turn, one of the recent steps, or not yet
read by a successful call. The recent steps are the newest `keep_steps`, as far as they fit in half
of the low mark. Everything else goes down to the low mark, far below the high one, so that a cached
prefix changes rarely; if much is protected, to a quarter of the room above it:

1. `fold_old_results`: results of older steps fold to stubs, oldest first;
2. `evict_old_steps`: older steps and notices move to the index completely, oldest first, those of
   the running turn too;
3. `clip_past_messages`, `evict_past_messages`: long user messages of past turns are clipped, and
   those with no step left move to the index. Users' words go last.

Protected entries give way only when they do not fit, and only as far as they must. Before 1, if
they are above the high mark by themselves: `fold_recent_results` folds recent results that were
read. If that is not enough, recent steps that were read lose their protection. Only if the unread
texts do not fit even so, `clip_unread` clips them, each to no less than a quarter of the room: the
newest message and unread results are shown completely if they fit. After 3, if the view is still
above the high mark, in this order until it fits: every result that was read folds; `clip_unread`;
`clip_running_messages`, to no less than half of the room; `evict_recent_steps`, those that were
read; `evict_past_messages`; the index rolls up further; `clip_everything` clips every text to an
equal share, calls of the newest step included.

Sizes are raw estimates (tokens.py); the window and its shares are tokens of the provider, and the
gauge converts them. A view must also stay within the window by its raw estimate alone.

An unread text is never folded or evicted, only clipped. A user message of the running turn never
leaves. Planning works on a copy of the view and changes nothing; it needs no model, no disk and no
clock.

A plan also has the topics of leaving turns for which the model wrote no notes, and the standing
instructions that leave with them. Both are made from the words here, once; every view that the plan
is applied to takes them as recorded.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import islice
from operator import itemgetter

import msgspec

from scroll_context.contents import EntryTopic, EvictionPlan, Standing
from scroll_context.errors import BadInput
from scroll_context.text.terms import TermTable, title_among
from scroll_context.view.entries import Entry, UserMessage, passages
from scroll_context.view.headline import FIELD_CHARS
from scroll_context.view.index import IndexLine, heading_tokens, line_for, state_limit
from scroll_context.view.passage import Passage
from scroll_context.view.standing import chosen_statements, standing_limit, stated_by
from scroll_context.view.state import Fact, fitted, state_tokens, step_facts
from scroll_context.view.steps import Step, StepReply
from scroll_context.view.tokens import Gauge
from scroll_context.view.working import WorkingView

PAST_MESSAGE_CHARS = 2_000
DEEPER_PERCENT = 95
"""Once steps have to leave, they leave down to this share of the low mark.

Evicting a step changes the index at the front of the view, so nothing after it can come from a
cache. Fewer such evictions are worth more than the last stubs, whose outcomes are in the index.
"""
FOLD_TOKENS = 64
"""Results smaller than this stay: a stub takes about half of it."""
FLOOR_TOKENS = 96
"""Nothing is clipped below this: the note takes about half of it."""
FLOOR_CHARS = 40
ENTRY_TERMS = 4
MOST_AHEAD = 16
"""Entries that are prepared before one request."""


class Rule(StrEnum):
    """The rules by which texts and entries leave, as plans record them.

    A rule that chooses in another way gets another name: plans in logs keep the name that was true
    of them, and `scroll explain` shows it.
    """

    FOLD_OLD_RESULTS = "fold_old_results"
    FOLD_RECENT_RESULTS = "fold_recent_results"
    EVICT_OLD_STEPS = "evict_old_steps"
    EVICT_RECENT_STEPS = "evict_recent_steps"
    CLIP_PAST_MESSAGES = "clip_past_messages"
    EVICT_PAST_MESSAGES = "evict_past_messages"
    CLIP_UNREAD = "clip_unread"
    CLIP_RUNNING_MESSAGES = "clip_running_messages"
    CLIP_EVERYTHING = "clip_everything"


class Protection(StrEnum):
    """Why an entry stays while others leave. The first reason that holds counts."""

    UNREAD = "no successful call has read it"
    RUNNING = "it is what the user said in the running turn"
    RECENT = "it is one of the newest steps, or a notice between them"


class ViewBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How full a view may get, as shares of the model's window.

    Above `high`, an eviction shrinks the view to `low`. The further apart they are, the more of the
    provider's cache is used, and the less text is shown on average.

    >>> from scroll_context import ViewBudget
    >>> ViewBudget(high=0.7, low=0.3).keep_steps
    4
    """

    high: float = 0.8
    low: float = 0.4
    # The newest steps are protected: at most this many, and of these as many as fit in half of the
    # room below `low`. The newest one is protected in any case.
    keep_steps: int = 4
    # The part of the window for the index.
    index_share: float = 0.1

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
            f"{name} must be {condition}, and is {getattr(self, name)!r}"
            for name, condition, holds in rules
            if not holds
        ]
        if wrong:
            raise BadInput("the budget is not consistent: " + "; ".join(wrong))


class Budget(ViewBudget, frozen=True):
    """The room that a view has for one request."""

    # In tokens of the provider.
    window: int
    # Raw estimate of system prompt, tool schemas and variable list.
    overhead: int = 0

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


def raw_marks(budget: ViewBudget, window: int, gauge: Gauge) -> tuple[int, int]:
    """The high and the low mark of a window as raw estimates.

    A provider that counts fewer tokens than the estimate does not lift the view above the window:
    some servers leave out cached tokens, and would refuse the request that their counts allow.
    """
    high = min(gauge.raw_for(int(window * budget.high)), window)
    low = min(gauge.raw_for(int(window * budget.low)), int(window * budget.low / budget.high))
    return high, low


def plan_eviction(
    view: WorkingView, budget: Budget, *, overflowed: bool = False
) -> EvictionPlan | None:
    """The plan of an eviction before the next call; None while the view is below its high mark.

    `overflowed` says that the provider refused the last request as too long: its word wins over any
    estimate.
    """
    total = view.tokens + budget.overhead
    gauge = view.gauge.overflowed(total, budget.window) if overflowed else view.gauge
    high, low = raw_marks(budget, budget.window, gauge)
    if overflowed:
        high, low = min(high, total * 3 // 4), min(low, total // 2)
    if total <= high:
        return None
    eviction = _Eviction(view, budget, high, low, gauge)
    eviction.run()
    reason = "above the high mark"
    if overflowed:
        reason = "the provider refused the request as too long"
    return eviction.plan(reason)


class _Eviction:
    """Applies the rules of the module's list to a copy of the view, and notes what each removed."""

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
        # The rule that was last applied to a text or an entry, by its seq.
        self._rules: dict[int, Rule] = {}
        self._lines: list[IndexLine] = []
        self._topics = _EntryTopics(self._view)
        self._standing: tuple[Standing, ...] | None = None
        self._standing_limit = standing_limit(budget.window, gauge.ratio)
        self._line_tokens = 0
        self._first_recent = self._first_recent_step()
        self._protects_recent = True
        # The exact size when the run is over.
        self._after = 0

    def run(self) -> None:
        middle = (self._high + self._low) // 2
        if self._protected_tokens() > self._high:
            self._fold(0, self._steps(is_recent=True))
        if self._protected_tokens() > self._high:
            self._protects_recent = False
            if self._protected_tokens() > self._high:
                self._protects_recent = True
                excess = self._protected_tokens() - middle
                self._clip(Rule.CLIP_UNREAD, self._unread_texts(), excess, self._high // 4)
        protected = self._protected_tokens()
        # If much is protected, the rest must not all leave.
        low = max(self._low, protected + (self._high - protected) // 4)
        self._fold(low, self._steps(is_recent=False if self._protects_recent else None))
        if self._size > low:
            self._evict_steps(low * DEEPER_PERCENT // 100, spares_recent=True)
        self._retire_past_messages(low)
        self._after = self._give_way(middle)

    def _give_way(self, middle: int) -> int:
        """Apply the last resorts until the view fits; returns its exact size."""
        last_resorts: tuple[Callable[[], None], ...] = (
            lambda: self._fold(middle, self._steps()),
            lambda: self._clip(
                Rule.CLIP_UNREAD,
                self._unread_texts(),
                self._exact_size() - middle,
                self._high // 4,
            ),
            lambda: self._clip(
                Rule.CLIP_RUNNING_MESSAGES,
                self._running_messages(),
                self._exact_size() - middle,
                self._high // 2,
            ),
            lambda: self._evict_steps(middle, spares_recent=False),
            lambda: self._retire_past_messages(middle),
            lambda: self._roll_up_index(middle),
            lambda: self._clip(
                Rule.CLIP_EVERYTHING, self._texts(), self._exact_size() - middle, FLOOR_TOKENS
            ),
        )
        for apply in last_resorts:
            size = self._exact_size()
            if size <= self._high:
                return size
            apply()
        return self._exact_size()

    def plan(self, reason: str) -> EvictionPlan:
        overhead, after = self._budget.overhead, self._after
        folded = tuple(seq for seq in self._folded if self._view.get(seq))
        clipped = tuple((seq, chars) for seq, chars in self._clipped.items() if self._view.get(seq))
        rules: dict[str, list[int]] = {}
        for seq in sorted({*folded, *(seq for seq, _ in clipped), *self._evicted}):
            rules.setdefault(self._rules[seq].value, []).append(seq)
        return EvictionPlan(
            reason=reason,
            before=self._before,
            after=after + overhead,
            limit=self._high + overhead,
            over_budget=after > self._high,
            folded=folded,
            clipped=clipped,
            evicted=tuple(sorted(self._evicted.items())),
            rules={rule: tuple(seqs) for rule, seqs in rules.items()},
            topics=tuple(self._topics.made.values()),
            standing=self._standing,
            unlisted=self._view.index.unlisted,
            index_tokens=self._index_limit,
            ratio=self._gauge.ratio,
        )

    # what is protected --------------------------------------------------------------------------

    def _protection(self, entry: Entry) -> Protection | None:
        """Why the rules 1 to 3 of the module's list leave an entry alone; None if they do not."""
        if entry.last > self._view.seen:
            return Protection.UNREAD
        if isinstance(entry, UserMessage):
            return Protection.RUNNING if entry.turn == self._view.turn else None
        if self._protects_recent and self._is_recent(entry):
            return Protection.RECENT
        return None

    def _is_recent(self, entry: Entry) -> bool:
        return entry.seq >= self._first_recent

    def _first_recent_step(self) -> int:
        """The seq of the oldest recent step: the newest ones, as many as fit in half of the low
        mark.
        """
        first, room, count = self._view.last_seq + 1, self._low // 2, 0
        for entry in reversed(list(self._view.entries)):
            if isinstance(entry, Step):
                room, count = room - entry.tokens, count + 1
                if count > 1 and (room < 0 or count > self._budget.keep_steps):
                    break
                first = entry.seq
        return first

    def _protected_tokens(self) -> int:
        """Tokens of everything that is protected, the index included."""
        entries = [entry for entry in self._view.entries if self._protection(entry) is not None]
        return self._index_tokens + sum(entry.tokens for entry in entries)

    # how large the view is ----------------------------------------------------------------------

    @cached_property
    def _facts(self) -> tuple[Fact, ...]:
        """The state of the work, which is only read if something leaves."""
        return self._source.facts()

    @property
    def _size(self) -> int:
        """The view with the lines that its index will get; the index rolls up to its limit."""
        index = self._index_tokens
        index_after = min(index + self._line_tokens, max(index, self._index_limit))
        return self._view.entry_tokens + index_after

    def _exact_size(self) -> int:
        """The exact size, with the index as it will be."""
        facts = self._facts if self._lines else None
        index = self._view.index.extended(self._lines, self._index_limit, facts)
        return self._view.entry_tokens + index.tokens

    # the rules ----------------------------------------------------------------------------------

    def _steps(self, is_recent: bool | None = None) -> list[Step]:
        """The steps that are recent, or those that are not, or all of them."""
        steps = [entry for entry in self._view.entries if isinstance(entry, Step)]
        if is_recent is None:
            return steps
        return [step for step in steps if self._is_recent(step) == is_recent]

    def _fold(self, target: int, steps: Sequence[Step]) -> None:
        """Fold results that were read, oldest first, until the view is down to `target`."""
        seen = self._view.seen
        for step in steps:
            if self._size <= target:
                return
            is_recent = self._is_recent(step)
            rule = Rule.FOLD_RECENT_RESULTS if is_recent else Rule.FOLD_OLD_RESULTS
            for result in step.results:
                if result is None or result.body.tokens < FOLD_TOKENS or result.body.seq > seen:
                    continue
                if self._view.fold(result.body.seq):
                    self._folded.append(result.body.seq)
                    self._rules[result.body.seq] = rule

    def _evict_steps(self, target: int, *, spares_recent: bool) -> None:
        """Move steps and notices to the index, oldest first, until the view is down to `target`."""
        for entry in list(self._view.entries):
            if self._size <= target:
                return
            protection = self._protection(entry)
            is_spared = protection is not None
            if protection is Protection.RECENT:
                is_spared = spares_recent
            if isinstance(entry, UserMessage) or is_spared:
                continue
            is_recent = self._is_recent(entry)
            self._evict(entry, Rule.EVICT_RECENT_STEPS if is_recent else Rule.EVICT_OLD_STEPS)

    def _retire_past_messages(self, target: int) -> None:
        """Clip long user messages of past turns, then evict those that no step answers any more."""
        answered_turns = {step.turn for step in self._steps()}
        messages = [entry for entry in self._view.entries if isinstance(entry, UserMessage)]
        past = [message for message in messages if self._protection(message) is None]
        for message in past:
            is_long = len(message.body.shown) > PAST_MESSAGE_CHARS or bool(message.body.media)
            if self._size > target and is_long:
                self._clip_text(Rule.CLIP_PAST_MESSAGES, message.seq, PAST_MESSAGE_CHARS)
        for message in past:
            if self._size > target and message.turn not in answered_turns:
                self._evict(message, Rule.EVICT_PAST_MESSAGES)

    def _evict(self, entry: Entry, rule: Rule) -> None:
        if isinstance(entry, UserMessage):
            self._keep_statements(entry)
        line = self._view.evict(entry.seq, self._topics.topic_of(entry))
        if not self._lines:
            state = fitted(self._facts, state_limit(self._index_limit))
            self._line_tokens = state_tokens(state) - state_tokens(self._view.index.state)
        task = self._lines[-1].task if self._lines else ""
        if line.task and line.task != task:
            self._line_tokens += heading_tokens(line.task)
        self._evicted[entry.seq] = entry.last
        self._rules[entry.seq] = rule
        self._lines.append(line)
        self._line_tokens += line.tokens

    def _keep_statements(self, leaving: UserMessage) -> None:
        """Move the instructions and preferences of a leaving message to their list."""
        if not leaving.is_from_user or not leaving.body.statements:
            return
        index = self._view.index
        messages = [entry for entry in self._view.entries if isinstance(entry, UserMessage)]
        shown = {message.seq: message.body for message in messages if message.is_from_user}
        stated = [stated_by(standing) for standing in index.standing]
        for seq, body in shown.items():
            stated += [(seq, statement) for statement in body.statements]
        fitting, dropped = chosen_statements(
            sorted(stated, key=itemgetter(0)),
            self._standing_limit,
            shown.keys() - {leaving.seq},
        )
        self._view.set_standing(fitting, index.unlisted + dropped)
        self._standing = fitting
        self._index_tokens += self._view.index.tokens - index.tokens

    def _roll_up_index(self, target: int) -> None:
        self._index_limit = max(0, target - self._view.entry_tokens)

    # clipping -----------------------------------------------------------------------------------

    def _texts(self) -> list[Passage | StepReply]:
        """Everything still shown that could be clipped."""
        texts: list[Passage | StepReply] = []
        for entry in self._view.entries:
            texts += passages(entry)
            if isinstance(entry, Step):
                texts.append(entry.reply)
        return texts

    def _unread_texts(self) -> list[Passage | StepReply]:
        seen = self._view.seen
        texts: list[Passage | StepReply] = []
        for entry in self._view.entries:
            if entry.last > seen:
                texts += [text for text in passages(entry) if text.seq > seen]
        return texts

    def _running_messages(self) -> list[Passage | StepReply]:
        """The user's messages of the running turn."""
        messages = [entry for entry in self._view.entries if isinstance(entry, UserMessage)]
        return [message.body for message in messages if message.turn == self._view.turn]

    def _clip(
        self, rule: Rule, texts: Sequence[Passage | StepReply], excess: int, floor: int
    ) -> None:
        """Clip the longest of `texts` to one common size, so that together they lose `excess`.

        None is clipped below `floor`.
        """
        room = sum(text.tokens for text in texts) - excess
        share = max(floor, _common_size((text.tokens for text in texts), room))
        for text in texts:
            if text.tokens > share:
                chars = text.length * max(share - FLOOR_TOKENS // 2, 1) // text.tokens
                while chars > FLOOR_CHARS and text.clipped(chars).tokens > share:
                    chars = chars * 3 // 4
                self._clip_text(rule, text.seq, max(chars, FLOOR_CHARS))

    def _clip_text(self, rule: Rule, seq: int, chars: int) -> None:
        if self._view.clip(seq, chars):
            self._clipped[seq] = chars
            self._rules[seq] = rule


class _EntryTopics:
    """The topics of leaving entries that have no notes of the model, as terms that tell each apart
    from the others in the view.
    """

    def __init__(self, view: WorkingView) -> None:
        self._view = view
        self._table = TermTable()
        self._numbers: dict[int, int] = {}
        self.made: dict[int, EntryTopic] = {}

    def topic_of(self, entry: Entry) -> EntryTopic | None:
        if not self._numbers:
            self._count_terms()
        body = _plain_text(entry)
        if body is None:
            return None
        terms = self._table.terms(self._numbers[entry.seq], ENTRY_TERMS)
        name = title_among([body.topic_sentences], terms, FIELD_CHARS - 20)
        topic = EntryTopic(entry.seq, name, terms)
        if not (topic.title or topic.terms):
            return None
        self.made[entry.seq] = topic
        return topic

    def _count_terms(self) -> None:
        for entry in self._view.entries:
            body = _plain_text(entry)
            if body is not None:
                self._numbers[entry.seq] = self._table.add_turn(body.topic_terms)


def prepare_ahead(view: WorkingView) -> None:
    """Make what the next eviction will ask of the entries that are new in a view.

    Each entry is read once, when it is new. Otherwise an eviction would read all of them at once:
    in a session of 10,000 events, that took most of its 0.1 s. Of a view that was just rebuilt,
    only the newest entries are read, so that its first request does not wait for all of them.
    """
    for entry in islice(view.newest_entries(), MOST_AHEAD):
        body = _plain_text(entry)
        if body is not None:
            if "topic_terms" in vars(body):
                return
            _prepare_text(body, entry)
        elif isinstance(entry, Step):
            if "facts" in entry.kept:
                return
            _prepare_step(entry)


def _prepare_text(body: Passage, entry: Entry) -> None:
    """Read the terms, sentences and statements of a text, which it keeps."""
    _ = body.topic_terms, body.topic_sentences
    if isinstance(entry, UserMessage) and entry.is_from_user:
        _ = body.statements


def _prepare_step(step: Step) -> None:
    """Make the line, the facts and the folded results of a step, each of which it keeps."""
    form = step.without_thinking
    # In the order of `_Eviction._fold`: each form of the step is kept by the one before it.
    for result in form.results:
        if result is not None and result.body.tokens >= FOLD_TOKENS:
            form = form.folded(result.body.seq)
    line_for(step)
    step_facts(step)


def _plain_text(entry: Entry) -> Passage | None:
    """The text of an entry, if the text is all there is to say about it."""
    body: Passage | None = None
    if isinstance(entry, UserMessage):
        body = entry.body
    elif isinstance(entry, Step) and not entry.has_notes:
        body = entry.reply.body
    return body if body is not None and body.text else None


def _common_size(sizes: Iterable[int], room: int) -> int:
    """The largest size to which each can be cut so that all together take no more than `room`."""
    left = sorted(sizes)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return max(0, room // len(left)) if left else room
