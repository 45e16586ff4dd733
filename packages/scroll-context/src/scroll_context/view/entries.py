"""What a working view is made of: requests, steps and notices, as frozen values with their
addresses and costs.

A **step** is one reply of the model with all of its calls and their results; it is shown or evicted
whole. A **passage** is one text under one seq that may be shown in full, clipped (head and tail
around a note) or folded (a one-line stub). Both marks name the seq and the call that returns the
whole text, both are smaller than what they replace, and repeating either changes nothing. Values
here never change in place and never reach outside themselves; `WorkingView` decides what happens to
them.

What is shown of a text does not depend on where the log keeps it. The text of a payload comes in as
an excerpt that somebody else has read: all of it, or both ends of a text that no window could take.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import force_setattr, replace

from scroll_context.contents import MediaFacts, media_of
from scroll_context.events import Event, Excerpt
from scroll_context.messages import Media, Message, Thinking, ToolCall
from scroll_context.view.actions import Action, action, names_in
from scroll_context.view.headline import FIELD_CHARS, Headline, cut, fallback, headline, parse_field
from scroll_context.view.outcome import OUTCOME_CHARS, Outcome, edit_size, outcome
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.wording import BLANK, CELLS, MARK, NO_RESULT, Words

_NO_RESULT_TOKENS = estimate(NO_RESULT)
_CALL_TOKENS = 8
BOUND_NAMES = 6
"""Variables of one step that a line of the index may name."""
EFFECTS = 8
"""Calls with effects of one step that the state of the work may name."""
_SUCCESS = frozenset({"", "ok", "done", "success", "completed"})
STUB_CHARS = 48
"""Of an outcome, in the stub of a short text."""
LINE_OUTCOME_CHARS = 100
"""Of an outcome, in a line of the index."""
HELD_CHARS = 32 * 1024
"""Of a clipped text, what a view keeps in memory at most, unless it shows more."""


class Form(StrEnum):
    """How much of a text is shown."""

    FULL = "full"
    CLIPPED = "clipped"
    FOLDED = "folded"


class Passage(msgspec.Struct, frozen=True):
    """One text under one seq.

    `text` is what the view holds of it: all, or after a clip its two ends, which are enough for
    every later clip. A folded passage holds nothing.
    """

    seq: int
    text: str
    shown: str
    extent: str  # the size of the whole, for a reader
    tokens: int
    form: Form = Form.FULL
    cut: int = 0  # where `left_out` characters of the whole are missing in `text`
    left_out: int = 0
    words: Words = CELLS
    # Images and files that are shown with the text; `tokens` counts them.
    media: tuple[MediaFacts, ...] = ()

    @property
    def length(self) -> int:
        return len(self.text)

    def folded(self, label: str, report: str = "") -> "Passage":
        """The one-line stub for this passage, or the passage itself where a stub would not be
        smaller.

        The outcome takes a share of the text that the stub replaces; where even that is no smaller,
        the stub has none.
        """
        if self.form is Form.FOLDED:
            return self
        room = min(OUTCOME_CHARS, max(STUB_CHARS, len(self.shown) // 8))
        labels = [f"{cut(label, 60)}: {cut(report, room)}"] if report else []
        for text in (*labels, cut(label, 60)):
            stub = self.words.stub(self.seq, text, self.extent)
            folded = self._smaller(
                replace(
                    self, text="", shown=stub, tokens=estimate(stub), form=Form.FOLDED, media=()
                )
            )
            if folded is not self:
                return folded
        return self

    def clipped(self, chars: int) -> "Passage":
        """About `chars` characters of head and tail around a note, or the passage itself if that is
        no smaller.
        """
        if self.form is Form.FOLDED or (len(self.text) <= chars and not self.media):
            return self
        shown = self.text
        if len(self.text) > chars:
            head, left_out, tail = self._ends(chars)
            shown = f"{head}\n{self.words.clip_note(self.seq, left_out, self.extent)}\n{tail}"
        notes = [self.words.media_note(item.seq or self.seq, item.label) for item in self.media]
        shown = "\n".join([*filter(None, [shown]), *notes])
        tokens = estimate(shown)
        clipped = replace(self, shown=shown, tokens=tokens, form=Form.CLIPPED, media=())
        return self._smaller(clipped._holding(max(chars, HELD_CHARS)))

    def _ends(self, chars: int) -> tuple[str, int, str]:
        """The two ends of the text in about `chars` characters, and how many of the whole are
        between them.
        """
        head = chars * 2 // 3
        tail = chars - head
        if self.left_out:
            head, tail = min(head, self.cut), min(tail, len(self.text) - self.cut)
        rest = len(self.text) - head - tail
        return self.text[:head], self.left_out + rest, self.text[len(self.text) - tail :]

    def _holding(self, chars: int) -> "Passage":
        """The passage with no more of its text in memory than this."""
        if len(self.text) <= chars:
            return self
        head, left_out, tail = self._ends(chars)
        return replace(self, text=head + tail, cut=len(head), left_out=left_out)

    def _smaller(self, other: "Passage") -> "Passage":
        is_smaller = other.tokens < self.tokens
        # An image leaves for a note, which is longer than the text beside it.
        return other if is_smaller and (self.media or len(other.shown) < len(self.shown)) else self


class _Clip(NamedTuple):
    """The rule by which the strings of one value are clipped."""

    chars: int
    seq: int
    extent: str
    words: Words

    def text(self, text: str) -> str:
        """Head and tail of a text around a note that says what is missing and how to get it."""
        if len(text) <= self.chars:
            return text
        head = self.chars * 2 // 3
        note = self.words.clip_note(self.seq, len(text) - self.chars, self.extent)
        return f"{text[:head]}\n{note}\n{text[len(text) - (self.chars - head) :]}"

    def strings(self, value: Any) -> Any:
        """A JSON value with every long string clipped."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.strings(item) for item in value]
        if isinstance(value, dict):
            return {key: self.strings(item) for key, item in value.items()}
        return value


def passage(
    event: Event, excerpt: Excerpt | None = None, prefix: str = "", words: Words = CELLS
) -> Passage:
    """The passage of an event.

    `excerpt` is the text of its payload; without it, a preview is shown as clipped.
    """
    media = media_of(event)
    is_media = bool(media) and event.payload is not None and not event.payload.is_text
    if event.payload is not None and excerpt is None and not is_media:
        extent = f"{event.payload.size:,} bytes"
        text = f"{prefix}{event.content}\n{words.preview_note(event.seq, extent)}"
        return Passage(
            event.seq, text, text, extent, estimate(text), form=Form.CLIPPED, words=words
        )
    excerpt = excerpt or Excerpt(event.content)
    text, left_out = prefix + excerpt.text, excerpt.left_out
    extent = ", ".join(
        [f"{len(excerpt.text) + left_out:,} characters", *(item.label for item in media)]
    )
    tokens = sum(item.tokens for item in media)
    if not left_out:
        return Passage(
            event.seq, text, text, extent, estimate(text) + tokens, words=words, media=media
        )
    cut = len(prefix) + excerpt.cut
    shown = f"{text[:cut]}\n{words.clip_note(event.seq, left_out, extent)}\n{text[cut:]}"
    tokens += estimate(shown)
    return Passage(
        event.seq, text, shown, extent, tokens, Form.CLIPPED, cut, left_out, words, media
    )


class StepCall(msgspec.Struct, frozen=True):
    """One call that a reply makes.

    `arguments` is JSON text exactly as recorded; `shown` is what the view sends.
    """

    id: str
    name: str
    arguments: str
    shown: str
    provider: str = ""  # who wrote `opaque`, which goes back as it came
    opaque: dict[str, Any] = {}

    def clipped(self, chars: int, seq: int, words: Words) -> "StepCall":
        """The call with every long string in its arguments clipped."""
        if len(self.arguments) <= chars:
            return replace(self, shown=self.arguments)
        clip = _Clip(chars, seq, f"{len(self.arguments):,} characters", words)
        shown = _json(clip.strings(decoded(self.arguments)))
        if len(shown) > 4 * chars + 400:  # many small values: the structure itself is too long
            shown = _json({"clipped": clip.text(self.arguments)})
        return replace(self, shown=min(shown, self.arguments, key=len))


class StepReply(msgspec.Struct, frozen=True):
    """What the model said: text, opaque thinking blocks, calls, and the headline bound to it ("" if
    it gave none).
    """

    body: Passage
    calls: tuple[StepCall, ...]
    thinking: tuple[dict[str, Any], ...]
    headline: str
    tokens: int

    @property
    def seq(self) -> int:
        return self.body.seq

    @property
    def length(self) -> int:
        return len(self.body.text) + sum(len(call.arguments) for call in self.calls)

    @property
    def form(self) -> Form:
        whole = self.body.form is Form.FULL and all(
            call.shown == call.arguments for call in self.calls
        )
        return Form.FULL if whole else Form.CLIPPED

    def without_thinking(self) -> "StepReply":
        return _reply(self.body, self.calls, (), self.headline) if self.thinking else self

    def clipped(self, chars: int) -> "StepReply":
        """The last resort for a reply too long for the window: text and arguments clipped, thinking
        dropped.
        """
        calls = tuple(call.clipped(chars, self.seq, self.body.words) for call in self.calls)
        shorter = _reply(self.body.clipped(chars), calls, (), self.headline)
        return shorter if shorter.tokens < self.tokens else self


def succeeded(state: str) -> bool:
    """Whether a call of this state did what it was meant to do."""
    return state in _SUCCESS


class StepResult(msgspec.Struct, frozen=True):
    """What one call returned, as the model sees it."""

    body: Passage
    name: str
    state: str
    bound: tuple[str, ...] = ()  # variables that the cell bound
    # The outcome of a text that is folded, and so no longer held.
    folded_report: Outcome | None = None

    @property
    def report(self) -> Outcome:
        """What the text says about the work."""
        if self.folded_report is not None:
            return self.folded_report
        is_partial = self.body.form is Form.CLIPPED
        text = self.body.text
        if is_partial and not self.body.left_out:
            # A preview ends with a note of ours.
            text = text.partition(f"\n{MARK}")[0]
        report = outcome(text, is_error=not succeeded(self.state), is_partial=is_partial)
        # The words of a tool must not look like a mark of ours.
        return replace(report, text=report.text.replace(MARK.strip(), "(scroll:"))

    @property
    def outcome(self) -> str:
        """How the call ended, in the words of the index: ok, killed, refused, unknown or failed,
        with the reason.
        """
        match self.state.removeprefix("error: "):
            case state if succeeded(state):
                return "ok"
            case "killed" | "refused" | "unknown" as state:
                return state
            case "denied":
                return "refused"
            case "error" | "failed":
                return "failed"
            case state:
                return f"failed: {state}"

    def folded(self, report: Outcome) -> "StepResult":
        """The result as a stub that says how the call ended."""
        name = self.name or "result"
        # A call that went well may report failures, such as those of a test run.
        is_ok = succeeded(self.state) and not report.failed
        state = self.state or "ok" if is_ok or not succeeded(self.state) else ""
        body = self.body.folded(f"{name} {state}".rstrip(), report.text)
        return replace(self, body=body, folded_report=report)


class _Told(msgspec.Struct, frozen=True):
    """One text that the model was told."""

    body: Passage
    turn: int  # seq of the request that began the turn: its own, unless it continues one

    @property
    def seq(self) -> int:
        return self.body.seq

    @property
    def last(self) -> int:
        return self.body.seq


class UserMessage(_Told, frozen=True):
    """A message of the user.

    `gone` is the span of its steps that left the view, and how many they were.
    """

    gone: tuple[int, int, int] | None = None
    undone: int = 0  # of the steps that left, those that did not succeed
    is_from_user: bool = (
        True  # False in an imported history: nothing in it is a standing instruction
    )
    tokens: int = 0  # counted here, whatever is given

    def __post_init__(self) -> None:
        force_setattr(self, "tokens", self.body.tokens + MESSAGE_TOKENS + estimate(self.marker))

    @property
    def marker(self) -> str:
        """What stands in place of the steps that left."""
        if self.gone is None:
            return ""
        lo, hi, count = self.gone
        return self.body.words.steps_moved((lo, hi), count, self.undone, "this")

    @property
    def note(self) -> str:
        """The marker as it stands in the index of a host, away from the message."""
        if self.gone is None:
            return ""
        lo, hi, count = self.gone
        subject = f"the request at seq {self.seq}"
        return self.body.words.steps_moved((lo, hi), count, self.undone, subject)

    @property
    def own_messages(self) -> tuple[Message, ...]:
        """The message alone, without the marker."""
        return (Message(role="user", text=_said(self.body), media=_media(self.body)),)

    @property
    def messages(self) -> tuple[Message, ...]:
        said, marker = _said(self.body), self.marker
        text = f"{said}\n\n{marker}" if marker else said
        return (Message(role="user", text=text, media=_media(self.body)),)

    def headline(self) -> Headline:
        return headline(f"user: {self.body.shown[: FIELD_CHARS * 2]}", status="asked")

    def losing(self, entry: "Step | Notice", undone: bool) -> "UserMessage":
        """The request after `entry` of its turn left the view; `undone` if that is a step that did
        not succeed.
        """
        lo, hi, count = self.gone or (entry.seq, entry.last, 0)
        gone = (min(lo, entry.seq), max(hi, entry.last), count + isinstance(entry, Step))
        return replace(self, gone=gone, undone=self.undone + undone)


class Notice(_Told, frozen=True):
    """Something that the harness told the model; role user on the wire, never the user's words."""

    @property
    def tokens(self) -> int:
        return self.body.tokens + MESSAGE_TOKENS

    @property
    def messages(self) -> tuple[Message, ...]:
        return (Message(role="user", text=_said(self.body)),)

    def headline(self) -> Headline:
        return headline("notice", self.body.shown[len(MARK) : FIELD_CHARS * 2], status="told")


class Effect(msgspec.Struct, frozen=True):
    """A call of a step that changes the world."""

    seq: int
    label: str
    is_completed: bool = False


class Step(msgspec.Struct, frozen=True, dict=True):
    """A reply with all of its calls and results: the unit that leaves a view whole."""

    reply: StepReply
    results: tuple[StepResult | None, ...]
    addresses: tuple[int, ...]  # seq of each call's own event, 0 while unknown
    last: int  # the highest seq that belongs to the step, calls from inside its cells included
    turn: int
    task: str  # the first words of the request, for a headline
    failed_inside: int = 0  # calls made by its cells that did not succeed
    # Calls with effects, as the record of each call says.
    effects: tuple[Effect, ...] = ()
    tokens: int = 0  # counted here, whatever is given

    def __post_init__(self) -> None:
        tokens = self.reply.tokens + MESSAGE_TOKENS * len(self.results)
        for result in self.results:
            tokens += result.body.tokens if result else _NO_RESULT_TOKENS
        force_setattr(self, "tokens", tokens)

    @property
    def seq(self) -> int:
        return self.reply.body.seq

    @property
    def seqs(self) -> tuple[int, ...]:
        """The addresses of the reply, its calls and its results."""
        calls = [address for address in self.addresses if address]
        return (self.seq, *calls, *[result.body.seq for result in self.results if result])

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The reply and a result for each of its calls.

        Kept, because every request of the session asks again.
        """
        said = self.reply.body.shown
        calls = tuple(
            ToolCall(
                call.id or spare_id(self.seq, i),
                call.name or "unknown",
                _object(call),
                call.provider,
                call.opaque,
            )
            for i, call in enumerate(self.reply.calls)
        )
        text = said if said.strip() else "" if calls else BLANK
        reply = Message(
            role="assistant",
            text=text,
            tool_calls=calls,
            thinking=tuple(_thinking(self.reply.thinking)),
        )
        return reply, *(
            Message(
                role="tool",
                text=_said(result.body) if result else NO_RESULT,
                tool_call_id=call.id,
                name=call.name,
                media=_media(result.body) if result else (),
            )
            for call, result in zip(calls, self.results, strict=True)
        )

    @cached_property
    def seqs_in_full(self) -> tuple[int, ...]:
        """The addresses of which nothing is left out."""
        results = [
            result.body.seq for result in self.results if result and result.body.form is Form.FULL
        ]
        calls = zip(self.addresses, self.reply.calls, strict=True)
        whole = [address for address, call in calls if address and call.shown == call.arguments]
        return (*results, *whole, *((self.seq,) if self.reply.form is Form.FULL else ()))

    def call_at(self, address: int | None, call_id: str) -> int | None:
        """Which unanswered call an event belongs to: by the address of the call, else the first
        with that id.
        """
        unanswered = [i for i, result in enumerate(self.results) if result is None]
        if address in self.addresses:
            exact = self.addresses.index(address)
            return exact if exact in unanswered else None
        return next((i for i in unanswered if self.reply.calls[i].id == call_id), None)

    def addressed(self, event: Event) -> "Step":
        """The step after the event of one of its calls was recorded."""
        for i, call in enumerate(self.reply.calls):
            if call.id == event.tool_call_id and not self.addresses[i]:
                known = (*self.addresses[:i], event.seq, *self.addresses[i + 1 :])
                return replace(self, addresses=known, last=event.seq).with_effect(event)
        return self

    def with_effect(self, call: Event) -> "Step":
        """The step with a call that was just recorded, if the call has effects."""
        if not call.metadata.get("effects"):
            return self
        effect = Effect(call.seq, action(call.name, decoded(call.content)).label)
        return replace(self, effects=(*self.effects, effect)[-EFFECTS:])

    def effect_ended(self, call: int | None, state: str) -> "Step":
        """The step after a call returned, which may be one with effects."""
        effects = [effect for effect in self.effects if effect.seq != call]
        if len(effects) == len(self.effects):
            return self
        if succeeded(state):
            effects = [
                replace(effect, is_completed=True) if effect.seq == call else effect
                for effect in self.effects
            ]
        return replace(self, effects=tuple(effects))

    def answered(self, i: int, event: Event, excerpt: Excerpt | None = None) -> "Step":
        """The step after call `i` returned."""
        bound = event.metadata.get("bound")
        names = tuple(str(name) for name in bound) if isinstance(bound, list | tuple) else ()
        result = StepResult(
            passage(event, excerpt, words=self.reply.body.words),
            event.name or self.reply.calls[i].name,
            event.tool_state,
            names,
        )
        results = (*self.results[:i], result, *self.results[i + 1 :])
        step = replace(self, results=results, last=event.seq)
        return step.effect_ended(self.addresses[i], event.tool_state)

    def unanswered(self, seq: int) -> "Step":
        """The step without the result at `seq`, which its host took back."""
        results = tuple(
            None if result and result.body.seq == seq else result for result in self.results
        )
        return replace(self, results=results)

    def with_result(self, seq: int, change: Callable[[StepResult], StepResult]) -> "Step":
        """The step with the result at `seq` in another form."""
        results = tuple(change(one) if one and one.body.seq == seq else one for one in self.results)
        return replace(self, results=results)

    def folded(self, seq: int) -> "Step":
        """The step with the result at `seq` as a stub.

        Kept, because an eviction is planned first and then applied.
        """
        forms: dict[int, Step] = vars(self).setdefault("folded_forms", {})
        if seq not in forms:
            reports = {
                result.body.seq: report
                for result, report in zip(self.results, self.reports, strict=True)
                if result is not None
            }
            forms[seq] = self.with_result(seq, lambda result: result.folded(reports[seq]))
        return forms[seq]

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """What each call does."""
        return tuple(action(call.name, decoded(call.arguments)) for call in self.reply.calls)

    @cached_property
    def reports(self) -> tuple[Outcome, ...]:
        """What each result says about the work; of an edit that succeeded, its size.

        Kept, because an eviction is planned first and then applied.
        """
        reports = []
        for call, act, result in zip(self.reply.calls, self.actions, self.results, strict=True):
            report = result.report if result else Outcome()
            if result and act.edits and succeeded(result.state) and not report.failed:
                size = edit_size(decoded(call.arguments))
                report = replace(report, text=size or report.text)
            reports.append(report)
        return tuple(reports)

    @property
    def report(self) -> Outcome:
        """The outcome that stands for the step: the first failure, else the last result."""
        states = [result.state if result else "" for result in self.results]
        pairs = list(zip(states, self.reports, strict=True))
        failures = [report for state, report in pairs if report.failed or not succeeded(state)]
        texts = [report for report in self.reports if report.text]
        return (failures or texts[-1:] or [Outcome()])[0]

    @property
    def ending(self) -> str:
        """How the step ended, for a line of the index."""
        status, report = self.ended_headline().status, self.report
        text = cut(report.text, LINE_OUTCOME_CHARS)
        if not text:
            return status
        if report.failed and self.succeeded:
            return text
        return f"{status}; {text}" if "," in status else f"{status}: {text}"

    @property
    def names(self) -> tuple[str, ...]:
        """The files, identifiers and numbers that the step is about."""
        files = [name for act in self.actions for name in act.files]
        bound = [name for result in self.results if result for name in result.bound]
        # One or two letters are the variable of a loop.
        bound = [name for name in bound if len(name) > 2][:BOUND_NAMES]
        given = _parsed(self.reply.headline)
        texts = [act.subject for act in self.actions]
        texts += [given.state, given.task] if given else []
        return tuple(dict.fromkeys((*files, *bound, *names_in(texts))))

    @property
    def failures(self) -> tuple[str, ...]:
        """What did not succeed, and why."""
        failures = []
        for act, result, report in zip(self.actions, self.results, self.reports, strict=True):
            ended = result.outcome if result else "unknown"
            if ended != "ok" or report.failed:
                label = act.command or act.label
                failures.append(f"{cut(label, 40)}: {cut(report.text or ended, 60)}")
        return tuple(failures)

    @property
    def has_notes(self) -> bool:
        """Whether its headline tells more than the first words of what was said."""
        return bool(self.reply.calls) or _parsed(self.reply.headline) is not None

    @property
    def outcome(self) -> str:
        """How the calls of the step ended, in a few words; "" for a step without calls."""
        ended = [result.outcome if result else "unknown" for result in self.results]
        wrong = [one for one in ended if one != "ok"]
        if not wrong:
            return "ok" if ended else ""
        named = ", ".join(dict.fromkeys(wrong))
        return named if len(wrong) == len(ended) else f"{len(wrong)} of {len(ended)} {named}"

    @property
    def succeeded(self) -> bool:
        return self.outcome in ("ok", "")

    def ended_headline(self) -> Headline:
        """The headline with how the step ended.

        What the model wrote beforehand is an intention unless that was ok.
        """
        one, outcome = self.headline(), self.outcome
        given = _parsed(self.reply.headline) or Headline()
        state = one.state
        if outcome == "ok":
            failed = f"{self.failed_inside} call{'s' if self.failed_inside > 1 else ''} failed"
            more = failed if self.failed_inside else given.status
            outcome = f"ok, {more}" if more not in ("", "ok") else "ok"
        elif outcome and given.state:
            state = f"intended: {given.state}"
        return headline(one.task, state, one.next, outcome or one.status)

    def headline(self) -> Headline:
        """The model's own headline, or one made from the step."""
        given = _parsed(self.reply.headline)
        if given:
            return given
        actions = [act.label for act in self.actions]
        results = [result for result in self.results if result]
        bound = [name for result in results for name in result.bound]
        failed = [result.state for result in results if not succeeded(result.state)]
        status = failed[-1] if failed else "done" if actions else "answered"
        return fallback(self.task, actions, bound, self.reply.body.shown[: FIELD_CHARS * 2], status)


Entry = UserMessage | Step | Notice


def passages(entry: Entry) -> tuple[Passage, ...]:
    """The texts of an entry that can be folded or clipped by themselves: of a step its results, not
    its reply.
    """
    if isinstance(entry, Step):
        return tuple(result.body for result in entry.results if result)
    return (entry.body,)


def step(
    event: Event, turn: int, task: str, excerpt: Excerpt | None = None, words: Words = CELLS
) -> Step:
    """The step that an assistant's event begins."""
    made = event.metadata.get("tool_calls")
    calls = (
        tuple(_call(one) for one in made if isinstance(one, Mapping))
        if isinstance(made, list)
        else ()
    )
    thinking = event.metadata.get("thinking")
    blocks = (
        tuple(one for one in thinking if isinstance(one, dict))
        if isinstance(thinking, list)
        else ()
    )
    reply = _reply(passage(event, excerpt, words=words), calls, blocks, event.headline)
    return Step(reply, (None,) * len(calls), (0,) * len(calls), event.seq, turn, task)


def decoded(arguments: str) -> Any:
    """The value of a call's arguments, or the text itself where the model did not write JSON."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _reply(
    body: Passage, calls: tuple[StepCall, ...], thinking: tuple[dict[str, Any], ...], given: str
) -> StepReply:
    tokens = MESSAGE_TOKENS + body.tokens + sum(estimate(_json(block)) for block in thinking)
    tokens += sum(_CALL_TOKENS + estimate(call.name) + estimate(call.shown) for call in calls)
    return StepReply(body, calls, thinking, given, tokens)


def _call(made: Mapping[str, Any]) -> StepCall:
    arguments = made.get("arguments", "")
    text = arguments if isinstance(arguments, str) else _json(arguments)
    opaque = made.get("opaque")
    return StepCall(
        str(made.get("id", "")),
        str(made.get("name", "")),
        text,
        text,
        str(made.get("provider", "")),
        opaque if isinstance(opaque, dict) else {},
    )


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Headline | None:
    """The headline a model gave; an eviction asks for it once when it is planned and once when it
    is applied.
    """
    return parse_field(text)


def spare_id(seq: int, position: int) -> str:
    """An id for a call that has none of its own, or not one that can be sent."""
    return f"call_{seq}_{position}"


def _object(call: StepCall) -> dict[str, Any]:
    """The arguments as an object, since providers refuse a history that holds anything else."""
    value = decoded(call.shown)
    return value if isinstance(value, dict) else {"arguments": value}


def _thinking(blocks: tuple[dict[str, Any], ...]) -> Iterator[Thinking]:
    for block in blocks:
        with contextlib.suppress(
            msgspec.ValidationError
        ):  # not ours to repair, and no provider would take it
            yield msgspec.convert(block, Thinking)


def _said(body: Passage) -> str:
    """The text as it is sent: a provider refuses one that is blank, unless an image is with it."""
    return body.shown if body.shown.strip() or body.media else BLANK


def _media(body: Passage) -> tuple[Media, ...]:
    """The images and files of a passage, by digest: the view has no disk to read their bytes."""
    return tuple(
        Media(media_type=item.media_type, name=item.name, url=item.url, digest=item.digest)
        for item in body.media
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
