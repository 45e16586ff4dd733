"""Adding up verdicts, and the rank correlation behind event ordering."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.errors import BadInput
from scroll_evals.judge import JudgeVerdict, compare_orders, kendall_tau_b
from scroll_evals.memory import summarize
from scroll_evals.tasks import Question


def asked(ability: str, **metadata: object) -> Question:
    return Question(
        task_id=f"t/{ability}", history_id="h", ability=ability, text="?", metadata=metadata
    )


def scored(score: float, **extra: float) -> JudgeVerdict:
    return JudgeVerdict(score=score, extra=extra)


def test_beam_is_the_mean_of_its_abilities_not_of_its_questions() -> None:
    results = [
        (asked("summarization"), scored(1.0)),
        (asked("summarization"), scored(1.0)),
        (asked("summarization"), scored(0.7)),
        (asked("abstention"), scored(0.0)),
        (asked("abstention"), None),
    ]
    scores = summarize("beam", results)
    assert scores.by_ability == {"abstention": 0.0, "summarization": pytest.approx(0.9)}
    assert scores.overall == pytest.approx(0.45)
    assert scores.counts == {"abstention": 2, "summarization": 3}


def test_event_ordering_is_reported_with_its_correlation() -> None:
    results = [
        (asked("event_ordering"), scored(0.5, tau_b=1.0, tau_norm=1.0)),
        (asked("event_ordering"), scored(0.5, tau_b=0.0, tau_norm=0.5)),
        (asked("event_ordering"), scored(0.5)),
        (asked("abstention"), scored(1.0)),
    ]
    scores = summarize("beam", results)
    assert scores.by_ability["event_ordering"] == 0.5
    assert (scores.extra["tau_b"], scores.extra["tau_norm"]) == (0.5, 0.75)
    assert "overall_with_tau_norm" not in scores.extra
    official = summarize("beam", results, official=True)
    assert official.overall == scores.overall == 0.75
    assert official.extra["overall_with_tau_norm"] == pytest.approx((0.5 + 1.0) / 2)


def test_longmemeval_has_micro_macro_types_and_abstention() -> None:
    results = [
        (asked("multi-session", abstention=False), scored(1.0)),
        (asked("multi-session", abstention=False), scored(1.0)),
        (asked("multi-session", abstention=True), scored(0.0)),
        (asked("knowledge-update", abstention=False), None),
    ]
    scores = summarize("longmemeval", results)
    assert scores.overall == scores.extra["micro"] == 0.5
    assert scores.extra["macro"] == pytest.approx((2 / 3 + 0) / 2)
    assert scores.extra["abstention"] == 0.0
    assert scores.by_ability == {"knowledge-update": 0.0, "multi-session": pytest.approx(2 / 3)}


def test_verdicts_that_lack_a_grade_are_counted() -> None:
    results = [
        (asked("abstention"), JudgeVerdict(outcome="judge-unreadable")),
        (asked("abstention"), scored(1.0)),
    ]
    assert summarize("beam", results).extra["unreadable"] == 1


def test_nothing_is_zero_and_other_benchmarks_are_refused() -> None:
    for benchmark in ("beam", "longmemeval"):
        assert summarize(benchmark, []).overall == 0.0
    with pytest.raises(BadInput, match="no scoring for 'loca'"):
        summarize("loca", [])


@pytest.mark.parametrize(
    ("one", "other", "tau"),
    [
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 1.0),
        ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [3, 1, 2, 5, 4], 0.4),
        ([12, 2, 1, 12, 2], [1, 4, 7, 1, 0], -0.4714045207910316),
        ([1, 1, 2], [1, 2, 3], 0.8164965809277261),
        ([1, 1, 1], [1, 2, 3], None),
        ([1], [1], None),
        ([], [], None),
    ],
)
def test_tau_b_has_its_known_values(
    one: list[float], other: list[float], tau: float | None
) -> None:
    assert kendall_tau_b(one, other) == (None if tau is None else pytest.approx(tau))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_tau_b_is_bounded_symmetric_and_turns_with_the_order(pairs: list[tuple[int, int]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    tau = kendall_tau_b(one, other)
    assert kendall_tau_b(other, one) == tau
    if tau is not None:
        assert -1 - 1e-9 <= tau <= 1 + 1e-9
        assert kendall_tau_b(one, [-b for b in other]) == pytest.approx(-tau)
    else:
        assert len(set(one)) < 2 or len(set(other)) < 2


def test_orders_of_different_length_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        kendall_tau_b([1], [1, 2])


def test_what_is_missing_or_extra_weakens_an_order() -> None:
    whole = compare_orders(4, [1, 2, 3, 4])
    part = compare_orders(4, [1, 2])
    padded = compare_orders(4, [1, 2, 3, 4, 0, 0])
    assert (whole["tau_b"], whole["f1"]) == (1.0, 1.0)
    assert part["recall"] == 0.5
    assert part["precision"] == 1.0
    assert padded["precision"] == pytest.approx(4 / 6)
    assert max(part["tau_b"], padded["tau_b"]) < 1.0
    assert compare_orders(3, [])["f1"] == 0.0
    assert "tau_b" not in compare_orders(3, [])
    assert "tau_b" not in compare_orders(1, [1])


def test_a_partial_order_by_hand() -> None:
    # three reference items, the answer names the third, something else, then the first
    # ranks of 1, 2, 3, extra: reference 1, 2, 3, 5; answer 3, 5, 1, 2
    found = compare_orders(3, [3, 0, 1])
    assert found["tau_b"] == pytest.approx(kendall_tau_b([1, 2, 3, 5], [3, 5, 1, 2]) or 0.0)
    assert found["recall"] == pytest.approx(2 / 3)
