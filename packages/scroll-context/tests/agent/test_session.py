"""Sessions: resuming renders the same bytes, forks share the past, what was recalled is never found
again.
"""

from collections.abc import Callable

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.errors import BadInput, UnknownSeq, UnknownSession
from scroll_context.events import Draft, Kind
from scroll_context.models import Reply, ScriptedModel, exec_cell
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.session.session import Session, fork
from scroll_context.store import Store
from scroll_context.tools.ask import AskReply
from scroll_context.tools.tools import tool

Opened = Callable[..., Session]


def cell(session: Session, source: str) -> str:
    return session.run(source).content


def test_a_resumed_session_renders_the_same_bytes(store: Store, opened: Opened) -> None:
    session = opened()
    steps = [
        exec_cell(f"v{n} = {n}\nprint('line ' * 150)", headline=f"work | step {n} | next | ok")
        for n in range(40)
    ]
    model = ScriptedModel([*steps, "done"], window=5_000)
    Agent(session, model).run("work")
    assert [event for event in session.events() if event.kind == Kind.EVICTION]
    live = session.context.render("system", "digest")
    session.close()
    again = Session.resume(store, "s")
    replayed = again.context.render("system", "digest")
    assert replayed.messages == live.messages
    assert cell(again, "print(v0 + v39)") == "39"
    again.close()


def test_a_misspelt_part_is_refused_and_leaves_no_lease(store: Store) -> None:
    with pytest.raises(TypeError, match="tools, confirm, ask, earlier_tasks, not toolz"):
        Session.open(store, session_id="s", toolz=[])  # type: ignore[call-arg]
    Session.open(store, session_id="s").close()
    with pytest.raises(TypeError, match="not toolz"):
        Session.resume(store, "s", toolz=[])  # type: ignore[call-arg]
    Session.resume(store, "s").close()


def test_variables_and_their_origin_survive(store: Store, opened: Opened) -> None:
    session = opened()
    store.append(
        session.scope.draft(Kind.CONVERSATION, role="user", content="the code word is heron")
    )
    cell(session, "hits = ms.search('code word')\nword = hits[0]['content'].split()[-1]")
    origin = cell(session, "print(ms.provenance('word')['seqs'], word)")
    session.close()
    again = Session.resume(store, "s")
    assert cell(again, "print(ms.provenance('word')['seqs'], word)") == origin
    assert origin == "[2] heron"
    again.close()


def test_a_variable_made_from_events_that_cannot_be_named_says_so(store: Store) -> None:
    with Session.open(store, session_id="s") as session:
        session.say("one word")
        cell(
            session, "top = ms.sql_query('SELECT max(content) AS c FROM hist.events')\nmade_up = 4"
        )
        cell(session, "rows = ms.sql_query('SELECT content FROM hist.events LIMIT 1')")
        assert (
            cell(session, "print(ms.provenance('top')['unknown'], ms.provenance('top')['seqs'])")
            == "True []"
        )
        assert (
            cell(session, "print(ms.provenance('rows')['unknown'], ms.provenance('rows')['seqs'])")
            == "False [1]"
        )
        assert cell(session, "print(ms.provenance('made_up')['seqs'])") == "[]", "of its own line"


def test_what_cannot_be_saved_is_told(store: Store, opened: Opened) -> None:
    session = opened()
    cell(session, "import threading\nlock = threading.Lock()\nkeep = [1, 2]\nalias = keep")
    session.close()
    again = Session.resume(store, "s")
    notice = [event for event in again.events() if event.kind == Kind.NOTICE][-1].content
    assert "keep" in notice and "lost: `lock`" in notice
    assert cell(again, "alias.append(3)\nprint(keep)") == "[1, 2, 3]"
    again.close()


def test_what_was_bound_after_the_last_save_is_told(store: Store, opened: Opened) -> None:
    session = opened()
    cell(session, "kept = 1")
    session.environment.variables.wait_for_save()
    store.append(
        session.scope.draft(
            Kind.OBSERVATION,
            reply_to=store.log.last_seq() + 1,
            metadata={"bound": ["fresh"]},
            content="printed",
        )
    )
    session.close()
    again = Session.resume(store, "s")
    notice = [event for event in again.events() if event.kind == Kind.NOTICE][-1].content
    assert "restored: `kept`" in notice and "lost or out of date: fresh" in notice
    again.close()


def test_a_fork_has_the_past_and_its_own_future(store: Store, opened: Opened) -> None:
    session = opened(agent_id="me")
    Agent(session, ScriptedModel([exec_cell("x = 1\nprint(x)"), "one"])).run("first question")
    session.environment.variables.wait_for_save()
    Agent(session, ScriptedModel([exec_cell("x = 2\nprint(x)"), "two"])).run("second question")
    session.environment.variables.wait_for_save()
    at = next(e.seq for e in session.events() if e.kind == Kind.CONVERSATION and e.content == "one")
    other = session.fork(at, session_id="branch")
    assert cell(other, "print(x)") == "1"
    texts = [m.text for m in other.context.render("", "").messages]
    assert any("first question" in text for text in texts) and not any(
        "second question" in text for text in texts
    )
    assert cell(other, "print(ms.expand(1)[0]['seq'])") == "1"
    assert cell(session, "print(x)") == "2"
    assert next(lineage(store, "branch")).session_id == "s"
    other.close()
    twice = fork(store, "branch", store.log.tail(1, session_id="branch")[0].seq, session_id="twig")
    assert cell(twice, "print(x)") == "1"
    twice.close()


def test_a_fork_has_the_variables_of_its_seq_though_they_were_saved_later(
    store: Store, opened: Opened
) -> None:
    session = opened()
    before = session.say("begin").seq
    printed = session.run("x = 1")
    cell(session, "x = 2")
    session.environment.variables.wait_for_save()
    saved = [event for event in session.events() if event.kind == Kind.SNAPSHOT]
    assert [event.seq > printed.seq for event in saved] == [True, True]
    for at, shown in (
        (before, "NameError"),
        (printed.reply_to, "NameError"),
        (printed.seq, "1"),
        (saved[-1].seq, "2"),
    ):
        with session.fork(at) as branch:
            assert shown in cell(branch, "print(x)"), at
            assert [event.seq for event in branch.events()] == sorted(
                event.seq for event in branch.events()
            )


@pytest.mark.parametrize(
    "metadata", [{}, {"session_id": "old", "at_seq": 99}, {"session_id": 7, "at_seq": "x"}]
)
def test_an_imported_event_that_calls_itself_a_fork_is_no_fork(
    store: Store, metadata: dict[str, object]
) -> None:
    store.append(Draft(kind=Kind.FORK, session_id="old", metadata=metadata))
    said = store.append(Draft(session_id="old", role="user", content="hello"))
    assert [event.seq for event in lineage(store, "old")] == [1, said]
    with Session.resume(store, "old") as session:
        assert session.context.name == "scroll" and cell(session, "print(1)") == "1"


def test_bad_forks_and_names_are_refused(store: Store, opened: Opened) -> None:
    session = opened()
    session.say("hello")
    foreign = store.append(
        session.scope.draft(Kind.CONVERSATION, content="x").__class__(session_id="else")
    )
    with pytest.raises(BadInput, match="does not belong"):
        session.fork(foreign)
    with pytest.raises(UnknownSeq):
        session.fork(999)
    with pytest.raises(BadInput, match="exists already"):
        Session.open(store, session_id="s")
    with pytest.raises(UnknownSession, match="no session"):
        Session.resume(store, "nobody")
    with pytest.raises(BadInput, match="empty"):
        session.say("  ")


def test_recalls_are_never_found_again(store: Store, opened: Opened) -> None:
    session = opened()
    store.append(
        session.scope.draft(Kind.CONVERSATION, role="user", content="my passport number is K4711")
    )
    cell(session, "print(ms.search('passport number')[0]['content'])")
    for _ in range(2):
        found = cell(session, "print([h['kind'] for h in ms.search('passport number', k=50)])")
        assert found.splitlines()[0] == "['conversation']"
        store.index.rebuild()
    observed = next(event for event in session.events() if event.kind == Kind.OBSERVATION)
    assert cell(session, f"print(ms.expand({observed.seq})[0]['content'])") == observed.content


def test_what_the_view_shows_in_full_is_not_a_hit(opened: Opened) -> None:
    session = opened()
    model = ScriptedModel(
        [
            exec_cell("print(len(ms.search('zebra')))"),
            exec_cell("print(len(ms.search('zebra', k=5)))"),
            "ok",
        ]
    )
    Agent(session, model).run("a zebra question")
    assert model.requests[1].messages[-1].text.startswith("0")


def test_the_grant_holds_inside_the_kernel(store: Store, opened: Opened) -> None:
    session = opened("mine", agent_id="me", options=SessionOptions(reach="session"))
    secret = store.append(
        session.scope.draft(Kind.CONVERSATION).__class__(session_id="other", content="hidden pearl")
    )
    assert cell(session, "print(len(ms.search('pearl', all_agents=True, scope='all')))").startswith(
        "0"
    )
    assert "no event within reach" in cell(session, f"ms.expand({secret})")
    assert (
        cell(
            session,
            f"print(ms.sql_query('select count(*) n from hist.events where seq = {secret}')[0])",
        )
        == "{'n': 0}"
    )
    assert "no event has seq" in cell(
        session, f"from handles import Handle\ncall = ms.call\ncall('payload.read', {secret})"
    )


def test_integers_as_text_dates_and_pairs_as_lists(store: Store, opened: Opened) -> None:
    session = opened()
    for n in range(5):
        store.append(
            session.scope.draft(
                Kind.CONVERSATION,
                role="user",
                content=f"meeting {n}",
                created_at=f"2024-05-0{n + 1}",
            )
        )
    assert cell(session, "import ms\nprint(len(ms.search('meeting', k='3')))") == "3"
    assert cell(session, "print([r['seq'] for r in ms.expand('1', '3')])") == "[1, 2, 3]"
    assert (
        cell(session, "print([h['seq'] for h in ms.search('meeting', seq_range=[2, 3])])")
        == "[2, 3]"
    )
    dated = (
        "import datetime\nprint([h['content'] for h in ms.search('meeting', "
        "created_on=datetime.date(2024, 5, 2))])"
    )
    assert cell(session, dated) == "['meeting 1']"
    assert cell(session, "print(ms.days_between('2024-05-01', datetime.date(2024, 6, 1)))") == "31"
    for source, says in (
        ("ms.search('x', wrong=1)", "has no argument 'wrong'"),
        ("ms.search('x', k=0)", "at least 1"),
        ("ms.search(5)", "the query of ms.search must be text, not int"),
        ("ms.expand()", "needs a seq"),
        ("ms.expand(1, 999999999)", "at most 5,000"),
        ("ms.search('x', created_on='soon')", "'soon' is not a date"),
        ("ms.provenance('nothing')", "no variable"),
    ):
        assert says in cell(session, source), source


def test_the_same_search_again_is_named(store: Store, opened: Opened) -> None:
    session = opened()
    store.append(session.scope.draft(Kind.CONVERSATION, role="user", content="rare word: quokka"))
    assert cell(session, "print(len(ms.search('quokka')))") == "1"
    assert "call 2 of the same search" in cell(session, "print(len(ms.search('quokka')))")


def test_ask_is_recorded_cached_and_budgeted(store: Store, opened: Opened) -> None:
    asked: list[str] = []

    def answer(prompt: str, context: str) -> AskReply:
        asked.append(context)
        return AskReply(f"{prompt} -> {len(context)}", 10)

    session = opened(ask=answer)
    assert cell(session, "print(ask('count', 'abc'))") == "count -> 3"
    assert cell(session, "print(ask('count', 'abc'))") == "count -> 3"
    assert asked == ["abc"]
    assert (
        cell(session, "print(ask_many('count', ['a', 'bb', 'abc']))")
        == "['count -> 1', 'count -> 2', 'count -> 3']"
    )
    results = [event for event in session.events() if event.kind == Kind.TOOL_RESULT]
    assert len(results) == 3 and all(event.metadata["inside_cell"] for event in results)


def test_a_tool_with_effects_asks_first(opened: Opened) -> None:
    done: list[str] = []

    @tool(effects=True)
    def pay(amount: int) -> str:
        """Pay."""
        done.append(str(amount))
        return "paid"

    session = opened(tools=[pay], confirm=lambda use: use.arguments["amount"] < 100)
    shown = cell(
        session,
        "print(pay(5))\ntry:\n    pay(500)\nexcept ToolFailed as failed:\n    print('no:', failed)",
    )
    assert shown.startswith("paid\nno: ") and "refused" in shown
    assert done == ["5"]


def test_calls_inside_a_cell_are_told_as_they_happen(opened: Opened) -> None:
    told: list[str] = []
    known: list[list[str]] = []

    @tool
    def fetch() -> int:
        """One."""
        known.append(list(told))
        return 1

    session = opened(tools=[fetch], ask=lambda *_: AskReply("yes"))
    session.subscribe(lambda event: told.append(f"{event.kind} {event.name}"))
    assert cell(session, "print(fetch(), ask('is it?', 'text'))").splitlines()[0] == "1 yes"
    assert known == [["cell exec", "tool_call fetch"]]
    assert told[2:] == ["tool_result fetch", "tool_call ask", "tool_result ask", "observation exec"]


def test_a_fork_can_be_given_what_a_session_is_given(opened: Opened) -> None:
    @tool(effects=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    session = opened()
    at = session.say("hello").seq
    with session.fork(at, tools=[pay], confirm=lambda _: False) as branch:
        assert "the user refused it" in cell(branch, "pay(5)")


def test_a_large_result_arrives_as_a_value(opened: Opened) -> None:
    @tool
    def report() -> dict:
        """A long report."""
        return {"rows": ["x" * 100] * 30_000}

    session = opened(tools=[report])
    assert cell(session, "r = report()\nprint(type(r).__name__, len(r['rows']))").startswith(
        "dict 30000\n"
    )


def test_a_cell_that_prints_too_much_keeps_everything(store: Store, opened: Opened) -> None:
    session = opened()
    event = session.run("print('abcdefgh' * 10_000)")
    assert "[cut: the cell printed 80,001 characters" in event.content and event.payload is not None
    assert store.log.text(event) == "abcdefgh" * 10_000 + "\n"


def test_a_session_without_words_is_not_resumed_into_a_turn(store: Store, opened: Opened) -> None:
    session = opened()
    Agent(session, ScriptedModel([Reply(text="hi")]))
    session.close()
    again = Session.resume(store, "s")
    assert Agent(again, ScriptedModel(["hello"])).run("hey").answer == "hello"
    again.close()
