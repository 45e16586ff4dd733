"""Shapes of tool results: listed behind the cached part of a request, kept across a resume, erased
with the result.
"""

from pathlib import Path
from typing import Any

from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.plain import HEADING, LISTING_CHARS, SHAPE_CHARS, shape_text

SYSTEM = "Work."
LINE = "orders: list of 2: dict {'id': int, 'customer': str of length 3}"


def orders(page: int) -> Any:
    """The orders of a page."""
    return "no such page" if page < 0 else [{"id": page, "customer": "Ada"}] * 2


def run(session: Session, source: str) -> str:
    return session.run(source).content


def tail(session: Session) -> str:
    return session.view(SYSTEM).messages[-1].tail


def test_the_listing_follows_the_first_call_and_leaves_the_prefix_alone(tmp_path: Path) -> None:
    with (
        Store(tmp_path / "s", create=True) as store,
        Session.open(store, session_id="s", tools=[orders]) as session,
    ):
        session.say("Count the orders.")
        before = session.view(SYSTEM).messages
        assert HEADING not in before[-1].tail
        run(session, "rows = orders(1)\nprint(len(rows))")
        after = session.view(SYSTEM).messages
        assert after[-1].tail.endswith(f"{HEADING}\n{LINE}")
        assert all(HEADING not in message.text for message in after)
        assert after[0] == before[0], "the system prompt and its tools stay as they are"
        run(session, "text = orders(-1)")
        assert tail(session).endswith(f"{LINE}\norders: str of length 12")


def test_a_resumed_session_knows_the_shapes(tmp_path: Path) -> None:
    with Store(tmp_path / "s", create=True) as store:
        with Session.open(store, session_id="s", tools=[orders]) as session:
            session.say("Count the orders.")
            run(session, "rows = orders(1)")
        with Session.resume(store, "s", tools=[orders]) as again:
            assert f"Observed result: {LINE.partition(': ')[2]}" in run(again, "help(orders)")
            assert LINE in tail(again)
            # Text where an earlier process got lists is still out of place.
            assert "earlier ones were list" in run(again, "x = orders(-1)")


def test_an_erased_result_takes_its_shape_along(tmp_path: Path) -> None:
    with Store(tmp_path / "s", create=True) as store:
        with Session.open(store, session_id="s", tools=[orders]) as session:
            session.say("Count the orders.")
            run(session, "rows = orders(1)")
            request = session.view(SYSTEM)
            assert LINE in request.messages[-1].tail
            (result,) = store.log.iterate(session_id="s", kind="tool_result")
        report = store.erase(seqs=[result.seq], copies=True)
        requests = list(store.log.iterate(session_id="s", kind="request"))
        assert all("customer" not in str(event.metadata) for event in requests), report
        with Session.resume(store, "s", tools=[orders]) as again:
            assert "customer" not in tail(again) + run(again, "help(orders)")


def test_a_shape_is_bounded_and_shows_no_raw_text() -> None:
    wide = {
        f"key{n}\n[scroll: notice]": {f"k{m}": [{"x" * 99: 1}] for m in range(50)}
        for n in range(50)
    }
    text = shape_text(wide)
    assert len(text) <= SHAPE_CHARS and "\n" not in text


def test_the_listing_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    def make(number: int) -> Any:
        def read() -> dict[str, int]:
            return {f"field_{number}_{n}_{'x' * 20}": n for n in range(12)}

        read.__name__ = f"read_{number}"
        return read

    tools = [make(number) for number in range(12)]
    with (
        Store(tmp_path / "s", create=True) as store,
        Session.open(store, session_id="s", tools=tools) as session,
    ):
        session.say("Read everything.")
        run(session, "\n".join(f"x = read_{number}()" for number in range(12)))
        listing, seqs = session.environment.toolbox.shapes.listing()
        assert len(listing) <= LISTING_CHARS and "read_11: dict" in listing
        assert len(seqs) == len(listing.splitlines()) - 1 < 12
