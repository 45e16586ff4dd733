"""Comparing the order in which an answer names things with a reference order: Kendall's tau-b, and what was found.

The two lists are first made one: reference items, then what the answer has beside them. Each item has its place in
each list as rank; all that a list lacks share one rank behind its end. That is what BEAM's own code does.
"""

from collections.abc import Sequence
from itertools import combinations
from math import sqrt


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

    `order` has, for each thing in the answer, the number of its reference item, or 0 for something else. `tau_norm` is
    tau-b moved to 0…1; both are left out where no order can be told.
    """
    names: list[int] = []  # extras get numbers of their own
    for place, number in enumerate(order):
        fresh = 1 <= number <= items and number not in names
        names.append(number if fresh else -place - 1)
    matched = [name for name in names if name > 0]
    union = [*range(1, items + 1), *(name for name in names if name < 0)]
    last = len(union) + 1
    places = {name: place for place, name in enumerate(names, 1)}
    tau = kendall_tau_b([name if name > 0 else last for name in union], [places.get(name, last) for name in union])
    precision = len(matched) / len(names) if names else 0.0
    recall = len(matched) / items if items else 0.0
    f1 = 2 * precision * recall / (precision + recall) if matched else 0.0
    found = {"precision": precision, "recall": recall, "f1": f1}
    return found if tau is None else found | {"tau_b": tau, "tau_norm": (tau + 1) / 2}
