"""Sessions after an erasure: they resume and go on, and nothing that is derived from the log brings
the words back.
"""

from pathlib import Path

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.events import Grant, Kind
from scroll_context.models import ScriptedModel, exec_cell
from scroll_context.session.explain import explain
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify

SECRET = "heron-4711-zebra"

pytestmark = pytest.mark.usefixtures("key_file")


def cell(session: Session, source: str) -> str:
    return session.run(source).content


def held(folder: Path) -> list[str]:
    return [
        str(file)
        for file in folder.rglob("*")
        if file.is_file() and SECRET.encode() in file.read_bytes()
    ]


def work(store: Store) -> None:
    """A session that was told a secret, kept it in a variable, printed it and answered with it."""
    with Session.open(store, session_id="s") as session:
        steps = [
            exec_cell(
                f"code = 'the code is {SECRET}'\nlarge = code * 500\nprint(code)",
                headline=f"{SECRET} | a | b | c",
            ),
            *(
                exec_cell(f"n{n} = {n}\nprint('line ' * 150)", headline=f"work | {n} | next | ok")
                for n in range(10)
            ),
            f"It is {SECRET}.",
        ]
        Agent(session, ScriptedModel(steps, window=3_000)).run(f"the code is {SECRET}")
        session.environment.variables.wait_for_save()
    store.index.catch_up()


def test_a_session_resumes_and_goes_on_after_all_traces_of_a_secret_were_erased(
    store: Store, folder: Path
) -> None:
    work(store)
    told = next(
        event
        for event in store.log.iterate(session_id="s")
        if event.role == "user" and SECRET in event.content
    )
    assert held(folder)
    report = store.erase(seqs=[told.seq], words=[SECRET], copies=True, reason="secret")
    assert held(folder) == [] and report.snapshots and "code" in report.variables
    assert verify(store.log).ok
    with Session.resume(store, "s") as session:
        request = session.context.render("system", "")
        assert not any(SECRET in message.text for message in request.messages)
        assert "NameError" in cell(session, "print(code)")
        assert "[erased]" in cell(session, f"print(ms.expand({told.seq})[0]['content'])")
        assert cell(session, "print(len(ms.search('heron')))").startswith("0")
        rows = f"print(ms.sql('SELECT content FROM hist.events WHERE seq = {told.seq}').rows)"
        assert SECRET not in cell(session, rows)
        run = Agent(
            session, ScriptedModel([exec_cell("x = 1\nprint(x)"), "still here"], window=3_000)
        ).run("go on")
        assert run.answer == "still here"
    assert held(folder) == []


def test_a_whole_session_can_be_erased_and_still_be_opened(store: Store, folder: Path) -> None:
    work(store)
    last = store.log.last_seq()
    store.erase(session_id="s")
    assert held(folder) == []
    assert all(event.is_erased for event in store.log.iterate(session_id="s", until=last))
    with Session.resume(store, "s") as session:
        assert cell(session, "print(1 + 1)") == "2"
    assert verify(store.log).ok


def test_a_query_in_a_window_that_has_copied_rows_does_not_show_what_was_erased_since(
    store: Store,
) -> None:
    work(store)
    with Session.open(store, session_id="other") as other:
        other.say("elsewhere")
    window = store.sql(Grant(session_id="s"))
    count = "SELECT count(*) AS n FROM hist.events WHERE content LIKE '%heron%'"
    assert window.query(count).rows[0]["n"] > 0
    told = next(event.seq for event in store.log.iterate(session_id="s") if SECRET in event.content)
    store.erase(seqs=[told], words=[SECRET], copies=True)
    assert window.query(count).rows[0]["n"] == 0
    window.close()


def test_explain_says_what_erasure_has_taken_from_a_request(store: Store) -> None:
    work(store)
    requests = [event.seq for event in store.log.iterate(session_id="s", kind=Kind.REQUEST)]
    assert all(explain(store, seq).verified for seq in requests)
    told = next(event.seq for event in store.log.iterate(session_id="s") if SECRET in event.content)
    store.erase(seqs=[told])
    explained = explain(store, requests[1])
    assert (
        not explained.verified and f"seq {told}" in explained.doubt and "erased" in explained.doubt
    )


def test_an_open_session_drops_erased_text_before_its_next_request(store: Store) -> None:
    with Session.open(store, session_id="s") as session:
        agent = Agent(session, ScriptedModel(["noted", "what was it?"], window=30_000))
        agent.run(f"the code is {SECRET}")
        told = next(
            event.seq for event in store.log.iterate(session_id="s") if SECRET in event.content
        )
        with Store(store.folder) as another:
            another.erase(seqs=[told], words=[SECRET], copies=True)
        agent.run("and now?")
        seen = agent.model.requests[-1]
        assert not any(SECRET in message.text for message in seen.messages)


def test_the_index_keeps_no_words_of_an_erased_turn(store: Store, folder: Path) -> None:
    """Standing instructions, titles and terms are parts of a text: they are found by the seq that
    they came from.
    """
    with Session.open(store, session_id="first") as session:
        told = session.say(
            f"Hello. Always end with {SECRET}, please, when I ask for the code of the day."
        )
        for n in range(12):
            Agent(session, ScriptedModel(["noted " * 150], window=2_500)).run(
                f"Go on with part {n}. " + "on " * 300
            )
    with Session.open(store, session_id="second", options=SessionOptions(reach="all")) as session:
        Agent(session, ScriptedModel(["noted"], window=8_000)).run("And now?")
    carrying = [event.kind for event in store.log.iterate() if SECRET in str(event.metadata)]
    assert Kind.EVICTION in carrying and Kind.SESSION in carrying
    report = store.erase(seqs=[told.seq], copies=True, reason="request")
    assert len(report.copies) >= 2 and held(folder) == []
    for name in ("first", "second"):
        with Session.resume(store, name) as session:
            assert (
                Agent(session, ScriptedModel(["fine"], window=8_000)).run("Well?").answer == "fine"
            )
    assert held(folder) == []


def test_no_recall_call_returns_or_counts_erased_events(store: Store) -> None:
    with Session.open(store, session_id="first") as session:
        told = [
            session.say(f"From now on always feed heron number {n}, never erased ones.").seq
            for n in range(4)
        ]
        session.say("Nothing about birds.")
    store.erase(seqs=told)
    with Session.open(store, session_id="second", options=SessionOptions(reach="all")) as session:
        assert cell(session, "print(len(ms.grep('erased')), ms.grep('erased').note)").startswith(
            "0 "
        )
        assert cell(session, "print(ms.grep('.', regex=True, limit=1).note)").count("[erased]") == 0
        assert cell(session, "print(len(ms.grep('[erased]')))").startswith("0")
        assert cell(session, "print(len(ms.search('erased')))").startswith("0")
        assert cell(session, "print(len(ms.timeline('erased')))").startswith("0")
        assert cell(session, "print(len(ms.standing()))").startswith("0")
        assert "[erased]" not in cell(
            session, "print(ms.turns(1), ms.outline(), ms.gist('erased'))"
        )
        assert cell(session, "print(ms.outline()[0]['turns'])").startswith("1\n")
        counted = "SELECT count(*) AS n FROM hist.conversation_history WHERE session_id = 'first'"
        assert cell(session, f"print(ms.sql_query({counted!r})[0]['n'])") == "1"
