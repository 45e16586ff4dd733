"""The state of the work: what an agent must know although the steps that did it have left the view.

A few facts, made by rules from events: the running request in the user's words, the files that were
touched, the last outcome of each distinct command, calls with effects that completed, and open
work. `gathered` adds the entries of a view to the facts of the last eviction, so a fact survives
the step it comes from. `fitted` keeps the most important ones within a limit, and `written` words
them.

The facts change only when entries leave the view, together with the index that they stand below, so
that they cost no provider's cache. Each names its seqs. Pure: the same entries give the same facts,
live and in a replay.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache

import msgspec

from scroll_context.view.actions import Action
from scroll_context.view.entries import Entry, UserMessage
from scroll_context.view.headline import cut, parse_field
from scroll_context.view.outcome import Outcome
from scroll_context.view.steps import Step, StepResult, succeeded
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import STATE, without_marks

STATE_TOKENS = 300
REQUEST_CHARS = 200
OUTCOME_CHARS = 80
MOST_FACTS = 40
_NOTHING_NEXT = frozenset({"", "-", "none", "nothing", "done", "n/a"})


class FactKind(IntEnum):
    """The subject of a fact, in the order in which facts are shown."""

    REQUEST = 0
    FILE = 1
    COMMAND = 2
    EFFECT = 3
    OPEN = 4


class Fact(msgspec.Struct, frozen=True):
    """One thing to know, and the seqs of the events that it quotes."""

    kind: FactKind
    name: str
    text: str
    seqs: tuple[int, ...]
    # A file that was edited, a command that failed: such facts are kept longest.
    is_important: bool = False

    @property
    def key(self) -> tuple[FactKind, str]:
        return self.kind, self.name


Facts = dict[tuple[FactKind, str], Fact]
"""Facts by kind and name, oldest first."""


def gathered(facts: Sequence[Fact], entries: Iterable[Entry], turn: int) -> tuple[Fact, ...]:
    """The facts after these entries, which begin where the facts may already know them."""
    by_key: Facts = {fact.key: fact for fact in facts if fact.kind is not FactKind.REQUEST}
    running: list[Fact] = []
    for entry in entries:
        if isinstance(entry, UserMessage):
            if entry.seq == turn:
                text = cut(entry.body.text, REQUEST_CHARS)
                running = [Fact(FactKind.REQUEST, "", text, (entry.seq,), True)]
        elif isinstance(entry, Step):
            for fact in step_facts(entry):
                _add(by_key, fact)
    next_step = by_key.get((FactKind.OPEN, "next"))
    if next_step is not None and next_step.seqs[0] < turn:
        # The next step of an earlier turn is no longer open.
        del by_key[next_step.key]
    return (*running, *by_key.values())


def without_seqs(facts: Sequence[Fact], seqs: Collection[int]) -> tuple[Fact, ...]:
    """The facts that quote none of these events."""
    return tuple(fact for fact in facts if not any(seq in seqs for seq in fact.seqs))


def fitted(facts: Sequence[Fact], limit: int) -> tuple[Fact, ...]:
    """The most important facts within `limit` tokens; of equal ones, the newest."""
    fitting = list(facts)
    while fitting and (len(fitting) > MOST_FACTS or state_tokens(tuple(fitting)) > limit):
        place = min(range(len(fitting)), key=lambda at: (_rank(fitting[at]), at))
        del fitting[place]
    if all(fact.kind is FactKind.REQUEST for fact in fitting):
        # The user message itself stands in the view.
        return ()
    return tuple(fitting)


def written(facts: Sequence[Fact]) -> str:
    """The facts as the model reads them; "" if there are none."""
    if not facts:
        return ""
    by_kind = {kind: [fact for fact in reversed(facts) if fact.kind is kind] for kind in FactKind}
    head = STATE.format(max(fact.seqs[-1] for fact in facts))
    lines = []
    for fact in by_kind[FactKind.REQUEST]:
        lines.append(f"- request, seq {fact.seqs[-1]}: {fact.text}")
    for kind, label in _LABELS.items():
        if by_kind[kind]:
            lines.append(f"- {label}: " + "; ".join(_item(fact) for fact in by_kind[kind]))
    failing = [fact for fact in by_kind[FactKind.COMMAND] if fact.is_important]
    open_items = [f"{fact.name} fails" for fact in failing]
    open_items += [f"{fact.name}: {fact.text}" for fact in by_kind[FactKind.OPEN]]
    if open_items:
        lines.append("- open: " + "; ".join(open_items))
    return "\n".join([head, *map(without_marks, lines)])


@lru_cache(maxsize=64)
def state_tokens(facts: tuple[Fact, ...]) -> int:
    """The tokens of the facts in a view."""
    return estimate(written(facts)) + 2 if facts else 0


_LABELS = {
    FactKind.FILE: "files",
    FactKind.COMMAND: "last outcome of each command",
    FactKind.EFFECT: "completed, not to be done again",
}


def _item(fact: Fact) -> str:
    text = fact.name
    if fact.text:
        text += f" {fact.text}" if fact.kind is FactKind.FILE else f": {fact.text}"
    return f"{text} (seq {fact.seqs[-1]})"


def _rank(fact: Fact) -> int:
    """How long a fact is kept: the request longest, then what is open, then what was changed."""
    if fact.kind is FactKind.REQUEST:
        return 9
    if fact.kind is FactKind.OPEN:
        return 8
    return (5 if fact.is_important else 0) + int(fact.kind is FactKind.EFFECT)


def step_facts(step: Step) -> tuple[Fact, ...]:
    """The facts that a step adds, in order.

    A fact without a text removes an earlier one of its name. They are the same in all forms of the
    step, and kept because each eviction gathers the facts of every step that is shown.
    """
    if "facts" not in step.kept:
        step.kept["facts"] = _new_facts(step)
    facts: tuple[Fact, ...] = step.kept["facts"]
    return facts


def _new_facts(step: Step) -> tuple[Fact, ...]:
    facts: list[Fact] = []
    for place, act in enumerate(step.actions):
        result, report = step.results[place], step.reports[place]
        seqs = (step.seq, step.addresses[place], result.body.seq if result else 0)
        facts += _facts_of_call(act, result, report, tuple(filter(None, seqs)))
    for effect in step.effects:
        if effect.is_completed:
            facts.append(Fact(FactKind.EFFECT, effect.label, "ok", (step.seq, effect.seq), True))
    note = parse_field(step.reply.headline)
    if note is not None:
        is_open = note.next.casefold() not in _NOTHING_NEXT
        facts.append(Fact(FactKind.OPEN, "next", note.next if is_open else "", (step.seq,)))
    return tuple(facts)


def _add(by_key: Facts, fact: Fact) -> None:
    """Put a fact in the place of an older one of its name, as the newest.

    A fact without a text only removes the older one.
    """
    key = fact.key
    before = by_key.get(key)
    if before is not None:
        if fact.kind is FactKind.FILE and before.is_important and not fact.is_important:
            # Reading a file again does not undo the edit.
            fact = before
        if before.seqs[-1] > fact.seqs[-1]:
            return
        del by_key[key]
    if fact.text:
        by_key[key] = fact


def _facts_of_call(
    act: Action, result: StepResult | None, report: Outcome, seqs: tuple[int, ...]
) -> list[Fact]:
    """The facts that one call adds; a fact without a text removes an earlier one of its name."""
    label = cut(act.command or act.label, 80)
    unanswered = "" if result else "no result was recorded"
    facts = [Fact(FactKind.OPEN, label, unanswered, seqs)]
    if act.todo is not None:
        facts.append(Fact(FactKind.OPEN, "listed work", "; ".join(act.todo), seqs))
    if result is None:
        return facts
    is_done = succeeded(result.state) and not report.failed
    if is_done:
        facts += [_file_fact(path, act, report, seqs) for path in act.files]
    text = cut(report.text, OUTCOME_CHARS)
    ending = text if text and report.failed else f"{result.outcome}: {text}".rstrip(": ")
    # A call that is not a command is only worth a line while it fails, and one with effects has a
    # line of its own.
    is_shown = not is_done or (bool(act.command) and not act.effect)
    facts.append(Fact(FactKind.COMMAND, label, ending if is_shown else "", seqs, not is_done))
    if act.effect and is_done:
        facts.append(Fact(FactKind.EFFECT, label, text or "ok", seqs, True))
    return facts


def _file_fact(path: str, act: Action, report: Outcome, seqs: tuple[int, ...]) -> Fact:
    if act.edits:
        return Fact(FactKind.FILE, path, f"edited {cut(report.text, 24)}".rstrip(), seqs, True)
    return Fact(FactKind.FILE, path, "read", seqs)
