"""A session starts from the sessions before it: only those within its reach, recorded once, the same on replay."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.events import EVERYTHING, Draft, Kind
from scroll_context.messages import canonical
from scroll_context.models import ScriptedModel
from scroll_context.session.earlier import earlier_work
from scroll_context.session.explain import explain
from scroll_context.session.session import Session, SessionOptions
from scroll_context.store.store import Store
from scroll_context.view.eviction import Budget
from scroll_context.view.index import EarlierWork

SUBJECTS = ("the heat equation", "sourdough starters", "a ferry to Naxos", "tax on dividends")
BUDGET = Budget(window=32_000)


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store(folder, create=True) as store:
        yield store


def talk(store: Store, session: str, subject: str, turns: int = 12, agent: str = "", extra: str = "") -> None:
    drafts = []
    for n in range(turns):
        said = f"I'm trying to understand {subject}, part {n}. {extra if n == 2 else ''}"
        for role, text in (("user", said), ("assistant", "Sure! Let me explain it step by step.")):
            day = f"2024-07-{n % 28 + 1:02}"
            drafts.append(Draft(session_id=session, agent_id=agent, role=role, content=text, created_at=day))
    store.log.append_many(drafts)


def test_the_first_request_names_the_topic_of_every_session_within_reach(store: Store) -> None:
    for n, subject in enumerate(SUBJECTS):
        talk(store, f"s{n}", subject, agent="a", extra="Always use metric units." if n == 1 else "")
    talk(store, "other", "somebody's secret garden", agent="b")
    model = ScriptedModel(["Done.", "Done again."], window=32_000)
    with Session.open(store, session_id="now", agent_id="a", options=SessionOptions(reach="agent")) as session:
        Agent(session, model).run("Go.")
    shown = model.requests[0].messages[1].text
    for line, subject in zip((line for line in shown.splitlines() if "2024-07-01" in line), SUBJECTS, strict=True):
        assert subject.split()[-1] in line
    assert "- seq 1-24 (2024-07-01 to 2024-07-12): " in shown
    assert "Always use metric units." in shown and "garden" not in shown and "trying" not in shown

    recorded = [event for event in store.log.iterate(session_id="now") if "earlier" in event.metadata]
    assert len(recorded) == 1 and recorded[0].kind == Kind.SESSION
    with Session.resume(store, "now", options=SessionOptions(reach="agent")) as session:
        Agent(session, model).run("Go on.")
    assert len([event for event in store.log.iterate(session_id="now") if "earlier" in event.metadata]) == 1
    assert model.requests[1].messages[1].text.startswith(shown.partition("Go.")[0])
    requests = [event for event in store.log.iterate(session_id="now") if event.kind == Kind.REQUEST]
    for event, sent in zip(requests, model.requests, strict=True):
        found = explain(store, event.seq)
        assert found.verified and canonical(found.messages) == canonical(sent.messages)


def test_a_session_that_reaches_no_other_starts_from_nothing(store: Store) -> None:
    talk(store, "before", SUBJECTS[0])
    model = ScriptedModel(["Done."], window=32_000)
    with Session.open(store, session_id="now", options=SessionOptions(reach="session")) as session:
        Agent(session, model).run("Go.")
    assert [message.text for message in model.requests[0].messages[1:]] == ["Go."]
    assert not [event for event in store.log.iterate() if "earlier" in event.metadata]


def test_only_what_was_said_counts(store: Store) -> None:
    store.log.append_many(
        [
            Draft(session_id="quiet", kind=Kind.REQUEST, content="bookkeeping"),
            Draft(session_id="told", kind=Kind.NOTICE, role="user", content="Always use metric units."),
            Draft(session_id="blank", role="user", content="  "),
        ]
    )
    assert earlier_work(store.log, EVERYTHING, "now", BUDGET) == EarlierWork()


def test_imported_words_are_marked(store: Store) -> None:
    store.log.append_many(
        [
            Draft(session_id="a", role="user", content="Never mention the weather.", metadata={"imported": "x.jsonl"}),
            Draft(session_id="b", role="user", content="Always use metric units."),
        ]
    )
    first, second = earlier_work(store.log, EVERYTHING, "now", BUDGET).standing
    assert first.text == '- seq 1: "Never mention the weather."'
    assert second.text == "- seq 2: Always use metric units."


def test_what_is_too_old_to_be_read_keeps_its_address(store: Store) -> None:
    talk(store, "old", SUBJECTS[0], turns=10)
    talk(store, "new", SUBJECTS[1], turns=20)
    earlier = earlier_work(store.log, EVERYTHING, "now", BUDGET, most_events=40)
    assert [one.spans for one in earlier.topics] == [((1, 20),), ((21, 60),)]
    assert not earlier.topics[0].terms and "sourdough starters" in earlier.topics[1].terms


def test_many_sessions_fit_a_small_window(store: Store) -> None:
    for n in range(150):
        talk(store, f"s{n}", f"{SUBJECTS[n % 4]} in town{n}ville", turns=4)
    work = earlier_work(store.log, EVERYTHING, "now", Budget(window=8_000))
    assert sum(one.sessions for one in work.topics) == 150
    assert sum(one.line().tokens for one in work.topics) <= 400
    assert work.topics[0].sessions > work.topics[-1].sessions
