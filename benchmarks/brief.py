"""Does a brief speak when it should, and is it silent when it should not? `python
benchmarks/brief.py FOLDER... [--choose]` asks the questions of BEAM and LoCoMo.

A question is asked twice: in its own project, where turns that hold the answer are known, and in
another conversation of the same benchmark, where there is nothing to find. Questions that have no
answer in their own project are counted apart. Each is asked in histories of three sizes: complete
(all conversations in one store, each as a project), and 40 or 12 turns, cut out around its evidence
or out of the other conversation. A benchmark in one size is a setting.

Precision is the share of offered events that are labelled as evidence. The labels name the turns
that hold the answer, so a turn about the same subject counts as wrong. Recall is the share of
questions that are offered any evidence.

`--choose` chooses the constants of relevance.py. The aim was written down before it was first run:
in every setting at least SILENCE of the questions that are asked elsewhere get nothing, and among
the constants that do so, those with the highest recall, as the mean of all settings. Each
conversation is left out once, with all questions that are from it or asked in it; the others
choose, and the one that was left out is measured. Those are the held-out figures. The constants
that all conversations choose are the ones to release.

No public set of coding sessions has such labels; benchmarks/coding_briefs.py makes some up.
"""

import argparse
import functools
import random
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from scroll_context.brief.brief import MOST
from scroll_context.brief.relevance import (
    BACKGROUND,
    FEWEST_TERMS,
    LEAST_SHARE,
    LEAST_STRENGTH,
    Part,
    Reach,
    Statistics,
    Term,
    best_passage,
    parts_of,
    rows_sharing,
    source_of,
    term_weights,
)
from scroll_context.store import Store
from scroll_evals.retrieval import benchmarks_in
from scroll_evals.tasks import DataFault, History, Question

SHARES = tuple(percent / 100 for percent in range(10, 85, 5))
STRENGTHS = tuple(percent / 100 for percent in range(60, 155, 5))
BACKGROUNDS = (0, 10, 25, 50, 100, 200, 400)
SILENCE = 0.99
SIZES = (40, 12)
"""The turns of small histories."""
SKIPPED = ("10M", "1M", "assistant")
"""Splits that take long, or that repeat another one with other roles."""

OWN, OTHER, UNANSWERABLE = "own", "other", "unanswerable"


class Constants(NamedTuple):
    background: int
    share: float
    strength: float


RELEASED = Constants(BACKGROUND, LEAST_SHARE, LEAST_STRENGTH)


class Offer(msgspec.Struct, frozen=True):
    share: float
    strength: float
    is_evidence: bool

    def passes(self, constants: Constants) -> bool:
        return self.share >= constants.share and self.strength >= constants.strength


class Asked(msgspec.Struct, frozen=True):
    """A question in a project, and the best candidates for its brief."""

    setting: str
    # The conversation that the question is from, and the one that it is asked in.
    conversation: str
    project: str
    # OWN: in its own project, which has evidence. OTHER: in another one. UNANSWERABLE: in its own
    # project, which has no evidence.
    place: str
    # By the background that rarity was counted with; the heaviest first. Share and strength fall
    # with the weight, so no later candidate could be offered instead of these.
    offers: dict[int, tuple[Offer, ...]]

    def offered(self, constants: Constants) -> list[Offer]:
        return [offer for offer in self.offers[constants.background] if offer.passes(constants)]


class Turn(NamedTuple):
    """A turn of a conversation."""

    identity: str
    text: str


class Conversation(NamedTuple):
    benchmark: str
    name: str
    turns: list[Turn]
    questions: list[Question]
    history: History


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--choose", action="store_true", help="choose the constants")
    options.add_argument("--questions", type=int, help="ask so many of each conversation")
    options.add_argument("--keep", type=Path, help="keep the candidates in this file, or read them")
    arguments = options.parse_args()
    if arguments.keep and arguments.keep.exists():
        asked = msgspec.json.decode(arguments.keep.read_bytes(), type=list[Asked])
    else:
        conversations = list(read(arguments.folders, arguments.questions))
        backgrounds = BACKGROUNDS if arguments.choose else (BACKGROUND,)
        asked = [*ask_complete(conversations, backgrounds)]
        for size in SIZES:
            asked += ask_small(conversations, backgrounds, size)
        if arguments.keep:
            arguments.keep.write_bytes(msgspec.json.encode(asked))
    print_figures("as released", asked, {})
    if arguments.choose:
        choose_and_report(asked)


def read(folders: Iterable[Path], most: int | None) -> Iterator[Conversation]:
    for folder in folders:
        for benchmark in benchmarks_in(folder):
            if benchmark.split in SKIPPED:
                continue
            for history in benchmark.histories():
                if isinstance(history, DataFault):
                    continue
                turns = [
                    Turn(draft.metadata["source_id"], draft.content) for draft in history.drafts()
                ]
                questions = list(history.questions())[:most]
                yield Conversation(benchmark.name, history.history_id, turns, questions, history)


# candidates ---------------------------------------------------------------------------------------


@functools.cache
def parts(text: str) -> tuple[list[Part], set[Term]]:
    """The sentences of a text with their words, and all its words."""
    sentences = parts_of(text)
    return sentences, set().union(*(words for _, words in sentences))


def offers_for(
    question: str,
    statistics: Statistics,
    turns: Sequence[Turn],
    evidence: Collection[str],
    backgrounds: Iterable[int],
) -> dict[int, tuple[Offer, ...]]:
    """The best candidates among turns, with their weights under each background."""
    offers = {}
    for background in backgrounds:
        weights = term_weights(statistics, question, background)
        total = sum(weights.values())
        matches = []
        for turn in turns if len(weights) >= FEWEST_TERMS else ():
            sentences, words = parts(turn.text)
            if sum(weights[term] for term in weights.keys() & words) < SHARES[0] * total:
                continue
            _, weight = best_passage(sentences, weights)
            share = weight / total
            matches.append(Offer(share, share * weight, turn.identity in evidence))
        matches.sort(key=lambda offer: -round(offer.share, 6))
        offers[background] = tuple(matches[:MOST])
    return offers


def ask_complete(
    conversations: Sequence[Conversation], backgrounds: Sequence[int]
) -> Iterator[Asked]:
    """Ask the questions in one store of all conversations."""
    chance = random.Random(1)
    with (
        tempfile.TemporaryDirectory(prefix="scroll-brief-") as folder,
        Store(Path(folder) / "store", create=True) as store,
    ):
        for conversation in conversations:
            drafts = conversation.history.drafts()
            store.log.append_many([replace(draft, task_id=conversation.name) for draft in drafts])
        store.index.catch_up()
        source = source_of(store)
        assert source is not None
        turns = {
            event.seq: Turn(event.metadata["source_id"], event.content)
            for event in store.log.iterate()
        }
        for conversation in conversations:
            for question in conversation.questions:
                places = {UNANSWERABLE: conversation}
                if question.evidence:
                    other = chance.choice(others_of(conversations, conversation))
                    places = {OWN: conversation, OTHER: other}
                for place, project in places.items():
                    weights = term_weights(source.searcher, question.text)
                    rows = rows_sharing(source, weights, Reach([("task_id", [project.name])]))
                    # Among equals the user's own words come first, and then the newest.
                    rows.sort(key=lambda row: (not row.is_from_user, -row.seq))
                    found = [turns[row.seq] for row in rows]
                    evidence = question.evidence if place == OWN else ()
                    offers = offers_for(
                        question.text, source.searcher, found, evidence, backgrounds
                    )
                    setting = f"{conversation.benchmark}, complete"
                    yield Asked(setting, conversation.name, project.name, place, offers)


class Cut:
    """A few turns of a conversation, and how often each word is in them."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns
        self.num_docs = len(turns)
        self._counts = Counter(term for turn in turns for term in parts(turn.text)[1])

    def doc_freq(self, field_name: str, field_value: str) -> int:
        return self._counts[field_name, field_value]


def ask_small(
    conversations: Sequence[Conversation], backgrounds: Sequence[int], size: int
) -> Iterator[Asked]:
    """Ask the questions in histories of a few turns."""
    chance = random.Random(1)
    for conversation in conversations:
        setting = f"{conversation.benchmark}, {size} turns"

        def asked(
            place: str,
            question: Question,
            project: Conversation,
            first: int,
            conversation: Conversation = conversation,
            setting: str = setting,
        ) -> Asked:
            first = max(0, min(first, len(project.turns) - size))
            cut = Cut(project.turns[first : first + size])
            evidence = question.evidence if place == OWN else ()
            offers = offers_for(question.text, cut, cut.turns, evidence, backgrounds)
            return Asked(setting, conversation.name, project.name, place, offers)

        for question in conversation.questions:
            places = [
                place
                for place, turn in enumerate(conversation.turns)
                if turn.identity in question.evidence
            ]
            if not places:
                first = chance.randrange(len(conversation.turns))
                yield asked(UNANSWERABLE, question, conversation, first)
                continue
            yield asked(OWN, question, conversation, places[0] - chance.randrange(size))
            other = chance.choice(others_of(conversations, conversation))
            yield asked(OTHER, question, other, chance.randrange(len(other.turns)))


def others_of(conversations: Sequence[Conversation], own: Conversation) -> list[Conversation]:
    return [
        conversation
        for conversation in conversations
        if conversation.benchmark == own.benchmark and conversation.name != own.name
    ]


# choosing -----------------------------------------------------------------------------------------


Tally = Mapping[tuple[str, str, str], int]
"""How many questions of a setting, that touch a conversation ("" for all), were asked in a place,
and how many of them ended well: silent elsewhere, offered evidence at home.
"""


def choose_and_report(asked: Sequence[Asked]) -> None:
    tallies = {
        Constants(*values): tally(asked, Constants(*values))
        for values in product(BACKGROUNDS, SHARES, STRENGTHS)
    }
    settings = list(dict.fromkeys(one.setting for one in asked))
    conversations = dict.fromkeys(one.conversation for one in asked)
    chosen = {name: choose(tallies, settings, name) for name in conversations}
    print_figures("held out", asked, chosen)
    for constants, count in Counter(chosen.values()).most_common():
        print(f"{constants}: chosen when {count} of {len(chosen)} conversations were left out")
    print(f"chosen by all conversations: {choose(tallies, settings)}")


def tally(asked: Iterable[Asked], constants: Constants) -> Tally:
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in asked:
        if one.place == UNANSWERABLE:
            continue
        offers = one.offered(constants)
        ends_well = not offers if one.place == OTHER else is_helped(offers)
        for name in {"", one.conversation, one.project}:
            counts[one.setting, name, one.place] += 1
            counts[one.setting, name, f"good {one.place}"] += ends_well
    return counts


def choose(
    tallies: Mapping[Constants, Tally], settings: Sequence[str], left_out: str | None = None
) -> Constants:
    """The constants with the highest recall, among those that are silent often enough."""

    def shares(counts: Tally, place: str) -> list[float]:
        def count(setting: str, key: str) -> int:
            left = counts.get((setting, left_out, key), 0) if left_out else 0
            return counts[setting, "", key] - left

        return [count(name, f"good {place}") / count(name, place) for name in settings]

    quiet = [
        constants for constants, counts in tallies.items() if min(shares(counts, OTHER)) >= SILENCE
    ]
    # Among equals the strictest.
    return max(quiet, key=lambda constants: (fmean(shares(tallies[constants], OWN)), constants[1:]))


def is_helped(offers: Iterable[Offer]) -> bool:
    return any(offer.is_evidence for offer in offers)


# figures ------------------------------------------------------------------------------------------


def print_figures(title: str, asked: Sequence[Asked], chosen: Mapping[str, Constants]) -> None:
    """Print a table, each question with the constants that its conversation was left out of."""
    print(f"\n{title}\n")
    print(
        "| questions of | silent elsewhere | silent at home | recall | precision "
        "| briefs with any evidence | silent without an answer at home |"
    )
    print("|---|---|---|---|---|---|---|")
    for setting in dict.fromkeys(one.setting for one in asked):
        places: dict[str, list[list[Offer]]] = {OWN: [], OTHER: [], UNANSWERABLE: []}
        for one in asked:
            if one.setting == setting:
                offers = one.offered(chosen.get(one.conversation, RELEASED))
                places[one.place].append(offers)
        own = places[OWN]
        spoken = [offers for offers in own if offers]
        offered = [offer for offers in spoken for offer in offers]
        unanswerable = places[UNANSWERABLE]
        print(
            f"| {setting}, {len(own)} with evidence | {silence(places[OTHER])} | {silence(own)} "
            f"| {fmean(map(is_helped, own)):.1%} "
            f"| {fmean(offer.is_evidence for offer in offered):.1%} "
            f"| {fmean(map(is_helped, spoken)):.1%} "
            f"| {silence(unanswerable)} of {len(unanswerable)} |"
        )


def silence(offers: Sequence[Sequence[Offer]]) -> str:
    return f"{fmean(not one for one in offers):.1%}" if offers else "none"


if __name__ == "__main__":
    main()
