"""Does a brief speak when it should, and is it silent when it should not? `python
benchmarks/brief.py FOLDER...` asks the questions of BEAM and LoCoMo.

All conversations share one store, each as a project of its own. A question is asked twice: in its
own project, where turns that hold the answer are known, and in another project of the same
benchmark, where there is nothing to find. Precision is the share of offered events that are
labelled as evidence; the labels name the turns that hold the answer, so a turn about the same
subject counts as wrong. The thresholds are chosen for each conversation on all others: the pair
that helps most questions among those that stay silent in another project as often as SILENCE asks
for. The figures are those of the conversations that were left out.

No public set of coding sessions has such labels, so none are counted here.
"""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec.structs import replace

from scroll_context.brief.brief import MOST
from scroll_context.brief.relevance import LEAST_SHARE, LEAST_WEIGHT, candidates
from scroll_context.brief.source import Reach, Source, source_of
from scroll_context.store import Store
from scroll_evals.retrieval import benchmarks_in
from scroll_evals.tasks import DataFault, History

SHARES = (0.35, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8)
WEIGHTS = (0.8, 1.0, 1.2, 1.4, 1.6, 2.0)
SILENCE = 0.99
SKIPPED = ("10M", "1M", "assistant")
"""Splits that take long, or that repeat another one with other roles."""

Thresholds = tuple[float, float]


class Offer(msgspec.Struct, frozen=True):
    share: float
    weight: float
    is_evidence: bool


class Asked(msgspec.Struct, frozen=True):
    """A question in a project, and the best candidates for its brief."""

    benchmark: str
    conversation: str
    # Whether it was asked in its own project, and has evidence there.
    has_evidence: bool
    offers: tuple[Offer, ...]

    def offered(self, thresholds: Thresholds) -> list[Offer]:
        share, weight = thresholds
        offers = [offer for offer in self.offers if offer.share >= share and offer.weight >= weight]
        return offers[:MOST]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folders", type=Path, nargs="+")
    arguments = options.parse_args()
    histories = [
        (benchmark.name, history)
        for folder in arguments.folders
        for benchmark in benchmarks_in(folder)
        if benchmark.split not in SKIPPED
        for history in benchmark.histories()
        if not isinstance(history, DataFault)
    ]
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
    for benchmark, history in histories:
        others = [
            other.history_id for name, other in histories if name == benchmark and other != history
        ]
        for question in history.questions():
            if not question.evidence:
                continue
            for project in (history.history_id, chance.choice(others)):
                is_own = project == history.history_id
                matches = candidates(source, question.text, Reach([("task_id", [project])]))[:10]
                offers = tuple(
                    Offer(
                        match.share,
                        match.weight,
                        is_own and ids[match.row.seq] in question.evidence,
                    )
                    for match in matches
                )
                yield Asked(benchmark, history.history_id, is_own, offers)


def report(asked: Sequence[Asked]) -> None:
    print_figures("as released", asked, {}, (LEAST_SHARE, LEAST_WEIGHT))
    chosen = {
        conversation: choose([one for one in asked if one.conversation != conversation])
        for conversation in dict.fromkeys(one.conversation for one in asked)
    }
    print_figures("cross-validated", asked, chosen, (LEAST_SHARE, LEAST_WEIGHT))
    for thresholds, count in Counter(chosen.values()).most_common():
        print(f"share {thresholds[0]}, weight {thresholds[1]}: chosen for {count} conversations")


def choose(asked: Sequence[Asked]) -> Thresholds:
    """The thresholds that help most questions, among those that stay silent often enough."""
    quiet = [
        pair
        for pair in product(SHARES, WEIGHTS)
        if fmean(not one.offered(pair) for one in asked if not one.has_evidence) >= SILENCE
    ]
    return max(quiet, key=lambda pair: (helped(asked, pair), pair))


def helped(asked: Sequence[Asked], thresholds: Thresholds) -> float:
    """The share of questions that are offered evidence. Each benchmark counts the same."""
    shares = []
    for benchmark in sorted({one.benchmark for one in asked}):
        own = [one for one in asked if one.benchmark == benchmark and one.has_evidence]
        shares.append(fmean(_is_helped(one.offered(thresholds)) for one in own))
    return fmean(shares)


def _is_helped(offers: Sequence[Offer]) -> bool:
    return any(offer.is_evidence for offer in offers)


def print_figures(
    title: str, asked: Sequence[Asked], chosen: dict[str, Thresholds], default: Thresholds
) -> None:
    for benchmark in sorted({one.benchmark for one in asked}):
        own, foreign = [], []
        for one in asked:
            if one.benchmark == benchmark:
                offers = one.offered(chosen.get(one.conversation, default))
                (own if one.has_evidence else foreign).append(offers)
        spoken = [offers for offers in own if offers]
        offered = [offer for offers in spoken for offer in offers]
        print(
            f"{title}, {benchmark}: {len(own)} questions with evidence, silent for "
            f"{1 - len(spoken) / len(own):.1%}; when it speaks, {len(offered) / len(spoken):.1f} "
            f"events, {fmean(offer.is_evidence for offer in offered):.1%} of them evidence, any "
            f"evidence for {fmean(map(_is_helped, spoken)):.1%} of the questions; asked in another "
            f"project, silent for {fmean(not offers for offers in foreign):.1%}"
        )


if __name__ == "__main__":
    main()
