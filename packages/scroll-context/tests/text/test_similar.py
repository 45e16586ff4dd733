"""Near-duplicates are folded, and texts that differ in a number are not."""

from scroll_context.text.similar import Folder

LONG = "the pump of the northern station stopped at night and the operator restarted it by hand before the shift ended"


def fold(texts: list[str]) -> list[list[int]]:
    """The positions of near-duplicates, group by group."""
    folder, groups = Folder(), dict[int, list[int]]()
    for position, text in enumerate(texts):
        groups.setdefault(folder.add(text)[0], []).append(position)
    return list(groups.values())


def test_case_punctuation_and_a_word_more_make_no_difference() -> None:
    texts = [
        LONG,
        LONG.upper() + "!",
        "Something else altogether about cats and dogs",
        LONG + " today",
    ]
    assert fold(texts) == [[0, 1, 3], [2]]


def test_another_number_makes_a_difference() -> None:
    assert fold([f"{LONG} 17 times", f"{LONG} 18 times", f"{LONG} 17 times"]) == [[0, 2], [1]]
    assert fold(["12:30", "12:45", "", "", "ok", "OK."]) == [[0], [1], [2, 3], [4, 5]]


def test_many_texts_are_folded_into_few_groups() -> None:
    texts = [f"{LONG} in {place}" for place in ("Rome", "Oslo", "Bern") for _ in range(200)]
    assert sorted(map(len, fold(texts)), reverse=True)[0] >= 200
