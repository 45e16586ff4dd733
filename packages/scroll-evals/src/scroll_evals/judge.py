"""Judging answers: prompts out, raw replies in, scores as values.

BEAM: one call for each item of a question's rubric, each 0, 0.5 or 1, and for event ordering one
more that matches the answer's items with the reference. LongMemEval and LoCoMo: one call, yes or
no, under one of five kinds of criteria. The judge is a function from a key and a prompt to a reply; keys are
stable, so stored replies give the same scores again without a call. A reply that cannot be read is
asked for once more and then has its own outcome; nothing here raises because of what a judge says.

`official` judges as BEAM's published code does: its prompt never holds the question, and of each
score only the whole part counts (0.5 is 0), except in event ordering. Its alignment of single
lines, which takes a call for each pair of a line and a reference item, is not reproduced.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import combinations
from math import sqrt
from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_evals.protocols import Ask
from scroll_evals.tasks import Question, rubric

BENCHMARKS = ("beam", "longmemeval", "locomo")
GRADES = (0.0, 0.5, 1.0)
AGAIN = "\n\nYour last reply could not be read. Reply in the form asked for, and with nothing else."

_CRITERIA = {
    "temporal-reasoning": "temporal",
    "temporal": "temporal",
    "knowledge-update": "knowledge-update",
    "single-session-preference": "preference",
}
_LABELS = {"preference": "DESCRIPTION", "abstention": "EXPLANATION"}
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_SCORE = re.compile(
    r"\bscore\b\W{0,6}(?:(?:is|of)\b\W{0,4})?(\d*\.?\d+)(?:\s*/\s*1(?:\.0)?\b)?(?!\s*/|[\d.]*\d)",
    re.I,
)
_NUMBER = re.compile(r"[\s*`'\"]*(\d*\.?\d+)[\s*`'\".]*")
_YES_NO = re.compile(r"\b(yes|no)\b", re.I)
_LIST = re.compile(r"\[[\d\s,]*\]")


class JudgeCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a judge, word for word, and what was read from it."""

    key: str
    prompt_sha256: str
    reply: str
    # or "judge-unreadable", or "off-scale": a grade between two, taken as the lower one
    outcome: str = "judged"
    score: float | None = None  # None if it could not be read or is not a grade
    reason: str = ""


class JudgeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one answer."""

    score: float = 0.0
    outcome: str = (
        "judged"  # "judge-unreadable" if a grade is missing (it counts as 0), "empty-answer"
    )
    items: tuple[JudgeCall, ...] = ()  # every call, in order
    extra: dict[str, float] = {}  # of event ordering: tau_b, tau_norm, precision, recall, f1


def judge(
    benchmark: str, question: Question, answer: str, ask: Ask, *, official: bool = False
) -> JudgeVerdict:
    """Judge an answer. An empty one is worth 0, without a call: silence is not abstention."""
    if benchmark not in BENCHMARKS:
        raise BadInput(f"there is no judge for {benchmark!r}; there are {', '.join(BENCHMARKS)}")
    if not answer.strip():
        return JudgeVerdict(outcome="empty-answer")
    if benchmark == "beam":
        return _judge_beam(question, answer, ask, official)
    calls = _asked("yes-no", yes_no_prompt(question, answer), ask, _read_yes_no)
    return _verdict(calls, [calls[-1]], {})


def beam_prompt(question: Question, item: str, answer: str, *, official: bool = False) -> str:
    """The question to the judge about one item of a rubric."""
    parts = {"item": item, "answer": answer}
    return _filled("beam_judge", parts if official else parts | {"question": question.text})


def yes_no_prompt(question: Question, answer: str) -> str:
    """The question to the judge about an answer, with the criteria for its kind of question."""
    kind = (
        "abstention"
        if question.metadata.get("abstention")
        else _CRITERIA.get(question.ability, "default")
    )
    asks = "Does the response recognise that the question cannot be answered?"
    return _filled(
        "longmemeval_judge",
        {
            "criteria": criteria()[kind],
            "question": question.text,
            "label": _LABELS.get(kind, "CORRECT ANSWER"),
            "reference": question.answer,
            "answer": answer,
            "ask": asks if kind == "abstention" else "Is the response correct?",
        },
    )


def criteria() -> dict[str, str]:
    """The five kinds of criteria of LongMemEval."""
    sections = re.split(r"^## +(.+)$", rubric("longmemeval_criteria"), flags=re.M)[1:]
    return {
        name.strip(): text.strip() for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


def _judge_beam(question: Question, answer: str, ask: Ask, official: bool) -> JudgeVerdict:
    calls: list[JudgeCall] = []
    graded: list[JudgeCall] = []
    for number, item in enumerate(question.rubric):
        prompt = beam_prompt(question, item, answer, official=official)
        calls += _asked(f"item-{number}", prompt, ask, _read_score)
        graded.append(calls[-1])
    extra: dict[str, float] = {}
    if question.ability == "event_ordering":
        reference = "\n".join(f"{number}. {item}" for number, item in enumerate(question.rubric, 1))
        prompt = _filled(
            "beam_order", {"question": question.text, "reference": reference, "answer": answer}
        )
        calls += _asked("order", prompt, ask, _read_order)
        if calls[-1].outcome == "judged":
            extra = compare_orders(len(question.rubric), _order_in(calls[-1].reply) or ())
        official = False  # the published code keeps the halves here
    return _verdict(calls, graded, extra, whole=official)


def _verdict(
    calls: list[JudgeCall], graded: list[JudgeCall], extra: dict[str, float], *, whole: bool = False
) -> JudgeVerdict:
    scores = [call.score or 0.0 for call in graded]
    if whole:
        scores = [float(int(score)) for score in scores]
    unreadable = any(call.outcome == "judge-unreadable" for call in graded)
    return JudgeVerdict(
        score=sum(scores) / len(scores) if scores else 0.0,
        outcome="judge-unreadable" if unreadable else "judged",
        items=tuple(calls),
        extra=extra,
    )


class _Reading(msgspec.Struct, frozen=True):
    """The grade that was read from a reply."""

    score: float | None = None
    outcome: str = "judged"
    reason: str = ""


_UNREADABLE = _Reading(outcome="judge-unreadable")


def _asked(key: str, prompt: str, ask: Ask, read: Callable[[str], _Reading]) -> list[JudgeCall]:
    """One call, or two if the first reply cannot be read."""
    calls = []
    for name, text in ((key, prompt), (f"{key}-again", prompt + AGAIN)):
        reply = ask(name, text)
        found = read(_THINKING.sub("", reply))
        calls.append(
            JudgeCall(
                key=name,
                prompt_sha256=sha256(text.encode("utf-8", "replace")).hexdigest(),
                reply=reply,
                outcome=found.outcome,
                score=found.score,
                reason=found.reason,
            )
        )
        if found is not _UNREADABLE:
            break
    return calls


# reading replies ----------------------------------------------------------------------------------


def _read_score(reply: str) -> _Reading:
    """The grade in a reply that is JSON, holds JSON, or says it in prose."""
    for found in reversed(list(_objects(reply))):
        if (grade := _grade(found.get("score"))) is not None:
            return _graded(grade, str(found.get("reason", "")))
    named = _SCORE.findall(reply) or _NUMBER.findall(reply if _NUMBER.fullmatch(reply) else "")
    grade = _grade(named[-1]) if named else None
    return _UNREADABLE if grade is None else _graded(grade, reply.strip()[:500])


def _graded(grade: float, reason: str) -> _Reading:
    on_scale = max(one for one in GRADES if one <= grade)
    return _Reading(on_scale, "judged" if on_scale == grade else "off-scale", reason)


def _grade(value: object) -> float | None:
    """A number from 0 to 1, also where it is written as text."""
    try:
        grade = float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None
    return grade if grade is not None and 0 <= grade <= 1 else None


def _read_yes_no(reply: str) -> _Reading:
    """Yes or no: the word that a reply begins with, or the only one of the two that it holds."""
    words = [word.lower() for word in _YES_NO.findall(reply)]
    first = re.match(r"\W*(yes|no)\b", reply, re.I)
    word = first.group(1).lower() if first else words[0] if len(set(words)) == 1 else ""
    return _Reading(float(word == "yes"), reason=reply.strip()[:500]) if word else _UNREADABLE


def _read_order(reply: str) -> _Reading:
    return _UNREADABLE if _order_in(reply) is None else _Reading()


def _order_in(reply: str) -> list[int] | None:
    """The matches in a reply: a JSON object with an order, or the last list of numbers."""
    said = _THINKING.sub("", reply)
    for found in reversed(list(_objects(said))):
        order = found.get("order")
        if isinstance(order, list) and all(isinstance(one, int) for one in order):
            return order
    lists = _LIST.findall(said)
    return [int(number) for number in re.findall(r"\d{1,6}", lists[-1])] if lists else None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Every JSON object that begins somewhere in a text and is not part of one before."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)


def _filled(name: str, parts: dict[str, str]) -> str:
    """A prompt with its <places> filled in one pass, so that nothing in an answer is taken for a
    place.
    """
    return re.sub(r"<(\w+)>", lambda place: parts.get(place.group(1), place.group(0)), rubric(name))


# the order of events ------------------------------------------------------------------------------


def kendall_tau_b(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Rank correlation with ties, from -1 to 1; None where a side has no order at all."""
    if len(one) != len(other):
        raise ValueError(f"{len(one)} ranks cannot be compared with {len(other)}")
    concordance = tied_one = tied_other = pairs = 0
    for (a, b), (c, d) in combinations(zip(one, other, strict=True), 2):
        pairs += 1
        tied_one += a == c
        tied_other += b == d
        concordance += ((a > c) - (a < c)) * ((b > d) - (b < d))
    untied = (pairs - tied_one) * (pairs - tied_other)
    return concordance / sqrt(untied) if untied else None


def compare_orders(items: int, order: Sequence[int]) -> dict[str, float]:
    """How an answer's order fares against the reference 1, 2, … `items`.

    The two lists are first made one: reference items, then what the answer has beside them. Each
    item has its place in each list as rank; all that a list lacks share one rank behind its end.
    That is what BEAM's own code does. `order` has, for each thing in the answer, the number of its
    reference item, or 0 for something else. `tau_norm` is tau-b moved to 0…1; both are left out
    where no order can be told.
    """
    names: list[int] = []  # extras get numbers of their own
    for place, number in enumerate(order):
        fresh = 1 <= number <= items and number not in names
        names.append(number if fresh else -place - 1)
    matched = [name for name in names if name > 0]
    union = [*range(1, items + 1), *(name for name in names if name < 0)]
    last = len(union) + 1
    places = {name: place for place, name in enumerate(names, 1)}
    tau = kendall_tau_b(
        [name if name > 0 else last for name in union], [places.get(name, last) for name in union]
    )
    precision = len(matched) / len(names) if names else 0.0
    recall = len(matched) / items if items else 0.0
    f1 = 2 * precision * recall / (precision + recall) if matched else 0.0
    found = {"precision": precision, "recall": recall, "f1": f1}
    return found if tau is None else found | {"tau_b": tau, "tau_norm": (tau + 1) / 2}
