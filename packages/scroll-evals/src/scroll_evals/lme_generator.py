"""Makes small data sets in the schema of LongMemEval, for tests and for trying an evaluation
without the real data.

All six question types come up in turn, and every seventh question is one that has no answer.
Questions, answers and evidence follow from the seed alone: the same seed writes the same bytes. The
texts are plain and made up, so scores on them say that the machinery works and nothing else.
"""

import datetime as dt
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.errors import BadInput

SIZES = {"oracle": 0, "s": 1, "m": 5}
"""How many times `sessions` fillers a haystack of each split has."""

_Turn = dict[str, Any]

_THINGS = (
    "bicycle",
    "kettle",
    "rain jacket",
    "desk lamp",
    "sewing machine",
    "tent",
    "record player",
    "bread knife",
)
_SHOPS = ("the harbour market", "Lindgren's", "the corner shop", "a flea market", "Moss & Son")
_TOWNS = ("Aldermoor", "Brixwell", "Castlenau", "Dunmere", "Eastvale", "Fairholt")
_CAFES = ("the Blue Heron", "Café Tamarind", "the Old Sluice", "Papaver", "the Lantern Room")
_CLUBS = ("chess club", "choir", "rowing team", "pottery class", "book circle")
_PLANTS = ("ferns", "tomato seedlings", "tulip bulbs", "cacti", "rose bushes")
_TASTES = (
    (
        "I read on paper only; screens give me a headache.",
        "a book for the train",
        "a printed book, since the user reads on paper only and gets headaches from screens",
    ),
    (
        "I am a vegetarian and I cannot stand coriander.",
        "something to cook tonight",
        "a vegetarian dish without coriander, as the user told",
    ),
    (
        "I go running before sunrise because I like empty paths.",
        "a new route for my run",
        "a quiet route that is good before sunrise, when the user runs",
    ),
    (
        "I paint with watercolours and never with oils.",
        "a gift I could make for my aunt",
        "something made with watercolours, which the user paints with, and not with oils",
    ),
)
_CHAT = (
    (
        "Why is the sky red in the evening?",
        "The light takes a longer way through the air, and blue is scattered out.",
    ),
    ("Give me three words that rhyme with stone.", "Bone, alone and thrown would all do."),
    (
        "How do I get candle wax out of a tablecloth?",
        "Cool it, scrape it off, then iron it between sheets of paper.",
    ),
    (
        "What does a conductor do with the left hand?",
        "It shapes loudness and cues, while the right one keeps time.",
    ),
    (
        "Explain compound interest in one sentence.",
        "You earn interest on the interest that was earned before.",
    ),
    (
        "Is a tomato a fruit?",
        "Botanically it is a berry; in the kitchen it passes for a vegetable.",
    ),
    ("How long do I boil an egg?", "Six minutes for a soft yolk and ten for a firm one."),
    ("What is the tallest kind of grass?", "Bamboo, some kinds of which grow above thirty metres."),
)


class _Case(msgspec.Struct):
    """A question with the sessions that its answer rests on, oldest first."""

    question: str
    answer: str | int
    sessions: list[list[_Turn]]
    days_apart: int = 9


def generate(folder: Path, *, seed: int = 0, questions: int = 14, sessions: int = 12) -> list[Path]:
    """Write the three splits.

    A haystack of `s` has `sessions` beside its evidence, one of `m` five times as many.
    """
    if questions < 1 or sessions < 1:
        raise BadInput("a set needs at least one question and one session")
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / f"longmemeval_{split}.json": times for split, times in SIZES.items()}
    for file in files:
        if file.exists():
            raise BadInput(f"{file} exists and is not overwritten; name a new folder")
    for file, times in files.items():
        instances = [_instance(seed, number, times * sessions) for number in range(questions)]
        file.write_text(json.dumps(instances, indent=1, ensure_ascii=False), encoding="utf-8")
    return list(files)


def _instance(seed: int, number: int, fillers: int) -> dict[str, Any]:
    """One element. What is asked does not depend on how much is around it."""
    rng = random.Random(f"{seed}/{number}")
    kind, case = _case(rng, number)
    first = dt.datetime(2023, 1, 9, 8, 30) + dt.timedelta(days=rng.randrange(60))
    dated = [
        (first + dt.timedelta(days=at * case.days_apart), turns)
        for at, turns in enumerate(case.sessions)
    ]
    last = dated[-1][0]
    evidence = [f"answer_{seed:02x}{number:03x}_{at + 1}" for at in range(len(dated))]
    haystack = [(when, name, turns) for (when, turns), name in zip(dated, evidence, strict=True)]
    for at in range(fillers):
        when = first + dt.timedelta(minutes=rng.randrange(-43_200, 86_400))
        haystack.append((when, f"filler_{seed:02x}{number:03x}_{at + 1}", _filler(rng)))
        last = max(last, when)
    if fillers:
        haystack.sort(key=lambda one: one[0])
    else:
        rng.shuffle(haystack)  # as in the official file of this split
    return {
        "question_id": f"made_{seed}_{number}" + ("_abs" if number % 7 == 6 else ""),
        "question_type": kind,
        "question": case.question,
        "answer": case.answer,
        "question_date": _date(last + dt.timedelta(days=2)),
        "haystack_dates": [_date(when) for when, _, _ in haystack],
        "haystack_session_ids": [name for _, name, _ in haystack],
        "haystack_sessions": [turns for _, _, turns in haystack],
        "answer_session_ids": evidence,
    }


def _case(rng: random.Random, number: int) -> tuple[str, _Case]:
    kinds: tuple[tuple[str, Callable[[random.Random], _Case]], ...] = (
        ("single-session-user", _said_by_user),
        ("single-session-assistant", _said_by_assistant),
        ("single-session-preference", _preference),
        ("multi-session", _spread),
        ("temporal-reasoning", _elapsed),
        ("knowledge-update", _updated),
        (("single-session-user", "multi-session")[number // 7 % 2], _never_said),
    )
    kind, make = kinds[number % 7]
    return kind, make(rng)


def _said_by_user(rng: random.Random) -> _Case:
    thing, shop, price = rng.choice(_THINGS), rng.choice(_SHOPS), rng.randrange(12, 240)
    said = f"I bought a {thing} at {shop} yesterday, for {price} dollars. How do I look after it?"
    return _Case(
        f"How much did I pay for the {thing}?",
        f"{price} dollars",
        [
            [
                _user(said, True),
                _assistant(f"Keep the {thing} dry and clean, and it will last."),
                *_chat(rng),
            ]
        ],
    )


def _said_by_assistant(rng: random.Random) -> _Case:
    town, cafe = rng.choice(_TOWNS), rng.choice(_CAFES)
    return _Case(
        f"Which place in {town} did you recommend for breakfast?",
        cafe,
        [
            [
                _user(f"Where can I have breakfast in {town}?"),
                _assistant(f"In {town} I would go to {cafe}; it opens at seven.", True),
                *_chat(rng),
            ]
        ],
    )


def _preference(rng: random.Random) -> _Case:
    told, wish, suits = rng.choice(_TASTES)
    return _Case(
        f"Can you suggest {wish}?",
        f"The user would like to hear of {suits}.",
        [[_user(told, True), _assistant("Thank you for telling me."), *_chat(rng)]],
    )


def _spread(rng: random.Random) -> _Case:
    plant = rng.choice(_PLANTS)
    numbers = [rng.randrange(2, 9) for _ in range(3)]
    sessions = [
        [
            _user(f"I planted {number} more {plant} today.", True),
            _assistant("Water them well."),
            *_chat(rng),
        ]
        for number in numbers
    ]
    return _Case(f"How many {plant} have I planted altogether?", sum(numbers), sessions)


def _elapsed(rng: random.Random) -> _Case:
    club, town, days = rng.choice(_CLUBS), rng.choice(_TOWNS), rng.randrange(5, 40)
    return _Case(
        f"How many days after joining the {club} did I visit {town}?",
        f"{days} days",
        [
            [_user(f"I joined the {club} today!", True), _assistant("Enjoy it."), *_chat(rng)],
            [
                _user(f"I am visiting {town} today. What should I see?", True),
                _assistant("The old bridge."),
                *_chat(rng),
            ],
        ],
        days,
    )


def _updated(rng: random.Random) -> _Case:
    club, before = rng.choice(_CLUBS), rng.randrange(8, 20)
    after = before + rng.randrange(1, 9)
    return _Case(
        f"How many people are in my {club}?",
        after,
        [
            [
                _user(f"There are {before} people in my {club}.", True),
                _assistant("A good size."),
                *_chat(rng),
            ],
            [
                _user(f"My {club} has grown: now we are {after} people.", True),
                _assistant("Well done."),
                *_chat(rng),
            ],
        ],
    )


def _never_said(rng: random.Random) -> _Case:
    bought, asked = rng.sample(_THINGS, 2)
    return _Case(
        f"How much did I pay for the {asked}?",
        f"The information is not there: the user spoke of a {bought}, never of a {asked}.",
        [
            [
                _user(f"I bought a {bought} for {rng.randrange(12, 240)} dollars.", True),
                _assistant("Nice."),
                *_chat(rng),
            ]
        ],
    )


def _filler(rng: random.Random) -> list[_Turn]:
    return [turn for _ in range(rng.randrange(1, 4)) for turn in _chat(rng)]


def _chat(rng: random.Random) -> list[_Turn]:
    asked, told = rng.choice(_CHAT)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]


def _user(text: str, has_answer: bool = False) -> _Turn:
    return {"role": "user", "content": text, "has_answer": has_answer}


def _assistant(text: str, has_answer: bool = False) -> _Turn:
    return {"role": "assistant", "content": text, "has_answer": has_answer}


def _date(moment: dt.datetime) -> str:
    weekday = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[moment.weekday()]
    return f"{moment:%Y/%m/%d} ({weekday}) {moment:%H:%M}"
