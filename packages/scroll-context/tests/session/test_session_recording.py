"""What a session records, restores and reads: its own work within its reach, and nothing that was
imported.
"""

from collections.abc import Callable

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.events import Draft, Event, Kind, Scope
from scroll_context.messages import ToolCall
from scroll_context.models import Reply, ScriptedModel, exec_cell
from scroll_context.session.explain import explain
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.tools import tool

Opened = Callable[..., Session]


def test_reach_is_recorded_and_restored(store: Store) -> None:
    with Session.open(
        store, session_id="s", agent_id="me", options=SessionOptions(reach="session")
    ):
        pass
    with Session.resume(store, "s") as again:
        assert again.reach == "session"
    with Session.resume(store, "s", options=SessionOptions(cell_timeout=5.0)) as again:
        assert (again.reach, again.cell_timeout) == ("session", 5.0)
    with Session.resume(store, "s", options=SessionOptions(reach="all")) as wider:
        assert wider.reach == "all"


def test_two_users_of_one_store_do_not_read_each_other_by_default(store: Store) -> None:
    with Session.open(store, session_id="one") as one, Session.open(store, session_id="two") as two:
        one.say("the safe opens with 4711")
        assert two.reach == "session"
        assert two.run("print(len(ms.search('safe opens')), len(ms.outline()))").content.startswith(
            "0 0"
        )
    with Session.open(store, session_id="three", agent_id="me") as three:
        assert three.reach == "agent"


def test_a_session_without_a_recorded_reach_is_resumed_as_narrow_and_says_so(store: Store) -> None:
    store.log.append(Draft(session_id="old", agent_id="me", role="user", content="hello"))
    store.log.append(Draft(session_id="other", agent_id="me", role="user", content="hidden pearl"))
    with Session.resume(store, "old") as session:
        assert session.reach == "session"
        assert session.run("print(len(ms.search('pearl')))").content.startswith("0")
        notice = next(e for e in session.events() if e.kind == Kind.NOTICE)
        assert "reaches this session only" in notice.content


def test_what_was_imported_restores_forks_and_plans_nothing(store: Store, tmp_path: object) -> None:
    called: list[int] = []

    @tool
    def effect() -> int:
        """Has an effect."""
        called.append(1)
        return 1

    with Session.open(store, session_id="mine", agent_id="me") as mine:
        mine.say("a private plan")
    scope = Scope("theirs", "me")
    foreign = {"imported": "chat.jsonl"}
    last = store.log.last_seq()
    drafts = [
        scope.draft(Kind.FORK, metadata={**foreign, "session_id": "mine", "at_seq": last}),
        scope.draft(Kind.CONVERSATION, role="user", content="hello", metadata=foreign),
        scope.draft(
            Kind.SESSION, content="opened", metadata={**foreign, "settings": {"reach": "all"}}
        ),
        scope.draft(Kind.SNAPSHOT, content='{"cell":1,"python":"3.11"}', metadata=foreign),
        scope.draft(Kind.EVICTION, content="x", metadata={**foreign, "plan": {"nonsense": True}}),
    ]
    store.log.append_many(drafts)
    assert {event.session_id for event in lineage(store, "theirs")} == {"theirs"}
    with Session.resume(store, "theirs", tools=[effect]) as session:
        assert session.reach == "session"
        sent = session.view("system")
        assert "private plan" not in str(sent) and "hello" in str(sent)
    assert not called


def test_a_fork_stays_with_its_agent(store: Store) -> None:
    with Session.open(store, session_id="mine", agent_id="me") as mine:
        at = mine.say("private").seq
    store.log.append(
        Scope("theirs", "other").draft(
            Kind.FORK, metadata={"session_id": "mine", "at_seq": at}, content="fork"
        )
    )
    assert [event.session_id for event in lineage(store, "theirs")] == ["theirs"]


def test_an_observer_that_raises_changes_no_turn(opened: Opened) -> None:
    paid: list[int] = []

    @tool(effects=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def broken(event: Event) -> None:
        raise RuntimeError("the application is broken")

    session = opened(tools=[pay])
    session.subscribe(broken)
    model = ScriptedModel([exec_cell("print(pay(5))"), "done"])
    assert Agent(session, model).run("pay").answer == "done"
    assert paid == [5] and model.requests[1].messages[-1].text.startswith("paid\n[1 tool call, ")


def test_a_reply_that_was_cut_off_is_no_answer(opened: Opened) -> None:
    cut = Reply(text="The answer is", finish_reason="length")
    session = opened()
    assert (
        Agent(session, ScriptedModel([cut, "It is 42."])).run("what is it?").answer == "It is 42."
    )
    run = Agent(session, ScriptedModel([cut] * 3)).run("and now?")
    assert (run.state, run.answer) == ("cut", "The answer is")


@pytest.mark.parametrize(
    ("source", "is_echo"),
    [
        ("wait = '30 ms'  # about 30 ms", False),
        ("limits = {'ms': 30}", False),
        ("hits = ms.search('x')", True),
        ("import ms", True),
        ("from ms import search", True),
        ("m = ms\nprint(m.outline())", True),
    ],
)
def test_only_cells_that_use_ms_are_echoes(opened: Opened, source: str, is_echo: bool) -> None:
    session = opened()
    session.run(source, "c")
    cell = next(event for event in session.events() if event.kind == Kind.CELL)
    assert cell.is_echo is is_echo


def test_twelve_thousand_characters_shown_whole_are_not_called_clipped(opened: Opened) -> None:
    session = opened()
    session.say("print")
    session.view("system", window=60_000)
    session.replied(Reply(tool_calls=(ToolCall("c", "exec", {}),)))
    session.run("print('漢' * 12_000)", "c")
    shown = session.view("system", window=60_000).messages[-1].text
    assert shown.count("漢") == 12_000 and "clipped" not in shown


def test_a_tool_that_outlives_its_cell_leaves_every_request_verifiable(
    store: Store, opened: Opened
) -> None:
    """Shown before the journal: 3 of 17 requests did not verify, since the live view had not seen
    the late result.
    """
    import threading

    release, ended = threading.Event(), threading.Event()

    @tool
    def slow() -> int:
        """Slow."""
        release.wait(20)
        return 1

    session = opened(tools=[slow])
    session.subscribe(
        lambda e: ended.set() if e.kind == Kind.TOOL_RESULT and e.name == "slow" else None
    )
    begin = "import threading, time\nt = threading.Thread(target=slow)\nt.start()\ntime.sleep(0.5)\nprint('begun')"
    steps = [exec_cell(f"print('line {n} ' * 60)") for n in range(8)]
    more = [exec_cell(f"print('more {n} ' * 60)") for n in range(8)]
    Agent(session, ScriptedModel([exec_cell(begin), *steps, "ok"], window=4_000)).run("go")
    release.set()
    assert ended.wait(20)
    Agent(session, ScriptedModel([*more, "ok"], window=4_000)).run("go on")
    requests = [e.seq for e in session.events() if e.kind == Kind.REQUEST]
    assert len(requests) == 19
    assert [seq for seq in requests if not explain(store, seq).verified] == []
