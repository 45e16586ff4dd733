"""Counting without a tokenizer, and learning from the provider's own count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.view.tokens import Gauge, estimate

gauges = st.builds(
    lambda pairs: _taught(pairs),
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**7)), max_size=4),
)


def _taught(pairs: list[tuple[int, int]]) -> Gauge:
    gauge = Gauge()
    for raw, reported in pairs:
        gauge = gauge.observed(raw, reported)
    return gauge


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("", 0, 0),
        ("The quick brown fox jumps over the lazy dog. " * 20, 180, 280),
        ("東京都庁の展望台は無料です" * 10, 110, 150),
        ("Привет, как дела? " * 10, 60, 130),
        ("🙂" * 10, 10, 25),
    ],
)
def test_estimates_are_near_what_tokenizers_give(text: str, least: int, most: int) -> None:
    assert least <= estimate(text) <= most


@given(st.text(), st.text())
def test_a_longer_text_never_counts_less(one: str, other: str) -> None:
    assert estimate(one) <= estimate(one + other) <= estimate(one) + estimate(other)


def test_a_report_of_zero_means_unknown() -> None:
    gauge = Gauge().observed(1000, 1500)
    assert gauge.observed(1200, 0) == gauge


def test_what_is_new_is_estimated_from_the_last_report() -> None:
    gauge = Gauge().observed(1000, 1500)
    assert gauge.raw_for(1500) == 1000
    assert gauge.raw_for(1650) == 1100
    assert gauge.unanchored().raw_for(1650) == 1100


def test_the_ratio_follows_the_provider_and_stays_sane() -> None:
    gauge = _taught([(1000, 1000), (2000, 3200), (4000, 6400), (5000, 8000), (6000, 9600)])
    assert 1.5 < gauge.ratio < 1.61
    assert _taught([(10, 10**6)]).ratio == 4.0
    assert _taught([(10**6, 10)]).ratio == 0.25


@given(gauges, st.integers(0, 10**7))
def test_the_largest_raw_count_within_a_limit(gauge: Gauge, limit: int) -> None:
    def tokens(raw: int) -> float:
        return gauge.reported + (raw - gauge.raw) * gauge.ratio

    raw = gauge.raw_for(limit)
    if raw:
        assert tokens(raw) <= limit + 1  # one for rounding
        assert tokens(raw + 8) > limit


def test_an_overflow_raises_the_ratio_to_fill_the_window() -> None:
    gauge = Gauge().overflowed(20_000, 32_000)
    assert gauge.raw_for(32_000) <= 20_000
    assert Gauge(ratio=2.0).overflowed(20_000, 32_000).ratio == 2.0


def test_an_overflow_forgets_the_anchor_of_the_requests_before() -> None:
    gauge = Gauge().observed(20_000, 10_000).overflowed(40_000, 32_000)
    assert gauge.raw_for(32_000) <= 40_000, "a request of this size was refused"
    assert gauge.raw_for(16_000) <= 20_000
