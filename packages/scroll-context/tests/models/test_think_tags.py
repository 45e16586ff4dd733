"""`<think>` blocks are found however the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pydantic_ai", reason="the models extra is not installed")

from scroll_context.models.translate import ThinkTags

CASES = [
    ("<think>why</think>answer", ["why"], "answer"),
    ("<think>\nwhy\n</think>\n\nanswer\n", ["\nwhy\n"], "answer\n"),
    ("\n <think>why</think> <think>how</think> answer", ["why", "how"], "answer"),
    ("<think></think>answer", [""], "answer"),
    ("<think>never closed </thin", ["never closed </thin"], ""),
    ("<think>a < b </t> c</think>yes", ["a < b </t> c"], "yes"),
    ("<think>a</think>see <think>b</think>", ["a"], "see <think>b</think>"),
    ("no tags", [], "no tags"),
    ("  indented", [], "  indented"),
    ("<thin", [], "<thin"),
    ("<thinking aloud>", [], "<thinking aloud>"),
    ("a <think>b</think> c", [], "a <think>b</think> c"),
    ("</think> x", [], "</think> x"),
    ("", [], ""),
]


def split(pieces: list[str]) -> tuple[list[str], str]:
    tags = ThinkTags()
    visible = "".join([*(tags.feed(piece) for piece in pieces), tags.finish()])
    return tags.thinking, visible


@pytest.mark.parametrize(("text", "thinking", "visible"), CASES)
def test_every_cut_in_one_two_and_three_pieces(
    text: str, thinking: list[str], visible: str
) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert split([text[:first], text[first:second], text[second:]]) == (thinking, visible)


@pytest.mark.parametrize(("text", "thinking", "visible"), CASES)
def test_one_character_at_a_time(text: str, thinking: list[str], visible: str) -> None:
    assert split(list(text)) == (thinking, visible)


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<", "think>", "/", " ", "\n", "a", "é"]),
        max_size=12,
    ),
    st.data(),
)
def test_cuts_never_change_the_result(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces) == split([text])


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    tags = ThinkTags()
    assert [tags.feed(piece) for piece in ("<think>x</think>", "\n", "yes", ", <th", "ink>")] == [
        "",
        "",
        "yes",
        ", <th",
        "ink>",
    ]
