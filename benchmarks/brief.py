"""Does a brief speak when it should, and is it silent when it should not? `python
benchmarks/brief.py FOLDER... [--turns N]` asks the questions of BEAM and LoCoMo.

All conversations share one store, each as a project of its own. A question is asked twice: in its
own project, where turns that hold the answer are known, and in another project of the same
benchmark, where there is nothing to find. Questions that have no answer in their own project are
counted apart. With `--turns` each question is asked in a history of so many turns instead, cut out
around its evidence, or out of another conversation: a small store. Precision is the share of offered events that are
labelled as evidence; the labels name the turns that hold the answer, so a turn about the same
subject counts as wrong. The thresholds are chosen for each conversation on all others: the pair
that helps most questions among those that stay silent in another project as often as SILENCE asks
for. The figures are those of the conversations that were left out.

No public set of coding sessions has such labels; benchmarks/coding_briefs.py makes some up.
"""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec.structs import replace

from scroll_context.brief.brief import MOST
from scroll_context.brief.relevance import (
    LEAST_SHARE,
    LEAST_STRENGTH,
    Term,
    best_passage,
    candidates,
    term_weights,
    terms,
)
from scroll_context.brief.source import Reach, Source, source_of
from scroll_context.store import Store
from scroll_evals.retrieval import benchmarks_in
from scroll_evals.tasks import DataFault, History, Question

SHARES = (0.35, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8)
STRENGTHS = (0.7, 0.8, 0.9, 0.95, 1.0, 1.2, 1.4)
OWN, OTHER, UNANSWERABLE = "own", "other", "unanswerable"
SILENCE = 0.99
SKIPPED = ("10M", "1M", "assistant")
"""Splits that take long, or that repeat another one with other roles."""

Thresholds = tuple[float, float]


class Offer(msgspec.Struct, frozen=True):
    share: float
    strength: float
    is_evidence: bool


class Asked(msgspec.Struct, frozen=True):
    """A question in a project, and the best candidates for its brief."""

    benchmark: str
    conversation: str
    # OWN: in its own project, which has evidence. OTHER: in another one. UNANSWERABLE: in its own
    # project, which has no evidence.
    place: str
    offers: tuple[Offer, ...]

    def offered(self, thresholds: Thresholds) -> list[Offer]:
        share, strength = thresholds
        offers = [
            offer for offer in self.offers if offer.share >= share and offer.strength >= strength
        ]
        return offers[:MOST]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--turns", type=int, help="ask in histories of so many turns")
    options.add_argument("--questions", type=int, help="ask so many of each benchmark")
    arguments = options.parse_args()
    histories = [
        (benchmark.name, history)
        for folder in arguments.folders
        for benchmark in benchmarks_in(folder)
        if benchmark.split not in SKIPPED
        for history in benchmark.histories()
        if not isinstance(history, DataFault)
    ]
    if arguments.turns:
        report(list(ask_in_small(histories, arguments.turns, arguments.questions)))
        return
    with (
        tempfile.TemporaryDirectory(prefix="scroll-brief-") as folder,
        Store(Path(folder) / "store", create=True) as store,
    ):
        for _, history in histories:
            drafts = [replace(draft, task_id=history.history_id) for draft in history.drafts()]
            store.log.append_many(drafts)
        store.index.catch_up()
        source = source_of(store)
        assert source is not None
        asked = list(ask(store, source, histories))
    report(asked)


def ask(store: Store, source: Source, histories: Sequence[tuple[str, History]]) -> Iterator[Asked]:
    chance = random.Random(1)
    ids = {event.seq: event.metadata["source_id"] for event in store.log.iterate()}

    def asked(place: str, project: str, question: Question) -> tuple[Offer, ...]:
        matches = candidates(source, question.text, Reach([("task_id", [project])]))[:10]
        evidence = question.evidence if place == OWN else ()
        return tuple(
            Offer(match.share, match.strength, ids[match.row.seq] in evidence) for match in matches
        )

    for benchmark, history in histories:
        own = history.history_id
        others = [
            other.history_id for name, other in histories if name == benchmark and other != history
        ]
        for question in history.questions():
            places = {OWN: own, OTHER: chance.choice(others)}
            if not question.evidence:
                places = {UNANSWERABLE: own}
            for place, project in places.items():
                yield Asked(benchmark, own, place, asked(place, project, question))


# small histories ----------------------------------------------------------------------------------


class Turns:
    """A few turns of a conversation, and how often each word is in them."""

    def __init__(self, turns: Sequence[tuple[str, str]]) -> None:
        self.turns = turns
        self.num_docs = len(turns)
        self._terms = [(identity, text, set(terms(text))) for identity, text in turns]
        self._counts = Counter(term for _, _, own in self._terms for term in own)

    def doc_freq(self, field_name: str, field_value: str) -> int:
        return self._counts[field_name, field_value]

    def offers(self, question: str, evidence: Collection[str]) -> tuple[Offer, ...]:
        weights = term_weights(self, question)
        total = sum(weights.values())
        matches = []
        for identity, text, own in self._terms:
            if self._held(own, weights) < LEAST_SHARE / 2 * total:
                continue
            _, weight = best_passage(text, weights)
            share = weight / total
            matches.append(Offer(share, share * weight, identity in evidence))
        return tuple(sorted(matches, key=lambda offer: -offer.share)[:10])

    @staticmethod
    def _held(own: set[Term], weights: dict[Term, float]) -> float:
        return sum(weights[term] for term in weights.keys() & own)


def ask_in_small(
    histories: Sequence[tuple[str, History]], size: int, most: int | None
) -> Iterator[Asked]:
    """Ask the questions in histories of a few turns."""
    chance = random.Random(1)
    conversations = [
        (
            name,
            history,
            [(draft.metadata["source_id"], draft.content) for draft in history.drafts()],
        )
        for name, history in histories
    ]
    for benchmark in sorted({name for name, _ in histories}):
        own_benchmark = [entry for entry in conversations if entry[0] == benchmark]
        questions = [
            (history, turns, question)
            for _, history, turns in own_benchmark
            for question in history.questions()
        ]
        chance.shuffle(questions)
        for history, turns, question in questions[:most]:
            places = [place for place, (name, _) in enumerate(turns) if name in question.evidence]
            first = places[0] - chance.randrange(size) if places else chance.randrange(len(turns))
            first = max(0, min(first, len(turns) - size))
            cut = Turns(turns[first : first + size])
            place = OWN if places else UNANSWERABLE
            offers = cut.offers(question.text, question.evidence)
            yield Asked(benchmark, history.history_id, place, offers)
            if places:
                _, _, other = chance.choice(
                    [entry for entry in own_benchmark if entry[1] != history]
                )
                first = chance.randrange(max(1, len(other) - size))
                cut = Turns(other[first : first + size])
                yield Asked(benchmark, history.history_id, OTHER, cut.offers(question.text, ()))


# figures ------------------------------------------------------------------------------------------


def report(asked: Sequence[Asked]) -> None:
    print_figures("as released", asked, {}, (LEAST_SHARE, LEAST_STRENGTH))
    chosen = {
        conversation: choose([one for one in asked if one.conversation != conversation])
        for conversation in dict.fromkeys(one.conversation for one in asked)
    }
    print_figures("cross-validated", asked, chosen, (LEAST_SHARE, LEAST_STRENGTH))
    for thresholds, count in Counter(chosen.values()).most_common():
        print(f"share {thresholds[0]}, strength {thresholds[1]}: chosen for {count} conversations")


def choose(asked: Sequence[Asked]) -> Thresholds:
    """The thresholds that help most questions, among those that stay silent often enough."""
    quiet = [
        pair
        for pair in product(SHARES, STRENGTHS)
        if fmean(not one.offered(pair) for one in asked if one.place == OTHER) >= SILENCE
    ]
    return max(quiet, key=lambda pair: (helped(asked, pair), pair))


def helped(asked: Sequence[Asked], thresholds: Thresholds) -> float:
    """The share of questions that are offered evidence. Each benchmark counts the same."""
    shares = []
    for benchmark in sorted({one.benchmark for one in asked}):
        own = [one for one in asked if one.benchmark == benchmark and one.place == OWN]
        shares.append(fmean(_is_helped(one.offered(thresholds)) for one in own))
    return fmean(shares)


def _is_helped(offers: Sequence[Offer]) -> bool:
    return any(offer.is_evidence for offer in offers)


def print_figures(
    title: str, asked: Sequence[Asked], chosen: dict[str, Thresholds], default: Thresholds
) -> None:
    for benchmark in sorted({one.benchmark for one in asked}):
        places: dict[str, list[list[Offer]]] = {OWN: [], OTHER: [], UNANSWERABLE: []}
        for one in asked:
            if one.benchmark == benchmark:
                offers = one.offered(chosen.get(one.conversation, default))
                places[one.place].append(offers)
        own = places[OWN]
        spoken = [offers for offers in own if offers]
        offered = [offer for offers in spoken for offer in offers]
        print(
            f"{title}, {benchmark}: {len(own)} questions with evidence, silent for "
            f"{1 - len(spoken) / len(own):.1%}; when it speaks, {len(offered) / len(spoken):.1f} "
            f"events, {fmean(offer.is_evidence for offer in offered):.1%} of them evidence, any "
            f"evidence for {fmean(map(_is_helped, spoken)):.1%} of the questions; asked in another "
            f"project, silent for {_silence(places[OTHER])}; without an answer in their own "
            f"project, silent for {_silence(places[UNANSWERABLE])}"
        )


def _silence(offers: Sequence[Sequence[Offer]]) -> str:
    if not offers:
        return "none, as there are none"
    return f"{fmean(not one for one in offers):.1%} of {len(offers)}"


if __name__ == "__main__":
    main()
