"""Briefs in made-up coding sessions: `python benchmarks/coding_briefs.py [--sessions N]`.

No public set of coding sessions says which earlier event bears on a prompt, so these are made up,
and the figures say less than those of benchmarks/brief.py. Each session states a fact, changes
files, runs commands and meets an error, all drawn from lists of ordinary words, beside replies and
results that use the same words. Then each kind of thing is asked for, and its answer is known by
seq. Prompts about other subjects, chores as people type them all day, and files and commands that
were never used must get nothing.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from scroll_context.brief.brief import Brief, brief_of_call, brief_of_prompt
from scroll_context.brief.relevance import Reach, Source, source_of
from scroll_context.events import Draft
from scroll_context.store import Store

THINGS = """basket invoice ledger courier voucher webhook parser scheduler thumbnail session cache
router mailer uploader crawler importer exporter tokenizer renderer validator""".split()
PLACES = """staging production billing warehouse checkout search signup admin reporting archive
mobile partner backup sandbox""".split()
FACTS = (
    "The {thing} of {place} listens on port {number}.",
    "We keep the {thing} logs of {place} for {number} days.",
    "The {place} {thing} must never retry more than {number} times.",
    "{place} uses a {thing} timeout of {number} seconds.",
)
QUESTIONS = (
    "On which port does the {thing} of {place} listen?",
    "For how many days do we keep the {thing} logs of {place}?",
    "How often may the {place} {thing} retry?",
    "What is the {thing} timeout of {place}?",
)
CHORES = """Run the tests. | Commit this. | Fix the build. | Continue. | Looks good, thanks. | Please
add a test for it. | Clean up the code. | Explain this function. | Rename the variable. | Why does it
fail? | Open a pull request. | Undo the last change. | Write the changelog. | Update the README.""".split(
    "|"
)
ELSEWHERE = (
    "Write a haiku about autumn rain.",
    "Convert this Celsius table to Fahrenheit.",
    "Draft a polite letter to my landlord about the heating.",
    "Draw the Mandelbrot set with turtle graphics.",
    "Which chess opening suits a beginner?",
)


class Asked(NamedTuple):
    """Something that is asked, and the seq of its answer; 0 if nothing may be offered."""

    kind: str
    prompt: str = ""
    arguments: dict[str, Any] | None = None
    answer: int = 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sessions", type=int, default=60)
    arguments = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="scroll-coding-") as folder,
        Store(Path(folder) / "store", create=True) as store,
    ):
        asked = list(work(store, arguments.sessions))
        source = source_of(store)
        assert source is not None
        report(source, asked)


def work(store: Store, sessions: int) -> Iterator[Asked]:
    """Record the sessions; yields what is asked about them."""
    chance = random.Random(5)
    pairs = [(thing, place) for thing in THINGS for place in PLACES]
    chance.shuffle(pairs)
    for number, (thing, place) in enumerate(pairs[:sessions]):
        yield from session(store, chance, f"s-{number}", thing, place)
    for chore in CHORES:
        yield Asked("chores", " ".join(chore.split()))
    for prompt in ELSEWHERE:
        yield Asked("other subjects", prompt)
    for thing, place in pairs[sessions : sessions + 20]:
        file = {"file_path": f"/home/dev/app/src/{place}/{thing}.py"}
        yield Asked("files never used", arguments=file)
        command = {"command": f"pytest -q tests/{place}/test_{thing}.py"}
        yield Asked("commands never used", arguments=command)
        question = chance.choice(QUESTIONS).format(thing=thing, place=place)
        yield Asked("facts never said", question)


def session(
    store: Store, chance: random.Random, name: str, thing: str, place: str
) -> Iterator[Asked]:
    """One session on one part of the program."""
    form = chance.randrange(len(FACTS))
    words = {"thing": thing, "place": place}
    number = chance.randrange(100, 9_999)
    path = f"/home/dev/app/src/{place}/{thing}.py"
    command = f"pytest -q tests/{place}/test_{thing}.py"
    error = f"ValueError: {thing} of {place} has no entry {number}"

    def add(**fields: Any) -> int:
        return store.append(Draft(session_id=name, task_id="app", **fields))

    def call(tool: str, result: str, **arguments: str) -> tuple[int, int]:
        identity = f"{name}-{tool}-{chance.random()}"
        common = {"name": tool, "tool_call_id": identity}
        content = json.dumps(arguments)
        made = add(kind="tool_call", role="assistant", content=content, **common)
        return made, add(kind="tool_result", role="tool", content=result, **common)

    fact = add(role="user", content=FACTS[form].format(number=number, **words))
    add(role="assistant", content=f"Noted. I look at the {chance.choice(THINGS)} first.")
    call("Read", "def run(): ...", file_path=f"/home/dev/app/src/{place}/__init__.py")
    _, met = call("Bash", f"FAILED tests\n{error}\n1 failed", command=command)
    changed, _ = call("Edit", "ok", file_path=path, old_string="a", new_string=f"b{number}")
    _, passed = call("Bash", "3 passed in 0.2s", command=command)
    add(role="assistant", content=f"The {thing} works; the tests of {place} pass.")
    yield Asked("facts", QUESTIONS[form].format(**words), answer=fact)
    yield Asked("files", arguments={"file_path": path}, answer=changed)
    yield Asked("commands", arguments={"command": command}, answer=passed)
    yield Asked("errors", f"It fails again:\n{error}\nWhat did we do?", answer=met)


def report(source: Source, asked: list[Asked]) -> None:
    for kind in dict.fromkeys(one.kind for one in asked):
        own = [one for one in asked if one.kind == kind]
        briefs = [offered(source, one) for one in own]
        silence = (
            f"{kind}: {len(own)} asked, silent for {fmean(not brief.text for brief in briefs):.1%}"
        )
        spoken = [(one, brief) for one, brief in zip(own, briefs, strict=True) if brief.text]
        if own[0].answer and spoken:
            right = fmean(one.answer in seqs(brief) for one, brief in spoken)
            entries = [seq == one.answer for one, brief in spoken for seq in seqs(brief)]
            silence += f"; when it speaks, the answer is there for {right:.1%}, and "
            silence += f"{fmean(entries):.1%} of the {len(entries)} entries are the answer"
        print(silence)


def offered(source: Source, one: Asked) -> Brief:
    if one.arguments is not None:
        return brief_of_call(source, one.arguments, Reach())
    return brief_of_prompt(source, one.prompt, Reach())


def seqs(brief: Brief) -> list[int]:
    """The events that a brief names first in each of its lines."""
    return [quotation.seq for quotation in brief.quotations] + [deed.seq for deed in brief.deeds]


if __name__ == "__main__":
    main()
