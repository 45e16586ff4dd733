"""A step: one reply of the model with all of its calls and their results.

It is shown or evicted as a unit. Values here never change in place and never reach outside
themselves; `WorkingView` decides what happens to them.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from scroll_context.events import Event, Excerpt
from scroll_context.messages import Message, Thinking, ToolCall
from scroll_context.view.actions import Action, action, names_in
from scroll_context.view.headline import FIELD_CHARS, Headline, cut, fallback, parse_field
from scroll_context.view.outcome import Outcome, edit_size, outcome
from scroll_context.view.passage import Clip, Form, Passage, Shown, passage, replacement
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.wording import BLANK, CELLS, MARK, NO_RESULT, Words, without_marks

_NO_RESULT_TOKENS = estimate(NO_RESULT)
_CALL_TOKENS = 8
BOUND_NAMES = 6
"""Variables of one step that a line of the index may name."""
EFFECTS = 8
"""Calls with effects of one step that the state of the work may name."""
_SUCCESS = frozenset({"", "ok", "done", "success", "completed"})
LINE_OUTCOME_CHARS = 100
"""Characters of an outcome in a line of the index."""


class StepCall(msgspec.Struct, frozen=True):
    """One call that a reply makes.

    `arguments` is JSON text exactly as recorded; `shown` is what the view sends.
    """

    id: str
    name: str
    arguments: str
    shown: str
    # The provider that wrote `opaque`, which goes back as it came.
    provider: str = ""
    opaque: dict[str, Any] = {}

    def clipped(self, chars: int, seq: int, words: Words) -> "StepCall":
        """The call with every long string in its arguments clipped."""
        if len(self.arguments) <= chars:
            return replace(self, shown=self.arguments)
        clip = Clip(chars, seq, f"{len(self.arguments):,} characters", words)
        shown = _json(clip.strings(decoded(self.arguments)))
        if len(shown) > 4 * chars + 400:
            # Many small values: the structure itself is too long.
            shown = _json({"clipped": clip.text(self.arguments)})
        return replace(self, shown=min(shown, self.arguments, key=len))


class StepReply(msgspec.Struct, frozen=True):
    """A reply of the model: text, opaque thinking blocks, calls, and the headline bound to it.

    The headline is "" if the model gave none.
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
        is_complete = self.body.form is Form.FULL
        is_complete = is_complete and all(call.shown == call.arguments for call in self.calls)
        return Form.FULL if is_complete else Form.CLIPPED

    def without_thinking(self) -> "StepReply":
        if not self.thinking:
            return self
        return _reply(self.body, self.calls, (), self.headline)

    def clipped(self, chars: int) -> "StepReply":
        """The last resort for a reply too long for the window.

        Text and arguments are clipped, and thinking is dropped.
        """
        calls = tuple(call.clipped(chars, self.seq, self.body.words) for call in self.calls)
        shorter = _reply(self.body.clipped(chars), calls, (), self.headline)
        return shorter if shorter.tokens < self.tokens else self


def succeeded(state: str) -> bool:
    """Whether a call of this state did what it was meant to do."""
    return state in _SUCCESS


class StepResult(msgspec.Struct, frozen=True):
    """The result of one call, as the model sees it."""

    body: Passage
    name: str
    state: str
    # Variables that the cell bound.
    bound: tuple[str, ...] = ()
    # The outcome of a text that is folded, and so no longer held.
    folded_report: Outcome | None = None

    @property
    def report(self) -> Outcome:
        """The outcome that the text reports."""
        if self.folded_report is not None:
            return self.folded_report
        is_partial = self.body.form is Form.CLIPPED
        text = self.body.text
        if is_partial and not self.body.left_out:
            # A preview ends with a note of ours.
            text = text.partition(f"\n{MARK}")[0]
        report = outcome(text, is_error=not succeeded(self.state), is_partial=is_partial)
        return replace(report, text=without_marks(report.text))

    @property
    def outcome(self) -> str:
        """How the call ended, in the words of the index: ok, killed, refused, unknown or failed,
        with the reason.
        """
        state = self.state.removeprefix("error: ")
        if succeeded(state):
            return "ok"
        if state in ("killed", "refused", "unknown"):
            return state
        if state == "denied":
            return "refused"
        if state in ("error", "failed"):
            return "failed"
        return f"failed: {state}"

    def folded(self, report: Outcome) -> "StepResult":
        """The result as a stub that says how the call ended."""
        label = f"{self.name or 'result'} {self.state or 'ok'}"
        if succeeded(self.state) and report.failed:
            # A call that went well may report failures, such as those of a test run.
            label = self.name or "result"
        body = self.body.folded(label.rstrip(), report.text)
        return replace(self, body=body, folded_report=report)


class Effect(msgspec.Struct, frozen=True):
    """A call of a step that changes the world."""

    seq: int
    label: str
    is_completed: bool = False


class Step(msgspec.Struct, frozen=True, dict=True):
    """A reply with all of its calls and results: it leaves a view completely or not at all."""

    reply: StepReply
    results: tuple[StepResult | None, ...]
    # Seq of each call's own event, 0 while unknown.
    addresses: tuple[int, ...]
    # The highest seq that belongs to the step, calls from inside its cells included.
    last: int
    turn: int
    # The first words of the user message that it works on, for a headline.
    task: str
    # Calls made by its cells that did not succeed.
    failed_inside: int = 0
    # Calls with effects, as the record of each call says.
    effects: tuple[Effect, ...] = ()
    # Counted here; a value that is given is ignored.
    tokens: int = 0

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
        calls = tuple(
            ToolCall(
                call.id or spare_id(self.seq, position),
                call.name or "unknown",
                _object(call),
                call.provider,
                call.opaque,
            )
            for position, call in enumerate(self.reply.calls)
        )
        text = self.reply.body.shown
        if not text.strip():
            text = "" if calls else BLANK
        reply = Message(
            role="assistant",
            text=text,
            tool_calls=calls,
            thinking=tuple(_thinking(self.reply.thinking)),
        )
        results = [
            Message(
                role="tool",
                text=result.body.sent_text if result else NO_RESULT,
                tool_call_id=call.id,
                name=call.name,
                media=result.body.sent_media if result else (),
            )
            for call, result in zip(calls, self.results, strict=True)
        ]
        return (reply, *results)

    @cached_property
    def shown(self) -> tuple[Shown, ...]:
        """The reply and each result as a host shows them. Cached, like `messages`."""
        reply = self.reply
        text = None if reply.form is Form.FULL else reply.body.shown
        calls = self.messages[0].tool_calls if text is not None else ()
        parts = [Shown(self.seq, self.seq, text, calls)]
        for result in self.results:
            if result is not None:
                parts.append(Shown(result.body.seq, self.seq, replacement(result.body)))
        return tuple(parts)

    @cached_property
    def shown_without_thinking(self) -> tuple[Shown, ...]:
        """The same for a reply whose reasoning is not sent any more."""
        reply, *results = self.shown
        return (replace(reply, thinking=False), *results)

    @cached_property
    def seqs_in_full(self) -> tuple[int, ...]:
        """The addresses of which nothing is left out."""
        bodies = [result.body for result in self.results if result]
        seqs = [body.seq for body in bodies if body.form is Form.FULL]
        for address, call in zip(self.addresses, self.reply.calls, strict=True):
            if address and call.shown == call.arguments:
                seqs.append(address)
        if self.reply.form is Form.FULL:
            seqs.append(self.seq)
        return tuple(seqs)

    def call_at(self, address: int | None, call_id: str) -> int | None:
        """The place of the unanswered call that an event belongs to.

        It is found by the address of the call, else it is the first call with that id.
        """
        if address in self.addresses:
            place = self.addresses.index(address)
            return place if self.results[place] is None else None
        for place, call in enumerate(self.reply.calls):
            if call.id == call_id and self.results[place] is None:
                return place
        return None

    def addressed(self, event: Event) -> "Step":
        """The step after the event of one of its calls was recorded."""
        for place, call in enumerate(self.reply.calls):
            if call.id == event.tool_call_id and not self.addresses[place]:
                addresses = (*self.addresses[:place], event.seq, *self.addresses[place + 1 :])
                return replace(self, addresses=addresses, last=event.seq).with_effect(event)
        return self

    def with_call(self, event: Event) -> "Step":
        """The step of a captured history with one more call, which is an event of its own."""
        reply = self.reply
        calls = (*reply.calls, _call_of_event(event))
        return replace(
            self,
            reply=_reply(reply.body, calls, reply.thinking, reply.headline),
            results=(*self.results, None),
            addresses=(*self.addresses, event.seq),
            last=event.seq,
        )

    def with_effect(self, call: Event) -> "Step":
        """The step with a call that was just recorded, if the call has effects."""
        if not call.metadata.get("effects"):
            return self
        effect = Effect(call.seq, action(call.name, decoded(call.content)).label)
        return replace(self, effects=(*self.effects, effect)[-EFFECTS:])

    def effect_ended(self, call: int | None, state: str) -> "Step":
        """The step after a call returned, which may be one with effects."""
        if not self.effects or not any(effect.seq == call for effect in self.effects):
            return self
        effects = []
        for effect in self.effects:
            if effect.seq != call:
                effects.append(effect)
            elif succeeded(state):
                effects.append(replace(effect, is_completed=True))
        return replace(self, effects=tuple(effects))

    def answered(self, place: int, event: Event, excerpt: Excerpt | None = None) -> "Step":
        """The step after the call at this place returned."""
        bound = event.metadata.get("bound")
        names = tuple(str(name) for name in bound) if isinstance(bound, list | tuple) else ()
        result = StepResult(
            passage(event, excerpt, words=self.reply.body.words),
            event.name or self.reply.calls[place].name,
            event.tool_state,
            names,
        )
        results = (*self.results[:place], result, *self.results[place + 1 :])
        step = replace(self, results=results, last=event.seq)
        return step.effect_ended(self.addresses[place], event.tool_state)

    def unanswered(self, seq: int) -> "Step":
        """The step without the result at `seq`, which its host took back."""
        results = tuple(
            None if result and result.body.seq == seq else result for result in self.results
        )
        return replace(self, results=results)

    def with_result(self, seq: int, change: Callable[[StepResult], StepResult]) -> "Step":
        """The step with the result at `seq` in another form."""
        results = tuple(
            change(result) if result and result.body.seq == seq else result
            for result in self.results
        )
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
            folded = self.with_result(seq, lambda result: result.folded(reports[seq]))
            forms[seq] = self._sharing(folded)
        return forms[seq]

    @cached_property
    def without_thinking(self) -> "Step":
        """The step without the thinking of its reply. Cached, like folded forms."""
        if not self.reply.thinking:
            return self
        return self._sharing(replace(self, reply=self.reply.without_thinking()))

    def _sharing(self, form: "Step") -> "Step":
        """Another form of this step, with what was made of the texts that both have in common."""
        vars(form).update(actions=self.actions, reports=self.reports, kept=self.kept)
        return form

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What the index and the state of the work make of the step.

        It is the same in all folded forms, so they share it: an eviction is planned with one form
        and may be applied to another.
        """
        return {}

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """The action of each call."""
        return tuple(action(call.name, decoded(call.arguments)) for call in self.reply.calls)

    @cached_property
    def reports(self) -> tuple[Outcome, ...]:
        """The outcome of each result; for a successful edit, its size.

        Cached, because an eviction is planned first and then applied.
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
        newest = Outcome()
        for result, report in zip(self.results, self.reports, strict=True):
            state = result.state if result else ""
            if report.failed or not succeeded(state):
                return report
            if report.text:
                newest = report
        return newest

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
        files: list[str] = []
        for act in self.actions:
            files += act.files
        # One or two letters are the variable of a loop.
        bound = [name for name in self._bound_names() if len(name) > 2][:BOUND_NAMES]
        texts = [act.subject for act in self.actions]
        note = _parsed(self.reply.headline)
        if note:
            texts += [note.state, note.task]
        return tuple(dict.fromkeys((*files, *bound, *names_in(texts))))

    def _bound_names(self) -> list[str]:
        """The variables that its cells bound."""
        names: list[str] = []
        for result in self.results:
            if result:
                names += result.bound
        return names

    @property
    def failures(self) -> tuple[str, ...]:
        """The calls that did not succeed, and the reasons."""
        failures = []
        calls = zip(self.actions, self.outcomes, self.reports, strict=True)
        for act, ending, report in calls:
            if ending != "ok" or report.failed:
                label = act.command or act.label
                failures.append(f"{cut(label, 40)}: {cut(report.text or ending, 60)}")
        return tuple(failures)

    @property
    def has_notes(self) -> bool:
        """Whether its headline tells more than the first words of what was said."""
        return bool(self.reply.calls) or _parsed(self.reply.headline) is not None

    @property
    def outcome(self) -> str:
        """How the calls of the step ended, in a few words; "" for a step without calls."""
        outcomes = self.outcomes
        if not outcomes:
            return ""
        failures = [outcome for outcome in outcomes if outcome != "ok"]
        if not failures:
            return "ok"
        words = ", ".join(dict.fromkeys(failures))
        if len(failures) < len(outcomes):
            return f"{len(failures)} of {len(outcomes)} {words}"
        return words

    @property
    def outcomes(self) -> list[str]:
        """How each call ended."""
        return [result.outcome if result else "unknown" for result in self.results]

    @property
    def succeeded(self) -> bool:
        return self.outcome in ("ok", "")

    def ended_headline(self) -> Headline:
        """The headline with how the step ended.

        What the model wrote beforehand is an intention unless the step ended well.
        """
        return self._ended_headline

    @cached_property
    def _ended_headline(self) -> Headline:
        note = self.headline()
        own_note = _parsed(self.reply.headline) or Headline()
        state, outcome = note.state, self.outcome
        if outcome == "ok":
            remark = own_note.status
            if self.failed_inside:
                calls = "1 call" if self.failed_inside == 1 else f"{self.failed_inside} calls"
                remark = f"{calls} failed"
            if remark not in ("", "ok"):
                outcome = f"ok, {remark}"
        elif outcome and own_note.state:
            state = f"intended: {own_note.state}"
        return note.ended(state, outcome or note.status)

    def headline(self) -> Headline:
        """The model's own headline, or one made from the step."""
        own_note = _parsed(self.reply.headline)
        if own_note:
            return own_note
        actions = [act.label for act in self.actions]
        status = "done" if actions else "answered"
        for result in self.results:
            if result and not succeeded(result.state):
                status = result.state
        text = self.reply.body.shown[: FIELD_CHARS * 2]
        return fallback(self.task, actions, self._bound_names(), text, status)


def step(
    event: Event, turn: int, task: str, excerpt: Excerpt | None = None, words: Words = CELLS
) -> Step:
    """The step that an assistant's event begins."""
    calls = calls_of(event)
    thinking = tuple(_objects(event.metadata.get("thinking")))
    reply = _reply(passage(event, excerpt, words=words), calls, thinking, event.headline)
    return Step(reply, (None,) * len(calls), (0,) * len(calls), event.seq, turn, task)


def calls_of(event: Event) -> tuple[StepCall, ...]:
    """The calls of a recorded reply, which an import may have given any shape."""
    return tuple(_call(call) for call in _objects(event.metadata.get("tool_calls")))


def call_ids_of(event: Event) -> tuple[str, ...]:
    """The ids of these calls."""
    calls = _objects(event.metadata.get("tool_calls"))
    return tuple([str(call.get("id", "")) for call in calls])


def _objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list of metadata, which an import may have given any shape."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def step_of_call(event: Event, turn: int, task: str, words: Words = CELLS) -> Step:
    """The step that a call of a captured history begins: a reply without text."""
    body = Passage(event.seq, "", "", "0 characters", 0, words=words)
    reply = _reply(body, (_call_of_event(event),), (), "")
    return Step(reply, (None,), (0,), event.seq, turn, task)


def _call_of_event(event: Event) -> StepCall:
    return StepCall(event.tool_call_id, event.name, event.content, event.content)


def decoded(arguments: str) -> Any:
    """The value of a call's arguments, or the text itself where the model did not write JSON."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _reply(
    body: Passage,
    calls: tuple[StepCall, ...],
    thinking: tuple[dict[str, Any], ...],
    headline: str,
) -> StepReply:
    tokens = MESSAGE_TOKENS + body.tokens + sum(estimate(_json(block)) for block in thinking)
    tokens += sum(_CALL_TOKENS + estimate(call.name) + estimate(call.shown) for call in calls)
    return StepReply(body, calls, thinking, headline, tokens)


def _call(call: Mapping[str, Any]) -> StepCall:
    arguments = call.get("arguments", "")
    text = arguments if isinstance(arguments, str) else _json(arguments)
    opaque = call.get("opaque")
    return StepCall(
        str(call.get("id", "")),
        str(call.get("name", "")),
        text,
        text,
        str(call.get("provider", "")),
        opaque if isinstance(opaque, dict) else {},
    )


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Headline | None:
    """The headline that a model gave.

    Kept, because an eviction is planned first and then applied.
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
        # A malformed block is not ours to repair, and no provider would accept it.
        with contextlib.suppress(msgspec.ValidationError):
            yield msgspec.convert(block, Thinking)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
