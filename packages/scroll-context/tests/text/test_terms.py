"""The terms of a session say what it was about, and a new session costs only its own counting."""

import random

import pytest

from scroll_context.text.terms import (
    NEIGHBOURS,
    SummedTerms,
    TermTable,
    counted_terms,
    counted_turn,
    distinctive,
    log_likelihood,
    marked_words,
    opening,
    title,
)
from scroll_context.text.words import stem
from scroll_context.view.headline import merged_terms

OPENERS = (
    "I'm trying to understand {}, can you help me?",
    "ok cool, but how do I use {} here?",
    "Can you explain {} again, please? I never got it.",
    "Thanks! What is the best way to start with {} today?",
)
TOPICS = {
    "heat": [
        "the heat equation",
        "the heat equation",
        "the boundary conditions",
        "thermal diffusivity",
    ],
    "wave": [
        "the wave equation",
        "the vibrating string",
        "the boundary conditions",
        "the wave equation",
    ],
    "notes": ["the Cornell method", "my lecture notes", "the Cornell method", "digital flashcards"],
    "shop": ["the sourdough starter", "rye flour", "the sourdough starter", "oven temperature"],
}


def chat(topic: str, turns: int = 24) -> list[str]:
    return [OPENERS[n % 4].format(TOPICS[topic][(n // 2) % 4]) for n in range(turns)]


def test_terms_name_what_sets_a_session_apart_and_no_openers() -> None:
    heat, wave, notes, shop = distinctive(chat(topic) for topic in TOPICS)
    assert "heat equation" in heat and "wave equation" in wave
    assert "Cornell method" in notes and "sourdough starter" in shop
    said = " ".join((*heat, *wave, *notes, *shop)).lower()
    assert not {"trying", "understand", "cool", "explain", "help", "thanks", "way"} & set(
        said.split()
    )


def test_counting_session_by_session_gives_what_counting_all_at_once_gives() -> None:
    table = TermTable()
    for topic in TOPICS:
        number = table.add()
        for turn in chat(topic):
            table.extend([turn])
        assert table.terms(number)  # asking in between changes nothing
    assert [table.terms(n) for n in range(len(table))] == distinctive(
        chat(topic) for topic in TOPICS
    )


def test_turns_that_were_counted_before_give_the_same_terms() -> None:
    rng = random.Random(4)
    words = [f"word{letter}{other}" for letter in "abcdefghij" for other in "klmnopqrst"]
    # One turn has more terms than stay counted once its session is closed.
    turns = [" ".join(rng.choices(words, k=size)) for size in (30, 400, 5, 80, 400)]
    counted = [counted_turn(turn) for turn in turns]
    for order in (turns, turns[::-1]):
        fresh, again = TermTable(), TermTable()
        for turn in order:
            fresh.add([turn])
            again.add_turn(counted[turns.index(turn)])
        for number in range(len(order)):
            assert again.terms(number) == fresh.terms(number)


def test_sums_and_neighbours_give_the_same_terms_as_all_sessions() -> None:
    topics = [topic for topic in TOPICS for _ in range(4)]
    counted = [counted_terms(chat(topic)[place % 3 :]) for place, topic in enumerate(topics)]
    complete = TermTable()
    sums = SummedTerms()
    for terms in [*counted, counted[0]]:
        sums.add(terms)
    sums.remove(counted[0])
    for terms in counted:
        complete.add_counted(terms)
    complete.add(chat("heat"))
    for number in range(len(topics)):
        near = range(max(0, number - NEIGHBOURS), min(number + NEIGHBOURS + 1, len(counted)))
        table = TermTable.over(sums, {place: counted[place] for place in near}, len(counted))
        table.add(chat("heat"))
        assert table.terms(number) == complete.terms(number)
        assert len(table) == len(complete)


def test_the_only_session_is_told_by_its_most_frequent_terms() -> None:
    assert "heat equation" in distinctive([chat("heat")])[0]
    assert distinctive([["Book a table at Luigi's restaurant"]])[0]


def test_a_session_without_words_has_no_terms() -> None:
    assert distinctive([[], ["ok", "```x = 1```", "??"], chat("heat")])[:2] == [(), ()]


def test_code_formulas_links_and_stop_words_make_no_terms() -> None:
    text = "Look at `foo_bar` in ```import zebra``` and $x^2 + kiwi$ at https://example.org/mango for the lemon tree"
    assert [word[1] for word in marked_words(text) if word] == ["lemon", "tree"]
    words = [word and word[1] for word in marked_words("lemon tree, and a kiwi")]
    assert words == ["lemon", "tree", None, None, None, "kiwi"]


def test_words_of_any_conversation_make_no_terms_by_themselves() -> None:
    sessions = [
        ["Nope, that makes no sense. It holds true for sum_ and inx, run it, move the bullet."] * 5
        + ["A play about the lighthouse keeper, with a chess move."] * 3,
        ["The ferry to Naxos leaves at noon."] * 8,
    ]
    terms = distinctive(sessions)[0]
    fillers = {"nope", "sense", "play", "run", "move", "bullet", "holds true", "sum_", "inx"}
    assert fillers.isdisjoint(term.lower() for term in terms)
    assert any("lighthouse" in term for term in terms)


def test_terms_share_no_word_and_prefer_the_phrase_that_most_turns_hold() -> None:
    sessions = [
        [
            f"We tune the gradient boosting model on set {n}, gradient by gradient boosting"
            for n in range(9)
        ],
        chat("heat"),
        chat("notes"),
    ]
    terms = distinctive(sessions)[0]
    assert any("gradient boosting" in term for term in terms)
    stems = [stem(word) for term in terms for word in term.lower().split()]
    assert len(stems) == len(set(stems))


def test_the_same_turns_always_give_the_same_terms() -> None:
    rng = random.Random(5)
    vocabulary = [
        f"{a}{b}"
        for a in ("lum", "tar", "vok", "sen", "pri")
        for b in ("ando", "ekis", "ulat", "oren")
    ]
    sessions = [[" ".join(rng.choices(vocabulary, k=9)) for _ in range(12)] for _ in range(6)]
    assert distinctive(sessions) == distinctive(sessions)


def test_chinese_and_japanese_sessions_get_terms() -> None:
    chinese = distinctive(
        [["请解释热传导方程", "热传导方程的边界条件是什么?"], chat("wave"), chat("shop")]
    )[0]
    assert "热传" in chinese or "传导" in chinese
    assert any(
        "プログラミング" in term
        for term in distinctive([["プログラミングを学ぶ"] * 3, chat("wave")])[0]
    )


@pytest.mark.parametrize(("count", "turns", "others", "other_turns"), [(0, 5, 1, 9), (1, 5, 4, 9), (5, 5, 9, 9), (1, 1, 0, 0)])  # fmt: skip
def test_a_term_that_is_not_more_frequent_here_scores_nothing(
    count: int, turns: int, others: int, other_turns: int
) -> None:
    assert log_likelihood(count, turns, others, other_turns) == 0


def test_the_ratio_is_dunnings() -> None:
    assert log_likelihood(10, 100, 10, 1_000) == pytest.approx(22.9, abs=0.1)


def test_merging_keeps_what_several_share_and_something_of_each() -> None:
    lists = [
        ("heat equation", "diffusivity", "domain"),
        ("wave equation", "string", "Heat Equation"),
        ("notes",),
    ]
    merged = merged_terms(lists, 7)
    assert merged[0] in ("heat equation", "Heat Equation")
    assert "notes" in merged and "diffusivity" in merged
    assert merged_terms([("a term",)] * 3, width=2) == ("a term",)
    assert len(merged_terms([tuple(f"word{n}{m}" for n in range(7)) for m in "xyz"], width=5)) == 5


def test_a_title_begins_with_what_means_something() -> None:
    assert (
        title(["hi", "ok thanks", "I'm trying to understand how the heat equation works."])
        == "heat equation works."
    )
    assert title(["I've never used a food thermometer."]) == "never used a food thermometer."
    assert title([]) == "" and len(title(["word " * 99])) <= 80


def test_a_title_is_about_the_terms_where_there_are_some() -> None:
    turns = [
        "Let me tell you about my cousin's birthday first.",
        "Can you plan a kitchen renovation with oak floors?",
    ]
    assert title(turns, ("kitchen renovation", "oak floors")).startswith(
        "kitchen renovation with oak floors"
    )


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (["hi", "ok thanks!", "Fix the toll booth. Then test it."], "Fix the toll booth."),
        (
            ["Hello! Could you please help me? The barrier of lane 3 jams at night."],
            "The barrier of lane 3 jams at night.",
        ),
        (
            ["```py\nx = 1\n```\nhttps://example.org/a\nWhy does the parser fail"],
            "Why does the parser fail",
        ),
        (["<command-name>/clear</command-name>", "Count all lamps"], "Count all lamps"),
        (["ok", "yes"], "ok"),
        ([], ""),
        (["lamp " * 40 + "barrier"], "lamp lamp lamp lamp…"),
    ],
)
def test_an_opening_is_the_first_sentence_that_says_something(
    turns: list[str], expected: str
) -> None:
    assert opening(turns, 24 if expected.endswith("…") else 80) == expected
