"""Which texts count as repeating a word, a text or a value that must not remain."""

import json

import pytest

from scroll_context.upkeep.needles import Needles, NewValues, values


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("nadia", "NADIA came"),
        ("NADIA", "I met nadia."),
        ("Müller", "Frau MULLER"),
        ("muller", "Frau Müller"),
        ("Ｎａｄｉａ", "nadia"),
        ("nadia", "Ｎａｄｉａ came"),
        ("straße", "the Strasse"),
        ("Nadia Brandt", "nadia\n brandt"),
        ("Nadia Brandt", "nadia_brandt.csv"),
        ("heron", "two HERONS"),
        ("nadia", "\x1b[31mNadia\x1b[0m"),
        ("Nadia", "SuperNadia2"),  # as it is written, inside a word too
        ("müller", json.dumps("Herr Müller")),
        ("nadia brandt", json.dumps("see\nNADIA\nBrandt")),
        ("東京", "明日は東京へ"),
        ("SK-LIVE-51HQ", "key: sk-live-51hq."),
        ("😀 party", json.dumps("a 😀 party")),
    ],
)
def test_a_word_is_compared_as_search_compares_words(word: str, text: str) -> None:
    assert Needles([word]).has_word(text)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("Ada", "Canada"),
        ("ada", "the Adapter"),
        ("Nadia Brandt", "Nadia met Mr Brandt"),
        ("東京", "京都と東の海"),
        ("4711", "47110"[1:]),
        ("nadia", ""),
    ],
)
def test_a_word_inside_another_word_is_not_that_word(word: str, text: str) -> None:
    assert not Needles([word]).has_word(text)


def test_a_text_is_found_whole_in_json_and_line_by_line() -> None:
    needles = Needles()
    needles.add("Her number is 4711-0815, she said.")
    assert needles.has_text("> Her number is 4711-0815, she said. <")
    needles.add("\n".join(f"the guest of room {number} is at home" for number in range(300)))
    assert needles.has_text("first\n  the guest of room 17 is at home\nlast")
    assert needles.has_text(json.dumps({"text": "x\nthe guest of room 17 is at home\ny"}))
    assert not needles.has_text("the guest of room 17 is at home, I think")


@pytest.mark.parametrize("text", ["go ahead", "Yes, please do.", "thanks a lot", "ok"])
def test_what_people_say_every_day_is_not_looked_for(text: str) -> None:
    needles = Needles()
    needles.add(text)
    assert not needles.has_text(f"Well: {text}")


def test_values_are_numbers_and_ids_that_hardly_occur_by_chance() -> None:
    assert values(
        "it is 97,463.0, or 97463.0; id ab12-34567, room 12, in 2024, on 2024-07-01 at 10:30"
    ) == {
        "97463.0",
        "ab12-34567",
    }


def test_only_new_values_of_a_short_output_are_looked_for() -> None:
    new = NewValues(["order 88123 is here"])
    new.computed("order 88123 costs 4711.25")
    assert not new.repeated_in("what about order 88123?")
    assert new.repeated_in("It costs 4,711.25 in all.")
    long = NewValues([])
    long.computed(" ".join(str(number) for number in range(50_000, 50_100)))
    assert not long.repeated_in("50007")


def test_a_text_is_not_part_of_a_longer_number_or_word() -> None:
    needles = Needles()
    needles.add("room 101")
    assert needles.has_text("the key of room 101, please") and needles.has_text("room 101")
    assert not needles.has_text("room 1012 is the kitchen")
    assert not needles.has_text("the darkroom 1011 list")
