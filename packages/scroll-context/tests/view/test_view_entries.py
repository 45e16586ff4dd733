"""Stubs and clips: recognisable, idempotent, smaller than what they replace, with the address of
the whole.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.events import Event, Kind, Payload
from scroll_context.log.payloads import excerpt
from scroll_context.view.passage import HELD_CHARS, Form, passage
from scroll_context.view.steps import decoded, step
from scroll_context.view.wording import MARK

texts = st.builds(lambda text, times: text * times, st.text(max_size=40), st.integers(0, 400))


def event(content: str, **fields: object) -> Event:
    return Event(seq=123, recorded_at="", content=content, **fields)


@given(texts, st.text(max_size=90))
def test_a_stub_is_one_line_smaller_and_final(text: str, label: str) -> None:
    whole = passage(event(text))
    stub = whole.folded(label)
    if stub is whole:
        assert len(text) < 400
        return
    assert stub.form is Form.FOLDED and stub.text == ""
    assert stub.shown.startswith(MARK + "folded seq 123 ") and "ms.expand(123)" in stub.shown
    assert len(stub.shown.splitlines()) == 1
    assert stub.tokens < whole.tokens and len(stub.shown) < len(text)
    assert stub.folded(label) is stub and stub.clipped(10) is stub


@given(texts, st.integers(0, 3000), st.integers(0, 3000))
def test_a_clip_keeps_head_and_tail_and_only_shrinks(text: str, chars: int, again: int) -> None:
    whole = passage(event(text))
    clip = whole.clipped(chars)
    if clip is whole:
        assert len(text) <= chars + 200
        return
    assert clip.form is Form.CLIPPED and clip.tokens < whole.tokens and len(clip.shown) < len(text)
    assert "clipped seq 123 " in clip.shown and "ms.expand(123)" in clip.shown
    assert clip.shown.startswith(text[: chars * 2 // 3]) and clip.shown.endswith(
        text[len(text) - chars // 3 :]
    )
    assert clip.clipped(chars) is clip
    assert clip.clipped(again).tokens <= clip.tokens


@given(
    st.integers(0, 3 * HELD_CHARS), st.integers(40, 3 * HELD_CHARS), st.integers(40, 3 * HELD_CHARS)
)
def test_a_clip_of_a_clip_is_the_smaller_of_both(length: int, chars: int, again: int) -> None:
    """After a clip only the ends are held, and they are enough for every later one."""
    text = "".join(f"{n:07} " for n in range(length // 8 + 1))[:length]
    whole = passage(event(text))
    twice = whole.clipped(chars).clipped(again)
    assert (
        twice.shown
        == min(
            whole.clipped(chars), whole.clipped(again), whole, key=lambda form: form.tokens
        ).shown
    )
    assert len(twice.text) + twice.left_out == length
    if twice.form is Form.CLIPPED:
        assert len(twice.text) <= max(HELD_CHARS, len(twice.shown))


@given(
    st.integers(1, 3 * HELD_CHARS), st.integers(300, HELD_CHARS), st.integers(40, 2 * HELD_CHARS)
)
def test_an_excerpt_is_clipped_like_the_whole_text(length: int, most: int, chars: int) -> None:
    text = "".join(f"{n:07} " for n in range(length // 8 + 1))[:length]
    pieces = [text[at : at + 5_000] for at in range(0, length, 5_000)]
    stored = event("preview", payload=Payload("0" * 64, length))
    held = passage(stored, excerpt(pieces, most))
    whole = passage(event(text))
    assert (held.form is Form.FULL) == (length <= most) and len(held.text) == min(length, most)
    if chars < most:
        assert held.clipped(chars).shown == whole.clipped(chars).shown or length <= chars + 300


def test_a_preview_says_that_it_is_one() -> None:
    shown = passage(event("the first lines", payload=Payload("0" * 64, 200_000)))
    assert shown.form is Form.CLIPPED
    assert shown.shown.startswith(
        "the first lines\n[scroll: clipped seq 123 · not all of 200,000 bytes is shown"
    )


def reply(arguments: object, text: str = "") -> Event:
    calls = [{"id": "a", "name": "write", "arguments": arguments}]
    return event(text, kind=Kind.CONVERSATION, role="assistant", metadata={"tool_calls": calls})


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a.txt", "body": "long " * 4000},
        {"rows": list(range(5000))},
        "not json " * 3000,
        '["' + "x" * 9000 + '"]',
    ],
)
def test_clipped_arguments_are_still_json_with_the_address(arguments: object) -> None:
    long = step(reply(arguments), 0, "").reply
    short = long.clipped(300)
    shown = short.calls[0].shown
    assert short.tokens < long.tokens / 4 and "clipped seq 123 " in shown
    assert msgspec.json.decode(shown) is not None
    assert short.clipped(300) == short
    assert short.form is Form.CLIPPED and long.form is Form.FULL


def test_small_arguments_beside_long_ones_stay() -> None:
    short = step(reply({"path": "a.txt", "body": "long " * 4000}), 0, "").reply.clipped(300)
    assert decoded(short.calls[0].shown)["path"] == "a.txt"


@pytest.mark.parametrize("arguments", ["", "{", "[" * 100_000, "null", "\x00"])
def test_arguments_that_are_not_json_are_kept_as_text(arguments: str) -> None:
    made = step(reply(arguments), 0, "task")
    assert made.reply.calls[0].arguments == arguments
    assert made.headline().state.startswith("write(")


@pytest.mark.parametrize(
    "metadata", [{"tool_calls": "x"}, {"tool_calls": [1, {}]}, {"thinking": "x"}]
)
def test_metadata_of_another_shape_does_no_harm(metadata: dict) -> None:
    made = step(event("hello", role="assistant", metadata=metadata), 0, "")
    assert made.reply.body.shown == "hello" and made.tokens > 0
