"""What a terminal or a model would obey unseen is taken out of text; everything else stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.text.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, tab\t and\nnewline", "plain, tab\t and\nnewline"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\x1b]52;c;AAAA\x07b\x1b]0;title\x1b\\c", "abc"),
        ("cut off \x1b]8;;http://evil", "cut off "),
        ("\x1bcreset \x1b(Bset", "reset set"),
        ("abc\u202etxt.exe\u202c \u2066x\u2069", "abctxt.exe x"),
        ("\U000e0041\U000e0042hidden\u200b\ufeff", "hidden"),
        ("line\r\noverwritten\x08\x7f\x9b", "line\noverwritten"),
        ("\ud800half", "half"),
        ("Grüße 東京 👩\u200d👧 نص", "Grüße 東京 👩\u200d👧 نص"),
        (
            "می\u200cخواهم 👩\u200d❤\ufe0f\u200d👩 1\ufe0f\u20e3",
            "می\u200cخواهم 👩\u200d❤\ufe0f\u200d👩 1\ufe0f\u20e3",
        ),
        ("pay\u00ad\u034f\ufe01\ufe0f Bob\u3164\u115f\u1160\uffa0", "pay Bob"),
        ("a\ufe0f\ufe0e\ufe0f😀\ufe0e\ufe0f\ufe0f", "a😀"),
        ("x\U000e0100\U000e01ef\U000e0fff\u180b\u17b4", "x"),
        ("ab\u200d\u200c\u200d東\u200c\u200d\u200c", "ab東"),
    ],
)
def test_what_is_taken_out_and_what_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


FILLERS = "\u115f\u1160\u3164\uffa0"  # letters without a shape


@given(
    st.text(
        st.characters(
            codec="utf-8", categories=["L", "N", "P", "S", "Zs"], exclude_characters=FILLERS
        )
    )
)
def test_visible_text_is_not_touched(text: str) -> None:
    assert printable(text) == text


@given(st.text())
def test_nothing_is_left_that_a_second_look_would_take_out(text: str) -> None:
    assert printable(printable(text)) == printable(text)
    assert "\x1b" not in printable(text)
