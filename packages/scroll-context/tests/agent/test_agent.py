"""The agent's loop: replies, cells, model faults, limits, stopping, and several agents at once."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scroll_context.agent.agent import FINISHED, TOO_LATE, Agent, Limits
from scroll_context.background import in_thread
from scroll_context.errors import (
    BadInput,
    ContextOverflow,
    ModelUnavailable,
    NotAStore,
    SessionBusy,
    UnknownSession,
)
from scroll_context.events import Event, Kind
from scroll_context.messages import ToolCall
from scroll_context.models import Reply, Request, ScriptedModel, Usage, exec_cell, with_retries
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.tools import tool
from scroll_context.view.tokens import Gauge

Opened = Callable[..., Session]


def kinds(session: Session) -> list[str]:
    return [
        event.kind
        for event in session.events()
        if event.kind not in (Kind.SNAPSHOT, Kind.REQUEST, Kind.SESSION)
    ]


def test_a_turn_from_request_to_answer(opened: Opened) -> None:
    session = opened()
    said: list[str] = []
    model = ScriptedModel(
        [exec_cell("n = 6 * 7\nprint(n)", headline="sum | 42 | answer | ok"), "It is 42."]
    )
    run = Agent(session, model, on_text=said.append).run("What is six times seven?")
    assert (run.state, run.answer, run.totals.steps) == ("answered", "It is 42.", 2)
    assert "".join(said) == "It is 42."
    assert kinds(session) == ["conversation", "conversation", "cell", "observation", "conversation"]
    shown = model.requests[1].messages
    assert [message.role for message in shown] == ["system", "user", "assistant", "tool"]
    assert shown[-1].text == "42" and "n: int = 42" in shown[-1].tail
    reply = next(event for event in session.events() if event.role == "assistant")
    assert reply.headline.startswith("sum | 42 | answer")
    assert run.totals.input_tokens > 0 and run.totals.cache_read_tokens > 0


def test_what_is_sent_is_what_the_log_says(opened: Opened) -> None:
    session = opened()
    model = ScriptedModel([exec_cell("x = 1\nprint(x)"), "done"])
    Agent(session, model).run("go")
    requests = [event for event in session.events() if event.kind == Kind.REQUEST]
    assert len(requests) == 2 and all(len(event.metadata["hash"]) == 64 for event in requests)
    assert requests[1].metadata["digest"] == model.requests[1].messages[-1].tail


def test_only_printed_text_reaches_the_model(opened: Opened) -> None:
    @tool
    def rows() -> list[str]:
        """Many rows."""
        return [f"secret row {n}" for n in range(500)]

    session = opened(tools=[rows])
    model = ScriptedModel([exec_cell("r = rows()\nprint(len(r))\nr"), "500 rows"])
    Agent(session, model).run("How many rows?")
    sent = "".join(message.text + message.tail for message in model.requests[1].messages)
    assert "500" in sent and "secret row 17" not in sent
    result = next(event for event in session.events() if event.kind == Kind.TOOL_RESULT)
    assert "secret row 499" in session.store.log.text(result)
    assert model.requests[0].messages[0].text.count("def rows() -> list[str]") == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall("c", "exec", '{"source": "print(1)'), "not a JSON object"),
        (ToolCall("c", "exec", {"headline": "x"}), "needs `source`"),
        (ToolCall("c", "exec", {"source": 5}), "needs `source`"),
        (ToolCall("c", "no_such_tool", {}), "there is no tool 'no_such_tool'"),
    ],
)
def test_calls_that_cannot_run_are_answered(opened: Opened, call: ToolCall, says: str) -> None:
    session = opened()
    model = ScriptedModel([Reply(tool_calls=(call,)), "I see."])
    assert Agent(session, model).run("go").answer == "I see."
    last = model.requests[1].messages[-1]
    assert last.role == "tool" and says in last.text
    assert Kind.CELL not in kinds(session)


def test_several_calls_in_one_reply(opened: Opened) -> None:
    session = opened()
    calls = tuple(
        ToolCall("same", "exec", {"source": f"x = {n}\nprint('ran', {n})"}) for n in range(3)
    )
    model = ScriptedModel([Reply(tool_calls=calls), "ok"])
    Agent(session, model).run("go")
    tools = [message for message in model.requests[1].messages if message.role == "tool"]
    assert [message.text for message in tools] == ["ran 0", "ran 1", "ran 2"]
    assert len({message.tool_call_id for message in tools}) == 3


def test_empty_replies_are_questioned_and_then_end_the_run(opened: Opened) -> None:
    session = opened()
    assert Agent(session, ScriptedModel([Reply(), Reply(), "here"])).run("go").answer == "here"
    notices = [event for event in session.events() if event.kind == Kind.NOTICE]
    assert len(notices) == 2
    run = Agent(session, ScriptedModel([Reply()] * 3)).run("again")
    assert run.state == "silent"


@pytest.mark.parametrize(
    ("limits", "state"),
    [
        (Limits(steps=2), "steps"),
        (Limits(tokens=10), "tokens"),
        (Limits(seconds=0.0), "time"),
        (Limits(dollars=0.5), "money"),
    ],
)
def test_a_limit_ends_a_run_that_can_go_on(opened: Opened, limits: Limits, state: str) -> None:
    session = opened()
    priced = Reply(tool_calls=(ToolCall("", "exec", {"source": "print(1)"}),), cost=0.6)
    run = Agent(session, ScriptedModel([priced, priced, "late"]), limits=limits).run("go")
    assert run.state == state and run.answer == ""
    assert Agent(session, ScriptedModel(["done"])).run().answer == "done"


def test_the_model_is_told_how_many_replies_it_has(opened: Opened) -> None:
    session = opened()
    cell = Reply(tool_calls=(ToolCall("", "exec", {"source": "print(1)"}),))
    model = ScriptedModel([cell] * 5)
    assert Agent(session, model, limits=Limits(steps=5)).run("go").state == "steps"
    assert "You have 5 replies for a request" in model.requests[0].messages[0].text
    told = ["3 more replies, then" in request.messages[-1].text for request in model.requests]
    assert told == [False, False, True, False, False]


def test_an_overflow_evicts_and_asks_once_more(opened: Opened) -> None:
    session = opened()
    cells = [exec_cell(f"print('{n} ' * 700)") for n in range(8)]
    model = ScriptedModel(
        [*cells, ContextOverflow("too long", tokens=9_000, limit=8_000), "made it"]
    )
    assert Agent(session, model).run("go").answer == "made it"
    plans = [event for event in session.events() if event.kind == Kind.EVICTION]
    assert len(plans) == 1 and "refused" in plans[0].content
    before, after = (
        sum(len(m.text) for m in request.messages) for request in list(model.requests)[-2:]
    )
    assert after < before


def test_an_overflow_that_cannot_shrink_is_raised(opened: Opened) -> None:
    session = opened()
    model = ScriptedModel([ContextOverflow("too long"), ContextOverflow("too long")])
    with pytest.raises(ContextOverflow):
        Agent(session, model).run("go")
    assert model.steps <= 2


def test_a_failed_request_leaves_a_session_that_goes_on(opened: Opened) -> None:
    session = opened()
    agent = Agent(session, ScriptedModel([ModelUnavailable("try later"), "recovered"]))
    with pytest.raises(ModelUnavailable):
        agent.run("go")
    assert agent.run().answer == "recovered"
    assert [event.content for event in session.events() if event.role == "user"] == ["go"]


def test_unknown_usage_is_not_taken_for_zero(opened: Opened) -> None:
    class Uncounted:
        name, window = "uncounted", 8_000

        def reply(self, *_: object, **__: object) -> Reply:
            return Reply(text="hi", usage=Usage())

    session = opened()
    run = Agent(session, Uncounted()).run("go")
    assert run.state == "answered" and run.totals.input_tokens == 0
    assert session.context.view.gauge == Gauge(), "nothing was learned"


def test_stop_ends_the_cell_and_keeps_the_session(opened: Opened) -> None:
    agent: Agent

    def enough() -> None:
        """Called by the cell when it has begun."""
        agent.stop()

    session = opened(tools=[enough])
    agent = Agent(
        session, ScriptedModel([exec_cell("kept = 5\nenough()\nwhile True: pass"), "never asked"])
    )
    run = agent.run("loop")
    assert run.state == "stopped"
    observation = [event for event in session.events() if event.kind == Kind.OBSERVATION][-1]
    assert observation.tool_state == "interrupted"
    again = ScriptedModel([exec_cell("print(kept)"), "ok"])
    Agent(session, again).run("is it kept?")
    assert again.requests[1].messages[-1].text == "5"


def test_a_stop_just_before_the_cell_is_not_lost(opened: Opened) -> None:
    session = opened()
    agent: Agent

    def stop_at_once(event: Event) -> None:
        if event.kind == Kind.CELL:
            agent.stop()  # the cell is recorded, and has not begun

    session.subscribe(stop_at_once)
    agent = Agent(session, ScriptedModel([exec_cell("while True: pass"), "never asked"]))
    assert agent.run("loop").state == "stopped"


def test_the_headline_is_not_part_of_the_answer(opened: Opened) -> None:
    run = Agent(opened(), ScriptedModel(["Forty-two.\n⟦sum | 42 | none | done⟧"])).run("go")
    assert run.answer == "Forty-two." and run.totals.seconds > 0


def test_stop_ends_the_reply_and_keeps_what_was_said(opened: Opened) -> None:
    session = opened()
    agent: Agent
    agent = Agent(
        session, ScriptedModel(["a long answer " * 50], chunk=10), on_text=lambda _: agent.stop()
    )
    run = agent.run("talk")
    assert run.state == "stopped" and run.answer.startswith("a long")
    assert len(run.answer) < 100
    assert Agent(session, ScriptedModel(["short"])).run("shorter, please").answer == "short"


def test_stop_ends_the_second_reply_after_an_overflow_too(opened: Opened) -> None:
    session = opened()
    agent: Agent
    cells = [exec_cell(f"print('{n} ' * 700)") for n in range(8)]
    model = ScriptedModel([*cells, ContextOverflow("too long"), "a long answer " * 50], chunk=10)
    agent = Agent(session, model, on_text=lambda _: agent.stop())
    run = agent.run("talk")
    assert run.state == "stopped" and run.answer.startswith("a long") and len(run.answer) < 100


def test_every_call_of_the_reply_that_finishes_has_a_result(opened: Opened) -> None:
    calls = (
        ToolCall("a", "exec", {"source": "print('first')"}),
        ToolCall("b", "answer", {"answer": "21"}),
        ToolCall("c", "exec", {"source": "print('never')"}),
        ToolCall("d", "answer", {"answer": "22"}),
    )
    session = opened()
    again_21 = ToolCall("e", "answer", {"answer": "21"})
    model = ScriptedModel([Reply(tool_calls=calls), Reply(tool_calls=(again_21,))])
    agent = Agent(session, model, answer=str)
    assert agent.run("what is x?").answer == "21"
    ends = [e for e in session.events() if e.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT)]
    assert [(e.tool_call_id, e.tool_state) for e in ends] == [
        ("a", "ok"),
        ("b", "ok"),
        ("c", "error"),
        ("d", "error"),
    ]
    assert not any("never" in e.content for e in ends)
    session.close()  # what goes on from here must not look interrupted
    with Session.resume(session.store, "s") as again:
        Agent(again, model, answer=str).run("and again?")
    shown = {m.tool_call_id: m.text for m in model.requests[-1].messages if m.role == "tool"}
    assert shown == {"a": "first", "b": FINISHED, "c": TOO_LATE, "d": TOO_LATE}


def test_agents_run_side_by_side(opened: Opened) -> None:
    meet = threading.Barrier(3, timeout=60)

    def script(request: Request, step: int) -> Reply:
        if step == 0:
            meet.wait()
            return exec_cell(
                "print(who)" if "who" in request.messages[-1].text else "who = 1; print(who)"
            )
        return Reply(text=request.messages[-1].text)

    answers: dict[str, str] = {}

    def work(name: str) -> None:
        session = opened(name)
        answers[name] = Agent(session, ScriptedModel(script)).run(f"I am {name}").answer

    threads = [threading.Thread(target=work, args=(f"agent {n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {f"agent {n}": "1" for n in range(3)}


# borders of the Python interface ------------------------------------------------------------------


def test_a_limit_in_dollars_without_a_price_ends_the_run_with_an_error(opened: Opened) -> None:
    session = opened()
    reply = Reply(text="done", usage=Usage(input_tokens=900, output_tokens=10))
    agent = Agent(session, ScriptedModel([reply, reply]), limits=Limits(dollars=1.0))
    with pytest.raises(BadInput, match="no price is known for"):
        agent.run("go")
    assert [event.content for event in session.events() if event.role == "assistant"] == ["done"]


def test_the_token_limit_counts_the_input(opened: Opened) -> None:
    cell = Reply(
        tool_calls=(ToolCall("", "exec", {"source": "print(1)"}),),
        usage=Usage(input_tokens=5_000, output_tokens=1),
    )
    run = Agent(opened(), ScriptedModel([cell, cell, "late"]), limits=Limits(tokens=4_000)).run(
        "go"
    )
    assert (run.state, run.totals.steps) == ("tokens", 1)


class Failing:
    """A model whose provider is unavailable a number of times."""

    name, window = "failing", 32_000

    def __init__(self, times: int) -> None:
        self.times = times

    def reply(self, _request: Request, **_: object) -> Reply:
        self.times -= 1
        if self.times >= 0:
            raise ModelUnavailable("the provider is overloaded", retry_after=0.01)
        return Reply(text="done")


def test_each_retry_is_an_event_and_a_log_line(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    session = opened()
    assert Agent(session, with_retries(Failing(2))).run("go").answer == "done"
    failures = [event for event in session.events() if event.kind == Kind.FAILURE]
    assert [event.metadata["attempt"] for event in failures] == [1, 2]
    assert all(
        "overloaded" in event.content and event.metadata["wait"] == 0.01 for event in failures
    )
    assert "attempt 2 of 5" in caplog.text and "overloaded" in caplog.text


def test_a_model_that_fails_for_good_leaves_an_event(opened: Opened) -> None:
    session = opened()
    with pytest.raises(ModelUnavailable):
        Agent(session, with_retries(Failing(9), attempts=2)).run("go")
    failures = [event for event in session.events() if event.kind == Kind.FAILURE]
    assert [event.metadata.get("attempt") for event in failures] == [1, None]
    assert all("overloaded" not in message.text for message in session.view().messages)


def test_a_request_that_cannot_fit_the_window_is_not_sent(opened: Opened) -> None:
    model = ScriptedModel(["never"], window=500)
    with pytest.raises(ContextOverflow, match="the window has 500"):
        Agent(opened(), model).run("go")
    assert not model.requests


def test_two_runs_at_once_in_one_session_are_refused(opened: Opened) -> None:
    session, started, go_on = opened(), threading.Event(), threading.Event()

    class Slow(Failing):
        def reply(self, _request: Request, **_: object) -> Reply:
            started.set()
            assert go_on.wait(10)
            return Reply(text="slow")

    first = in_thread(lambda: Agent(session, Slow(0)).run("first"), "test")
    assert started.wait(10)
    with pytest.raises(SessionBusy, match="another run is under way"):
        Agent(session, ScriptedModel(["never"])).run("second")
    go_on.set()
    assert first.result(10).answer == "slow"
    assert "second" not in [event.content for event in session.events()]
    assert Agent(session, ScriptedModel(["later"])).run("third").answer == "later"


def test_an_agent_connects_the_model_that_a_text_names(opened: Opened, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('["hello"]')
    assert Agent(opened(), f"scripted:{script}").run("hi").answer == "hello"


def test_a_message_that_is_not_text_is_refused(opened: Opened) -> None:
    session = opened()
    with pytest.raises(BadInput, match="a message is text, not list"):
        Agent(session, ScriptedModel(["never"])).run(["look", b"png"])  # type: ignore[arg-type]
    assert not [event for event in session.events() if event.role == "user"]


def test_a_session_in_something_else_than_a_store_is_refused(tmp_path: Path) -> None:
    for begin in (
        Session.open,
        lambda place: Session.resume(place, "s"),
        lambda place: Session.open_or_resume(place, "s"),
    ):
        with pytest.raises(BadInput, match="Store"):
            begin(str(tmp_path))  # type: ignore[operator]


def test_a_missing_session_has_an_error_of_its_own(store: Store) -> None:
    with pytest.raises(UnknownSession, match="no session 'nobody'"):
        Session.resume(store, "nobody")


def test_a_folder_with_other_files_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(NotAStore, match="holds other files, but no store"):
        Store(tmp_path, create=True)
