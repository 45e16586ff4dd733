"""The turn that others can drive: view, replied, run, call_tool; and the lease around a session."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scroll_context.errors import BadInput, ContextOverflow, SessionBusy
from scroll_context.events import Kind
from scroll_context.log.journal import Quota
from scroll_context.messages import ToolCall
from scroll_context.models import Reply
from scroll_context.session.explain import explain
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.tools import tool
from scroll_context.view.eviction import ViewBudget

Opened = Callable[..., Session]


# a request and a reply ----------------------------------------------------------------------------------


def test_a_turn_without_the_agent(store: Store, opened: Opened) -> None:
    @tool
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    session = opened(tools=[double])
    session.say("work")
    request = session.view("You work.", window=8_000, model_name="host")
    assert [m.role for m in request.messages] == ["system", "user"]
    session.replied(
        Reply(tool_calls=(ToolCall("a", "exec", {}), ToolCall("b", "double", {"number": 4})))
    )
    assert session.run("x = double(21)\nprint(x)", "a").content.startswith("42\n[1 tool call, ")
    assert session.call_tool(ToolCall("b", "double", {"number": 4})).content == "8"
    shown = session.view("You work.", window=8_000, model_name="host").messages
    assert [(m.role, m.text.partition("\n")[0]) for m in shown[2:]] == [
        ("assistant", ""),
        ("tool", "42"),
        ("tool", "8"),
    ]
    session.replied(Reply(text="done"))
    for request_event in store.log.iterate(kind=Kind.REQUEST):
        assert explain(store, request_event.seq).verified
    setups = [e for e in store.log.iterate(kind=Kind.SESSION) if "tools" in e.metadata]
    assert len(setups) == 1, "the constant part of the requests is recorded once"


def test_a_view_that_cannot_shrink_says_so(opened: Opened) -> None:
    session = opened()
    session.say("short")
    session.view("s", window=4_000)
    with pytest.raises(ContextOverflow, match="nothing more can leave"):
        session.view("s", window=4_000, overflowed=True)


def test_tools_can_be_added_to_an_open_session(opened: Opened) -> None:
    @tool
    def first() -> int:
        """One."""
        return 1

    @tool
    def second() -> int:
        """Two."""
        return 2

    session = opened(tools=[first])
    assert session.run("kept = first()\nprint(kept)").content.splitlines()[0] == "1"
    session.add_tools([second])
    assert session.run("print(kept + second() + first())").content.splitlines()[0] == "4"
    with pytest.raises(BadInput, match="is already used"):
        session.add_tools([second])


def test_cancelling_a_task_interrupts_the_cell_and_keeps_the_variables(opened: Opened) -> None:
    begun = threading.Event()

    @tool
    def begin() -> None:
        """Say that the cell is at work."""
        begun.set()

    session = opened(tools=[begin])

    async def cancelled() -> None:
        task = asyncio.create_task(session.arun("kept = 7\nbegin()\nwhile True:\n    pass", "c"))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert session.run("print(kept)").content == "7"
    states = [e.tool_state for e in session.events() if e.kind == Kind.OBSERVATION]
    assert states == ["interrupted", "ok"]


# the session as a whole ---------------------------------------------------------------------------------


def test_a_session_is_open_once(store: Store, opened: Opened) -> None:
    session = opened()
    with pytest.raises(SessionBusy, match="is open elsewhere"):
        Session.resume(store, "s")
    session.close()
    Session.resume(store, "s").close()


def test_the_name_of_the_stores_own_session_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="is reserved for the store"):
        Session.open(store, session_id="scroll.store")


def test_open_or_resume(store: Store) -> None:
    with Session.open_or_resume(store, "s", agent_id="me") as session:
        session.say("hello")
    with Session.open_or_resume(store, "s") as session:
        assert session.scope.agent_id == "me"
        assert "hello" in session.view("").messages[0].text


def test_a_quota_refuses_cells_calls_and_messages(store: Store, opened: Opened) -> None:
    calls: list[int] = []

    @tool
    def count() -> int:
        """Count."""
        calls.append(1)
        return len(calls)

    session = opened(tools=[count], options=SessionOptions(quota=Quota(events=8)))
    assert "larger SessionOptions.quota" in session.run("for n in range(9):\n    count()").content
    assert len(calls) < 9
    refused = session.run("print('not run')", "c")
    assert (
        refused.tool_state == "refused" and "not run: this session has recorded" in refused.content
    )
    assert session.call_tool(ToolCall("c", "count", {})).tool_state == "refused"
    made = len(calls)
    session.close()
    with Session.resume(
        store, "s", tools=[count], options=SessionOptions(quota=Quota(events=1_000))
    ) as larger:
        assert larger.run("print(count())").content.splitlines()[0] == str(made + 1)


def test_the_budget_of_the_view_is_a_setting_of_the_session(store: Store) -> None:
    deep = ViewBudget(high=0.5, low=0.1, keep_steps=1)
    with Session.open(store, session_id="s", options=SessionOptions(budget=deep)) as session:
        for n in range(12):
            session.say(f"question {n} " + "word " * 100)
            session.view("system", window=2_000)
            session.replied(Reply(text="answer"))
        evictions = [e for e in session.events() if e.kind == Kind.EVICTION]
        assert evictions and all(e.metadata["plan"]["limit"] <= 1_000 for e in evictions)
    with Session.resume(store, "s") as again:
        assert again.budget == deep


def test_cells_import_the_packages_that_a_session_is_given(store: Store, tmp_path: Path) -> None:
    (tmp_path / "libs" / "ourlib").mkdir(parents=True)
    (tmp_path / "libs" / "ourlib" / "__init__.py").write_text("ANSWER = 42\n")
    packages = (str(tmp_path / "libs" / "ourlib"),)
    with Session.open(store, session_id="s", options=SessionOptions(packages=packages)) as session:
        assert session.run("import ourlib\nprint(ourlib.ANSWER)").content == "42"
    with Session.resume(store, "s", options=SessionOptions(packages=packages)) as session:
        assert session.run("import ourlib\nprint(ourlib.ANSWER)").content == "42"
    with Session.open(store, session_id="other") as session:
        assert "No module named 'ourlib'" in session.run("import ourlib").content
