"""An extract covers a stretch from its beginning to its end, within its room, in the words that
were said.
"""

from hypothesis import given
from hypothesis import strategies as st

from scroll_context.text.gist import SEQ, gist
from scroll_context.text.words import stem

THINGS = [
    f"{a}{b}"
    for a in ("Bel", "Cor", "Dan", "Fel", "Gar", "Hol")
    for b in ("mont", "wick", "ford", "stead", "ham")
]


def chat(turns: int) -> list[tuple[int, str]]:
    def said(n: int) -> str:
        moved = f"I moved my bakery from {THINGS[n % 30]} to number {n} in {THINGS[(n * 7 + 1) % 30]} Street"
        return f"ok cool. {moved}, can you help me with that?"

    return [(2 * n + 1, said(n)) for n in range(turns)]


def test_the_whole_stretch_is_covered_in_order() -> None:
    extract = gist(chat(300), chars=3_000)
    seqs = [one.seq for one in extract]
    assert seqs == sorted(seqs) and len(seqs) >= 15
    assert all(any(lo <= seq < lo + 100 for seq in seqs) for lo in range(1, 600, 100))


def test_requests_and_openers_are_left_out_and_what_is_said_stays_as_said() -> None:
    turns = dict(chat(40))
    for one in gist(turns.items(), chars=2_000):
        assert "can you help" not in one.text and "cool" not in one.text
        assert one.text.rstrip("…") in turns[one.seq]


def test_repeats_are_folded_and_counted() -> None:
    repeated = [(n, "My dentist is Doctor Alvarez in Camden Road.") for n in range(1, 40)]
    [only] = gist(repeated)
    assert (only.seq, only.repeats) == (1, 38)
    nearly = [(n, f"My dentist is Doctor Alvarez{'!' * n} in Camden Road.") for n in range(1, 9)]
    assert sum(one.repeats + 1 for one in gist(nearly)) == 8 and len(gist(nearly)) == 1


def test_what_differs_in_a_number_is_not_folded() -> None:
    extract = gist(
        [(1, "My rent in Camden Road is 900 pounds."), (2, "My rent in Camden Road is 950 pounds.")]
    )
    assert [one.seq for one in extract] == [1, 2]


def test_the_words_of_a_question_come_first() -> None:
    turns = [*chat(60), (200, "My sister Petra studies marine biology in Lisbon.")]
    assert 200 in [one.seq for one in gist(turns, chars=300, favour={stem("biology")})]


def test_an_empty_stretch_gives_nothing() -> None:
    assert gist([]) == [] and gist([(1, "ok"), (2, "")]) == []


@given(st.lists(st.text(max_size=300), max_size=12), st.integers(0, 900))
def test_the_room_is_never_exceeded(texts: list[str], chars: int) -> None:
    extract = gist(enumerate(texts, 1), chars=chars)
    assert sum(len(one.text) + SEQ for one in extract) <= max(chars, 0)
