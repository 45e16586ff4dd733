"""What the model is shown of a long text depends on the budget of the view, never on where the log
keeps the text.
"""

from collections.abc import Callable

import pytest

from scroll_context.events import Event, Kind
from scroll_context.messages import ToolCall, canonical
from scroll_context.models import Reply, Request
from scroll_context.session.context import CROWDED_TOKENS, LONGEST_TEXT
from scroll_context.session.explain import explain
from scroll_context.session.host import HostMessage
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.entries import passages
from scroll_context.view.passage import HELD_CHARS, Form, Passage
from scroll_context.view.steps import Step

Opened = Callable[..., Session]

LOG = "12:00:01 worker 7 finished its batch without errors\n"
QUESTION = "\nWhy did worker 9 stop?"


def long_text(length: int) -> str:
    return LOG * (length // len(LOG))


def last_request(session: Session) -> int:
    return session.store.log.tail(1, session_id=session.scope.session_id, kind=Kind.REQUEST)[0].seq


def replay_is_the_same(session: Session, request: Request) -> None:
    """`explain` rebuilds the request from the log, and so does a resumed session."""
    explanation = explain(session.store, last_request(session))
    assert explanation.verified, explanation.doubt
    assert canonical(explanation.messages) == canonical(request.messages)


def held(session: Session) -> list[Passage]:
    """Every text that the view holds."""
    texts: list[Passage] = []
    for entry in session.context.view.entries:
        texts += passages(entry)
        if isinstance(entry, Step):
            texts.append(entry.reply.body)
    return texts


def from_observation(session: Session, text: str) -> None:
    session.follow([HostMessage(role="user", text=text)])


def from_say(session: Session, text: str) -> None:
    session.say(text)


def from_result(session: Session, text: str) -> None:
    call = ToolCall("c", "read", {})
    session.say("read it")
    session.replied(Reply(tool_calls=(call,)))
    session.answer(call, text, "ok")


def from_reply(session: Session, text: str) -> None:
    session.say("write it")
    session.replied(Reply(text=text))


def from_notice(session: Session, text: str) -> None:
    session.notice(text)


WAYS = [from_observation, from_say, from_result, from_reply, from_notice]


@pytest.mark.parametrize("length", [32_000, 33_000, 200_000])
@pytest.mark.parametrize("way", WAYS)
def test_a_text_that_fits_is_shown_completely(
    opened: Opened, way: Callable[[Session, str], None], length: int
) -> None:
    session = opened()
    text = long_text(length) + QUESTION
    way(session, text)
    request = session.view("system", window=128_000)
    assert any(message.text.endswith(text) for message in request.messages)
    assert "[scroll: clipped" not in str(request)
    replay_is_the_same(session, request)


@pytest.mark.parametrize("way", WAYS)
def test_a_text_that_does_not_fit_is_clipped_at_head_and_tail(
    opened: Opened, way: Callable[[Session, str], None]
) -> None:
    session = opened()
    text = "The beginning.\n" + long_text(200_000) + QUESTION
    way(session, text)
    request = session.view("system", window=16_000)
    (shown,) = [message.text for message in request.messages if "The beginning." in message.text]
    assert QUESTION in shown and len(shown) > 20_000
    seq = next(event.seq for event in session.events() if event.payload is not None)
    assert f"[scroll: clipped seq {seq} · " in shown and f"ms.expand({seq}) returns all]" in shown
    replay_is_the_same(session, request)


def test_what_was_shown_completely_stays_so_until_an_eviction(opened: Opened) -> None:
    session = opened()
    session.say(long_text(60_000) + QUESTION)
    requests = []
    for n in range(12):
        requests.append(session.view("system", window=64_000))
        call = ToolCall(f"c{n}", "read", {})
        session.replied(Reply(text=f"part {n}", tool_calls=(call,)))
        session.answer(call, f"part {n}\n" + long_text(36_000), "ok")
    plans = [event.seq for event in session.events() if event.kind == Kind.EVICTION]
    sent = [event.seq for event in session.events() if event.kind == Kind.REQUEST]
    assert len(plans) > 1
    for number in range(1, len(requests)):
        if not any(sent[number - 1] < plan < sent[number] for plan in plans):
            before, after = (requests[at].messages for at in (number - 1, number))
            assert [message.text for message in after[: len(before)]] == [
                message.text for message in before
            ]
        assert explain(session.store, sent[number]).verified
    newest = requests[-1].messages[-1].text
    assert newest.startswith("part 10\n") and newest.endswith(LOG.strip() + "\n"), (
        "unread, so shown"
    )


def test_a_resumed_session_shows_the_same(store: Store, opened: Opened) -> None:
    session = opened()
    text = long_text(90_000) + QUESTION
    session.say(text)
    session.view("system", window=128_000)
    session.replied(Reply(text=long_text(50_000)))
    before = session.context.render("system", "")
    session.close()
    with Session.resume(store, "s") as again:
        assert (
            again.context.render("system", "").messages[: len(before.messages) - 1]
            == before.messages[:-1]
        )
        assert again.context.visible >= {
            event.seq for event in again.events() if event.payload is not None
        }


@pytest.mark.parametrize("length", [LONGEST_TEXT - 100, LONGEST_TEXT + 3_000_000])
def test_a_view_holds_the_ends_of_a_text_that_no_window_can_take(
    opened: Opened, length: int
) -> None:
    session = opened()
    text = "The beginning.\n" + long_text(length) + "漢字" + QUESTION
    event = session.say(text)
    (passage,) = held(session)
    assert len(passage.text) + passage.left_out == len(text)
    assert (len(passage.text) == len(text)) == (len(text) <= LONGEST_TEXT) and len(
        passage.text
    ) <= LONGEST_TEXT
    request = session.view("system", window=16_000)
    shown = request.messages[1].text
    assert shown.startswith("The beginning.") and shown.endswith("漢字" + QUESTION)
    assert f"of {len(text):,} characters are not shown · ms.expand({event.seq})" in shown
    (passage,) = held(session)
    assert passage.form is Form.CLIPPED and len(passage.text) <= max(HELD_CHARS, len(shown))
    replay_is_the_same(session, request)


def test_many_long_texts_before_a_request_do_not_fill_the_memory(opened: Opened) -> None:
    session = opened()
    text = long_text(4_000_000)
    for _ in range(10):
        session.say(text)
        session.replied(Reply(text="noted"))
    in_memory = sum(len(passage.text) for passage in held(session))
    assert in_memory < 4 * CROWDED_TOKENS + LONGEST_TEXT
    assert sum(len(passage.text) <= HELD_CHARS for passage in held(session)) > 10
    request = session.view("system", window=32_000)
    assert sum(len(passage.text) for passage in held(session)) < 32_000 * 4 + 20 * HELD_CHARS
    replay_is_the_same(session, request)


def test_a_session_is_resumed_when_a_payload_is_lost(store: Store, opened: Opened) -> None:
    session = opened()
    event = session.say("The beginning.\n" + long_text(50_000) + QUESTION)
    session.view("system", window=128_000)
    seq = last_request(session)
    assert explain(store, seq).verified
    session.close()
    assert event.payload is not None
    store.payloads.path(event.payload.digest).unlink()
    with Session.resume(store, "s") as again:
        shown = again.view("system", window=128_000).messages[1].text
        assert shown.startswith("The beginning.") and QUESTION not in shown
        assert f"clipped seq {event.seq} · not all of {event.payload.size:,} bytes" in shown
    explanation = explain(store, seq)
    assert (
        not explanation.verified
        and f"payload of seq {event.seq} is missing or damaged" in explanation.doubt
    )


def test_texts_inside_cells_are_not_read_for_the_view(opened: Opened) -> None:
    session = opened()
    session.say("go")
    inside = {"inside_cell": 1}
    result = session.record(
        Kind.TOOL_RESULT, role="tool", content=long_text(50_000), metadata=inside
    )
    read: list[Event] = []

    def reading(event: Event, most: int) -> object:
        read.append(event)
        return session.store.log.excerpt(event, most)

    again = type(session.context)(reading)  # type: ignore[arg-type]
    for event in session.events():
        again.add(event)
    assert result.payload is not None and read == []
