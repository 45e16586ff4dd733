"""The turn that others can drive: observe, view, replied, run, call_tool; and the lease around a
session.
"""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scroll_context.errors import BadInput, ContextOverflow, SessionBusy
from scroll_context.events import Draft, Kind
from scroll_context.log.journal import Quota
from scroll_context.log.redact import Redactor
from scroll_context.messages import Message, ToolCall
from scroll_context.models import Reply
from scroll_context.session.explain import explain
from scroll_context.session.observe import HostRecord
from scroll_context.session.session import Session, SessionOptions
from scroll_context.store import Store
from scroll_context.tools.tools import tool
from scroll_context.view.eviction import ViewBudget

Opened = Callable[..., Session]


def user(text: str) -> Message:
    return Message(role="user", text=text)


def assistant(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", text=text, tool_calls=calls)


def result(call_id: str, text: str) -> Message:
    return Message(role="tool", text=text, tool_call_id=call_id, name="look")


class FrameworkText(str):
    """A framework's own kind of text."""


# observing ----------------------------------------------------------------------------------------------


def test_the_same_prompt_twice_is_two_events_and_the_same_history_again_is_none(
    store: Store, opened: Opened
) -> None:
    session = opened()
    history = [user("again")]
    assert session.observe(history) == 1
    session.replied(Reply(text="yes"))
    history += [assistant("yes"), user("again")]
    assert session.observe(history) == 1
    assert session.observe(history) == 0
    session.close()
    with Session.resume(store, "s") as after_a_restart:
        assert after_a_restart.observe(history) == 0
        assert after_a_restart.observe([*history, user("again")]) == 1
    said = [event.content for event in store.log.iterate(session_id="s", kind=Kind.CONVERSATION)]
    assert said == ["again", "yes", "again", "again"]


def test_a_trimmed_head_and_a_summary_at_the_head(opened: Opened) -> None:
    session = opened()
    history = [
        message for n in range(6) for message in (user(f"question {n}"), assistant(f"answer {n}"))
    ]
    assert session.observe(history) == 12
    assert session.observe(history[8:]) == 0
    assert session.observe([*history[8:], user("question 0")]) == 1, (
        "an old question that is asked again"
    )
    assert session.observe([user("a summary"), *history[10:], user("question 0"), user("new")]) == 2


def test_what_the_host_dropped_from_the_end_is_no_reason_to_record_the_rest_again(
    opened: Opened,
) -> None:
    session = opened()
    session.observe([user("one")])
    session.replied(Reply(text="half a", finish_reason="stopped"))
    assert session.observe([user("one"), user("two")]) == 1


def test_ids_of_the_host_are_keys(store: Store, opened: Opened) -> None:
    session = opened()
    assert session.observe([user("hello"), assistant("hi")], ["m1", "m2"]) == 2
    assert session.observe([user("hello"), assistant("hi"), user("hello")], ["m1", "m2", "m3"]) == 1
    assert session.observe([user("hello, edited"), user("hello")], ["m1", "m3"]) == 0
    session.replied(Reply(text="a reply that the host gives an id later"))
    later = [assistant("a reply that the host gives an id later"), user("hello")]
    assert session.observe(later, ["m4", "m5"]) == 1
    session.close()
    with Session.resume(store, "s") as again:
        assert again.observe(later, ["m4", "m5"]) == 0


def test_results_are_known_by_their_calls_and_texts_of_frameworks_are_texts(opened: Opened) -> None:
    session = opened()
    call = ToolCall("c1", "look", {"at": "sky"})
    session.observe([user("look"), assistant("", call), result("c1", "blue")])
    assert session.observe([user("look"), assistant("", call), result("c1", "[wrapped] blue")]) == 0
    texts = [m.text for m in session.view("system").messages]
    assert texts[-1] == "blue"
    session.observe([Message(role="user", text=FrameworkText("thanks"))])
    assert type(session.say(FrameworkText("bye")).content) is str


def test_a_short_prompt_that_was_said_before_hides_no_longer_overlap(opened: Opened) -> None:
    session = opened()
    history = [user("continue"), assistant("answer 1"), user("a question"), assistant("answer 2")]
    assert session.observe([*history, user("continue")]) == 5
    assert session.observe([*history, user("another question")]) == 1, (
        "the host dropped the last prompt"
    )
    said = [event.content for event in session.events() if event.kind == Kind.CONVERSATION]
    assert said[-2:] == ["continue", "another question"]
    assert session.observe([user("continue"), user("another question"), user("continue")]) == 1


def test_the_longest_overlap_counts_and_not_the_first(opened: Opened) -> None:
    session = opened()
    history = [message for n in range(4) for message in (user("continue"), assistant(f"part {n}"))]
    history.append(user("continue"))
    assert session.observe(history) == 9
    summary = [user("continue"), assistant("a summary of the first parts")]
    assert session.observe([*summary, *history[4:], assistant("part 4"), user("continue")]) == 3
    said = [event.content for event in session.events() if event.kind == Kind.CONVERSATION]
    assert said[-3:] == ["a summary of the first parts", "part 4", "continue"]


@pytest.mark.parametrize("length", [100, 40_000])
def test_a_message_is_recorded_once_however_long_it_is(
    store: Store, opened: Opened, length: int
) -> None:
    """Above 32 KiB the log keeps the text as a payload, and a preview in its row."""
    session = opened()
    log, answer = "line of a log " * (length // 14), "row of an answer " * (length // 17)
    history = [user(f"{log} What is wrong?"), assistant(f"{answer} Nothing.")]
    assert session.observe(history) == 2
    assert session.observe(history) == 0
    assert session.observe([user(f"{log} And now?")]) == 1, "only its end differs"
    session.replied(Reply(text=f"{answer} Still nothing."))
    history += [user(f"{log} And now?"), assistant(f"{answer} Still nothing."), user("thanks")]
    assert session.observe(history) == 1
    session.close()
    with Session.resume(store, "s") as again:
        assert again.observe(history) == 0


def test_a_reply_is_known_without_its_headline(opened: Opened) -> None:
    session = opened()
    session.observe([user("go")])
    session.replied(Reply(text="It is done.\n⟦ work | done | none | done ⟧"))
    assert session.observe([user("go"), assistant("It is done."), user("thanks")]) == 1


def test_a_message_is_recorded_once_when_secrets_and_odd_characters_were_replaced(
    opened: Opened,
) -> None:
    session = opened()
    session.journal.redact = Redactor()
    history = [user("the token is ghp_" + "a1B2c3D4e5" * 4), user("half a pair: \ud800")]
    assert session.observe(history) == 2
    assert session.observe(history) == 0
    assert "ghp_" not in str([event.content for event in session.events()])


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
    assert session.run("x = double(21)\nprint(x)", "a").content.startswith("42\n[1 call of tools, ")
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
    with pytest.raises(BadInput, match="is taken"):
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
    with pytest.raises(BadInput, match="is the store's own"):
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


def test_an_import_with_calls_of_another_shape_can_be_compared_with_a_hosts_history(
    store: Store,
) -> None:
    record = HostRecord(store.log.text)
    for calls in ([7], 7, [{"id": 1}]):
        made = Draft(
            role="assistant",
            source_key=f"import:{calls}",
            content="hello",
            metadata={"tool_calls": calls},
        )
        record.add(store.log.get(store.append(made)))
    assert record.missing([Message(role="user", text="hello")]) == [0]


def test_ids_of_two_hosts_that_join_to_the_same_text_lose_no_message(tmp_path: Path) -> None:
    with Store(tmp_path / "store", create=True) as store:
        for session_id, host_id in (("alice", "2:m1"), ("alice:2", "m1")):
            with Session.open(store, session_id=session_id) as session:
                text = f"hello from {session_id}"
                assert session.observe([Message(role="user", text=text)], [host_id]) == 1
                assert [event.content for event in session.events() if event.role == "user"] == [
                    text
                ]
