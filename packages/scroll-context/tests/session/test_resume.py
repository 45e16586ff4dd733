"""What a resumed session tells the model: nothing after a clean close, and what was lost when
something was.
"""

from itertools import pairwise

from scroll_context.agent.agent import Agent
from scroll_context.events import Event, Kind
from scroll_context.messages import canonical
from scroll_context.models import ScriptedModel, exec_cell
from scroll_context.session.session import Session
from scroll_context.store import Store


def notices(store: Store) -> list[str]:
    return [event.content for event in store.log.iterate(session_id="s", kind=Kind.NOTICE)]


def events(store: Store, kind: str) -> list[Event]:
    return list(store.log.iterate(session_id="s", kind=kind))


def test_a_service_that_opens_and_closes_for_each_request_tells_the_model_nothing(
    store: Store,
) -> None:
    model = ScriptedModel(
        [exec_cell("total = 40\nprint(total)"), "noted", exec_cell("print(total + 2)"), "42", "bye"]
    )
    for prompt, answer in (("Keep 40.", "noted"), ("Add 2.", "42"), ("Thanks.", "bye")):
        with Session.open_or_resume(store, "s") as session:
            assert Agent(session, model).run(prompt).answer == answer
    assert notices(store) == []
    assert "42" in model.requests[3].messages[-1].text, "the variables are back"
    for before, after in pairwise(model.requests):
        texts = [message.text for message in before.messages]
        assert [message.text for message in after.messages][: len(texts)] == texts, (
            "the prefix stays as it was"
        )
    assert len([event for event in events(store, Kind.SESSION) if event.content == "resumed"]) == 2


def test_a_fork_tells_the_model_nothing_while_nothing_is_lost(store: Store) -> None:
    with Session.open(store, session_id="s") as session:
        session.run("total = 40")
        at = session.say("go on").seq
        before = session.context.render("system", "")
        with session.fork(at) as fork:
            assert canonical(fork.context.render("system", "").messages) == canonical(
                before.messages
            )
            assert fork.run("print(total)").content == "40"


def test_a_variable_that_cannot_be_saved_is_reported_once(store: Store) -> None:
    with Session.open(store, session_id="s") as session:
        session.run("total = 40\nlines = (line for line in 'abc')")
    for _ in range(3):
        Session.resume(store, "s").close()
    (notice,) = notices(store)
    assert notice.startswith("The session was resumed in a new process.\n")
    assert " restored: `total`" in notice and " lost: `lines` (" in notice
    with Session.resume(store, "s") as session:
        session.run("lines = (line for line in 'abc')")
    Session.resume(store, "s").close()
    assert len(notices(store)) == 2, "bound again, and lost again"


def test_a_cell_that_was_cut_off_is_reported_with_what_is_back(store: Store) -> None:
    with Session.open(store, session_id="s") as session:
        session.run("total = 40")
        session.environment.variables.wait_for_save()
        cell = session.record(
            Kind.CELL, role="assistant", name="exec", tool_call_id="c", content="total = 41"
        )
    Session.resume(store, "s").close()
    (notice,) = notices(store)
    assert "What was saved is back:\n restored: `total`]" in notice
    assert f"The cell at seq {cell.seq} was running when the process ended." in notice
    Session.resume(store, "s").close()
    assert len(notices(store)) == 1


def test_variables_that_were_not_saved_are_reported_once(store: Store) -> None:
    with Session.open(store, session_id="s") as session:
        cell = session.record(
            Kind.CELL, role="assistant", name="exec", tool_call_id="c", content="total = 41"
        )
        session.record(
            Kind.OBSERVATION, role="tool", reply_to=cell.seq, metadata={"bound": ["total"]}
        )
    for _ in range(3):
        Session.resume(store, "s").close()
    (notice,) = notices(store)
    assert "Not saved before the process ended, so lost or out of date: total." in notice
