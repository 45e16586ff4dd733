"""Explaining a request rebuilds it from the log to the byte, and says where everything else is."""

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.errors import BadInput, UnknownSeq
from scroll_context.events import Draft, Event, Kind
from scroll_context.messages import canonical
from scroll_context.models import Request, ScriptedModel, exec_cell
from scroll_context.models.scripted import Answer, Entry
from scroll_context.session.accounts import accounts, trajectory
from scroll_context.session.context import make_context
from scroll_context.session.explain import explain
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.working import RENDERER_VERSION

WINDOW = 5_000


def counting(steps: int) -> list[Entry]:
    cells: list[Entry] = [
        exec_cell(
            f"note_{n} = {n}\nprint('step {n}', 'detail ' * 120)",
            headline=f"step {n} | counted | next | ok",
        )
        for n in range(steps)
    ]
    return [*cells, "counted"]


def requests(store: Store, session_id: str) -> list[Event]:
    return [
        event for event in store.log.iterate(session_id=session_id) if event.kind == Kind.REQUEST
    ]


def test_every_request_of_a_long_run_is_rebuilt_as_it_was_sent(store: Store) -> None:
    model = ScriptedModel(counting(24), window=WINDOW)
    with Session.open(store, session_id="long") as session:
        Agent(session, model).run("Count.")
    recorded = requests(store, "long")
    assert len(recorded) == len(model.requests) == 25
    for event, sent in zip(recorded, model.requests, strict=True):
        found = explain(store, event.seq)
        assert found.verified and not found.doubt
        assert canonical(found.messages) == canonical(sent.messages)
        assert found.tools == ("exec",) and found.window == WINDOW
        assert 0 < found.cached < found.reported <= WINDOW or event is recorded[0]
    assert accounts(session.events()).evictions >= 2


def test_what_left_is_said_to_be_where_the_model_can_find_it(store: Store) -> None:
    with Session.open(store, session_id="long") as session:
        Agent(session, ScriptedModel(counting(24), window=WINDOW)).run("Count.")
    found = explain(store, store.log.last_seq())
    plans = {event.seq for event in store.log.iterate() if event.kind == Kind.EVICTION}
    shown = "\n".join(message.text for message in found.messages)
    assert {one.how for one in found.departures} >= {"folded", "evicted"}
    for one in found.departures:
        assert one.plan in plans and one.reason == "above the high mark"
        assert one.rule == {"folded": "fold_old_results", "evicted": "evict_old_steps"}[one.how]
        if one.now.startswith("index: "):
            assert one.now.removeprefix("index: ") in shown
        else:
            assert one.now == "shown as a stub" and f"folded seq {one.seq} " in shown
    assert explain(store, requests(store, "long")[0].seq).departures == ()


def test_any_later_seq_stands_for_the_request_before_it(store: Store) -> None:
    with Session.open(store, session_id="a") as session:
        Agent(session, ScriptedModel([exec_cell("x = 1"), "done"])).run("Go.")
    first, second = requests(store, "a")
    assert explain(store, second.seq - 1).seq == first.seq
    assert explain(store, store.log.last_seq()).seq == second.seq
    assert explain(store, first.seq).reply == first.seq + 1
    with pytest.raises(BadInput, match="has no model request"):
        explain(store, first.seq - 1)
    with pytest.raises(UnknownSeq):
        explain(store, store.log.last_seq() + 1)


def test_a_resumed_session_and_a_fork_are_explained_with_their_past(store: Store) -> None:
    with Session.open(store, session_id="a") as session:
        Agent(session, ScriptedModel([exec_cell("x = 1"), "done"])).run("Remember the blue door.")
    with Session.resume(store, "a") as session:
        Agent(session, ScriptedModel(["again"]), instructions="Be short.").run("Once more.")
    resumed = explain(store, store.log.last_seq())
    assert resumed.verified and "Be short." in resumed.messages[0].text
    with session.fork(requests(store, "a")[1].seq, session_id="b") as forked:
        before = explain(store, store.log.last_seq())
        Agent(forked, ScriptedModel(["differently"])).run("Another way.")
    assert before.session_id == "a" and before.verified
    found = explain(store, store.log.last_seq())
    texts = [message.text for message in found.messages]
    assert found.session_id == "b" and found.verified
    assert any("blue door" in text for text in texts) and not any(
        "Once more" in text for text in texts
    )


def test_a_request_without_an_answer_is_explained(store: Store) -> None:
    def broken(request: Request) -> Answer:
        raise BadInput("no reply today")

    with Session.open(store, session_id="a") as session, pytest.raises(BadInput, match="today"):
        Agent(session, ScriptedModel([broken])).run("Go.")
    found = explain(store, store.log.last_seq())
    assert found.reply is None and found.reported == 0 and found.verified


def test_a_word_of_the_user_while_a_reply_is_on_its_way_is_not_the_reply(store: Store) -> None:
    with Session.open(store, session_id="a") as session:

        def interrupted(request: Request) -> Answer:
            session.say("One more thing.")
            return "done"

        Agent(session, ScriptedModel([interrupted])).run("Go.")
    found = explain(store, store.log.last_seq())
    assert found.reply == store.log.last_seq() and found.reported > 0 and found.verified


def test_a_view_that_was_filled_before_its_session_is_explained_with_what_filled_it(
    store: Store,
) -> None:
    earlier = [
        store.append(Draft(session_id="before", role="user", content=f"word {n}")) for n in range(3)
    ]
    history = store.log.get_many(earlier)
    with Session.open(store, session_id="a") as session:
        session.context = make_context("scroll", store.log.excerpt)
        for event in history:
            session.context.add(event)
        Agent(session, ScriptedModel(["done"])).run("Go.")
    last = store.log.last_seq()
    assert not explain(store, last).verified
    found = explain(store, last, lambda context: history if context == "scroll" else [])
    assert found.verified and "word 2" in found.messages[1].text


def test_a_context_that_is_not_there_any_more_is_reported(store: Store) -> None:
    store.append(
        Draft(
            kind=Kind.SESSION,
            session_id="old",
            content="system",
            metadata={"context": "gone", "tools": []},
        )
    )
    store.append(Draft(session_id="old", role="user", content="hello"))
    seq = store.append(
        Draft(kind=Kind.REQUEST, session_id="old", metadata={"hash": "0", "tokens": 7, "upto": 2})
    )
    found = explain(store, seq)
    assert not found.verified and "not installed here" in found.doubt
    assert found.tokens == 7 and found.messages == ()


def test_a_request_whose_hash_differs_is_not_called_verified(store: Store) -> None:
    metadata = {"context": "scroll", "tools": [], "window": 100}
    store.append(Draft(kind=Kind.SESSION, session_id="old", content="system", metadata=metadata))
    store.append(Draft(session_id="old", role="user", content="hello"))
    request = {"hash": "0" * 64, "digest": "", "renderer": RENDERER_VERSION}
    seq = store.append(Draft(kind=Kind.REQUEST, session_id="old", metadata=request))
    found = explain(store, seq)
    assert not found.verified and "other messages" in found.doubt
    assert found.messages[-1].text == "hello"


@pytest.mark.parametrize("renderer", [{}, {"renderer": 1}, {"renderer": RENDERER_VERSION + 1}])
def test_a_request_of_another_version_of_the_rules_is_not_rebuilt(
    store: Store, renderer: dict[str, int]
) -> None:
    metadata = {"context": "scroll", "tools": [], "window": 100}
    store.append(Draft(kind=Kind.SESSION, session_id="old", content="system", metadata=metadata))
    store.append(Draft(session_id="old", role="user", content="hello"))
    seq = store.append(
        Draft(kind=Kind.REQUEST, session_id="old", metadata={"hash": "0" * 64, **renderer})
    )
    found = explain(store, seq)
    assert (
        not found.verified and "another version of Scroll" in found.doubt and found.messages == ()
    )


def test_an_import_that_says_nonsense_of_its_calls_and_costs_adds_nothing_to_them(
    store: Store,
) -> None:
    said = {
        "usage": ["many"],
        "cost": "much",
        "tool_calls": [7, {"arguments": 3}],
        "thinking": "deep",
    }
    store.append(Draft(role="assistant", content="hello", source_key="import:x", metadata=said))
    assert (sums := accounts(store.log.iterate())).events == 1 and (
        sums.input_tokens,
        sums.dollars,
    ) == (0, 0.0)
    made = trajectory(store.log.iterate(), store.log.text)
    assert made["metrics"]["tokens_in"] == 0
    # Calls that cannot be read are left out, so the message counts as an answer.
    assert made["steps"][0]["action"] == {"tool": "answer", "args": {"answer": "hello"}}
