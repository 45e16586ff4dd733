"""The query language: every text parses, operators hold, and nothing asks for more than it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.search.query import (
    MAX_TERMS,
    All,
    AnyOf,
    Field,
    Term,
    Words,
    parse,
    relaxed,
    terms_of,
)


def word(*tokens: str, prefix: bool = False) -> Term:
    return Term(tokens, prefix=prefix)


def phrase(*tokens: str) -> Term:
    return Term(tokens, quoted=True)


def bare(*terms: Term) -> Words:
    return Words(tuple(t for t in terms if t.quoted), tuple(t for t in terms if not t.quoted))


def question(*terms: Term) -> Words:
    return Words((), terms, question=True)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("sprint 2024-11-05", bare(word("sprint"), word("2024", "11", "05"))),
        ("call_9f3a v1.2.3", bare(word("call", "9f3a"), word("v1", "2", "3"))),
        ("src/app/main.py", bare(word("src", "app", "main", "py"))),
        ("C++ and C#?", bare(Term(("c++",), Field.SIGNS), Term(("c#",), Field.SIGNS))),
        ("Pamela's café", bare(word("pamela"), word("cafe"))),
        ("didn’t", bare(word("didn", "t"))),
        ('"status board" plan', bare(phrase("status", "board"), word("plan"))),
        ("“curly quotes”", bare(phrase("curly", "quotes"))),
        ("vend* call_9f*", bare(word("vend", prefix=True), word("call", "9f", prefix=True))),
        ("map map MAP", bare(word("map"))),
        ("東京", bare(Term(("東京",), Field.PAIRS))),
        ("東京都", bare(Term(("東京",), Field.PAIRS), Term(("京都",), Field.PAIRS))),
        ("京", bare(Term(("京",), Field.PAIRS, prefix=True))),
        ("tokyo東京", bare(Term(("東京",), Field.PAIRS), word("tokyo"))),
        ("main() f(x)", bare(word("main"), word("f", "x"))),
        ("a OR b", AnyOf((word("a"), word("b")))),
        ("x AND y z", All((word("x"), word("y"), word("z")))),
        ("x y OR z", AnyOf((All((word("x"), word("y")), loose=True), word("z")))),
        (
            "x y OR z (v OR w)",
            AnyOf(
                (
                    All((word("x"), word("y")), loose=True),
                    All((word("z"), AnyOf((word("v"), word("w")))), loose=True),
                )
            ),
        ),
        ("79% of 16gb", bare(Term(("79%",), Field.SIGNS), word("16gb"))),
        ("x NOT y", All((word("x"),), (word("y"),))),
        ("x AND NOT (y OR z)", All((word("x"),), (AnyOf((word("y"), word("z"))),))),
        ("(x OR y) AND z", All((AnyOf((word("x"), word("y"))), word("z")))),
        ('"a b" OR f(x)', AnyOf((phrase("a", "b"), word("f", "x")))),
        ("東京都 OR tokyo", AnyOf((Term(("東京", "京都"), Field.PAIRS), word("tokyo")))),
        ("never OR not", AnyOf((word("never"), word("not")))),
    ],
)
def test_tree(text: str, tree: object) -> None:
    assert parse(text) == tree


def test_a_question_keeps_the_words_of_its_subject() -> None:
    asked = "Can you list the order in which I brought up different parts of my garden budget throughout our conversations?"
    assert parse(asked) == question(word("brought"), word("parts"), word("garden"), word("budget"))
    few = "order before different items"
    assert parse(few) == bare(word("order"), word("before"), word("different"), word("items"))
    only_weak = "before between during throughout various different others"
    assert len(terms_of(parse(only_weak))) == 7


def test_the_paper_s_disjunction() -> None:
    tree = parse("Pamela misunderstanding OR correction OR didn't OR wasn't")
    first = All((word("pamela"), word("misunderstanding")), loose=True)
    assert tree == AnyOf((first, word("correction"), word("didn", "t"), word("wasn", "t")))


def test_words_side_by_side_are_relaxed_and_nothing_else_is() -> None:
    assert relaxed(parse("a b OR c")) == AnyOf((All((AnyOf((word("a"), word("b"))),)), word("c")))
    for strict in ("a AND b", "a NOT b", "a OR b", "(a OR b) AND c"):
        assert relaxed(parse(strict)) == parse(strict)
    assert relaxed(parse('"a b" c d OR e')) == AnyOf(
        (All((phrase("a", "b"), AnyOf((word("c"), word("d"))))), word("e"))
    )
    assert relaxed(parse("a b NOT c")) == All((AnyOf((word("a"), word("b"))),), (word("c"),))


@pytest.mark.parametrize(
    "text",
    [
        "foo AND",
        "AND foo",
        "foo OR",
        "OR foo",
        "NOT foo",
        "(foo OR",
        "foo) OR",
        "foo AND OR",
        "foo NOT",
        '"foo',
        "foo OR NOT",
        "NOT NOT foo",
        "foo AND ()",
        "() OR foo",
        "(" * 50 + " foo OR " + ")" * 50,
    ],
)
def test_what_is_malformed_is_read_as_words(text: str) -> None:
    assert parse(text) == bare(word("foo"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "the",
        "what is it",
        "I'm",
        "***",
        '"',
        '""',
        "()",
        "AND",
        "OR NOT",
        "-- ++ #",
        "🎉",
    ],
)
def test_nothing_to_look_for(text: str) -> None:
    assert terms_of(parse(text)) == []


def test_stop_words_count_in_phrases_and_expressions() -> None:
    assert parse('"to be or not"') == bare(phrase("to", "be", "or", "not"))
    assert parse("who OR what") == AnyOf((word("who"), word("what")))
    assert parse("this.py") == bare(word("this", "py"))


def test_an_endless_query_is_bounded() -> None:
    many = " ".join(f"w{number}" for number in range(5_000))
    assert len(terms_of(parse(many))) == MAX_TERMS
    assert isinstance(parse(many.replace(" ", " OR ")), Words)
    assert terms_of(parse("x" * 1_000_000)) == []  # too long for a word


_PIECES = st.sampled_from(
    [
        "foo",
        "bar",
        "AND",
        "OR",
        "NOT",
        "(",
        ")",
        '"',
        "*",
        "'s",
        "C++",
        "東京",
        "a_b",
        "-",
        " ",
        "\x00",
    ]
)


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(_PIECES, max_size=20).map(" ".join),
        st.lists(_PIECES, max_size=20).map("".join),
    )
)
def test_every_text_is_a_query(text: str) -> None:
    terms = terms_of(parse(text))
    assert all(term.tokens and all(term.tokens) for term in terms)
    assert len(terms) <= MAX_TERMS


@given(st.text(max_size=30))
def test_a_lone_surrogate_is_read_as_a_question_mark(text: str) -> None:
    assert parse("\ud800 " + text) == parse("? " + text)
