"""Headlines: read leniently, bounded always, made from the step where the model gave none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.view.headline import (
    FIELD_CHARS,
    STATUS_CHARS,
    Headline,
    cut,
    fallback,
    headline,
    merged,
    parse_field,
    parse_reply,
    without_headline,
)

WHOLE = Headline("find flights", "212 in `flights`", "filter economy", "running")
headlines = st.builds(headline, st.text(), st.text(), st.text(), st.text())


@pytest.mark.parametrize(
    "text",
    [
        "Done.\n⟦ find flights | 212 in `flights` | filter economy | running ⟧",
        "⟦find flights|212 in `flights`|filter economy|running⟧\n\n",
        "Done.\n\n**⟦ find  flights | 212 in `flights` | filter\teconomy | running ⟧**  ",
        "Done. ⟦ find flights | 212 in `flights` | filter economy | running",
    ],
)
def test_reads_the_last_line_of_a_reply(text: str) -> None:
    assert parse_reply(text) == WHOLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "⟦ a | b | c | d ⟧\nmore text",
        "⟦⟧",
        "⟦ | | | ⟧",
        "a | b | c",
        "The meaning of a term is written ⟦term⟧",
        "The key is\n⟦word⟧",
        "of a choice it is ⟦e1 | e2⟧.",
    ],
)
def test_a_reply_without_one_has_none(text: str) -> None:
    assert parse_reply(text) is None
    assert without_headline(text) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("find flights | 212 in `flights` | filter economy | running", WHOLE),
        (["find flights", "212 in `flights`", "filter economy", "running"], WHOLE),
        (
            {
                "task": "find flights",
                "state": "212 in `flights`",
                "next": "filter economy",
                "status": "running",
            },
            WHOLE,
        ),
        ("only a task", Headline("only a task")),
        ("a | b | c | d | e", Headline("a", "b / c", "d", "e")),
        ({"task": 7, "other": 1}, Headline("7")),
        (None, None),
        (42, None),
        ({}, None),
    ],
)
def test_reads_a_field_of_any_shape(value: object, expected: Headline | None) -> None:
    assert parse_field(value) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["task", "state", "next", "status", "x"]), inner)
    ),
    max_leaves=8,
)


@given(json_values, st.text())
def test_reading_never_raises_and_is_bounded(value: object, text: str) -> None:
    for found in (parse_field(value), parse_reply(text + "⟦" + text)):
        if found:
            assert max(len(found.task), len(found.state), len(found.next)) <= FIELD_CHARS
            assert len(found.status) <= STATUS_CHARS
            assert found.full().isprintable()


@given(headlines)
def test_the_full_form_reads_back(one: Headline) -> None:
    assert parse_field(one.full()) == (one if one != Headline() else None)


lines = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(["⟦", "⟧", "|", " | ", "⟦ a | b", "\n", "\r", "**", "`", "\u2028"]),
    ),
    max_size=12,
).map("".join)


@given(
    lines,
    headlines.filter(lambda one: one != Headline()),
    st.sampled_from(["", " ", "**", "`", "\n\n"]),
)
def test_a_headline_under_any_reply_is_read_and_the_reply_is_kept(
    said: str, one: Headline, after: str
) -> None:
    reply = f"{said}\n⟦ {one.full()} ⟧{after}"
    assert parse_reply(reply) == one
    assert without_headline(reply) == said.rstrip()


@given(lines)
def test_no_reply_loses_more_than_the_end_of_its_last_line(said: str) -> None:
    kept = without_headline(said)
    assert said.startswith(kept)
    lost = said[len(kept) :].strip()
    if parse_reply(said) is None:
        assert not lost
    else:
        assert lost.startswith("⟦") and lost.count("⟦") == 1 and "\n" not in lost


@given(st.lists(headlines, min_size=1, max_size=9), st.integers(60, 200))
def test_merged_and_short_forms_are_bounded(several: list[Headline], limit: int) -> None:
    one = merged(several)
    assert max(len(one.task), len(one.state)) <= FIELD_CHARS
    assert len(one.line(limit)) <= limit
    assert one.status == several[-1].status


def test_merging_keeps_the_first_and_the_last() -> None:
    one = merged([headline("trip", f"part {n} stored in rows_{n}", status="ok") for n in range(9)])
    assert one.task == "trip" and "rows_0" in one.state and "rows_8" in one.state


def test_a_made_headline_keeps_exact_names() -> None:
    made = fallback(
        "Total the invoices",
        ["exec(rows = fetch(7))"],
        ["rows_by_supplier", "total"],
        "",
        "NameError",
    )
    assert made == Headline(
        "Total the invoices", "exec(rows = fetch(7)) → rows_by_supplier, total", "", "NameError"
    )


@given(st.text(), st.integers(8, 80))
def test_a_cut_is_one_bounded_line(text: str, limit: int) -> None:
    line = cut(text, limit)
    assert len(line) <= limit and len(line.splitlines()) <= 1
    assert cut(line, limit) == line
