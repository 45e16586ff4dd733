"""Every context behind the same agent: within its window, valid for providers, and rebuilt from the
log alone.
"""

import re
from importlib.metadata import entry_points

import pytest

from context_runs import TASK, code, counted, of_kind, open_session, reader, record, resume, run
from scroll_context.agent.agent import Agent
from scroll_context.errors import BadInput
from scroll_context.events import Kind
from scroll_context.models import Reply, Request, ScriptedModel, answer, exec_cell
from scroll_context.models.protocol import well_formed
from scroll_context.session.context import GROUP, context_class, make_context
from scroll_context.session.explain import explain
from scroll_context.store import Store
from scroll_evals.contexts import CONTEXTS

ALL = list(CONTEXTS)
EXEC = {"scroll", "scroll-no-index", "scroll-lossy", "codeact"}
RECOVERABLE = {"scroll", "scroll-no-index", "scroll-no-repl"}


def test_the_contexts_are_those_of_the_comparison() -> None:
    baselines = {"react", "codeact", "retrieval", "summarize"}
    assert (
        set(CONTEXTS) == {"scroll", "scroll-no-repl", "scroll-no-index", "scroll-lossy"} | baselines
    )
    offered = set(entry_points(group=GROUP).names)
    assert offered >= set(CONTEXTS) - {"scroll"}, "an installed package offers them"
    assert all(context_class(name) is CONTEXTS[name] for name in CONTEXTS)
    with pytest.raises(BadInput, match="there is no context 'amnesia'; choose one of codeact, "):
        make_context("amnesia", lambda event: event.content)


@pytest.mark.parametrize("context", ALL)
def test_the_model_is_offered_what_the_context_allows(store: Store, context: str) -> None:
    with open_session(store, context) as session:
        _, model = run(session, lambda *_: answer("Nothing to do."), 20_000)
    tools = {spec.name for spec in model.requests[0].tools}
    native = {"scroll-no-repl": {"ms_search", "ms_expand", "ms_sql_query"}, "retrieval": {"recall"}}
    assert tools == ({"exec"} if context in EXEC else {"fetch"} | native.get(context, set()))
    system = model.requests[0].messages[0].text
    assert ("ms.search(" in system) == (context in {"scroll", "scroll-no-index"})
    assert ("def fetch(" in system) == (context in EXEC)
    assert not re.search(r"\{\w+\}", system), "every place in the prompts is filled in"


@pytest.mark.parametrize("context", ALL)
@pytest.mark.parametrize(("window", "size"), [(4_000, 2_500), (8_000, 200_000)])
def test_always_within_the_window_and_valid(
    store: Store, context: str, window: int, size: int
) -> None:
    with open_session(store, context) as session:
        done, model = run(session, reader(session, 30, size), window)
        assert done.state == "answered" and done.totals.steps == 31
        assert of_kind(session, Kind.EVICTION)
        assert max(counted(session)) <= 0.82 * window, "the mark is 0.8, by estimate"
        for request in model.requests:
            assert well_formed(request.messages) == list(request.messages)
            if request.tools:
                assert any(TASK in message.text for message in request.messages), (
                    "the request is never lost"
                )


@pytest.mark.parametrize("context", ALL)
def test_every_request_can_be_rebuilt_from_the_log(store: Store, context: str) -> None:
    with open_session(store, context) as session:
        run(session, reader(session, 15, 40_000), 5_000)
        requests = of_kind(session, Kind.REQUEST)
        assert len(requests) == 16 and of_kind(session, Kind.EVICTION)
        for request in requests:
            assert explain(store, request.seq).verified


@pytest.mark.parametrize("name", ALL)
def test_what_left_is_said_to_be_in_the_index_only_where_there_is_one(
    store: Store, name: str
) -> None:
    def say(request: Request, step: int) -> Reply:
        return answer(f"reply {step} " + "word " * 150)

    with open_session(store, name) as session:
        agent = Agent(session, ScriptedModel(say, window=3_500))
        for turn in range(16):
            agent.run(f"turn {turn} " + "more " * 100)
    assert of_kind(session, Kind.EVICTION)
    found = explain(store, store.log.last_seq())
    assert found.context == name and found.verified
    index = any("index of earlier work" in message.text for message in found.messages)
    assert index or not any(one.now.startswith("index: ") for one in found.departures)


@pytest.mark.parametrize("context", ALL)
def test_a_resumed_session_sees_what_the_first_one_saw(store: Store, context: str) -> None:
    with open_session(store, context) as session:
        run(session, reader(session, 15, 40_000), 5_000)
        before = session.context.render("the rules", "")
    with resume(store, context) as again:
        shown = again.context.render("the rules", "")
        assert [m.text for m in shown.messages[: len(before.messages) - 1]] == [
            m.text for m in before.messages[:-1]
        ]
        done, _ = run(again, reader(again, 3, 40_000), 5_000, "Go on.")
        assert (
            done.state == "answered" and max(counted(again)) <= 0.81 * 5_000
        )  # the high mark is kept by estimate


@pytest.mark.parametrize("context", ALL)
def test_marks_speak_only_of_what_the_context_has(store: Store, context: str) -> None:
    with open_session(store, context) as session:
        _, model = run(session, reader(session, 25, 3_000, printed=1_500), 5_000)
    said = "\n".join(message.text for message in model.requests[-1].messages[1:])
    assert "[scroll: " in said
    assert ("ms.expand(" in said) == (context in {"scroll", "scroll-no-index"})
    assert ("ms_expand(" in said) == (context == "scroll-no-repl")
    assert ("index" in said) == (context in {"scroll", "scroll-no-repl"})
    assert ("recall(query)" in said) == (context == "retrieval")
    assert ("folded" in said) == (context in RECOVERABLE), (
        "what cannot be had again is shown whole until it leaves"
    )


@pytest.mark.parametrize("context", ["react", "retrieval", "summarize", "scroll-no-repl"])
def test_a_native_result_is_shown_whole_where_the_window_allows(store: Store, context: str) -> None:
    with open_session(store, context) as session:
        _, model = run(session, reader(session, 1, 120_000), 128_000)
    assert model.requests[-1].messages[-1].text == record(0, 120_000)


@pytest.mark.parametrize("context", ["codeact", "scroll-lossy"])
def test_cells_without_memory(store: Store, context: str) -> None:
    cells = [
        exec_cell("kept = fetch(3, 500)\nprint('ms' in globals())"),
        exec_cell("print(kept[:40])"),
    ]
    with open_session(store, context) as session:
        _, model = run(session, lambda _, step: [*cells, answer("Done.")][step], 20_000)
    shown = [message.text for message in model.requests[-1].messages if message.role == "tool"]
    assert shown[0].splitlines()[0] == "False" and code(3) in shown[1]


@pytest.mark.parametrize("context", ALL)
def test_nothing_is_lost_from_the_log_whatever_the_model_can_reach(
    store: Store, context: str
) -> None:
    with open_session(store, context) as session:
        run(session, reader(session, 12, 60_000), 6_000)
        results = of_kind(session, Kind.TOOL_RESULT)
        assert [store.log.text(event) for event in results] == [
            record(n, 60_000) for n in range(12)
        ]


@pytest.mark.parametrize("context", ["summarize", "scroll-lossy"])
def test_a_summary_on_its_way_can_be_stopped(store: Store, context: str) -> None:
    with open_session(store, context) as session:
        read = reader(session, 12, 4_000, printed=4_000)
        agent: Agent

        def script(request: Request, step: int) -> Reply:
            if not request.tools:
                agent.stop()
            return read(request, step)

        agent = Agent(session, ScriptedModel(script, window=8_000))
        stopped = agent.run(TASK)
        assert (stopped.state, stopped.answer) == ("stopped", "")
        assert of_kind(session, Kind.EVICTION) == []
        agent = Agent(session, ScriptedModel(read, window=8_000))
        assert agent.run().answer == "All read." and of_kind(session, Kind.EVICTION)
