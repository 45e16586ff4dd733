"""Retries happen for provider faults only, wait as asked, and give up clearly."""

import threading

import pytest

from scroll_context.errors import ContextOverflow, ModelCancelled, ModelUnavailable
from scroll_context.messages import Message
from scroll_context.models import Request, ScriptedModel, with_retries

REQUEST = Request((Message(role="user", text="?"),))


def down(after: float | None = None) -> ModelUnavailable:
    return ModelUnavailable("down", retry_after=after)


def test_waits_grow_and_stay_below_the_bound() -> None:
    waits: list[tuple[int, float]] = []
    inner = ScriptedModel([down(), down(), down(), down(), "up"], name="inner", window=9)
    model = with_retries(
        inner,
        attempts=5,
        first_wait=0.001,
        max_wait=0.003,
        on_retry=lambda n, wait, _: waits.append((n, wait)),
    )
    assert (model.name, model.window) == ("inner", 9)
    assert model.reply(REQUEST).text == "up"
    assert [n for n, _ in waits] == [1, 2, 3, 4]
    for (_, wait), longest in zip(waits, (0.001, 0.002, 0.003, 0.003), strict=True):
        assert longest / 2 <= wait <= longest


def test_the_last_error_goes_up_after_the_last_attempt() -> None:
    inner = ScriptedModel([down()] * 9)
    with pytest.raises(ModelUnavailable, match="down"):
        with_retries(inner, attempts=3, first_wait=0.0).reply(REQUEST)
    assert inner.steps == 3


def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    inner = ScriptedModel([down(3600), "up"])
    with pytest.raises(ModelUnavailable):
        with_retries(inner, max_wait=60).reply(REQUEST)
    assert inner.steps == 1


def test_no_attempt_starts_after_the_deadline() -> None:
    inner = ScriptedModel([down(30), "up"])
    with pytest.raises(ModelUnavailable):
        with_retries(inner, max_wait=60).reply(REQUEST, timeout=5)
    assert inner.steps == 1


def test_other_errors_are_not_retried() -> None:
    inner = ScriptedModel([ContextOverflow("too long"), "up"])
    with pytest.raises(ContextOverflow):
        with_retries(inner, first_wait=0.0).reply(REQUEST)
    assert inner.steps == 1


def test_cancel_ends_the_wait() -> None:
    cancel = threading.Event()
    inner = ScriptedModel([down(50), "up"])
    model = with_retries(inner, on_retry=lambda *_: cancel.set())
    with pytest.raises(ModelCancelled):
        model.reply(REQUEST, cancel=cancel)
    assert inner.steps == 1


def test_text_streams_through() -> None:
    pieces: list[str] = []
    with_retries(ScriptedModel(["hello"])).reply(REQUEST, on_text=pieces.append)
    assert "".join(pieces) == "hello"
