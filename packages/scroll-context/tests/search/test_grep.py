"""What SQLite is asked to look for first never leaves out a row that matches, and counting finds as
many as reading.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.events import Draft
from scroll_context.search.grep import Scan
from scroll_context.search.grep_pattern import Pattern, pattern
from scroll_context.store import Store

EXPRESSIONS = {
    r"\bheat.{0,20}equation": (("equation", "heat"),),
    r"colou?r scheme": (("r scheme", "colo"),),
    r"a{2,3}bcd": (("bcd",),),
    r"foo+bar": (("bar", "foo"),),
    r"(\d+)\s*%": (("%",),),
    r"(?i)budget": (("budget",),),
    r"gibbs|dirichlet": (("gibbs",), ("dirichlet",)),
    r"(red|blue) car": ((" car",),),
    r"(?:very )?old": (("old",),),
    r"\$\d+": (("$",),),
    r"\(x\) = [a-z|(]+ \+ y": (("(x) = ", " + y"),),
    r"x|.*": (),
    r"(a(b|c)d)+": (("a", "d"),),
    r"[abc]+": (),
    r"\pL+": (),
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_texts_that_an_expression_needs(expression: str) -> None:
    assert pattern(expression, regex=True).must_hold == EXPRESSIONS[expression]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(Path(tmp_path_factory.mktemp("grep")) / "store", create=True) as store:
        alphabet = [
            "a",
            "b",
            "ab",
            "B",
            "aab",
            "a b",
            "a|b",
            "(a)",
            "b.a",
            "ba\na",
            "",
            "%",
            "a_b",
            "ä",
            "aÄb",
            "\\",
        ]
        store.log.append_many(
            [Draft(role="user", content=f"{x}{y}") for x in alphabet for y in alphabet]
        )
        yield store


PARTS = st.sampled_from(
    [
        "a",
        "b",
        "ab",
        ".",
        "a?",
        "b*",
        "a+",
        "(ab)",
        "(a|b)",
        "(?:ab)?",
        "[ab]",
        "[^a]",
        r"\.",
        r"\(",
        r"\w",
        "%",
        "_",
        "a{0,2}",
        "|",
        " ",
        "^",
        "$",
        "ä",
        r"\\",
        "(a(b)?)*",
    ]
)


@given(st.lists(PARTS, min_size=1, max_size=6).map("".join))
def test_no_row_is_left_out(store: Store, expression: str) -> None:
    if not expression.strip():
        return
    made = pattern(expression, regex=True)
    alone = Pattern(made.matcher)
    found, expected = ([one.seq for one in Scan(store.log).rows(which)] for which in (made, alone))
    assert found == expected
    plain = [one.seq for one in Scan(store.log).rows(pattern(expression))]
    wanted = re.compile(r"\s+".join(map(re.escape, expression.split())), re.IGNORECASE)
    assert plain == [event.seq for event in store.log.iterate() if wanted.search(event.content)]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Rows that are all there is to look at, bodies that lie elsewhere, and echoes."""
    with Store(Path(tmp_path_factory.mktemp("grep")) / "store", create=True) as store:
        texts = [Draft(role="user", content=text) for text in ("a", "AB", "b a", "", "ä b", "%b")]
        drafts = [texts[number % len(texts)] for number in range(1_500)]
        for at in (2, 190, 700, 1_400):
            drafts[at : at + 3] = [
                Draft(role="tool", content="c" * 40_000 + "ab"),
                Draft(role="user", content="ab", metadata={"echo": True}),
                Draft(role="user", content="ab", metadata={"echo": False}),
            ]
        store.log.append_many(drafts)
        yield store


@settings(max_examples=form(20, 40))
@given(
    st.lists(PARTS, min_size=1, max_size=4).map("".join),
    st.booleans(),
    st.booleans(),
    st.frozensets(st.integers(1, 1_500), max_size=9),
    st.integers(1, 300),
)
def test_the_rest_is_counted_as_it_would_be_read(
    mixed: Store, text: str, regex: bool, case: bool, exclude: frozenset[int], read: int
) -> None:
    if not text.strip():
        return
    sought = pattern(text, regex=regex, case=case)
    expected = len(list(Scan(mixed.log).rows(sought, exclude=exclude)))
    scan = Scan(mixed.log)
    rows = scan.rows(sought, exclude=exclude)
    seen = sum(1 for _ in islice(rows, read))
    assert seen + scan.count_rest(sought, exclude) == expected if seen == read else seen == expected
