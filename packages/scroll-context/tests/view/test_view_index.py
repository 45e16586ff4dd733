"""The eviction index: few blocks, every address, detail that fades and never goes out."""

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.view.entries import Notice
from scroll_context.view.headline import headline
from scroll_context.view.index import LINE_CHARS, RUNS, EvictionIndex, IndexLine, joined, line_for
from scroll_context.view.passage import Passage
from view_histories import blocks


def line(seq: int, last: int | None = None) -> IndexLine:
    one = joined([line_for(Notice(Passage(seq, "", "", "", 0), 0))])
    return IndexLine(
        ((seq, last or seq),),
        1,
        headline(f"task {seq // 40}", f"state {seq}"),
        one.text,
        one.tokens,
    )


def filled(n: int, limit: int, batch: int = 1, width: int = 8) -> EvictionIndex:
    index = EvictionIndex(width=width)
    for start in range(0, n, batch):
        index = index.extended(
            [line(10 * i + 10, 10 * i + 17) for i in range(start, min(n, start + batch))], limit
        )
    return index


@given(
    st.integers(0, 600),
    st.integers(1, 40),
    st.integers(3, 9),
    st.sampled_from([0, 400, 1000, 10**9]),
)
def test_every_seq_stays_addressed_by_few_blocks(
    n: int, batch: int, width: int, limit: int
) -> None:
    index = filled(n, limit, batch, width)
    spans = [span for one in index.lines for span in one.spans]
    for i in range(n):
        assert any(lo <= 10 * i + 10 and 10 * i + 17 <= hi for lo, hi in spans)
        found = index.find(10 * i + 12)
        assert found is not None and found.text in index.render()
    assert sum(one.entries for one in index.lines) == n
    assert blocks(index) <= width * (2 + math.log(max(n, 1), width - 1))
    assert all(
        len(level) < width and all(len(block.lines) <= width for block in level)
        for level in index.levels
    )
    assert spans == sorted(spans), "oldest first"
    assert len(list(index.lines)) >= min(n, 2), "never a single line"
    assert index.tokens <= limit or index.extended([], limit) == index, "could be rolled further"


entries = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9), st.text(max_size=200), st.text(max_size=200)),
    min_size=1,
    max_size=120,
)


@given(
    entries,
    st.integers(1, 12),
    st.integers(3, 9),
    st.sampled_from([0, 300, 1500, 10**9]),
    st.randoms(),
)
def test_whatever_leaves_in_whatever_order_is_named_and_nothing_else(
    drawn: list[tuple[int, int, str, str]],
    batch: int,
    width: int,
    limit: int,
    chance: random.Random,
) -> None:
    """Requests leave long after the steps around them, so spans come with gaps and out of order."""
    lines, seq = [], 0
    for gap, length, task, state in drawn:
        seq += gap + 1
        one = headline(task, state)
        lines.append(
            IndexLine(
                ((seq, seq + length),), 1, one, f"- seq {seq}-{seq + length}: {one.full()}", 50
            )
        )
        seq += length
    added = [line.spans[0] for line in lines]
    for _ in range(len(lines) // 8):
        lines.append(lines.pop(chance.randrange(len(lines))))
    index = EvictionIndex(width=width)
    for start in range(0, len(lines), batch):
        index = index.extended(lines[start : start + batch], limit)

    for lo, hi in added:
        line = index.find(lo)
        assert line is not None and any(first <= lo and hi <= last for first, last in line.spans)
    assert sum(line.entries for line in index.lines) == len(added)
    starts, ends = {lo for lo, _ in added}, {hi for _, hi in added}
    for line in index.lines:
        assert all(first in starts and last in ends for first, last in line.spans), (
            "no seq outside is claimed"
        )
        assert len(line.spans) <= RUNS and list(line.spans) == sorted(line.spans)
        named = re.match(r"- seq ([\d, -]+)", line.text)
        runs = [run.split("-") for run in named[1].split(", ")]
        assert tuple((int(run[0]), int(run[-1])) for run in runs) == line.spans, (
            "the model reads what we know"
        )
        assert line.entries == 1 or len(line.text.partition(": ")[2]) <= LINE_CHARS
        assert len(line.text.splitlines()) == 1
    assert blocks(index) <= width * (2 + math.log(len(added), width - 1))
    assert index.tokens <= limit or index.extended([], limit) == index


def test_the_newest_keep_full_detail_and_the_oldest_fade() -> None:
    index = filled(1000, 10**9)
    sizes = [one.entries for one in index.lines]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1 and sizes[0] == 49


def test_a_tight_limit_rolls_further_and_holds() -> None:
    loose, tight = filled(1000, 10**9), filled(1000, 700)
    assert tight.tokens <= 700 < loose.tokens
    assert 2 <= len(list(tight.lines)) < len(list(loose.lines))


@pytest.mark.parametrize("limit", [500, 1_000, 2_000])
def test_a_limit_that_rolls_tiers_early_still_fades_gradually(limit: int) -> None:
    index = filled(3_000, limit)
    sizes = [one.entries for one in index.lines]
    assert index.tokens <= limit
    assert max(sizes) < 0.25 * 3_000, "no line swallows the rest"
    assert sizes[-1] == 1


def test_lines_are_packed_so_that_early_rolls_do_not_add_tiers() -> None:
    index = filled(3_000, 500, width=3)
    assert len(index.levels) <= 2 + math.log(3_000, 2)


def test_a_new_block_leaves_the_text_before_it_as_it_was() -> None:
    index = filled(1000, 10**9)
    for n in range(8):
        grown = index.extended([line(20_000 + n)], 10**9)
        if blocks(grown) > blocks(index):
            assert grown.render().startswith(index.render())
        else:  # a level rolled up: the coarse lines before it stand
            coarse = "\n".join(one.text for one in index.lines if one.entries == 49)
            assert coarse in grown.render() and blocks(grown) < blocks(index)
        index = grown


@pytest.mark.parametrize(
    ("spans", "shown"),
    [
        ([(3, 9), (11, 20)], "seq 3-20 (2)"),  # what lies between is bookkeeping
        ([(3, 9), (900, 950)], "seq 3-9, 900-950 (2)"),
        ([(3, 3), (100, 100), (200, 200), (300, 300), (390, 390)], "seq 3-100, 200, 300-390 (5)"),
    ],
)
def test_a_line_names_its_runs(spans: list[tuple[int, int]], shown: str) -> None:
    assert f"- {shown}:" in joined([line(lo, hi) for lo, hi in spans]).text


def test_an_empty_index_says_nothing() -> None:
    assert EvictionIndex().render() == "" and EvictionIndex().tokens == 0
